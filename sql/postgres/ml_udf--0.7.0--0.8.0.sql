\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.8.0'" to load this file. \quit

-- What 0.8.0 adds to 0.7.0. Each part stands under a heading of its own.

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

-- Keys that are integers: half the room of their texts. Of a run that ascends by one the first and the last alone, and
-- `size` says how many it has; `keys` is empty then.
ALTER TABLE ml_udf._note ALTER COLUMN keys SET DEFAULT '{}', ADD COLUMN ids bigint[];
-- Rows of a look at the whole table that are still to be answered; NULL while nobody has counted them.
ALTER TABLE ml_udf._watch ADD COLUMN sweep_rows bigint;

-- PRIVATE. What the WHEN of a watch's triggers asks: whether there is something left to do for the trigger's function.
-- The batching module notes the key by itself, in the memory of the transaction, and says no: it has functions of these
-- names, which note_in_module() puts in the place of these. These say yes, so that a database that is restored where
-- the module is not goes on.
CREATE FUNCTION ml_udf._note_key(watch integer, key anyelement) RETURNS boolean
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS 'SELECT true';
COMMENT ON FUNCTION ml_udf._note_key(integer, anyelement) IS 'notes the key of a row that came or went';

-- PRIVATE
CREATE FUNCTION ml_udf._note_change(
    watch integer, key_before anyelement, key_now anyelement, input_before anycompatible, input_now anycompatible
) RETURNS boolean
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $sql$
        SELECT key_before::text COLLATE "C" <> key_now::text COLLATE "C"
               OR input_before::text COLLATE "C" IS DISTINCT FROM input_now::text COLLATE "C"
    $sql$;
COMMENT ON FUNCTION ml_udf._note_change(integer, anyelement, anyelement, anycompatible, anycompatible) IS
    'notes the key of a row whose input or key is another one than before';

-- PUBLIC, for superusers, who alone may create functions in C.
CREATE FUNCTION ml_udf.note_in_module() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
BEGIN
    CREATE OR REPLACE FUNCTION ml_udf._note_key(watch integer, key anyelement) RETURNS boolean
        LANGUAGE c VOLATILE PARALLEL UNSAFE
        AS '$libdir/ml_udf_batch', 'ml_udf_note_key';
    CREATE OR REPLACE FUNCTION ml_udf._note_change(
        watch integer, key_before anyelement, key_now anyelement, input_before anycompatible, input_now anycompatible
    ) RETURNS boolean
        LANGUAGE c VOLATILE PARALLEL UNSAFE
        AS '$libdir/ml_udf_batch', 'ml_udf_note_change';
    RETURN true;
EXCEPTION WHEN undefined_file OR undefined_function THEN  -- none, or one of before
    RETURN false;
END
$plpgsql$;
COMMENT ON FUNCTION ml_udf.note_in_module() IS
    'has triggers of watches note keys by the batching module, where it is installed; whether it is. Called by CREATE EXTENSION; call it after installing the module later';
SELECT ml_udf.note_in_module();
REVOKE ALL ON FUNCTION ml_udf.note_in_module() FROM PUBLIC;
-- Whoever writes to a watched table calls them; what is noted is kept only for one who has written.
GRANT EXECUTE ON FUNCTION ml_udf._note_key(integer, anyelement),
    ml_udf._note_change(integer, anyelement, anyelement, anycompatible, anycompatible) TO PUBLIC;

-- PUBLIC. As before; lag_rows has the rows of looks at whole tables, too.
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
               pg_catalog.count(*) FILTER (WHERE size = 0) AS sweeps,
               coalesce(pg_catalog.sum(size) FILTER (WHERE attempts > 0), 0)::bigint AS retries,
               pg_catalog.min(noted_at) FILTER (WHERE attempts = 0) AS oldest
        FROM ml_udf._note WHERE watch = w.id
    ) n;
COMMENT ON VIEW ml_udf.watches IS
    'your watches: their state; lag_rows noted, or due in a look at the whole table, and not yet answered (NULL while these are being counted), the oldest lag_s seconds ago; rows answered, and failed with an error; retry_rows hold an error and are tried again';

-- ── Pipelines ──────────────────────────────────────────────────────────────────────────────────────

-- PUBLIC. As ml_udf.deploy: the mapping's token must be allowed to deploy, and to see the stages.
CREATE FUNCTION ml_udf.create_pipeline(
    name text,                              -- of the SQL function, and of the server's
    stages jsonb,                           -- '["udf_tray", {"crop": {"margin": 0.1}}, "udf_food_name"]'
    slo_ms double precision DEFAULT NULL,   -- latency goal; NULL = its stages' together
    goal_split text DEFAULT NULL,           -- of the goal among the stages: none, even, nexus; NULL = none
    answer_cache boolean DEFAULT NULL,      -- false: its stages' answers to its rows are not kept
    schema name DEFAULT current_schema(),   -- where to create the SQL function
    server text DEFAULT 'ml_udf',           -- name of the foreign server
    grant_to name DEFAULT 'ml_udf_reader'   -- role that may execute it, or public; NULL = its owner alone; if new
) RETURNS integer
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].create_pipeline({"name": name, "stages": stages, "slo_ms": slo_ms, "goal_split": goal_split, "answer_cache": answer_cache, "schema": schema, "grant_to": grant_to}, server)
$python$;
COMMENT ON FUNCTION ml_udf.create_pipeline(text, jsonb, double precision, text, boolean, name, text, name) IS
    'creates or replaces an SQL function that is made of others, one after the other; its version';
REVOKE ALL ON FUNCTION ml_udf.create_pipeline(text, jsonb, double precision, text, boolean, name, text, name) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf.create_pipeline(text, jsonb, double precision, text, boolean, name, text, name)
    TO ml_udf_trainer, ml_udf_admin;

-- ── Workers, and what was done about capacity ──────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._workers(
    OUT server text, OUT name text, OUT state text, OUT pid bigint, OUT restarts bigint, OUT device text,
    OUT device_name text, OUT capacity_bytes bigint, OUT resident text[], OUT last_error text,
    OUT last_error_at timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].residency("workers")
$python$;
COMMENT ON FUNCTION ml_udf._workers() IS 'the workers of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._capacity(
    OUT server text, OUT "at" timestamptz, OUT action text, OUT worker text, OUT model text, OUT reason text,
    OUT decided_by text, OUT outcome text, OUT took_s double precision, OUT error text
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 100
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].residency("capacity")
$python$;
COMMENT ON FUNCTION ml_udf._capacity() IS
    'what was done about capacity on every server that the caller may use';
REVOKE ALL ON FUNCTION ml_udf._workers(), ml_udf._capacity() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._workers(), ml_udf._capacity() TO ml_udf_reader;

-- PUBLIC
CREATE VIEW ml_udf.workers AS
    SELECT server, name, state, pid, restarts, device, device_name, capacity_bytes, resident, last_error,
           last_error_at
    FROM ml_udf._workers();
COMMENT ON VIEW ml_udf.workers IS
    'the workers of the servers that you may use: starting, up, down, joining, leaving or given up, and the models that each holds';

-- PUBLIC
CREATE VIEW ml_udf.capacity AS
    SELECT server, "at", action, worker, model, reason, decided_by, outcome, took_s, error
    FROM ml_udf._capacity();
COMMENT ON VIEW ml_udf.capacity IS
    'the last workers and copies of models that came and went by a decision about capacity, with its reason and what came of it';
GRANT SELECT ON ml_udf.workers, ml_udf.capacity TO ml_udf_reader;

-- ── Variants of models ─────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._variants(
    OUT server text, OUT model text, OUT version bigint, OUT variant text, OUT key text, OUT runtime text,
    OUT "precision" text, OUT threads bigint, OUT bytes bigint, OUT resident_bytes bigint, OUT load_s double precision,
    OUT profile jsonb, OUT accuracy double precision, OUT accuracy_low double precision,
    OUT accuracy_high double precision, OUT accuracy_rows bigint, OUT agreement double precision, OUT dataset text,
    OUT refused text, OUT gone text, OUT measured_at timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 100
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].server_view("variants")
$python$;
COMMENT ON FUNCTION ml_udf._variants() IS 'the variants of models of every server that the caller may use';
REVOKE ALL ON FUNCTION ml_udf._variants() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._variants() TO ml_udf_reader;

-- PUBLIC. key: as a function names it; NULL where it is not offered.
CREATE VIEW ml_udf.variants AS
    SELECT server, model, version, variant, key, runtime, "precision", threads, bytes, resident_bytes, load_s, profile,
           accuracy, accuracy_low, accuracy_high, accuracy_rows, agreement, dataset, refused, gone, measured_at
    FROM ml_udf._variants();
COMMENT ON VIEW ml_udf.variants IS
    'other ways to run the models of the servers that you may use: how fast and how often right each was measured to be, or why it is refused';
GRANT SELECT ON ml_udf.variants TO ml_udf_reader;

-- ── Functions by wish ──────────────────────────────────────────────────────────────────────────────

-- decision: which model was chosen for the row, and why; NULL of functions that name their models.
ALTER TYPE ml_udf.detailed_prediction ADD ATTRIBUTE decision text;

-- PUBLIC. The function of before, which has one argument less, leaves its rights to this one, and goes.
ALTER FUNCTION ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name, name)
    RENAME TO _create_function_0_7;
CREATE FUNCTION ml_udf.create_function(
    name text,                              -- of the SQL function, as SQL writes it: udf_food, ml."Food"
    function text DEFAULT NULL,             -- of the server; NULL = the same name
    server name DEFAULT 'ml_udf',           -- foreign server that answers it
    input regtype DEFAULT 'text',           -- type of the argument: text, bytea, float8, float8[], …
    returns regtype DEFAULT NULL,           -- type of the result; NULL = real[] where the answer is a vector, else text
    options jsonb DEFAULT '{}',             -- its own settings: {"slo_ms": 200}; the session's go before them
    input_name text DEFAULT NULL,           -- which input of the model, where it has several
    output_name text DEFAULT NULL,          -- which output; NULL = the first
    verify boolean DEFAULT true,            -- whether to ask the server if it knows the function
    schema name DEFAULT current_schema(),   -- where to create it, unless name says so
    grant_to name DEFAULT 'ml_udf_reader',  -- role that may execute it, or public; NULL = its owner alone; if new
    wants jsonb DEFAULT NULL                -- has the server make it, by wish: {"dataset": "food", "min_accuracy": 0.9}
) RETURNS regprocedure
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].create_function(name, function, server, input, returns, options, input_name, output_name, verify, schema, grant_to, wants)
$python$;
COMMENT ON FUNCTION ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name, name, jsonb) IS
    'creates or replaces an SQL function for a function of a server, and its twin over arrays; with wants the server''s function too';
REVOKE ALL ON FUNCTION ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name, name, jsonb) FROM PUBLIC;
DO $do$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT new.oid::regprocedure AS new,
               CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(r.rolname) END AS grantee,
               CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS how
        FROM pg_catalog.pg_proc old CROSS JOIN pg_catalog.aclexplode(old.proacl) acl
        JOIN pg_catalog.pg_proc new ON new.pronamespace = old.pronamespace
                                   AND old.proname = '_' || new.proname || '_0_7'
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = acl.grantee
        WHERE old.pronamespace = 'ml_udf'::regnamespace AND acl.grantee <> old.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s', held.new, held.grantee, held.how);
    END LOOP;
    -- What an update grants counts as the extension's own, which pg_dump leaves out: only what was so before is.
    UPDATE pg_catalog.pg_init_privs given SET initprivs = before.initprivs
    FROM pg_catalog.pg_init_privs before
    JOIN pg_catalog.pg_proc old ON old.oid = before.objoid AND old.pronamespace = 'ml_udf'::regnamespace
    JOIN pg_catalog.pg_proc new ON new.pronamespace = old.pronamespace
                               AND old.proname = '_' || new.proname || '_0_7'
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;
DROP FUNCTION ml_udf._create_function_0_7(text, text, name, regtype, regtype, jsonb, text, text, boolean, name, name);

-- PRIVATE
CREATE FUNCTION ml_udf._decisions(
    OUT server text, OUT function text, OUT version bigint, OUT class text, OUT goals jsonb, OUT chosen text,
    OUT is_met boolean, OUT reason text, OUT candidates jsonb, OUT since timestamptz, OUT rows bigint,
    OUT degraded_rows bigint, OUT changes bigint
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].server_view("decisions")
$python$;
COMMENT ON FUNCTION ml_udf._decisions() IS 'what was decided of functions by wish, on every server that you may use';
REVOKE ALL ON FUNCTION ml_udf._decisions() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._decisions() TO ml_udf_reader;

-- PUBLIC
CREATE VIEW ml_udf.decisions AS
    SELECT server, function, version, class, goals, chosen, is_met, reason, candidates, since, rows, degraded_rows,
           changes
    FROM ml_udf._decisions();
COMMENT ON VIEW ml_udf.decisions IS
    'per goal of each function by wish: the model that is chosen and why, every candidate with its accuracy, predicted time and cost, since when, and the rows that were asked';
GRANT SELECT ON ml_udf.decisions TO ml_udf_reader;
