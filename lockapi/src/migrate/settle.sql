-- Makes the transaction of a migration independent of the settings of its role and of the session.
--
-- A lock that is not to be had at once is given up soon: who waits for one keeps everybody else from the
-- table, readers included, also when its client has gone.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '500ms';
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = '10s';
SET LOCAL standard_conforming_strings = on;
SET LOCAL client_min_messages = error
