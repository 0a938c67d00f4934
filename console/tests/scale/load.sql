-- Fills the tables as a busy installation has them: as many jobs as the setting scale.jobs says, nine of ten in one queue.
--
-- Promises: about a twentieth is delayed, a thirtieth is in groups, a fiftieth runs, and for ten jobs there is one in the
-- archive, most of them dead letters. There are 43 queues, and other namespaces have audit entries, leases and limits
-- that screens have to pass by.
-- Index: none, it only inserts. Race: none, nobody else uses the schema.

-- Waiting and delayed jobs of the large queue, of all priorities; the numbers of their moments are in no order.
INSERT INTO lockapi.job (run_at, created_at, attempt, max_attempts, priority, error, namespace, queue, name, payload, unique_key, expires_at)
SELECT CASE WHEN n % 19 = 0 THEN now() + (n * 7919 % 2592000 + 600) * interval '1 second'
            ELSE now() - (n * 7919 % 2592000) * interval '1 second' END,
       now() - interval '30 days', (n % 50 = 0)::int4, 25, CASE n % 10 WHEN 0 THEN 0 WHEN 1 THEN 1 WHEN 3 THEN 3 ELSE 2 END,
       CASE WHEN n % 50 = 0 THEN '421 try again later' END, 'default', 'mails',
       (ARRAY['send', 'digest', 'receipt'])[n % 3 + 1], json_build_object('to', 'user' || n || '@example.com', 'template', 'welcome'),
       CASE WHEN n % 100 = 0 THEN 'key ' || n END, CASE WHEN n % 200 = 0 THEN now() + interval '40 days' END
  FROM generate_series(1, current_setting('scale.jobs')::int8 * 9 / 10) AS n;

-- Jobs of groups: parked, but for one of each group that is admitted.
INSERT INTO lockapi.job (run_at, due_at, group_key, max_attempts, priority, namespace, queue, name, payload)
SELECT CASE WHEN n <= 100 THEN now() - interval '1 minute' ELSE timestamptz '20000-01-01 00:00:00+00' END,
       CASE WHEN n > 100 THEN now() - (n % 86400) * interval '1 second' END,
       'tenant ' || n % 1000, 25, 2, 'default', 'tenants', 'sync', '{"full":true}'
  FROM generate_series(1, current_setting('scale.jobs')::int8 * 3 / 100) AS n;

-- Jobs that run, before as many that wait.
INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, token, claim, lease_until, started_at, attempt, worker)
SELECT now() - (n % 7200) * interval '1 second', 25, 2, 'default', 'thumbnails', 'resize', '[1024,768]',
       CASE WHEN n % 3 > 0 THEN n END, CASE WHEN n % 3 > 0 THEN n END, CASE WHEN n % 3 > 0 THEN now() + interval '1 day' END,
       CASE WHEN n % 3 > 0 THEN now() - interval '1 minute' END, (n % 3 > 0)::int4, CASE WHEN n % 3 > 0 THEN 'node-' || n % 40 END
  FROM generate_series(1, current_setting('scale.jobs')::int8 * 3 / 100) AS n;

-- Forty queues more, each with jobs of every priority.
INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
SELECT now() + (n * 7919 % 20000 - 15000) * interval '1 second', 25, n / 40 % 4, 'default', 'queue ' || to_char(n % 40, 'FM00'),
       'work', to_json(n)
  FROM generate_series(1, current_setting('scale.jobs')::int8 * 4 / 100) AS n;

INSERT INTO lockapi.job_archive (id, status, run_at, created_at, started_at, completed_at, attempt, max_attempts, priority,
                                 worker, error, namespace, queue, name, payload, expires_at, errors)
SELECT nextval('lockapi.job_seq'), s.status, now() - interval '2 hours', now() - interval '3 hours', now() - interval '1 hour',
       now() - interval '50 minutes', 25, 25, 2, 'node-' || n % 40, CASE WHEN s.status = 'failed' THEN '550 no such address' END,
       'default', CASE WHEN n % 4 = 0 THEN 'queue ' || to_char(n % 40, 'FM00') ELSE 'mails' END, 'send',
       json_build_object('to', 'user' || n || '@example.com'), now() + interval '7 days',
       CASE WHEN s.status = 'failed' THEN jsonb_build_array(jsonb_build_object('attempt', 25, 'at', 1700000000000000, 'worker', 'node-1', 'error', '550 no such address')) END
  FROM generate_series(1, current_setting('scale.jobs')::int8 / 10) AS n
 CROSS JOIN LATERAL (SELECT (ARRAY['failed', 'failed', 'failed', 'completed', 'cancelled'])[n % 5 + 1] AS status) AS s;

INSERT INTO lockapi.queue (namespace, name, paused) VALUES ('default', 'queue 07', true);

INSERT INTO lockapi.audit (namespace, action, target, reason)
SELECT CASE WHEN n % 1000 = 0 THEN 'default' ELSE 'other' END, 'cancel job', 'job ' || n, 'a test'
  FROM generate_series(1, current_setting('scale.jobs')::int8 / 20) AS n;

INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, held_until, expires_at, released_at)
SELECT CASE WHEN n % 100 = 0 THEN 'default' ELSE 'other' END, 'lease ' || n, CASE WHEN n % 1000 = 0 THEN -1 ELSE 0 END, n, n, 'node-1', '',
       now() - interval '1 hour', now(), now() + interval '1 day', now() + CASE WHEN n % 10 = 0 THEN interval '1 day' ELSE interval '-1 day' END, NULL
  FROM generate_series(1, current_setting('scale.jobs')::int8 / 100) AS n;

INSERT INTO lockapi.rate_limit (namespace, key, tat, at, started, span, used)
SELECT CASE WHEN n % 100 = 0 THEN 'default' ELSE 'other' END, 'user:' || n, c.now, c.now, c.now - 1000000000, 60000000000, n % 100
  FROM generate_series(1, current_setting('scale.jobs')::int8 / 50) AS n, (SELECT lockapi.clock() AS now) AS c;

INSERT INTO lockapi.task (next_at, every, timeout, misfire, misfire_most, overlap, max_attempts, priority, namespace, scheduler, name, job, payload)
SELECT now() + n * interval '1 minute', 3600000000, 0, 1, 0, 0, 3, 2, 'default', 'upkeep ' || n % 10, 'task ' || n, 'work', '1'
  FROM generate_series(1, 300) AS n;

INSERT INTO lockapi.task_run (decided, error, fire_at, namespace, scheduler, task, fired_by)
SELECT 'skipped', 'missed', now() - (n / 300) * interval '1 hour', 'default', 'upkeep ' || n % 300 % 10, 'task ' || n % 300, 'node-1'
  FROM generate_series(1, current_setting('scale.jobs')::int8 / 20) AS n;

INSERT INTO lockapi.id_worker (namespace, name, worker, token, floor, owner, claimed_at, renewed_at, expires_at)
SELECT CASE WHEN n % 10 = 0 THEN 'default' ELSE 'other' END, 'orders', n, n, 0, 'node-1', now(), now(), now() + interval '1 day'
  FROM generate_series(1, 1000) AS n;
