\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.9.0'" to load this file. \quit

-- What 0.9.0 adds to 0.8.0. Each part stands under a heading of its own.

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

-- PRIVATE. What commits have noted since somebody gathered it: the batching module stores one short row a commit here,
-- which has no number, no index, and is not written to the log. _gather_notes() takes it to _note.
CREATE UNLOGGED TABLE ml_udf._new_note (
    watch integer NOT NULL,
    noted_at timestamptz NOT NULL,
    size integer NOT NULL,                    -- how many keys
    keys text[],                              -- or
    ids bigint[]                              -- as in _note
);
COMMENT ON TABLE ml_udf._new_note IS 'keys of rows that watches have to look at, as commits note them';

-- PRIVATE. Watches none of whose new notes is lost. A crash empties both tables, and a watch that stands here no more is
-- looked at as a whole: what was committed before the crash, and noted, may have had no worker yet.
CREATE UNLOGGED TABLE ml_udf._marked (watch integer PRIMARY KEY);
COMMENT ON TABLE ml_udf._marked IS 'watches that have lost no note since they stand here';
INSERT INTO ml_udf._marked SELECT id FROM ml_udf._watch;

ALTER TABLE ml_udf._new_note ENABLE ROW LEVEL SECURITY;
ALTER TABLE ml_udf._marked ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_owner ON ml_udf._new_note USING (EXISTS (SELECT FROM ml_udf._watch w WHERE w.id = watch));
CREATE POLICY of_owner ON ml_udf._marked USING (EXISTS (SELECT FROM ml_udf._watch w WHERE w.id = watch));
SELECT pg_catalog.pg_extension_config_dump('ml_udf._new_note', '');
SELECT pg_catalog.pg_extension_config_dump('ml_udf._marked', '');
GRANT SELECT, INSERT, DELETE ON ml_udf._new_note, ml_udf._marked TO ml_udf_reader;

-- PRIVATE. Takes some new notes of all watches, oldest pages first, to where workers take them; of short ones up to
-- 1,000 keys become one. How many there were; fewer than 5,000: no more are left. It has its owner's rights, since what is
-- left behind of one watch would be read again and again for the others; it takes nothing from anybody.
CREATE FUNCTION ml_udf._gather_notes() RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
DECLARE
    gathered integer;
BEGIN
    -- A note that is moved, and its commit lost, is lost where it was too: the mark goes along.
    SET LOCAL synchronous_commit = off;
    WITH unmarked AS (
        INSERT INTO ml_udf._marked SELECT w.id FROM ml_udf._watch w
        WHERE NOT EXISTS (SELECT FROM ml_udf._marked m WHERE m.watch = w.id)
        ON CONFLICT DO NOTHING RETURNING watch
    )
    INSERT INTO ml_udf._note (watch, due_at, size) SELECT watch, '-infinity', 0 FROM unmarked;
    IF NOT EXISTS (SELECT FROM ml_udf._new_note) THEN
        RETURN 0;
    END IF;
    WITH taken AS MATERIALIZED (
        DELETE FROM ml_udf._new_note n
        WHERE n.ctid = ANY (ARRAY(SELECT o.ctid FROM ml_udf._new_note o LIMIT 5000 FOR UPDATE SKIP LOCKED))
        RETURNING n.watch, n.noted_at, n.size, n.keys, n.ids
    ), watched AS MATERIALIZED (
        SELECT t.* FROM taken t JOIN ml_udf._watch w ON w.id = t.watch
    ), key AS (
        SELECT n.watch, n.noted_at, k.id, k.text, k.id IS NULL AS is_text,
               (row_number() OVER (PARTITION BY n.watch, k.id IS NULL ORDER BY n.noted_at) - 1) / 1000 AS part
        FROM watched n CROSS JOIN LATERAL (
            SELECT i, NULL FROM generate_series(n.ids[1], n.ids[2]) AS i WHERE n.size > cardinality(n.ids)
            UNION ALL
            SELECT i, NULL FROM unnest(n.ids) AS i WHERE n.size = cardinality(n.ids)
            UNION ALL
            SELECT NULL, t FROM unnest(n.keys) AS t
        ) AS k(id, text) WHERE n.size < 500
    ), moved AS (
        INSERT INTO ml_udf._note (watch, due_at, noted_at, size, keys, ids)
        SELECT watch, noted_at, noted_at, size, coalesce(keys, '{}'), ids FROM watched WHERE size >= 500
        UNION ALL
        SELECT watch, min(noted_at), min(noted_at), count(*), coalesce(array_agg(text) FILTER (WHERE is_text), '{}'),
               array_agg(id) FILTER (WHERE NOT is_text)
        FROM key GROUP BY watch, is_text, part
    )
    SELECT count(*) INTO gathered FROM taken;
    RETURN gathered;
END
$plpgsql$;
COMMENT ON FUNCTION ml_udf._gather_notes() IS
    'takes what commits noted to where workers of watches take it; how many notes these were';
REVOKE ALL ON FUNCTION ml_udf._gather_notes() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._gather_notes() TO ml_udf_reader;

-- PRIVATE. As before, and their new notes and marks.
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
END
$plpgsql$;

-- PUBLIC. As before, with what is noted and not gathered yet.
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
                WHEN n.sweeps > 0 THEN 'catching up'
                WHEN n.rows > 0 THEN 'behind'
                ELSE 'fresh' END AS state,
           w.version,
           CASE WHEN n.sweeps = 0 THEN n.rows ELSE n.rows + w.sweep_rows END AS lag_rows,
           coalesce(pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - n.oldest), 0)::double precision AS lag_s,
           n.retries AS retry_rows,
           w.answered,
           w.failed,
           w.rate * pg_catalog.exp(-pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - w.rate_at)::double precision / 60)
               AS rows_per_s,
           w.error AS last_error,
           w.error_at AS last_error_at,
           w.owner::text AS owner
    FROM ml_udf._watch w, LATERAL (
        SELECT coalesce(pg_catalog.sum(size) FILTER (WHERE attempts = 0), 0)::bigint AS rows,
               -- A watch without its mark will be looked at as a whole
               pg_catalog.count(*) FILTER (WHERE size = 0)
                   + (NOT EXISTS (SELECT FROM ml_udf._marked m WHERE m.watch = w.id))::integer AS sweeps,
               coalesce(pg_catalog.sum(size) FILTER (WHERE attempts > 0), 0)::bigint AS retries,
               pg_catalog.min(noted_at) FILTER (WHERE attempts = 0) AS oldest
        FROM (SELECT size, attempts, noted_at FROM ml_udf._note WHERE watch = w.id
              UNION ALL
              SELECT size, 0, noted_at FROM ml_udf._new_note WHERE watch = w.id) AS noted
    ) n;
COMMENT ON VIEW ml_udf.watches IS
    'your watches: their state; lag_rows noted, or due in a look at the whole table, and not yet answered (NULL while these are being counted), the oldest lag_s seconds ago; rows answered, and failed with an error; retry_rows hold an error and are tried again';
