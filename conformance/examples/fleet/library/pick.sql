-- What is due, in an order of its own for each $1, so that workers do not all try the same lock
-- first; what has been due for long comes first for all of them.
WITH due AS (
    SELECT t.name, t.next_run
      FROM fleet.task AS t, fleet.span AS s
     WHERE t.enabled
       AND t.next_run <= least(clock_timestamp(), s.ends_at)
     ORDER BY t.next_run > clock_timestamp() - interval '1 s', hashtext(t.name || $1)
     LIMIT $2
)
SELECT (SELECT coalesce(array_agg(name), '{}') FROM due) AS due,
       clock_timestamp() > s.ends_at
       AND NOT EXISTS (SELECT FROM fleet.task WHERE enabled AND next_run <= s.ends_at) AS over
  FROM fleet.span AS s
