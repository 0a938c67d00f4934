-- Combines the two parts of a versioned update of a table of the program: one locks the row and reads its
-- version, the other writes the row if its version is the one that was seen. Each returns the version.
--
-- Promises: one row with the version that was found and the one that was written, or none.
-- Index: that of the parts.
-- Race: whichever part the server runs first, a row that was written before it could be locked is not found,
-- and a row that is locked first is compared in its version at that time.
WITH found (version) AS MATERIALIZED ({found}), written (version) AS ({written})
SELECT f.version::pg_catalog.int8 AS found, w.version::pg_catalog.int8 AS written
  FROM found AS f
  FULL JOIN written AS w ON true
