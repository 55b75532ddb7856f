\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.2.0'" to load this file. \quit

-- What 0.2.0 adds to 0.1.0: tables are scored, models are trained. CREATE EXTENSION runs this behind the first
-- script, so what is updated is what is installed.


-- ── The session ───────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)
$python$;


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
    subsets jsonb,                        -- accuracy of every subset of them, "a+b", on the rows that chose them
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
    budget text DEFAULT NULL,               -- '300 epochs', of all models together; NULL = 100 for each
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


-- ── Views ─────────────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._server_datasets(
    OUT server text, OUT name text, OUT snapshot text, OUT task text, OUT source text, OUT query text,
    OUT target text, OUT rows bigint, OUT classes text[], OUT splits jsonb, OUT unreadable bigint,
    OUT unreadable_rows jsonb, OUT taken_at timestamptz
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

-- PUBLIC
CREATE VIEW ml_udf.datasets AS
    SELECT server, name, snapshot, task, source, query, target, rows, classes, splits, unreadable,
           unreadable_rows, taken_at
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


-- ── Rights ────────────────────────────────────────────────────────────────────────────────────────────
-- Of what is new alone: an update takes back no right that somebody has given.

REVOKE ALL ON PROCEDURE
    ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, bigint, bigint, bigint)
    FROM PUBLIC;
REVOKE ALL ON FUNCTION
    ml_udf._server_datasets(),
    ml_udf._server_jobs(),
    ml_udf._server_trials(),
    ml_udf.create_dataset(text, text, text, text, text, text, text, text, text, double precision, double precision, text),
    ml_udf.refresh_dataset(text, text),
    ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text),
    ml_udf.cancel(bigint, text),
    ml_udf.pause(bigint, text),
    ml_udf.resume(bigint, text),
    ml_udf.extend(bigint, integer, text),
    ml_udf.deploy(text, bigint, text, double precision, text, name, text),
    ml_udf.rollback(text, text)
    FROM PUBLIC;

GRANT EXECUTE ON PROCEDURE
    ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, bigint, bigint, bigint)
    TO ml_udf_reader;
GRANT EXECUTE ON FUNCTION
    ml_udf._server_datasets(),
    ml_udf._server_jobs(),
    ml_udf._server_trials()
    TO ml_udf_reader;
GRANT SELECT ON ml_udf.datasets, ml_udf.jobs, ml_udf.trials TO ml_udf_reader;

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
    ml_udf.deploy(text, bigint, text, double precision, text, name, text),
    ml_udf.rollback(text, text)
    TO ml_udf_admin;
