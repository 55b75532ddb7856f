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
    -- The catalog tells of what is dropped no longer whose partition it was. Its triggers have the watch's name, and whoever
    -- drops it has locked its parent, which nobody else's trigger of that name would have him do.
    INSERT INTO ml_udf._note (watch, due_at, size, keys)
    SELECT DISTINCT w.id, '-infinity'::timestamptz, 0, '{}'::text[]
    FROM pg_event_trigger_dropped_objects() d
    JOIN ml_udf._watch w ON starts_with(d.address_names[3], 'ml_udf_note_' || w.id || '_') AND w.target <> w.relation
    WHERE d.classid = 'pg_trigger'::regclass AND NOT d.original AND EXISTS (
        SELECT FROM pg_partition_tree(w.relation) p JOIN pg_locks l ON l.relation = p.relid
        WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock' AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()));
END
$plpgsql$;
