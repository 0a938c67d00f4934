-- Adds a task that is due every $2 ms, first $3 ms after the start, works $4 ms, and is enabled if $5.
INSERT INTO fleet.task (name, every, work, enabled, first_run, next_run)
SELECT $1, $2 * interval '1 ms', $4 * interval '1 ms', $5, first, first
  FROM fleet.span AS s, LATERAL (SELECT s.starts_at + $3 * interval '1 ms') AS f (first)
