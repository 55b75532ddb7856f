\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.11.0'" to load this file. \quit

-- What 0.11.0 adds to 0.10.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;

-- ── Names, one or several ──────────────────────────────────────────────────────────────────────────
-- A parameter of the type text[] has 'lightgbm' refused as a malformed array before any of our code runs, and overloads
-- with the same defaults are ambiguous. So a type of its own, stored as text is, which texts and arrays of texts become.

-- PUBLIC
CREATE TYPE ml_udf.names;

-- PRIVATE
CREATE FUNCTION ml_udf._names_in(cstring) RETURNS ml_udf.names
    LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE
    AS 'textin';
COMMENT ON FUNCTION ml_udf._names_in(cstring) IS 'private: reads names';

-- PRIVATE
CREATE FUNCTION ml_udf._names_out(ml_udf.names) RETURNS cstring
    LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE
    AS 'textout';
COMMENT ON FUNCTION ml_udf._names_out(ml_udf.names) IS 'private: writes names';
REVOKE ALL ON FUNCTION ml_udf._names_in(cstring), ml_udf._names_out(ml_udf.names) FROM PUBLIC;

-- PUBLIC
CREATE TYPE ml_udf.names (INPUT = ml_udf._names_in, OUTPUT = ml_udf._names_out, LIKE = pg_catalog.text);
COMMENT ON TYPE ml_udf.names IS 'one name or several: ''a'', ''a, b'', or an array of texts';
CREATE CAST (text AS ml_udf.names) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (varchar AS ml_udf.names) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text[] AS ml_udf.names) WITH INOUT AS IMPLICIT;
CREATE CAST (varchar[] AS ml_udf.names) WITH INOUT AS IMPLICIT;
CREATE CAST (name[] AS ml_udf.names) WITH INOUT AS IMPLICIT;

-- The functions of before leave their rights to these, and go.
ALTER FUNCTION ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text, text, text, jsonb, integer, double precision, integer, boolean, text)
    RENAME TO _train_0_10;
ALTER FUNCTION ml_udf.share(text, text, text, text[], text, text) RENAME TO _share_0_10;
ALTER PROCEDURE ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, boolean, bigint, bigint, bigint)
    RENAME TO _score_table_0_10;

-- PUBLIC
CREATE FUNCTION ml_udf.train(
    dataset text,
    task text DEFAULT NULL,                 -- that of the dataset, if it is named
    models ml_udf.names DEFAULT NULL,       -- such as resnet, fasttext, random_forest; NULL = the task's
    budget text DEFAULT NULL,               -- '10 minutes', '200 epochs' or '30 trials', of all models together
    policy text DEFAULT NULL,               -- asha, branch, costudy, study; NULL = the task's
    advisor text DEFAULT 'random',          -- random, grid, gp, tpe
    max_epochs integer DEFAULT NULL,        -- of one trial
    seed integer DEFAULT 0,
    size integer DEFAULT NULL,              -- pixels of a side, of images
    visibility text DEFAULT 'private',      -- public: jobs on other datasets may begin from what is found
    pretrained boolean DEFAULT false,       -- whether to begin from what other jobs have made public
    server text DEFAULT 'ml_udf',           -- name of the foreign server
    metric text DEFAULT NULL,               -- accuracy, macro_f1, auc, rmse, …; NULL = the task's first
    class_weight text DEFAULT NULL,         -- balanced: rare classes weigh as much as frequent ones
    knobs jsonb DEFAULT NULL,               -- what is tuned, hooks and all; NULL = each model's own
    patience integer DEFAULT NULL,          -- epochs without a gain that end a trial
    delta double precision DEFAULT NULL,    -- gain that is worth a checkpoint, of the policy costudy
    max_trials integer DEFAULT NULL,        -- of each model
    refit boolean DEFAULT NULL,             -- whether what is deployed is taught the validation rows as well
    backbone text DEFAULT NULL              -- registered model on whose features heads are learnt: NAME, NAME/VERSION
) RETURNS bigint
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("train", {"dataset": dataset, "task": task, "models": models, "budget": budget, "policy": policy, "advisor": advisor, "max_epochs": max_epochs, "seed": seed, "size": size, "visibility": visibility, "pretrained": pretrained, "metric": metric, "class_weight": class_weight, "knobs": knobs, "patience": patience, "delta": delta, "max_trials": max_trials, "refit": refit, "backbone": backbone}, server)
$python$;
COMMENT ON FUNCTION ml_udf.train(text, text, ml_udf.names, text, text, text, integer, integer, integer, text, boolean, text, text, text, jsonb, integer, double precision, integer, boolean, text) IS
    'begins to train on a dataset and returns at once: the job''s id, for ml_udf.jobs, ml_udf.trials and ml_udf.deploy';
REVOKE ALL ON FUNCTION ml_udf.train(text, text, ml_udf.names, text, text, text, integer, integer, integer, text, boolean, text, text, text, jsonb, integer, double precision, integer, boolean, text) FROM PUBLIC;

-- PUBLIC. What the mapping's token may not, this does not either: a thing's owner and admins share it.
CREATE FUNCTION ml_udf.share(
    kind text,                              -- function, model or dataset
    name text,                              -- what it is called on the server
    visibility text DEFAULT NULL,           -- private, shared or public; NULL = shared where shared_with is given
    shared_with ml_udf.names DEFAULT NULL,  -- the names of the tokens that see it, beside its owner's and admins'
    owner text DEFAULT NULL,                -- the token whose it is from now on; admins say so
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].share({"kind": kind, "name": name, "visibility": visibility, "shared_with": shared_with, "owner": owner}, server)
$python$;
COMMENT ON FUNCTION ml_udf.share(text, text, text, ml_udf.names, text, text) IS
    'says who sees a function, a model or a dataset of a server, and whose it is; its visibility from now on';
REVOKE ALL ON FUNCTION ml_udf.share(text, text, text, ml_udf.names, text, text) FROM PUBLIC;

-- PUBLIC. It commits, so it can have no SET clause: it runs with the caller's search_path, as the statements would that
-- it stands for, and with the caller's rights.
CREATE PROCEDURE ml_udf.score_table(
    relation text,                          -- table or view, as SQL writes it
    function text,                          -- SQL function of ml_udf.create_function; or, with server, the server's
    input text,                             -- column that the function gets to see
    output text DEFAULT NULL,               -- column of the table itself that takes the answers; or
    result_table text DEFAULT NULL,         -- table that takes them beside the key; created where there is none
    key ml_udf.names DEFAULT NULL,          -- columns that tell the rows apart; NULL = the primary key
    condition text DEFAULT NULL,            -- SQL over the table's columns: which rows alone
    row_limit bigint DEFAULT NULL,          -- most rows of this call
    batch_rows integer DEFAULT NULL,        -- rows per commit; NULL = 1024
    on_error text DEFAULT NULL,             -- error, or null: store a faulty row's error and go on; NULL = the setting
    rescore text DEFAULT NULL,              -- why to score again: none, or some of changed, version, errors
    version text DEFAULT NULL,              -- of the function; NULL = the current one
    server text DEFAULT NULL,               -- foreign server, where function is no SQL function
    patience_s double precision DEFAULT 60, -- how long a server that does not answer is waited for
    watch boolean DEFAULT false,            -- keep the answers fresh from now on, instead of scoring now
    INOUT answered bigint DEFAULT NULL,     -- result: rows that got an answer
    INOUT failed bigint DEFAULT NULL,       -- result: rows whose error was stored
    INOUT missed bigint DEFAULT NULL        -- result: rows that changed at every try, and are due still
)
    LANGUAGE plpython3u
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].score_table({"relation": relation, "function": function, "input": input, "output": output, "result_table": result_table, "key": key, "condition": condition, "row_limit": row_limit, "batch_rows": batch_rows, "on_error": on_error, "rescore": rescore, "version": version, "server": server, "patience_s": patience_s, "watch": watch})
$python$;
COMMENT ON PROCEDURE ml_udf.score_table(text, text, text, text, text, ml_udf.names, text, bigint, integer, text, text, text, text, double precision, boolean, bigint, bigint, bigint) IS
    'stores a function''s answers for all rows of a table that have none yet, in batches that commit; called again, it goes on; watch => true has them kept fresh by ml-udf score --watch';
REVOKE ALL ON PROCEDURE ml_udf.score_table(text, text, text, text, text, ml_udf.names, text, bigint, integer, text, text, text, text, double precision, boolean, bigint, bigint, bigint) FROM PUBLIC;

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
                                   AND old.proname = pg_catalog.format('_%s_0_10', new.proname)
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = acl.grantee
        WHERE old.pronamespace = 'ml_udf'::regnamespace AND acl.grantee <> old.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s%s', held.new, held.grantee, held.how);
    END LOOP;
    -- What an update grants counts as the extension's own, which pg_dump leaves out: only what was so before is.
    UPDATE pg_catalog.pg_init_privs given SET initprivs = before.initprivs
    FROM pg_catalog.pg_init_privs before
    JOIN pg_catalog.pg_proc old ON old.oid = before.objoid AND old.pronamespace = 'ml_udf'::regnamespace
    JOIN pg_catalog.pg_proc new ON new.pronamespace = old.pronamespace
                               AND old.proname = pg_catalog.format('_%s_0_10', new.proname)
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;
DROP FUNCTION ml_udf._train_0_10(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text, text, text, jsonb, integer, double precision, integer, boolean, text);
DROP FUNCTION ml_udf._share_0_10(text, text, text, text[], text, text);
DROP PROCEDURE ml_udf._score_table_0_10(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, boolean, bigint, bigint, bigint);
