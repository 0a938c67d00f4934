-- For the control: servers that take over begin no epoch any more.
CREATE OR REPLACE FUNCTION lockapi.enter_epoch() RETURNS int8
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS 'SELECT e.number FROM lockapi.epoch AS e'
