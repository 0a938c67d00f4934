-- Frames a versioned update of a table of the program, of two parts that are made for it: what locks
-- the row and reads its version, and what writes it if that is the version that was seen. Each answers
-- the version.
--
-- Promises: one row with the version that was found and the one that was written, or none.
-- Index: that of the parts.
-- Race: whichever part the server runs first, a row that was written before it was to be locked is
-- not found, and a row that is locked first is compared as it is then.
WITH found (version) AS MATERIALIZED ({found}), written (version) AS ({written})
SELECT f.version::pg_catalog.int8 AS found, w.version::pg_catalog.int8 AS written
  FROM found AS f
  FULL JOIN written AS w ON true
