-- Stores what handlers told of their jobs. Of several reports of one delivery in the batch, the last one is stored.
--
-- Promises: only the latest delivery of a job reports, whether or not its lease has ended, also when it has ended the job
-- and that is in the archive; a report never replaces one of a later delivery. Returns the deliveries whose reports were
-- stored. No row of a job is locked or changed, so a report waits for no transaction of a program, and none for it.
-- Index: job_pkey, job_archive_pkey and job_progress_pkey; no other fits. No indexed column changes: further reports of
-- a job are HOT.
-- Race: a job that is delivered again meanwhile is as of the snapshot, so a report of the delivery before may still be
-- stored; it is not shown, because the job has another token, and the next delivery replaces it. Of two deliveries that
-- report at the same time, the later one stays, by the tokens. Rows are written in the order of their numbers, so that
-- two batches do not deadlock.
WITH report AS MATERIALIZED (
    SELECT DISTINCT ON (r.id, r.token) r.id, r.token, r.millionths, r.note
      FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[]) WITH ORDINALITY AS r (id, token, millionths, note, n)
     ORDER BY r.id, r.token, r.n DESC
), latest AS MATERIALIZED (
    SELECT r.id, r.token, r.millionths, r.note
      FROM report AS r
     CROSS JOIN LATERAL (
           SELECT FROM lockapi.job AS j WHERE j.id = r.id AND j.token = r.token
            UNION ALL
           SELECT FROM lockapi.job_archive AS a WHERE a.id = r.id AND a.token = r.token
            LIMIT 1) AS o
), stored AS (
    INSERT INTO lockapi.job_progress AS p (id, token, reported_at, fraction, note)
    SELECT l.id, l.token, pg_catalog.clock_timestamp(), l.millionths / 1000000.0, l.note
      FROM latest AS l
     ORDER BY l.id
        ON CONFLICT (id) DO UPDATE
       SET token = EXCLUDED.token, reported_at = EXCLUDED.reported_at, fraction = EXCLUDED.fraction, note = EXCLUDED.note
     WHERE p.token <= EXCLUDED.token
    RETURNING p.id, p.token
)
SELECT s.id, s.token FROM stored AS s
