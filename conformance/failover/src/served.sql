-- The epoch that this server has begun, if it is a primary.
SELECT e.number
  FROM lockapi.epoch AS e
 WHERE CASE WHEN pg_is_in_recovery() THEN false
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 = e.timeline END
