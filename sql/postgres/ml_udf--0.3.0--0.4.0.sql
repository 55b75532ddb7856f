\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.4.0'" to load this file. \quit

-- What 0.4.0 adds to 0.3.0: a function's answer may be a vector. A new function returns what the server says of
-- its answers, where nothing is said, and the view of functions shows their columns.


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

-- PRIVATE
CREATE FUNCTION ml_udf._served_functions(
    OUT server text, OUT name text, OUT version text, OUT task text, OUT models text[], OUT policy text,
    OUT slo_ms double precision, OUT outputs jsonb
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

-- PUBLIC. With a column behind the others.
CREATE OR REPLACE VIEW ml_udf.functions AS
    SELECT server, name, f.version, f.task, f.models, f.policy, f.slo_ms,
           w.oid::pg_catalog.regprocedure AS sql_function,
           pg_catalog.pg_get_function_result(w.oid) AS returns,
           w.record -> 'options' AS options,
           f.outputs
    FROM ml_udf._served_functions() f
    FULL JOIN (
        SELECT oid, record, record ->> 'server' AS server, record ->> 'function' AS name
        FROM ml_udf._wrappers() WHERE kind = 'scalar'
    ) w USING (server, name);

DROP FUNCTION ml_udf._server_functions();
