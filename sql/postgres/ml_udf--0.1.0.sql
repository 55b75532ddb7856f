\echo Use "CREATE EXTENSION ml_udf CASCADE" to load this file. \quit

-- The canonical script of the extension. Objects are marked
--   PUBLIC   for users; changes keep old calls working
--   PRIVATE  for the extension itself; their names begin with an underscore
-- What runs is Python: the package ml_udf.postgres. The two paths in _boot() are written in by
-- `ml-udf postgres install`; no setting can change them. So every update script defines _boot() anew.


-- ── Roles ──────────────────────────────────────────────────────────────────────────────────────────
-- Roles belong to the whole cluster: they may exist already, and stay when the extension is dropped.
--   ml_udf_reader   may call functions and look at the views
--   ml_udf_trainer  a reader who may train
--   ml_udf_admin    a trainer who may create servers and functions

DO $do$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['ml_udf_reader', 'ml_udf_trainer', 'ml_udf_admin'] LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END
$do$;
GRANT ml_udf_reader TO ml_udf_trainer;
GRANT ml_udf_trainer TO ml_udf_admin;

-- Everybody may resolve names here: a right to execute one function is enough to call it.
GRANT USAGE ON SCHEMA ml_udf TO PUBLIC;


-- ── The session ────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)
$python$;
COMMENT ON FUNCTION ml_udf._boot() IS 'loads ml_udf into this session, once; called by every function of it';

-- PRIVATE. Reads the caller's own mapping, or PUBLIC's, which no user may read. It takes no argument and
-- returns nothing: what it reads is asked for, and kept, in the session's Python, out of reach of SQL.
CREATE FUNCTION ml_udf._read_mapping() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].read_mapping()
$python$;
COMMENT ON FUNCTION ml_udf._read_mapping() IS 'hands the endpoint and its token to ml_udf, never to SQL';


-- ── Servers and tokens ─────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._validate(options text[], catalog oid) RETURNS void
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].validate(options, catalog)
$python$;
COMMENT ON FUNCTION ml_udf._validate(text[], oid) IS 'checks the options of servers and user mappings';

-- PUBLIC
--   CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'http://127.0.0.1:8080');
--   CREATE USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (token '…');
CREATE FOREIGN DATA WRAPPER ml_udf VALIDATOR ml_udf._validate;
COMMENT ON FOREIGN DATA WRAPPER ml_udf IS
    'inference servers: OPTIONS (url) of a server, OPTIONS (token) of a user mapping';
GRANT USAGE ON FOREIGN DATA WRAPPER ml_udf TO ml_udf_admin;


-- ── Calling functions of a server ──────────────────────────────────────────────────────────────────
-- These take the function's name as a value and need USAGE on the server. Each has a twin, `…_batch`, over
-- arrays of all its arguments, by which a batching plan node can call it for many rows at once.

-- PUBLIC
CREATE TYPE ml_udf.prediction AS (
    value text,                  -- the answer; NULL where there is an error
    confidence double precision, -- agreement of the models, 0 to 1; NULL where the server gives none
    model_version text,          -- the version of the function that answered
    error text                   -- "code: message"; NULL where there is a value
);
COMMENT ON TYPE ml_udf.prediction IS 'an answer of ml_udf.try_predict: a value with its confidence, or an error';

-- PUBLIC. One vector per row: PostgreSQL has no arrays of arrays, so twins take and return arrays of these.
CREATE TYPE ml_udf.float4_vector AS (vector float4[]);
COMMENT ON TYPE ml_udf.float4_vector IS 'a row''s vector, where functions take or return many rows at once';

-- PUBLIC
CREATE TYPE ml_udf.float8_vector AS (vector float8[]);
COMMENT ON TYPE ml_udf.float8_vector IS 'a row''s vector, where functions take or return many rows at once';

-- PUBLIC
CREATE FUNCTION ml_udf.predict(
    function text,               -- name of the function, or model, on the server
    input text,                  -- one value: a path, a text
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].predict(function, input, server)
$python$;
COMMENT ON FUNCTION ml_udf.predict(text, text, text) IS 'the answer of a server''s function to one value';

-- PUBLIC
CREATE FUNCTION ml_udf.predict(
    function text,               -- name of the function, or model, on the server
    input bytea,                 -- one value: an encoded image
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].predict(function, input, server)
$python$;
COMMENT ON FUNCTION ml_udf.predict(text, bytea, text) IS 'the answer of a server''s function to one value';

-- PUBLIC
CREATE FUNCTION ml_udf.predict_batch(functions text[], inputs text[], servers text[]) RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].predict_batch(functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.predict_batch(text[], text[], text[]) IS 'ml_udf.predict for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.predict_batch(functions text[], inputs bytea[], servers text[]) RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].predict_batch(functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.predict_batch(text[], bytea[], text[]) IS 'ml_udf.predict for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.try_predict(
    function text,               -- name of the function, or model, on the server
    input text,                  -- one value: a path, a text
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS ml_udf.prediction
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].try_predict(function, input, server)
$python$;
COMMENT ON FUNCTION ml_udf.try_predict(text, text, text) IS
    'the answer to one value with its confidence, or the error of that value; call it in LATERAL to use its fields';

-- PUBLIC
CREATE FUNCTION ml_udf.try_predict(
    function text,               -- name of the function, or model, on the server
    input bytea,                 -- one value: an encoded image
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS ml_udf.prediction
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].try_predict(function, input, server)
$python$;
COMMENT ON FUNCTION ml_udf.try_predict(text, bytea, text) IS
    'the answer to one value with its confidence, or the error of that value; call it in LATERAL to use its fields';

-- PUBLIC
CREATE FUNCTION ml_udf.try_predict_batch(functions text[], inputs text[], servers text[])
    RETURNS ml_udf.prediction[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].try_predict_batch(functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.try_predict_batch(text[], text[], text[]) IS
    'ml_udf.try_predict for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.try_predict_batch(functions text[], inputs bytea[], servers text[])
    RETURNS ml_udf.prediction[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].try_predict_batch(functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.try_predict_batch(text[], bytea[], text[]) IS
    'ml_udf.try_predict for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.predict_many(
    function text,               -- name of the function, or model, on the server
    inputs text[],               -- values: paths, texts
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].predict_many(function, inputs, server)
$python$;
COMMENT ON FUNCTION ml_udf.predict_many(text, text[], text) IS
    'the answers of a server''s function to many values, in order; NULL for NULL';

-- PUBLIC
CREATE FUNCTION ml_udf.predict_many(
    function text,               -- name of the function, or model, on the server
    inputs bytea[],              -- values: encoded images
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS text[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].predict_many(function, inputs, server)
$python$;
COMMENT ON FUNCTION ml_udf.predict_many(text, bytea[], text) IS
    'the answers of a server''s function to many values, in order; NULL for NULL';

-- From PostgreSQL 17 on, a parallel plan's leader may run queries: such plans may contain calls.
DO $do$
DECLARE
    called regprocedure;
BEGIN
    IF pg_catalog.current_setting('server_version_num')::int >= 170000 THEN
        FOR called IN
            SELECT p.oid FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'ml_udf'::regnamespace AND p.proname ~ '^(try_)?predict(_many|_batch)?$'
        LOOP
            EXECUTE pg_catalog.format('ALTER FUNCTION %s PARALLEL RESTRICTED', called);
        END LOOP;
    END IF;
END
$do$;


-- ── SQL functions for functions of a server ────────────────────────────────────────────────────────

-- PRIVATE. A function that was made by create_function holds in its text what it was made with; only
-- superusers can write such a text.
CREATE FUNCTION ml_udf._wrappers(OUT oid oid, OUT kind text, OUT record jsonb) RETURNS SETOF record
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $sql$
    SELECT p.oid, found[1], found[2]::jsonb
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang,
    LATERAL regexp_match(p.prosrc, '\Aif "ml_udf" not in GD: plpy\.execute\("SELECT ml_udf\._boot\(\)"\)\s+return GD\["ml_udf"\]\.(scalar|batch)\((\{.*\}), inputs?\)\Z') AS found
    WHERE l.lanname = 'plpython3u' AND p.pronamespace <> 'ml_udf'::regnamespace AND found IS NOT NULL
$sql$;
COMMENT ON FUNCTION ml_udf._wrappers() IS 'the functions that ml_udf.create_function made, with what they were made with';

-- PRIVATE. PL/Python is for superusers: this creates, as its owner, what create_function left for it in the
-- session's Python after checking the caller's rights. It takes no argument.
CREATE FUNCTION ml_udf._define() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].define()
$python$;
COMMENT ON FUNCTION ml_udf._define() IS 'the privileged half of ml_udf.create_function';

-- PUBLIC
CREATE FUNCTION ml_udf.create_function(
    name text,                              -- of the SQL function, as SQL writes it: udf_food, ml."Food"
    function text DEFAULT NULL,             -- of the server; NULL = the same name
    server name DEFAULT 'ml_udf',           -- foreign server that answers it
    input regtype DEFAULT 'text',           -- type of the argument: text, bytea, float8, float8[], …
    returns regtype DEFAULT 'text',         -- type of the result: text, float8, boolean, jsonb, float4[], …
    options jsonb DEFAULT '{}',             -- its own settings: {"slo_ms": 200}; the session's go before them
    input_name text DEFAULT NULL,           -- which input of the model, where it has several
    output_name text DEFAULT NULL,          -- which output; NULL = the first
    verify boolean DEFAULT true,            -- whether to ask the server if it knows the function
    schema name DEFAULT current_schema()    -- where to create it, unless name says so
) RETURNS regprocedure
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].create_function(name, function, server, input, returns, options, input_name, output_name, verify, schema)
$python$;
COMMENT ON FUNCTION ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name) IS
    'creates or replaces an SQL function for a function of a server, and its twin over arrays';

-- PUBLIC
CREATE FUNCTION ml_udf.drop_function(
    name text,                              -- as in create_function
    if_exists boolean DEFAULT false,        -- whether it is fine that there is none
    schema name DEFAULT current_schema()    -- where it is, unless name says so
) RETURNS void
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].drop_function(name, if_exists, schema)
$python$;
COMMENT ON FUNCTION ml_udf.drop_function(text, boolean, name) IS
    'drops an SQL function that ml_udf.create_function made, and its twin';


-- ── Scoring tables ─────────────────────────────────────────────────────────────────────────────────

-- PUBLIC. It commits after every batch, so it can have no SET clause: it runs with the caller's search_path, as
-- the statements would that it stands for, and with the caller's rights.
CREATE PROCEDURE ml_udf.score_table(
    relation text,                          -- table or view, as SQL writes it
    function text,                          -- SQL function of ml_udf.create_function; or, with server, the server's
    input text,                             -- column that the function gets to see
    output text DEFAULT NULL,               -- column of the table itself that takes the answers; or
    result_table text DEFAULT NULL,         -- table that takes them beside the key; created where there is none
    key text[] DEFAULT NULL,                -- columns that tell the rows apart; NULL = the primary key
    condition text DEFAULT NULL,            -- SQL over the table's columns: which rows alone
    row_limit bigint DEFAULT NULL,          -- most rows of this call
    batch_rows integer DEFAULT NULL,        -- rows per commit; NULL = 1024
    on_error text DEFAULT NULL,             -- error, or null: store a faulty row's error and go on; NULL = the setting
    rescore text DEFAULT NULL,              -- why to score again: none, or some of changed, version, errors
    version text DEFAULT NULL,              -- of the function; NULL = the current one
    server text DEFAULT NULL,               -- foreign server, where function is no SQL function
    patience_s double precision DEFAULT 60, -- how long a server that does not answer is waited for
    INOUT answered bigint DEFAULT NULL,     -- result: rows that got an answer
    INOUT failed bigint DEFAULT NULL,       -- result: rows whose error was stored
    INOUT missed bigint DEFAULT NULL        -- result: rows that changed at every try, and are due still
)
    LANGUAGE plpython3u
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].score_table({"relation": relation, "function": function, "input": input, "output": output, "result_table": result_table, "key": key, "condition": condition, "row_limit": row_limit, "batch_rows": batch_rows, "on_error": on_error, "rescore": rescore, "version": version, "server": server, "patience_s": patience_s})
$python$;
COMMENT ON PROCEDURE ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, bigint, bigint, bigint) IS
    'stores a function''s answers for all rows of a table that have none yet, in batches that commit; called again, it goes on';


-- ── Training ───────────────────────────────────────────────────────────────────────────────────────

-- PUBLIC
CREATE TYPE ml_udf.deployment AS (
    function text,                        -- as SQL calls it now
    version bigint,                       -- the number of this deployment
    models text[],                        -- the models that answer together
    validation_accuracy double precision, -- of all of them, on the rows that chose them
    test_accuracy double precision,       -- of all of them, on rows that chose nothing
    test_low double precision,            -- its 95 % interval
    test_high double precision,
    test_rows bigint,
    best_single double precision,         -- test accuracy of the best of them alone
    promoted boolean,                     -- false: what answered before was kept, and version, models are its
    p_value double precision              -- of the comparison with it; NULL where there was none
);
COMMENT ON TYPE ml_udf.deployment IS 'what ml_udf.deploy has deployed, and how well it does';

-- PUBLIC
CREATE FUNCTION ml_udf.create_dataset(
    name text,                              -- of the dataset
    query text,                             -- one SELECT; the server runs it, read only
    target text,                            -- column of what is to be predicted
    key text,                               -- column that names a row
    task text DEFAULT 'image-classification', -- text-classification, tabular-classification
    source text DEFAULT 'default',          -- a connection of the inference server's connections file
    input text DEFAULT NULL,                -- column that models get to see, of a table 'age, plan'; NULL = what is left
    entity text DEFAULT NULL,               -- column whose rows stay together when the rows are split
    "time" text DEFAULT NULL,               -- column by which the latest rows become the test
    validation double precision DEFAULT 0.15,
    test double precision DEFAULT 0.15,
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("create_dataset", {"name": name, "query": query, "target": target, "key": key, "task": task, "source": source, "input": input, "entity": entity, "time": time, "validation": validation, "test": test}, server)
$python$;
COMMENT ON FUNCTION ml_udf.create_dataset(text, text, text, text, text, text, text, text, text, double precision, double precision, text) IS
    'registers a query of labelled rows and freezes them, split; the snapshot''s id';

-- PUBLIC
CREATE FUNCTION ml_udf.refresh_dataset(
    dataset text,
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("refresh_dataset", {"dataset": dataset}, server)
$python$;
COMMENT ON FUNCTION ml_udf.refresh_dataset(text, text) IS
    'runs a dataset''s query again; the new snapshot''s id; what was trained keeps its own';

-- PUBLIC
CREATE FUNCTION ml_udf.train(
    dataset text,
    task text DEFAULT NULL,                 -- that of the dataset, if it is named
    models text[] DEFAULT NULL,             -- such as resnet, fasttext, random_forest; NULL = the task's
    budget text DEFAULT '90 epochs',        -- of all models together
    policy text DEFAULT NULL,               -- branch, costudy, study; NULL = the task's
    advisor text DEFAULT 'random',          -- random, grid, gp, tpe
    max_epochs integer DEFAULT NULL,        -- of one trial
    seed integer DEFAULT 0,
    size integer DEFAULT NULL,              -- pixels of a side, of images
    visibility text DEFAULT 'private',      -- public: jobs on other datasets may begin from what is found
    pretrained boolean DEFAULT false,       -- whether to begin from what other jobs have made public
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS bigint
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("train", {"dataset": dataset, "task": task, "models": models, "budget": budget, "policy": policy, "advisor": advisor, "max_epochs": max_epochs, "seed": seed, "size": size, "visibility": visibility, "pretrained": pretrained}, server)
$python$;
COMMENT ON FUNCTION ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text) IS
    'begins to train on a dataset and returns at once: the job''s id, for ml_udf.jobs, ml_udf.trials and ml_udf.deploy';

-- PUBLIC
CREATE FUNCTION ml_udf.cancel(job bigint, server text DEFAULT 'ml_udf') RETURNS text
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("cancel", {"job": job}, server)
$python$;
COMMENT ON FUNCTION ml_udf.cancel(bigint, text) IS 'stops a job; what it has found can still be deployed';

-- PUBLIC
CREATE FUNCTION ml_udf.pause(job bigint, server text DEFAULT 'ml_udf') RETURNS text
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("pause", {"job": job}, server)
$python$;
COMMENT ON FUNCTION ml_udf.pause(bigint, text) IS 'lets a job rest until ml_udf.resume; epochs under way end first';

-- PUBLIC
CREATE FUNCTION ml_udf.resume(job bigint, server text DEFAULT 'ml_udf') RETURNS text
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("resume", {"job": job}, server)
$python$;
COMMENT ON FUNCTION ml_udf.resume(bigint, text) IS 'goes on with a paused job';

-- PUBLIC
CREATE FUNCTION ml_udf.extend(job bigint, budget_epochs integer, server text DEFAULT 'ml_udf') RETURNS text
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("extend", {"job": job, "budget_epochs": budget_epochs}, server)
$python$;
COMMENT ON FUNCTION ml_udf.extend(bigint, integer, text) IS
    'goes on with a job that has ended, with so many epochs in all';

-- PUBLIC
CREATE FUNCTION ml_udf.deploy(
    function text,                          -- of the SQL function, and of the server's
    job bigint,                             -- from ml_udf.train
    choose text DEFAULT 'ensemble',         -- ensemble, best, or one of the job's models
    slo_ms double precision DEFAULT NULL,   -- latency goal; the members are chosen to meet it
    promote text DEFAULT 'always',          -- always, or if_better than what answers now, on the same rows
    schema name DEFAULT current_schema(),   -- where to create the SQL function
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS ml_udf.deployment
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("deploy", {"function": function, "job": job, "choose": choose, "slo_ms": slo_ms, "promote": promote, "schema": schema}, server)
$python$;
COMMENT ON FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text) IS
    'creates or replaces an SQL function that answers with what a job has found; ml_udf.rollback takes it back';

-- PUBLIC
CREATE FUNCTION ml_udf.rollback(function text, server text DEFAULT 'ml_udf') RETURNS bigint
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("rollback", {"function": function}, server)
$python$;
COMMENT ON FUNCTION ml_udf.rollback(text, text) IS
    'deploys what a function was before its current deployment; the new deployment''s number';


-- ── Views ──────────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._server_functions(
    OUT server text, OUT name text, OUT version text, OUT task text, OUT models text[], OUT policy text,
    OUT slo_ms double precision
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].functions()
$python$;
COMMENT ON FUNCTION ml_udf._server_functions() IS 'the functions of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._server_models(
    OUT server text, OUT name text, OUT version text, OUT task text, OUT architecture text,
    OUT accuracy double precision, OUT resident boolean
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].models()
$python$;
COMMENT ON FUNCTION ml_udf._server_models() IS 'the models of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._server_datasets(
    OUT server text, OUT name text, OUT snapshot text, OUT task text, OUT source text, OUT query text,
    OUT target text, OUT rows bigint, OUT classes text[], OUT splits jsonb, OUT unreadable bigint,
    OUT taken_at timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("datasets")
$python$;
COMMENT ON FUNCTION ml_udf._server_datasets() IS 'the datasets of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._server_jobs(
    OUT server text, OUT id bigint, OUT dataset text, OUT snapshot text, OUT state text, OUT reason text,
    OUT models text[], OUT policy text, OUT advisor text, OUT epochs_used bigint, OUT epochs_budget bigint,
    OUT trials bigint, OUT best_score double precision, OUT best_model text, OUT created_at timestamptz,
    OUT ended_at timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("jobs")
$python$;
COMMENT ON FUNCTION ml_udf._server_jobs() IS 'the training jobs of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._server_trials(
    OUT server text, OUT job_id bigint, OUT model text, OUT trial bigint, OUT state text, OUT knobs jsonb,
    OUT warm boolean, OUT parent_trial bigint, OUT worker text, OUT epochs bigint,
    OUT score double precision, OUT best_score double precision, OUT checkpoint text, OUT reason text
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 100
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("trials")
$python$;
COMMENT ON FUNCTION ml_udf._server_trials() IS 'the trials of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._session_statistics(
    OUT server text, OUT name text, OUT statements bigint, OUT failed_calls bigint, OUT rows bigint,
    OUT null_rows bigint, OUT rows_sent bigint, OUT rows_reused bigint, OUT batches bigint, OUT retries bigint,
    OUT failed_rows bigint, OUT seconds double precision, OUT median_ms double precision,
    OUT p99_ms double precision
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].stat_functions()
$python$;
COMMENT ON FUNCTION ml_udf._session_statistics() IS 'what the statements of this session have asked of functions';

-- PUBLIC
CREATE VIEW ml_udf.functions AS
    SELECT server, name, f.version, f.task, f.models, f.policy, f.slo_ms,
           w.oid::pg_catalog.regprocedure AS sql_function,
           pg_catalog.pg_get_function_result(w.oid) AS returns,
           w.record -> 'options' AS options
    FROM ml_udf._server_functions() f
    FULL JOIN (
        SELECT oid, record, record ->> 'server' AS server, record ->> 'function' AS name
        FROM ml_udf._wrappers() WHERE kind = 'scalar'
    ) w USING (server, name);
COMMENT ON VIEW ml_udf.functions IS
    'functions of the servers that you may use, and the SQL functions made for them (sql_function; NULL = none yet)';

-- PUBLIC
CREATE VIEW ml_udf.models AS
    SELECT server, name, version, task, architecture, accuracy, resident FROM ml_udf._server_models();
COMMENT ON VIEW ml_udf.models IS 'models of the servers that you may use';

-- PUBLIC
CREATE VIEW ml_udf.datasets AS
    SELECT server, name, snapshot, task, source, query, target, rows, classes, splits, unreadable, taken_at
    FROM ml_udf._server_datasets();
COMMENT ON VIEW ml_udf.datasets IS 'datasets of the servers that you may use, with their newest snapshots';

-- PUBLIC
CREATE VIEW ml_udf.jobs AS
    SELECT server, id, dataset, snapshot, state, reason, models, policy, advisor, epochs_used, epochs_budget,
           trials, best_score, best_model, created_at, ended_at
    FROM ml_udf._server_jobs();
COMMENT ON VIEW ml_udf.jobs IS 'training jobs of the servers that you may use, as they stand';

-- PUBLIC
CREATE VIEW ml_udf.trials AS
    SELECT server, job_id, model, trial, state, knobs, warm, parent_trial, worker, epochs, score, best_score,
           checkpoint, reason
    FROM ml_udf._server_trials();
COMMENT ON VIEW ml_udf.trials IS 'trials of the jobs of the servers that you may use, as they stand';

-- PUBLIC
CREATE VIEW ml_udf.stat_functions AS
    SELECT server, name, statements, failed_calls, rows, null_rows, rows_sent, rows_reused, batches,
           pg_catalog.round(rows_sent::numeric / nullif(batches, 0), 1) AS avg_batch,
           retries, failed_rows, seconds, median_ms, p99_ms
    FROM ml_udf._session_statistics();
COMMENT ON VIEW ml_udf.stat_functions IS
    'per function, what the ended statements of this session asked: rows_sent of rows went to the server in batches, rows_reused were equal to others; median_ms and p99_ms are of calls that waited for it';


-- ── Rights ─────────────────────────────────────────────────────────────────────────────────────────

REVOKE ALL ON ALL ROUTINES IN SCHEMA ml_udf FROM PUBLIC;

-- What every call needs; none of them takes or gives anything.
GRANT EXECUTE ON FUNCTION ml_udf._boot(), ml_udf._read_mapping(), ml_udf._wrappers() TO PUBLIC;

GRANT EXECUTE ON FUNCTION
    ml_udf.predict(text, text, text),
    ml_udf.predict(text, bytea, text),
    ml_udf.predict_batch(text[], text[], text[]),
    ml_udf.predict_batch(text[], bytea[], text[]),
    ml_udf.try_predict(text, text, text),
    ml_udf.try_predict(text, bytea, text),
    ml_udf.try_predict_batch(text[], text[], text[]),
    ml_udf.try_predict_batch(text[], bytea[], text[]),
    ml_udf.predict_many(text, text[], text),
    ml_udf.predict_many(text, bytea[], text),
    ml_udf._server_functions(),
    ml_udf._server_models(),
    ml_udf._server_datasets(),
    ml_udf._server_jobs(),
    ml_udf._server_trials(),
    ml_udf._session_statistics()
    TO ml_udf_reader;
GRANT EXECUTE ON PROCEDURE
    ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, bigint, bigint, bigint)
    TO ml_udf_reader;
GRANT SELECT ON
    ml_udf.functions, ml_udf.models, ml_udf.datasets, ml_udf.jobs, ml_udf.trials, ml_udf.stat_functions
    TO ml_udf_reader;

GRANT EXECUTE ON FUNCTION
    ml_udf.create_dataset(text, text, text, text, text, text, text, text, text, double precision, double precision, text),
    ml_udf.refresh_dataset(text, text),
    ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text),
    ml_udf.cancel(bigint, text),
    ml_udf.pause(bigint, text),
    ml_udf.resume(bigint, text),
    ml_udf.extend(bigint, integer, text)
    TO ml_udf_trainer;

GRANT EXECUTE ON FUNCTION
    ml_udf._define(),
    ml_udf.deploy(text, bigint, text, double precision, text, name, text),
    ml_udf.rollback(text, text),
    ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name),
    ml_udf.drop_function(text, boolean, name)
    TO ml_udf_admin;
