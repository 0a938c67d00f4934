-- Adds a task that is due every $2 ms, works $3 ms, and is enabled if $4; when it is due first the
-- scheduler knows.
INSERT INTO fleet.task (name, every, work, enabled, first_run)
SELECT t.name, $2 * interval '1 ms', $3 * interval '1 ms', $4,
       coalesce((SELECT min(r.fire_at)
                   FROM lockapi.task_run AS r, fleet.span AS s
                  WHERE r.namespace = t.namespace AND r.scheduler = t.scheduler AND r.task = t.name
                    AND r.fired_at >= s.starts_at), t.next_at)
  FROM lockapi.task AS t
 WHERE t.namespace = 'default' AND t.scheduler = 'fleet' AND t.name = $1
