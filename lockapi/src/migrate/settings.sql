-- Makes the transaction of a migration independent of the settings of its role and of the session.
--
-- The wait for a lock that is not available at once ends soon: a session that waits for one blocks all others
-- from the table, including readers, even after its client has gone.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '500ms';
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = '10s';
SET LOCAL standard_conforming_strings = on;
SET LOCAL client_min_messages = error;
-- What the server has of these: an answered migration is durable, and may take its time.
SELECT pg_catalog.set_config(s.name, w.value, true)
  FROM (VALUES ('transaction_timeout', '0'),
               ('synchronous_commit',
                CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_apply'
                     THEN 'remote_apply' ELSE 'on' END)) AS w (name, value)
  JOIN pg_catalog.pg_settings AS s ON s.name OPERATOR(pg_catalog.=) w.name
