-- Makes, in the schema hostile, what a statement finds there in place of what it means if it does not say
-- which schema it means: types, functions and operators of the same names, of the same arguments and of
-- arguments that fit better. Whatever uses one of them fails.
DO $make$
DECLARE
    one record;
    -- What statements of the library deal in.
    known CONSTANT text[] := '{bool,int2,int4,int8,text,timestamptz,interval,json,numeric,float8,bytea,_int8,_text,_bool}';
    types CONSTANT oid[] := ARRAY(SELECT t.oid FROM pg_type AS t
                                   WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typname = ANY (known));
BEGIN
    PERFORM pg_advisory_xact_lock(-728, 1);
    IF to_regnamespace('hostile') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE SCHEMA hostile;
    GRANT USAGE ON SCHEMA hostile TO public;
    -- Functions. Where any type will do, these are for one type.
    FOR one IN
        SELECT DISTINCT p.proname AS name, a.arguments, r.result, p.proretset AS rows
          FROM pg_proc AS p
         CROSS JOIN (VALUES ('int8'), ('text'), ('bool')) AS element (name)
         CROSS JOIN LATERAL (
               SELECT coalesce(string_agg(CASE t.typname
                                  WHEN 'any' THEN 'pg_catalog.' || element.name
                                  WHEN 'anyelement' THEN 'pg_catalog.' || element.name
                                  WHEN 'anynonarray' THEN 'pg_catalog.' || element.name
                                  WHEN 'anycompatible' THEN 'pg_catalog.' || element.name
                                  WHEN 'anyarray' THEN 'pg_catalog.' || element.name || '[]'
                                  WHEN 'anycompatiblearray' THEN 'pg_catalog.' || element.name || '[]'
                                  ELSE 'pg_catalog.' || quote_ident(t.typname) END, ', ' ORDER BY u.n), '') AS arguments,
                      coalesce(bool_and(t.oid = ANY (types) OR t.typtype = 'p' OR t.typname IN ('regclass', 'name')), true)
                          AS fits
                 FROM unnest(p.proargtypes) WITH ORDINALITY AS u (of, n)
                 JOIN pg_type AS t ON t.oid = u.of) AS a
         CROSS JOIN LATERAL (
               SELECT CASE WHEN t.typname IN ('anyarray', 'anycompatiblearray') THEN 'pg_catalog.' || element.name || '[]'
                           WHEN t.typname LIKE 'any%' THEN 'pg_catalog.' || element.name
                           WHEN t.typtype = 'p' AND t.typname NOT IN ('void', 'record') THEN 'pg_catalog.text'
                           ELSE 'pg_catalog.' || quote_ident(t.typname) END AS result
                 FROM pg_type AS t WHERE t.oid = p.prorettype) AS r
         WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a', 'w') AND a.fits
           AND p.proname NOT LIKE 'pg\_stat%' AND p.proname NOT LIKE 'ri\_%' AND p.proname NOT LIKE 'binary\_upgrade%'
    LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s%s LANGUAGE plpgsql AS
                            ''BEGIN RAISE EXCEPTION ''''a decoy was called: %s'''' USING ERRCODE = ''''LK001''''; END''',
                           one.name, one.arguments, CASE WHEN one.rows THEN 'SETOF ' ELSE '' END, one.result,
                           replace(one.name, '%', '%%'));
        EXCEPTION WHEN OTHERS THEN
            NULL; -- Not every combination can be made.
        END;
    END LOOP;
    -- Operators: those of these types, and for each two of these types those that everybody expects.
    FOR one IN
        SELECT o.oprname AS name, l.typname AS left, r.typname AS right, format_type(o.oprresult, NULL) AS result
          FROM pg_operator AS o
          JOIN pg_type AS l ON l.oid = o.oprleft
          JOIN pg_type AS r ON r.oid = o.oprright
         WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft = ANY (types) AND o.oprright = ANY (types)
         UNION
        SELECT n.name, l.name, r.name, n.result
          FROM unnest(known) AS l (name), unnest(known) AS r (name),
               (VALUES ('=', 'bool'), ('<>', 'bool'), ('<', 'bool'), ('<=', 'bool'), ('>', 'bool'), ('>=', 'bool')) AS n (name, result)
         UNION VALUES ('*', 'int8', 'interval', 'interval'), ('*', 'int4', 'interval', 'interval'),
                      ('*', 'numeric', 'interval', 'interval'), ('||', '_int8', '_int8', '_int8'), ('||', '_int8', 'int8', '_int8'),
                      ('||', 'text', 'int8', 'text'), ('||', 'text', 'int4', 'text'), ('||', 'int8', 'text', 'text'),
                      ('||', 'int4', 'text', 'text'), ('*', 'numeric', 'int4', 'numeric'), ('*', 'int8', 'int4', 'int8')
    LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION hostile.%I(pg_catalog.%I, pg_catalog.%I) RETURNS %s LANGUAGE plpgsql AS
                            ''BEGIN RAISE EXCEPTION ''''a decoy was called'''' USING ERRCODE = ''''LK001''''; END''',
                           'operator ' || one.name, one.left, one.right, one.result);
            EXECUTE format('CREATE OPERATOR hostile.%s (FUNCTION = hostile.%I, LEFTARG = pg_catalog.%I, RIGHTARG = pg_catalog.%I)',
                           one.name, 'operator ' || one.name, one.left, one.right);
        EXCEPTION WHEN duplicate_function THEN
            NULL; -- Of another result.
        END;
    END LOOP;
    -- Types last: what is above means those of the server.
    FOR one IN SELECT n.name FROM unnest(known) AS n (name) WHERE n.name NOT LIKE '\_%'
    LOOP
        EXECUTE format('CREATE DOMAIN hostile.%I AS pg_catalog.%I CHECK (false)', one.name, one.name);
    END LOOP;
END
$make$
