-- Reads which indexes of the schema lockapi were never read, although their tables were used.
--
-- Promises: a row for each, with its name and what was found. The numbers are those of this server, since its statistics
-- were reset. An index that is unique is left out: it is of use without being read.
-- Index: those of the catalogs, and statistics. Race: none, it only reads.
SELECT 'other_index' AS fault, s.indexrelname::text AS subject,
       'nobody has read it in ' || t.n_tup_ins + t.n_tup_upd + t.n_tup_del || ' writes' AS detail
  FROM pg_catalog.pg_stat_all_indexes AS s
  JOIN pg_catalog.pg_stat_all_tables AS t ON t.relid = s.relid
  JOIN pg_catalog.pg_index AS i ON i.indexrelid = s.indexrelid
 WHERE s.schemaname = 'lockapi' AND s.idx_scan = 0 AND NOT i.indisunique AND t.n_tup_ins + t.n_tup_upd + t.n_tup_del >= 1000
 ORDER BY 1, 2
