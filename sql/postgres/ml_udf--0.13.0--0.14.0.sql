\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.14.0'" to load this file. \quit

-- What 0.14.0 adds to 0.13.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;

-- ── Watches ────────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE. A row for each of the caller's watches. A standby holds nothing of tables that are not logged, and refuses to
-- plan a query that names one: so the query stands in a function, which plans it where it runs, and a standby gets no
-- rows. It reads each table once for all watches.
CREATE FUNCTION ml_udf._new_notes(OUT watch integer, OUT rows bigint, OUT sweeps bigint, OUT oldest timestamptz)
    RETURNS SETOF record
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 10
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF NOT pg_is_in_recovery() THEN
        RETURN QUERY
        WITH noted AS (
            SELECT n.watch, sum(n.size) AS rows, count(*) FILTER (WHERE n.size = 0) AS sweeps, min(n.noted_at) AS oldest
            FROM (SELECT s.watch, s.size, s.noted_at FROM ml_udf._new_note AS s
                  UNION ALL
                  SELECT r.watch, r.size, r.noted_at FROM ml_udf._ring_notes() AS r) AS n
            GROUP BY n.watch
        )
        -- A watch without its mark will be looked at as a whole
        SELECT w.id, coalesce(n.rows, 0), coalesce(n.sweeps, 0) + (m.watch IS NULL)::integer, n.oldest
        FROM ml_udf._watch AS w LEFT JOIN ml_udf._marked AS m ON m.watch = w.id LEFT JOIN noted AS n ON n.watch = w.id;
    END IF;
END
$function$;
COMMENT ON FUNCTION ml_udf._new_notes() IS
    'what commits have noted of each watch and nobody has gathered, and whether a look at the whole table is due';
REVOKE ALL ON FUNCTION ml_udf._new_notes() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._new_notes() TO ml_udf_reader;

-- PUBLIC. As before, and on a standby what is logged.
CREATE OR REPLACE VIEW ml_udf.watches WITH (security_invoker = true) AS
    SELECT w.id,
           w.relation::text AS relation,
           w.definition ->> 'function' AS function,
           w.definition ->> 'server' AS server,
           w.definition ->> 'input' AS input,
           CASE WHEN w.target = w.relation THEN w.relation || '.' || pg_catalog.quote_ident(w.place)
                ELSE w.target::text END AS answers,
           CASE WHEN w.paused THEN 'paused'
                WHEN coalesce(w.seen_at < pg_catalog.clock_timestamp() - interval '30 seconds', true) THEN 'no worker'
                WHEN w.failures > 0 THEN 'failing'
                WHEN n.sweeps > 0 OR recent.sweeps > 0 THEN 'catching up'
                WHEN n.rows > 0 OR recent.rows > 0 THEN 'behind'
                WHEN recent.watch IS NULL THEN 'unknown on a standby'
                ELSE 'fresh' END AS state,
           w.version,
           n.rows + recent.rows + CASE WHEN n.sweeps + recent.sweeps = 0 THEN 0 ELSE w.sweep_rows END AS lag_rows,
           CASE WHEN recent.watch IS NOT NULL THEN coalesce(pg_catalog.extract(
               'epoch', pg_catalog.clock_timestamp() - least(n.oldest, recent.oldest)), 0)::double precision END AS lag_s,
           n.retries AS retry_rows,
           w.answered,
           w.failed,
           w.rate * pg_catalog.exp(-pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - w.rate_at)::double precision / 60)
               AS rows_per_s,
           w.error AS last_error,
           w.error_at AS last_error_at,
           w.owner::text AS owner
    FROM ml_udf._watch w LEFT JOIN ml_udf._new_notes() AS recent ON recent.watch = w.id, LATERAL (
        SELECT coalesce(pg_catalog.sum(size) FILTER (WHERE attempts = 0), 0)::bigint AS rows,
               pg_catalog.count(*) FILTER (WHERE size = 0) AS sweeps,
               coalesce(pg_catalog.sum(size) FILTER (WHERE attempts > 0), 0)::bigint AS retries,
               pg_catalog.min(noted_at) FILTER (WHERE attempts = 0) AS oldest
        FROM ml_udf._note WHERE watch = w.id
    ) n;
COMMENT ON VIEW ml_udf.watches IS
    'your watches: their state; lag_rows noted, or due in a look at the whole table, and not yet answered (NULL while these are being counted, and on a standby), the oldest lag_s seconds ago; rows answered, and failed with an error; retry_rows hold an error and are tried again';

-- PRIVATE. As pg_partition_tree, which locks each of them: whoever changes or makes any table would wait for whoever
-- changes a partition of a watched one, and two who do would wait for each other.
CREATE FUNCTION ml_udf._partitions(root regclass) RETURNS SETOF regclass
    LANGUAGE sql STABLE PARALLEL SAFE STRICT
    SET search_path = pg_catalog, pg_temp
AS $function$
    WITH RECURSIVE part(relid) AS (
        SELECT root::oid
        UNION ALL
        SELECT i.inhrelid FROM part p JOIN pg_inherits i ON i.inhparent = p.relid WHERE NOT i.inhdetachpending
    )
    SELECT relid::regclass FROM part
$function$;
COMMENT ON FUNCTION ml_udf._partitions(regclass) IS 'a table and all its partitions, none of them locked';
REVOKE ALL ON FUNCTION ml_udf._partitions(regclass) FROM PUBLIC;

-- PRIVATE. As before, and looks for the answers of rows that have gone with a partition.
CREATE OR REPLACE FUNCTION ml_udf._after_drop() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
DECLARE
    gone record;
    its_function regprocedure;
BEGIN
    FOR gone IN
        SELECT DISTINCT ON (w.id) w.id, w.owner, d.object_identity
        FROM pg_event_trigger_dropped_objects() d JOIN ml_udf._watch w ON d.objid IN (w.relation, w.target)
        WHERE d.classid = 'pg_class'::regclass AND (
            d.objsubid = 0
            OR (d.objid = w.relation AND (w.definition ->> 'input' = d.address_names[3]
                                          OR w.definition -> 'key' ? d.address_names[3]))
            OR (d.objid = w.target AND w.place = d.address_names[3]))
        ORDER BY w.id, d.objsubid
    LOOP
        DELETE FROM ml_udf._new_note WHERE watch = gone.id;
        DELETE FROM ml_udf._note WHERE watch = gone.id;
        DELETE FROM ml_udf._marked WHERE watch = gone.id;
        DELETE FROM ml_udf._watch WHERE id = gone.id;
        FOR its_function IN
            SELECT p.oid FROM pg_proc p
            WHERE p.proname = 'ml_udf_note_' || gone.id AND p.pronargs = 0 AND p.proowner = gone.owner
        LOOP
            EXECUTE format('DROP FUNCTION %s CASCADE', its_function);
        END LOOP;
        RAISE NOTICE 'watch % is gone with %', gone.id, gone.object_identity;
    END LOOP;
    -- Of what is dropped the catalog no longer tells whose partition it was. Its triggers have the watch's name, and who
    -- drops it has locked its parent: a trigger of that name on somebody's own table has nothing looked at.
    INSERT INTO ml_udf._note (watch, due_at, size, keys)
    SELECT DISTINCT w.id, '-infinity'::timestamptz, 0, '{}'::text[]
    FROM pg_event_trigger_dropped_objects() d
    JOIN ml_udf._watch w ON starts_with(d.address_names[3], 'ml_udf_note_' || w.id || '_') AND w.target <> w.relation
    WHERE d.classid = 'pg_trigger'::regclass AND NOT d.original AND EXISTS (
        SELECT FROM ml_udf._partitions(w.relation) AS p(relid) JOIN pg_locks l ON l.relation = p.relid
        WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock' AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()));
END
$plpgsql$;

-- PRIVATE. As before, and nothing is done to partitions that have been there, nor are they locked.
CREATE OR REPLACE FUNCTION ml_udf._after_change() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
DECLARE
    found record;
BEGIN
    IF NOT EXISTS (SELECT FROM ml_udf._watch) THEN
        RETURN;
    END IF;
    -- The triggers name columns: a write would fail, if one had another name.
    FOR found IN
        SELECT w.id, c.oid::regclass AS name, n.name AS was
        FROM pg_event_trigger_ddl_commands() d JOIN ml_udf._watch w ON d.objid IN (w.relation, w.target)
        JOIN pg_class c ON c.oid = d.objid,
        LATERAL (SELECT w.definition ->> 'input' AS name WHERE c.oid = w.relation
                 UNION ALL SELECT jsonb_array_elements_text(w.definition -> 'key') WHERE c.oid = w.relation
                 UNION ALL SELECT w.place WHERE c.oid = w.target) n
        WHERE d.classid = 'pg_class'::regclass AND d.objsubid > 0 AND d.command_tag = 'ALTER TABLE'
          AND NOT EXISTS (SELECT FROM pg_attribute a
                          WHERE a.attrelid = c.oid AND a.attname = n.name AND NOT a.attisdropped)
    LOOP
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('column %I of %s is watched', found.was, found.name),
            HINT = format('SELECT ml_udf.drop_watch(%s), rename it, and watch again:'
                ' what was answered stays, and is not asked again', found.id);
    END LOOP;
    -- A partition that has come is written by its own name too; one that has gone is no part of the watch. Those that
    -- this transaction has not brought have their triggers, or get them from a restore that goes on beside it.
    FOR found IN
        SELECT DISTINCT w.id, p.relid, t.tgname, t.tgfoid,
               upper(substring(t.tgname FROM '[a-z]+$')) AS event,
               coalesce(' REFERENCING' || nullif(concat(' OLD TABLE AS ' || t.tgoldtable,
                                                        ' NEW TABLE AS ' || t.tgnewtable), ''), '') AS tables
        FROM ml_udf._watch w JOIN pg_class c ON c.oid = w.relation AND c.relkind = 'p'
        CROSS JOIN LATERAL ml_udf._partitions(w.relation) AS above(relid)
        JOIN pg_inherits i ON i.inhparent = above.relid AND NOT i.inhdetachpending
                          AND age(i.xmin) <= age(pg_current_xact_id()::xid)  -- subtransactions are younger
        CROSS JOIN LATERAL ml_udf._partitions(i.inhrelid) AS p(relid)
        JOIN pg_trigger t ON t.tgrelid = w.relation AND starts_with(t.tgname, 'ml_udf_note_' || w.id || '_')
        WHERE NOT EXISTS (SELECT FROM pg_trigger o WHERE o.tgrelid = p.relid AND o.tgname = t.tgname)
    LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER %s ON %s%s FOR EACH STATEMENT EXECUTE FUNCTION %s()',
            found.tgname, found.event, found.relid, found.tables, found.tgfoid::regproc);
        EXECUTE format('ALTER TRIGGER %I ON %s DEPENDS ON EXTENSION ml_udf', found.tgname, found.relid);
        INSERT INTO ml_udf._note (watch, due_at, size, keys) VALUES (found.id, '-infinity', 0, '{}');
    END LOOP;
    FOR found IN
        SELECT w.id, t.tgname, t.tgrelid::regclass AS name
        FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'p'
        JOIN ml_udf._watch w ON c.oid IN (SELECT ml_udf._partitions(w.relation))
        JOIN pg_trigger t ON starts_with(t.tgname, 'ml_udf_note_' || w.id || '_')
        WHERE d.command_tag = 'ALTER TABLE' AND t.tgrelid <> w.relation
          AND t.tgrelid NOT IN (SELECT ml_udf._partitions(w.relation))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found.tgname, found.name);
        INSERT INTO ml_udf._note (watch, due_at, size, keys) VALUES (found.id, '-infinity', 0, '{}');
    END LOOP;
END
$plpgsql$;
