\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.4.0'" to load this file. \quit

-- What 0.4.0 adds to 0.3.0: a function's answer may be a vector. A new function returns what the server says of
-- its answers, where nothing is said, and the view of functions shows their columns, by which rule several
-- models answer together, what feedback says of them, and which of them answer now. ml_udf.feedback gives it, and
-- ml_udf.detail says how a row was answered. Two views show which models are on which workers, and why.

-- combine: the rule by which several models answer together; empty for one alone. fitted_rows: the validation rows
-- on which their weights were fitted. held_out: for each rule, the share of those rows that it answers rightly
-- without having been fitted on them.
ALTER TYPE ml_udf.deployment
    ADD ATTRIBUTE combine text,
    ADD ATTRIBUTE fitted_rows bigint,
    ADD ATTRIBUTE held_out jsonb;


-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;

-- PUBLIC. The same function as before, grants and all: another default of "returns".
CREATE OR REPLACE FUNCTION ml_udf.create_function(
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
    grant_to name DEFAULT 'ml_udf_reader'   -- role that may execute it, or public; NULL = its owner alone; if new
) RETURNS regprocedure
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].create_function(name, function, server, input, returns, options, input_name, output_name, verify, schema, grant_to)
$python$;

-- PUBLIC. The function of 0.3.0, which has one argument less, leaves its rights to this one, and goes.
ALTER FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name)
    RENAME TO _deploy_0_3;
CREATE FUNCTION ml_udf.deploy(
    function text,                          -- of the SQL function, and of the server's
    job bigint,                             -- from ml_udf.train
    choose text DEFAULT 'ensemble',         -- ensemble, best, or one of the job's models
    slo_ms double precision DEFAULT NULL,   -- latency goal; the members are chosen to meet it
    promote text DEFAULT 'always',          -- always, or if_better than what answers now, on the same rows
    schema name DEFAULT current_schema(),   -- where to create the SQL function
    server text DEFAULT 'ml_udf',           -- name of the foreign server
    grant_to name DEFAULT 'ml_udf_reader',  -- role that may execute it, or public; NULL = its owner alone; if new
    task text DEFAULT NULL                  -- another one that the models do: image-embedding; NULL = their own
) RETURNS ml_udf.deployment
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("deploy", {"function": function, "job": job, "choose": choose, "slo_ms": slo_ms, "promote": promote, "schema": schema, "grant_to": grant_to, "task": task}, server)
$python$;
COMMENT ON FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name, text) IS
    'creates or replaces an SQL function that answers with what a job has found; ml_udf.rollback takes it back';
REVOKE ALL ON FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name, text) FROM PUBLIC;
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
                                   AND old.proname = '_' || new.proname || '_0_3'
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
                               AND old.proname = '_' || new.proname || '_0_3'
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;
DROP FUNCTION ml_udf._deploy_0_3(text, bigint, text, double precision, text, name, text, name);

-- PRIVATE
CREATE FUNCTION ml_udf._served_functions(
    OUT server text, OUT name text, OUT version text, OUT task text, OUT models text[], OUT policy text,
    OUT slo_ms double precision, OUT outputs jsonb, OUT combine text, OUT feedback jsonb, OUT selection jsonb
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].functions()
$python$;
COMMENT ON FUNCTION ml_udf._served_functions() IS 'the functions of every server that the caller may use';
REVOKE ALL ON FUNCTION ml_udf._served_functions() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._served_functions() TO ml_udf_reader;

-- PUBLIC. With four columns behind the others. selection: which models answer now, by which plan; gear: of so many
-- gears, 0 the richest; price_per_device_second: right answers that a second of a device has to bring; what accuracy
-- is expected of it, and how many seconds of devices a row takes.
CREATE OR REPLACE VIEW ml_udf.functions AS
    SELECT server, name, f.version, f.task, f.models, f.policy, f.slo_ms,
           w.oid::pg_catalog.regprocedure AS sql_function,
           pg_catalog.pg_get_function_result(w.oid) AS returns,
           w.record -> 'options' AS options,
           f.outputs,
           f.combine,
           f.feedback,
           f.selection
    FROM ml_udf._served_functions() f
    FULL JOIN (
        SELECT oid, record, record ->> 'server' AS server, record ->> 'function' AS name
        FROM ml_udf._wrappers() WHERE kind = 'scalar'
    ) w USING (server, name);

DROP FUNCTION ml_udf._server_functions();


-- PUBLIC. STABLE, so that rows are gathered and sent many at a time: this database is not changed, and a row that
-- is sent twice counts once.
CREATE FUNCTION ml_udf.feedback(
    function text,               -- name of the function on the server
    input text,                 -- one value: a path, a text
    label text,                  -- its true label, one of the function's classes
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].feedback([function], [input], [label], [server])[0]
$python$;
COMMENT ON FUNCTION ml_udf.feedback(text, text, text, text) IS
    'says what an input''s label is, from which its function may learn: counted, changed or repeated; NULL for NULL';

-- PUBLIC
CREATE FUNCTION ml_udf.feedback_batch(functions text[], inputs text[], labels text[], servers text[]) RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].feedback(functions, inputs, labels, servers)
$python$;
COMMENT ON FUNCTION ml_udf.feedback_batch(text[], text[], text[], text[]) IS 'ml_udf.feedback for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.feedback(
    function text,               -- name of the function on the server
    input bytea,                -- one value: an encoded image
    label text,                  -- its true label, one of the function's classes
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].feedback([function], [input], [label], [server])[0]
$python$;
COMMENT ON FUNCTION ml_udf.feedback(text, bytea, text, text) IS
    'says what an input''s label is, from which its function may learn: counted, changed or repeated; NULL for NULL';

-- PUBLIC
CREATE FUNCTION ml_udf.feedback_batch(functions text[], inputs bytea[], labels text[], servers text[]) RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].feedback(functions, inputs, labels, servers)
$python$;
COMMENT ON FUNCTION ml_udf.feedback_batch(text[], bytea[], text[], text[]) IS 'ml_udf.feedback for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.feedback_by_id(
    function text,               -- name of the function on the server
    prediction text,             -- the id of an answer of it, from ml_udf.detail
    label text,                  -- the true label, one of the function's classes
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].feedback([function], [prediction], [label], [server], by_id=True)[0]
$python$;
COMMENT ON FUNCTION ml_udf.feedback_by_id(text, text, text, text) IS
    'says what was right where a function answered, by the id of that answer: counted, changed or repeated';

-- PUBLIC
CREATE FUNCTION ml_udf.feedback_by_id_batch(functions text[], predictions text[], labels text[], servers text[])
    RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].feedback(functions, predictions, labels, servers, by_id=True)
$python$;
COMMENT ON FUNCTION ml_udf.feedback_by_id_batch(text[], text[], text[], text[]) IS
    'ml_udf.feedback_by_id for many rows at once, in order';

-- What labels teach changes the answers of everybody.
REVOKE ALL ON FUNCTION
    ml_udf.feedback(text, text, text, text),
    ml_udf.feedback(text, bytea, text, text),
    ml_udf.feedback_batch(text[], text[], text[], text[]),
    ml_udf.feedback_batch(text[], bytea[], text[], text[]),
    ml_udf.feedback_by_id(text, text, text, text),
    ml_udf.feedback_by_id_batch(text[], text[], text[], text[])
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    ml_udf.feedback(text, text, text, text),
    ml_udf.feedback(text, bytea, text, text),
    ml_udf.feedback_batch(text[], text[], text[], text[]),
    ml_udf.feedback_batch(text[], bytea[], text[], text[]),
    ml_udf.feedback_by_id(text, text, text, text),
    ml_udf.feedback_by_id_batch(text[], text[], text[], text[])
    TO ml_udf_admin;


-- ── How a row was answered ─────────────────────────────────────────────────────────────────────────

-- PUBLIC
CREATE TYPE ml_udf.detailed_prediction AS (
    value text,                         -- the answer; NULL where there is an error
    confidence double precision,        -- how sure it is, 0 to 1; NULL where the server does not say
    model_version text,                 -- the version of the function that answered
    error text,                         -- "code: message"; NULL where there is a value
    answered_by text[],                 -- the models that answered the row; {default} for the default answer
    expected_accuracy double precision, -- how often such answers are right on held-out rows; NULL = not known
    device_seconds double precision,    -- that these models take for a row, by what was learned; NULL = not known
    prediction text                     -- for ml_udf.feedback_by_id; NULL where a label could teach nothing
);
COMMENT ON TYPE ml_udf.detailed_prediction IS 'an answer of ml_udf.detail: a value and how it came about, or an error';

-- PUBLIC
CREATE FUNCTION ml_udf.detail(
    function text,               -- name of the function, or model, on the server
    input text,                  -- one value: a path, a text
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS ml_udf.detailed_prediction
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].detail(function, input, server)
$python$;
COMMENT ON FUNCTION ml_udf.detail(text, text, text) IS
    'the answer to one value and how it came about, or the error of that value; call it in LATERAL to use its fields';

-- PUBLIC
CREATE FUNCTION ml_udf.detail_batch(functions text[], inputs text[], servers text[])
    RETURNS ml_udf.detailed_prediction[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].detail_batch(functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.detail_batch(text[], text[], text[]) IS 'ml_udf.detail for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.detail(
    function text,               -- name of the function, or model, on the server
    input bytea,                 -- one value: an encoded image
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS ml_udf.detailed_prediction
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].detail(function, input, server)
$python$;
COMMENT ON FUNCTION ml_udf.detail(text, bytea, text) IS
    'the answer to one value and how it came about, or the error of that value; call it in LATERAL to use its fields';

-- PUBLIC
CREATE FUNCTION ml_udf.detail_batch(functions text[], inputs bytea[], servers text[])
    RETURNS ml_udf.detailed_prediction[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].detail_batch(functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.detail_batch(text[], bytea[], text[]) IS 'ml_udf.detail for many rows at once, in order';

REVOKE ALL ON FUNCTION
    ml_udf.detail(text, text, text),
    ml_udf.detail(text, bytea, text),
    ml_udf.detail_batch(text[], text[], text[]),
    ml_udf.detail_batch(text[], bytea[], text[])
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    ml_udf.detail(text, text, text),
    ml_udf.detail(text, bytea, text),
    ml_udf.detail_batch(text[], text[], text[]),
    ml_udf.detail_batch(text[], bytea[], text[])
    TO ml_udf_reader;

-- As the other calls: from PostgreSQL 17 on, a parallel plan may contain them.
DO $do$
DECLARE
    called regprocedure;
BEGIN
    IF pg_catalog.current_setting('server_version_num')::int >= 170000 THEN
        FOR called IN
            SELECT p.oid FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'ml_udf'::regnamespace AND p.proname IN ('detail', 'detail_batch')
        LOOP
            EXECUTE pg_catalog.format('ALTER FUNCTION %s PARALLEL RESTRICTED', called);
        END LOOP;
    END IF;
END
$do$;


-- ── Where models are ───────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._server_residency(
    OUT server text, OUT worker text, OUT device text, OUT tier text, OUT model text, OUT size_bytes bigint,
    OUT since timestamptz, OUT last_used timestamptz, OUT rows_per_s double precision, OUT loads bigint
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 50
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].residency("residency")
$python$;
COMMENT ON FUNCTION ml_udf._server_residency() IS 'the models on workers of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._server_residency_events(
    OUT server text, OUT at timestamptz, OUT worker text, OUT model text, OUT event text, OUT reason text,
    OUT outcome text, OUT took_s double precision, OUT error text
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 500
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].residency("residency_events")
$python$;
COMMENT ON FUNCTION ml_udf._server_residency_events() IS
    'the last loads and evictions of every server that the caller may use';

-- PUBLIC. tier: device, what may be asked now; host, what lies ready in the host's memory.
CREATE VIEW ml_udf.residency AS
    SELECT server, worker, device, tier, model, size_bytes, since, last_used, rows_per_s, loads
    FROM ml_udf._server_residency();
COMMENT ON VIEW ml_udf.residency IS 'which models are on which workers of the servers that you may use';

-- PUBLIC
CREATE VIEW ml_udf.residency_events AS
    SELECT server, at, worker, model, event, reason, outcome, took_s, error
    FROM ml_udf._server_residency_events();
COMMENT ON VIEW ml_udf.residency_events IS
    'the last loads and evictions on the servers that you may use, newest first, with their reasons';

REVOKE ALL ON FUNCTION ml_udf._server_residency(), ml_udf._server_residency_events() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._server_residency(), ml_udf._server_residency_events() TO ml_udf_reader;
GRANT SELECT ON ml_udf.residency, ml_udf.residency_events TO ml_udf_reader;
