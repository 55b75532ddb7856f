\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.10.0'" to load this file. \quit

-- What 0.10.0 adds to 0.9.0. Each part stands under a heading of its own.

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

-- PRIVATE. Which file holds what commits have noted and nobody has gathered: rings in memory that the sessions of this
-- database share, made and read by the batching module (sql/postgres/batch/note/ring.c). A crash empties this table, with
-- _marked; a dump has neither.
CREATE UNLOGGED TABLE ml_udf._rings (number bigint NOT NULL);
COMMENT ON TABLE ml_udf._rings IS 'names the file in which commits note keys for watches';
ALTER TABLE ml_udf._rings ENABLE ROW LEVEL SECURITY;

-- What a dump lacks is not known where it is restored: there whole tables are looked at.
SELECT pg_catalog.pg_extension_config_dump('ml_udf._marked', 'WHERE false');

-- PRIVATE. Where the batching module is not there are no rings; note_in_module() puts those of the module in their place.
CREATE FUNCTION ml_udf._make_rings() RETURNS boolean
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS 'SELECT true';
COMMENT ON FUNCTION ml_udf._make_rings() IS 'makes rings where there are none; false: those that there were are lost';

-- PRIVATE. As _new_note has it, without the keys: of all watches.
CREATE FUNCTION ml_udf._ring_notes(OUT watch integer, OUT noted_at timestamptz, OUT size integer) RETURNS SETOF record
    LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 10
    SET search_path = pg_catalog, pg_temp
    AS 'SELECT NULL::integer, NULL::timestamptz, NULL::integer WHERE false';
COMMENT ON FUNCTION ml_udf._ring_notes() IS 'how many keys the rings hold, and since when';

-- PRIVATE. Gone when the transaction commits. Nothing while somebody else takes them.
CREATE FUNCTION ml_udf._take_ring_notes(
    OUT watch integer, OUT noted_at timestamptz, OUT size integer, OUT ids bigint[]
) RETURNS SETOF record
    LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 100
    SET search_path = pg_catalog, pg_temp
    AS 'SELECT NULL::integer, NULL::timestamptz, NULL::integer, NULL::bigint[] WHERE false';
COMMENT ON FUNCTION ml_udf._take_ring_notes() IS 'takes what the rings hold';

-- PUBLIC, for superusers. As before, and rings, where the module knows them.
CREATE OR REPLACE FUNCTION ml_udf.note_in_module() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
BEGIN
    BEGIN
        CREATE OR REPLACE FUNCTION ml_udf._note_key(watch integer, key anyelement) RETURNS boolean
            LANGUAGE c VOLATILE PARALLEL UNSAFE
            AS '$libdir/ml_udf_batch', 'ml_udf_note_key';
        CREATE OR REPLACE FUNCTION ml_udf._note_change(
            watch integer, key_before anyelement, key_now anyelement, input_before anycompatible, input_now anycompatible
        ) RETURNS boolean
            LANGUAGE c VOLATILE PARALLEL UNSAFE
            AS '$libdir/ml_udf_batch', 'ml_udf_note_change';
    EXCEPTION WHEN undefined_file OR undefined_function THEN  -- none, or one of before
        RETURN false;
    END;
    BEGIN
        CREATE OR REPLACE FUNCTION ml_udf._make_rings() RETURNS boolean
            LANGUAGE c VOLATILE PARALLEL UNSAFE
            AS '$libdir/ml_udf_batch', 'ml_udf_make_rings';
        CREATE OR REPLACE FUNCTION ml_udf._ring_notes(OUT watch integer, OUT noted_at timestamptz, OUT size integer)
            RETURNS SETOF record
            LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10
            AS '$libdir/ml_udf_batch', 'ml_udf_ring_notes';
        CREATE OR REPLACE FUNCTION ml_udf._take_ring_notes(
            OUT watch integer, OUT noted_at timestamptz, OUT size integer, OUT ids bigint[]
        ) RETURNS SETOF record
            LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
            AS '$libdir/ml_udf_batch', 'ml_udf_take_ring_notes';
    EXCEPTION WHEN undefined_function THEN  -- commits go on noting in the table
        NULL;
    END;
    RETURN true;
END
$plpgsql$;
SELECT ml_udf.note_in_module();
REVOKE ALL ON FUNCTION ml_udf._make_rings(), ml_udf._ring_notes(), ml_udf._take_ring_notes() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._make_rings(), ml_udf._ring_notes() TO ml_udf_reader;

-- PRIVATE. As before, and what the rings hold.
CREATE OR REPLACE FUNCTION ml_udf._gather_notes() RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
DECLARE
    gathered integer;
BEGIN
    -- A note that is moved, and its commit lost, is lost where it was too: the mark goes along.
    SET LOCAL synchronous_commit = off;
    IF NOT ml_udf._make_rings() THEN
        -- Lost, but not by a crash. He whom another one outran finds no row, and leaves it to him.
        DELETE FROM ml_udf._rings;
        IF FOUND THEN
            DELETE FROM ml_udf._marked;
            PERFORM ml_udf._make_rings();
        END IF;
    END IF;
    WITH unmarked AS (
        INSERT INTO ml_udf._marked SELECT w.id FROM ml_udf._watch w
        WHERE NOT EXISTS (SELECT FROM ml_udf._marked m WHERE m.watch = w.id)
        ON CONFLICT DO NOTHING RETURNING watch
    )
    INSERT INTO ml_udf._note (watch, due_at, size) SELECT watch, '-infinity', 0 FROM unmarked;
    IF NOT EXISTS (SELECT FROM ml_udf._new_note) AND NOT EXISTS (SELECT FROM ml_udf._ring_notes()) THEN
        RETURN 0;
    END IF;
    WITH stored AS (
        DELETE FROM ml_udf._new_note n
        WHERE n.ctid = ANY (ARRAY(SELECT o.ctid FROM ml_udf._new_note o LIMIT 5000 FOR UPDATE SKIP LOCKED))
        RETURNING n.watch, n.noted_at, n.size, n.keys, n.ids
    ), taken AS MATERIALIZED (
        SELECT watch, noted_at, size, keys, ids FROM stored
        UNION ALL
        SELECT watch, noted_at, size, NULL, ids FROM ml_udf._take_ring_notes()
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

-- PUBLIC. As before, with what the rings hold.
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
              SELECT size, 0, noted_at FROM ml_udf._new_note WHERE watch = w.id
              UNION ALL
              SELECT size, 0, noted_at FROM ml_udf._ring_notes() AS r WHERE r.watch = w.id) AS noted
    ) n;
COMMENT ON VIEW ml_udf.watches IS
    'your watches: their state; lag_rows noted, or due in a look at the whole table, and not yet answered (NULL while these are being counted), the oldest lag_s seconds ago; rows answered, and failed with an error; retry_rows hold an error and are tried again';
