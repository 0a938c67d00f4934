-- Enables or disables a task; an enabled task is next due at $5.
--
-- Promises: once it is committed, no node fires a disabled task; a task that is enabled is not fired for the
-- time when it was disabled. A task that already has the requested state is not changed. Returns whether
-- there is such a task; a task with a version other than $6 does not count.
-- Index: task_pkey.
-- Race: a change of the task since it was read has raised the version.
WITH there AS MATERIALIZED (
    SELECT t.name, t.enabled
      FROM lockapi.task AS t
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = $3::text AND t.version = $6::int8
       FOR UPDATE OF t
), switched AS (
    UPDATE lockapi.task AS t
       SET enabled = $4::bool, version = t.version + 1, changed_at = pg_catalog.clock_timestamp(),
           next_at = CASE WHEN NOT $4::bool THEN t.next_at
                          WHEN $5::int8 >= 0 THEN timestamptz 'epoch' + $5::int8 * interval '1 microsecond' END
      FROM there AS h
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = h.name AND h.enabled <> $4::bool
    RETURNING t.name
)
SELECT EXISTS (SELECT FROM there) AS found,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', x.topic::text))
          FROM unnest($7::int8[]) AS x (topic), switched) AS told
