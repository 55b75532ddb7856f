\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.3.0'" to load this file. \quit

-- What 0.3.0 adds to 0.2.0: datasets are read with the caller's rights, functions hold the server that they were
-- made for, and who may call them is said when they are made. CREATE EXTENSION runs this behind the other scripts,
-- so what is updated is what is installed.


-- ── What a deployment says ─────────────────────────────────────────────────────────────────────────

-- looks: how often these test rows have been looked at, with this time. level: p_value is a reason to change
-- below it; the stricter the more looks. majority_accuracy: test accuracy of always naming the most frequent
-- class. warning: what is to be known before the function is used; empty = nothing.
ALTER TYPE ml_udf.deployment
    ADD ATTRIBUTE looks bigint,
    ADD ATTRIBUTE level double precision,
    ADD ATTRIBUTE majority_accuracy double precision,
    ADD ATTRIBUTE warning text;


-- ── The session ───────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;


-- ── Roles ──────────────────────────────────────────────────────────────────────────────────────────
-- By the comment another database's CREATE EXTENSION knows them for ml_udf's own.

COMMENT ON ROLE ml_udf_reader IS 'ml_udf: may call functions and look at the views';
COMMENT ON ROLE ml_udf_trainer IS 'ml_udf: a reader who may train';
COMMENT ON ROLE ml_udf_admin IS 'ml_udf: a trainer who may create servers and functions';


-- ── Functions hold their server ────────────────────────────────────────────────────────────────────
-- Those that were made before get the oid and owner of the server that has the name now.

UPDATE pg_catalog.pg_proc p
SET prosrc = pg_catalog.overlay(
    p.prosrc,
    pg_catalog.format('({"server_oid": "%s", "server_owner": %s, "server": ', s.oid, pg_catalog.to_json(r.rolname::text)),
    pg_catalog.strpos(p.prosrc, '({"server": '), 12)
FROM ml_udf._wrappers() w, pg_catalog.pg_foreign_server s, pg_catalog.pg_foreign_data_wrapper f, pg_catalog.pg_roles r
WHERE p.oid = w.oid AND NOT w.record ? 'server_oid' AND pg_catalog.strpos(p.prosrc, '({"server": ') > 0
  AND s.srvname = w.record ->> 'server' AND f.oid = s.srvfdw AND f.fdwname = 'ml_udf' AND r.oid = s.srvowner;


-- ── What has another argument ──────────────────────────────────────────────────────────────────────

ALTER FUNCTION ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name)
    RENAME TO _create_function_0_2;
ALTER FUNCTION ml_udf.create_dataset(text, text, text, text, text, text, text, text, text, double precision, double precision, text)
    RENAME TO _create_dataset_0_2;
ALTER FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text)
    RENAME TO _deploy_0_2;

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
    schema name DEFAULT current_schema(),   -- where to create it, unless name says so
    grant_to name DEFAULT 'ml_udf_reader'   -- role that may execute it, or public; NULL = its owner alone; if new
) RETURNS regprocedure
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].create_function(name, function, server, input, returns, options, input_name, output_name, verify, schema, grant_to)
$python$;
COMMENT ON FUNCTION ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name, name) IS
    'creates or replaces an SQL function for a function of a server, and its twin over arrays';

-- PUBLIC
CREATE FUNCTION ml_udf.create_dataset(
    name text,                              -- of the dataset
    query text,                             -- one SELECT; run here with the caller's rights, and its rows are sent
    target text,                            -- column of what is to be predicted
    key text,                               -- column that names a row
    task text DEFAULT 'image-classification', -- text-classification, tabular-classification
    source text DEFAULT NULL,               -- or: the server runs it, over a connection of its connections file
    input text DEFAULT NULL,                -- column that models get to see, of a table 'age, plan'; NULL = what is left
    entity text DEFAULT NULL,               -- column whose rows stay together when the rows are split
    "time" text DEFAULT NULL,               -- column by which the latest rows become the test
    validation double precision DEFAULT 0.15,
    test double precision DEFAULT 0.15,
    server text DEFAULT 'ml_udf',           -- name of the foreign server
    search_path text DEFAULT pg_catalog.current_setting('search_path') -- by which the query's names are found
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("create_dataset", {"name": name, "query": query, "target": target, "key": key, "task": task, "source": source, "input": input, "entity": entity, "time": time, "validation": validation, "test": test, "search_path": search_path}, server)
$python$;
COMMENT ON FUNCTION ml_udf.create_dataset(text, text, text, text, text, text, text, text, text, double precision, double precision, text, text) IS
    'registers a query of labelled rows and freezes those that the caller may see, split; the snapshot''s id';

COMMENT ON FUNCTION ml_udf.refresh_dataset(text, text) IS
    'has the server run the query of a dataset with a source again; the new snapshot''s id; what was trained keeps its own';

-- PUBLIC
CREATE FUNCTION ml_udf.deploy(
    function text,                          -- of the SQL function, and of the server's
    job bigint,                             -- from ml_udf.train
    choose text DEFAULT 'ensemble',         -- ensemble, best, or one of the job's models
    slo_ms double precision DEFAULT NULL,   -- latency goal; the members are chosen to meet it
    promote text DEFAULT 'always',          -- always, or if_better than what answers now, on the same rows
    schema name DEFAULT current_schema(),   -- where to create the SQL function
    server text DEFAULT 'ml_udf',           -- name of the foreign server
    grant_to name DEFAULT 'ml_udf_reader'   -- role that may execute it, or public; NULL = its owner alone; if new
) RETURNS ml_udf.deployment
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("deploy", {"function": function, "job": job, "choose": choose, "slo_ms": slo_ms, "promote": promote, "schema": schema, "grant_to": grant_to}, server)
$python$;
COMMENT ON FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name) IS
    'creates or replaces an SQL function that answers with what a job has found; ml_udf.rollback takes it back';

-- Who had the right to the old has it to the new.
REVOKE ALL ON FUNCTION
    ml_udf.create_function(text, text, name, regtype, regtype, jsonb, text, text, boolean, name, name),
    ml_udf.create_dataset(text, text, text, text, text, text, text, text, text, double precision, double precision, text, text),
    ml_udf.deploy(text, bigint, text, double precision, text, name, text, name)
    FROM PUBLIC;

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
                                   AND old.proname = '_' || new.proname || '_0_2'
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
                               AND old.proname = '_' || new.proname || '_0_2'
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;

DROP FUNCTION
    ml_udf._create_function_0_2(text, text, name, regtype, regtype, jsonb, text, text, boolean, name),
    ml_udf._create_dataset_0_2(text, text, text, text, text, text, text, text, text, double precision, double precision, text),
    ml_udf._deploy_0_2(text, bigint, text, double precision, text, name, text);


-- ── What datasets show ─────────────────────────────────────────────────────────────────────────────
-- Their queries and classes are values of rows that a reader may not be allowed to see.

REVOKE SELECT ON ml_udf.datasets FROM ml_udf_reader;
REVOKE EXECUTE ON FUNCTION ml_udf._server_datasets() FROM ml_udf_reader;
GRANT SELECT ON ml_udf.datasets TO ml_udf_trainer;
GRANT EXECUTE ON FUNCTION ml_udf._server_datasets() TO ml_udf_trainer;
