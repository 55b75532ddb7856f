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

-- One that exists is used here too if it is ml_udf's own, which its comment says, or if nobody has got anything by
-- it. Who is a member of it has its rights in this database from now on.

DO $do$
DECLARE
    ours CONSTANT text[] := ARRAY['ml_udf_reader', 'ml_udf_trainer', 'ml_udf_admin'];
    wanted text;
    found record;
    members text;
BEGIN
    FOREACH wanted IN ARRAY ours LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
            CONTINUE;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
        SELECT r.oid, coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid') LIKE 'ml_udf: %', false) AS marked,
               r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolcanlogin OR r.rolreplication
               OR r.rolbypassrls OR EXISTS (
                   SELECT FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g ON g.oid = m.roleid
                   WHERE m.member = r.oid AND g.rolname <> ALL (ours)) AS powerful
        INTO STRICT found FROM pg_catalog.pg_roles r WHERE r.rolname = wanted;
        SELECT pg_catalog.string_agg(g.rolname, ', ' ORDER BY g.rolname) INTO members
        FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g ON g.oid = m.member
        WHERE m.roleid = found.oid AND g.rolname <> ALL (ours);
        IF found.powerful OR (members IS NOT NULL AND NOT found.marked) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'duplicate_object',
                MESSAGE = pg_catalog.format('role %I exists already, and is not as ml_udf would make it', wanted),
                DETAIL = CASE WHEN found.powerful THEN 'It may log in, or has rights of its own.'
                              ELSE pg_catalog.format('Its members would get rights here: %s.', members) END,
                HINT = pg_catalog.format('DROP or rename it; or, if it is of an ml_udf in another database and only its'
                    ' members are in the way: COMMENT ON ROLE %I IS %L', wanted, 'ml_udf: kept');
        END IF;
        RAISE WARNING 'role % exists already and is used in this database too; its members: %',
            wanted, coalesce(members, 'none');
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
CREATE VIEW ml_udf.stat_functions AS
    SELECT server, name, statements, failed_calls, rows, null_rows, rows_sent, rows_reused, batches,
           pg_catalog.round(rows_sent::numeric / nullif(batches, 0), 1) AS avg_batch,
           retries, failed_rows, seconds, median_ms, p99_ms
    FROM ml_udf._session_statistics();
COMMENT ON VIEW ml_udf.stat_functions IS
    'per function, what the ended statements of this session asked: rows_sent of rows went to the server in batches, rows_reused were equal to others; median_ms and p99_ms are of calls that waited for it';


-- ── Rights ─────────────────────────────────────────────────────────────────────────────────────────

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ml_udf FROM PUBLIC;

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
    ml_udf._session_statistics()
    TO ml_udf_reader;
GRANT SELECT ON ml_udf.functions, ml_udf.models, ml_udf.stat_functions TO ml_udf_reader;

GRANT EXECUTE ON FUNCTION
    ml_udf._define(),
    ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name),
    ml_udf.drop_function(text, boolean, name)
    TO ml_udf_admin;
