\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.5.0'" to load this file. \quit

-- What 0.5.0 adds to 0.4.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;


-- ── Vectors ────────────────────────────────────────────────────────────────────────────────────────

-- PUBLIC. Of pgvector's vectors: similarity(a::real[], b::real[]), or 1 - (a <=> b), which an index knows.
CREATE FUNCTION ml_udf.similarity(a real[], b real[]) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF cardinality(a) <> cardinality(b) THEN
        RAISE EXCEPTION 'similarity: a vector has % numbers, the other one %', cardinality(a), cardinality(b)
            USING ERRCODE = 'data_exception', HINT = 'compare answers of the same function';
    END IF;
    RETURN (SELECT sum(x::float8 * y) / nullif(sqrt(sum(x::float8 * x)) * sqrt(sum(y::float8 * y)), 0)
            FROM unnest(a, b) AS pair(x, y));
END
$function$;
COMMENT ON FUNCTION ml_udf.similarity(real[], real[]) IS
    'cosine of the angle between two vectors, from -1 to 1; NULL where one is NULL or all zeros';

-- PRIVATE. A vector of its binary format, as array_send gives it. The plan node receives the bytes of many, which
-- the twin hands on; without it the numbers are made one by one.
CREATE FUNCTION ml_udf._reals(vector bytea) RETURNS real[]
    LANGUAGE plpython3u STABLE STRICT
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].reals(vector)
$python$;
-- PRIVATE. Its twin.
CREATE FUNCTION ml_udf._reals_batch(vectors bytea[]) RETURNS bytea[]
    LANGUAGE sql STABLE STRICT
    SET search_path = pg_catalog, pg_temp
AS $function$ SELECT vectors $function$;
COMMENT ON FUNCTION ml_udf._reals(bytea) IS 'private: a vector of its binary format';
COMMENT ON FUNCTION ml_udf._reals_batch(bytea[]) IS 'private: many, for the plan node, which receives them';
REVOKE ALL ON FUNCTION ml_udf._reals(bytea), ml_udf._reals_batch(bytea[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._reals(bytea), ml_udf._reals_batch(bytea[]) TO ml_udf_reader;

-- ── What trials and deployments score ──────────────────────────────────────────────────────────────

-- metric: by which the job's trials are compared, and what the scores are values of; test_low and test_high
-- too. refit: the models that were taught the validation rows as well. thresholds: by class, from where on it
-- is answered. baseline: what the best answer without a model scores on the test rows, and what it says. Accuracies are
-- empty where answers are no classes.
ALTER TYPE ml_udf.deployment
    ADD ATTRIBUTE metric text,
    ADD ATTRIBUTE validation_score double precision,
    ADD ATTRIBUTE test_score double precision,
    ADD ATTRIBUTE baseline double precision,
    ADD ATTRIBUTE baseline_said text,
    ADD ATTRIBUTE refit text[],
    ADD ATTRIBUTE thresholds jsonb;

-- PRIVATE
CREATE FUNCTION ml_udf._training_jobs(
    OUT server text, OUT id bigint, OUT dataset text, OUT snapshot text, OUT state text, OUT reason text,
    OUT models text[], OUT policy text, OUT advisor text, OUT epochs_used bigint, OUT epochs_budget bigint,
    OUT trials bigint, OUT best_score double precision, OUT best_model text, OUT created_at timestamptz,
    OUT ended_at timestamptz, OUT metric text
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("jobs")
$python$;
COMMENT ON FUNCTION ml_udf._training_jobs() IS 'the training jobs of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._training_trials(
    OUT server text, OUT job_id bigint, OUT model text, OUT trial bigint, OUT state text, OUT knobs jsonb,
    OUT warm boolean, OUT parent_trial bigint, OUT worker text, OUT epochs bigint,
    OUT score double precision, OUT best_score double precision, OUT checkpoint text, OUT reason text,
    OUT metric text
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 100
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("trials")
$python$;
COMMENT ON FUNCTION ml_udf._training_trials() IS 'the trials of every server that the caller may use';

-- PUBLIC. The same views as before, grants and all; scores are values of the column metric.
CREATE OR REPLACE VIEW ml_udf.jobs AS
    SELECT server, id, dataset, snapshot, state, reason, models, policy, advisor, epochs_used, epochs_budget,
           trials, best_score, best_model, created_at, ended_at, metric
    FROM ml_udf._training_jobs();
CREATE OR REPLACE VIEW ml_udf.trials AS
    SELECT server, job_id, model, trial, state, knobs, warm, parent_trial, worker, epochs, score, best_score,
           checkpoint, reason, metric
    FROM ml_udf._training_trials();
DROP FUNCTION ml_udf._server_jobs();
DROP FUNCTION ml_udf._server_trials();

REVOKE ALL ON FUNCTION ml_udf._training_jobs(), ml_udf._training_trials() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._training_jobs(), ml_udf._training_trials() TO ml_udf_reader;


-- ── Answers of every task ──────────────────────────────────────────────────────────────────────────

-- columns: everything that was answered, by the names of the function's outputs.
ALTER TYPE ml_udf.detailed_prediction ADD ATTRIBUTE columns jsonb;

-- PUBLIC
CREATE FUNCTION ml_udf.scores(
    function text,               -- name of the function on the server
    input text,                  -- one value: a path, a text, a row as JSON
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS jsonb
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("scores", [function], [input], [server])[0]
$python$;
COMMENT ON FUNCTION ml_udf.scores(text, text, text) IS
    'class → probability of one value, of a function that has classes';

-- PUBLIC
CREATE FUNCTION ml_udf.scores_batch(functions text[], inputs text[], servers text[])
    RETURNS jsonb[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("scores", functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.scores_batch(text[], text[], text[]) IS
    'ml_udf.scores for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.scores(
    function text,               -- name of the function on the server
    input bytea,                 -- one value: an encoded image
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS jsonb
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("scores", [function], [input], [server])[0]
$python$;
COMMENT ON FUNCTION ml_udf.scores(text, bytea, text) IS
    'class → probability of one value, of a function that has classes';

-- PUBLIC
CREATE FUNCTION ml_udf.scores_batch(functions text[], inputs bytea[], servers text[])
    RETURNS jsonb[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("scores", functions, inputs, servers)
$python$;
COMMENT ON FUNCTION ml_udf.scores_batch(text[], bytea[], text[]) IS
    'ml_udf.scores for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.score(
    function text,               -- name of the function on the server
    input text,                  -- one value: a path, a text, a row as JSON
    label text,                  -- one of the function's classes
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS double precision
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("score", [function], [input], [server], [label])[0]
$python$;
COMMENT ON FUNCTION ml_udf.score(text, text, text, text) IS
    'the probability of one class for one value';

-- PUBLIC
CREATE FUNCTION ml_udf.score_batch(functions text[], inputs text[], labels text[], servers text[])
    RETURNS double precision[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("score", functions, inputs, servers, labels)
$python$;
COMMENT ON FUNCTION ml_udf.score_batch(text[], text[], text[], text[]) IS
    'ml_udf.score for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.score(
    function text,               -- name of the function on the server
    input bytea,                 -- one value: an encoded image
    label text,                  -- one of the function's classes
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS double precision
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("score", [function], [input], [server], [label])[0]
$python$;
COMMENT ON FUNCTION ml_udf.score(text, bytea, text, text) IS
    'the probability of one class for one value';

-- PUBLIC
CREATE FUNCTION ml_udf.score_batch(functions text[], inputs bytea[], labels text[], servers text[])
    RETURNS double precision[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("score", functions, inputs, servers, labels)
$python$;
COMMENT ON FUNCTION ml_udf.score_batch(text[], bytea[], text[], text[]) IS
    'ml_udf.score for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.top_k(
    function text,               -- name of the function on the server
    input text,                  -- one value: a path, a text, a row as JSON
    k integer,                   -- how many classes, from 1
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS jsonb
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("top_k", [function], [input], [server], [k])[0]
$python$;
COMMENT ON FUNCTION ml_udf.top_k(text, text, integer, text) IS
    'the k most probable classes of one value, [{"label", "score"}, …], the most probable first';

-- PUBLIC
CREATE FUNCTION ml_udf.top_k_batch(functions text[], inputs text[], ks integer[], servers text[])
    RETURNS jsonb[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("top_k", functions, inputs, servers, ks)
$python$;
COMMENT ON FUNCTION ml_udf.top_k_batch(text[], text[], integer[], text[]) IS
    'ml_udf.top_k for many rows at once, in order';

-- PUBLIC
CREATE FUNCTION ml_udf.top_k(
    function text,               -- name of the function on the server
    input bytea,                 -- one value: an encoded image
    k integer,                   -- how many classes, from 1
    server text DEFAULT 'ml_udf' -- name of the foreign server
) RETURNS jsonb
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("top_k", [function], [input], [server], [k])[0]
$python$;
COMMENT ON FUNCTION ml_udf.top_k(text, bytea, integer, text) IS
    'the k most probable classes of one value, [{"label", "score"}, …], the most probable first';

-- PUBLIC
CREATE FUNCTION ml_udf.top_k_batch(functions text[], inputs bytea[], ks integer[], servers text[])
    RETURNS jsonb[]
    LANGUAGE plpython3u STABLE STRICT PARALLEL UNSAFE COST 10000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].ask("top_k", functions, inputs, servers, ks)
$python$;
COMMENT ON FUNCTION ml_udf.top_k_batch(text[], bytea[], integer[], text[]) IS
    'ml_udf.top_k for many rows at once, in order';

REVOKE ALL ON FUNCTION
    ml_udf.scores(text, text, text),
    ml_udf.scores_batch(text[], text[], text[]),
    ml_udf.scores(text, bytea, text),
    ml_udf.scores_batch(text[], bytea[], text[]),
    ml_udf.score(text, text, text, text),
    ml_udf.score_batch(text[], text[], text[], text[]),
    ml_udf.score(text, bytea, text, text),
    ml_udf.score_batch(text[], bytea[], text[], text[]),
    ml_udf.top_k(text, text, integer, text),
    ml_udf.top_k_batch(text[], text[], integer[], text[]),
    ml_udf.top_k(text, bytea, integer, text),
    ml_udf.top_k_batch(text[], bytea[], integer[], text[])
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    ml_udf.scores(text, text, text),
    ml_udf.scores_batch(text[], text[], text[]),
    ml_udf.scores(text, bytea, text),
    ml_udf.scores_batch(text[], bytea[], text[]),
    ml_udf.score(text, text, text, text),
    ml_udf.score_batch(text[], text[], text[], text[]),
    ml_udf.score(text, bytea, text, text),
    ml_udf.score_batch(text[], bytea[], text[], text[]),
    ml_udf.top_k(text, text, integer, text),
    ml_udf.top_k_batch(text[], text[], integer[], text[]),
    ml_udf.top_k(text, bytea, integer, text),
    ml_udf.top_k_batch(text[], bytea[], integer[], text[])
    TO ml_udf_reader;

-- As the other calls: from PostgreSQL 17 on, a parallel plan may contain them.
DO $do$
DECLARE
    called regprocedure;
BEGIN
    IF pg_catalog.current_setting('server_version_num')::int >= 170000 THEN
        FOR called IN
            SELECT p.oid FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'ml_udf'::regnamespace
              AND p.proname IN ('scores', 'scores_batch', 'score', 'score_batch', 'top_k', 'top_k_batch')
        LOOP
            EXECUTE pg_catalog.format('ALTER FUNCTION %s PARALLEL RESTRICTED', called);
        END LOOP;
    END IF;
END
$do$;


-- ── What may be asked of a job ─────────────────────────────────────────────────────────────────────

-- PUBLIC. The function of 0.4.0, which has some arguments less, leaves its rights to this one, and goes.
ALTER FUNCTION ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text)
    RENAME TO _train_0_4;
CREATE FUNCTION ml_udf.train(
    dataset text,
    task text DEFAULT NULL,                 -- that of the dataset, if it is named
    models text[] DEFAULT NULL,             -- such as resnet, fasttext, random_forest; NULL = the task's
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
COMMENT ON FUNCTION ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text, text, text, jsonb, integer, double precision, integer, boolean, text) IS
    'begins to train on a dataset and returns at once: the job''s id, for ml_udf.jobs, ml_udf.trials and ml_udf.deploy';

-- PUBLIC
CREATE FUNCTION ml_udf.extend(
    job bigint,
    budget text,                            -- in all, in the unit that the job had: '20 minutes'
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("extend", {"job": job, "budget": budget}, server)
$python$;
COMMENT ON FUNCTION ml_udf.extend(bigint, text, text) IS
    'goes on with a job that has ended, with so much in all, in the unit of its budget';

REVOKE ALL ON FUNCTION
    ml_udf.train(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text, text, text, jsonb, integer, double precision, integer, boolean, text),
    ml_udf.extend(bigint, text, text)
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
                                   AND (old.proname, new.proname) IN (('_train_0_4', 'train'), ('extend', 'extend'))
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = acl.grantee
        WHERE old.pronamespace = 'ml_udf'::regnamespace AND acl.grantee <> old.proowner AND new.oid <> old.oid
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s', held.new, held.grantee, held.how);
    END LOOP;
    -- What an update grants counts as the extension's own, which pg_dump leaves out: only what was so before is.
    UPDATE pg_catalog.pg_init_privs given SET initprivs = before.initprivs
    FROM pg_catalog.pg_init_privs before
    JOIN pg_catalog.pg_proc old ON old.oid = before.objoid AND old.pronamespace = 'ml_udf'::regnamespace
    JOIN pg_catalog.pg_proc new ON new.pronamespace = old.pronamespace
                               AND (old.proname, new.proname) IN (('_train_0_4', 'train'), ('extend', 'extend'))
                               AND new.oid NOT IN (old.oid, 'ml_udf.extend(bigint, integer, text)'::regprocedure)
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;
DROP FUNCTION ml_udf._train_0_4(text, text, text[], text, text, text, integer, integer, integer, text, boolean, text);


-- ── Evaluation ─────────────────────────────────────────────────────────────────────────────────────
-- A query runs with the caller's rights. Of a dataset's rows neither inputs nor keys are shown; for members of
-- ml_udf_trainer.

-- PUBLIC
CREATE FUNCTION ml_udf.evaluate(
    function text,                                             -- name of the function on the server
    data text,                                                 -- a query with labelled rows, or the name of a dataset: its test rows
    target text DEFAULT NULL,                                  -- the query's column that holds what is right
    input text DEFAULT NULL,                                   -- the query's column to ask for; NULL = the only other one
    server text DEFAULT 'ml_udf',                              -- name of the foreign server
    search_path text DEFAULT pg_catalog.current_setting('search_path') -- by which the query's names are found
) RETURNS TABLE (metric text, value double precision, baseline double precision, "rows" bigint)
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 4
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].evaluation("evaluate", {"function": function, "data": data, "target": target, "input": input, "search_path": search_path}, server)
$python$;
COMMENT ON FUNCTION ml_udf.evaluate(text, text, text, text, text, text) IS
    'how good a function is on labelled rows: its metrics, each beside the best constant answer''s';

-- PUBLIC
CREATE FUNCTION ml_udf.confusion_matrix(
    function text,                                             -- name of the function on the server
    data text,                                                 -- a query with labelled rows, or the name of a dataset: its test rows
    target text DEFAULT NULL,                                  -- the query's column that holds what is right
    input text DEFAULT NULL,                                   -- the query's column to ask for; NULL = the only other one
    server text DEFAULT 'ml_udf',                              -- name of the foreign server
    search_path text DEFAULT pg_catalog.current_setting('search_path') -- by which the query's names are found
) RETURNS TABLE (actual text, predicted text, "rows" bigint)
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 100
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].evaluation("confusion_matrix", {"function": function, "data": data, "target": target, "input": input, "search_path": search_path}, server)
$python$;
COMMENT ON FUNCTION ml_udf.confusion_matrix(text, text, text, text, text, text) IS
    'how many rows of each class a function takes for each';

-- PUBLIC
CREATE FUNCTION ml_udf.importance(
    function text,                                             -- name of the function on the server
    data text,                                                 -- a query with labelled rows, or the name of a dataset: its test rows
    target text DEFAULT NULL,                                  -- the query's column that holds what is right
    repeats integer DEFAULT 5,                                 -- how often a column is dealt out
    seed integer DEFAULT 0,                                    -- by which
    server text DEFAULT 'ml_udf',                              -- name of the foreign server
    search_path text DEFAULT pg_catalog.current_setting('search_path') -- by which the query's names are found
) RETURNS TABLE (feature text, importance double precision, spread double precision, metric text)
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].evaluation("importance", {"function": function, "data": data, "target": target, "repeats": repeats, "seed": seed, "search_path": search_path}, server)
$python$;
COMMENT ON FUNCTION ml_udf.importance(text, text, text, integer, integer, text, text) IS
    'how much worse a function of a table answers when the values of one column are dealt out anew';

-- PUBLIC
CREATE FUNCTION ml_udf.learning_curve(
    job bigint,                                                -- from ml_udf.train
    server text DEFAULT 'ml_udf'                               -- name of the foreign server
) RETURNS TABLE (model text, trial bigint, epoch bigint, score double precision, metric text)
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 300
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].evaluation("learning_curve", {"job": job}, server)
$python$;
COMMENT ON FUNCTION ml_udf.learning_curve(bigint, text) IS
    'the validation score of each trial of a job after each of its epochs';

REVOKE ALL ON FUNCTION
    ml_udf.evaluate(text, text, text, text, text, text),
    ml_udf.confusion_matrix(text, text, text, text, text, text),
    ml_udf.importance(text, text, text, integer, integer, text, text),
    ml_udf.learning_curve(bigint, text)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    ml_udf.evaluate(text, text, text, text, text, text),
    ml_udf.confusion_matrix(text, text, text, text, text, text),
    ml_udf.importance(text, text, text, integer, integer, text, text),
    ml_udf.learning_curve(bigint, text)
    TO ml_udf_reader;


-- ── Training again ─────────────────────────────────────────────────────────────────────────────────

-- PUBLIC
CREATE FUNCTION ml_udf.retrain(
    function text,                          -- of the server
    every text DEFAULT NULL,                -- '1 day', '6 hours'; NULL = once, now; 'never' = no more
    budget text DEFAULT NULL,               -- of each time; NULL = that of the job before
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("retrain", {"function": function, "every": every, "budget": budget}, server)
$python$;
COMMENT ON FUNCTION ml_udf.retrain(text, text, text, text) IS
    'has the server train a function again, on the newest rows; what is found answers only where it is better';

-- PRIVATE
CREATE FUNCTION ml_udf._retrainings(
    OUT server text, OUT function text, OUT state text, OUT every_s double precision, OUT budget text,
    OUT next_at timestamptz, OUT job bigint, OUT outcome text, OUT ended_at timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("retrainings")
$python$;
COMMENT ON FUNCTION ml_udf._retrainings() IS 'the retrainings of every server that the caller may use';

-- PUBLIC
CREATE VIEW ml_udf.retrainings AS
    SELECT server, function, state, every_s, budget, next_at, job, outcome, ended_at
    FROM ml_udf._retrainings();
COMMENT ON VIEW ml_udf.retrainings IS 'functions that are trained again, and what came of it the last time';

REVOKE ALL ON FUNCTION ml_udf._retrainings(), ml_udf.retrain(text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._retrainings() TO ml_udf_reader;
GRANT SELECT ON ml_udf.retrainings TO ml_udf_reader;
GRANT EXECUTE ON FUNCTION ml_udf.retrain(text, text, text, text) TO ml_udf_admin;


-- ── Drift ──────────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._drift(
    OUT server text, OUT function text, OUT version bigint, OUT what text, OUT rows bigint,
    OUT index double precision, OUT is_much boolean, OUT reference text
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 50
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("drift")
$python$;
COMMENT ON FUNCTION ml_udf._drift() IS 'what has moved away from the training rows, of every server that the caller may use';

-- PUBLIC. index: the population stability index of the recent rows; below 0.1 little, above 0.25 much.
CREATE VIEW ml_udf.drift AS
    SELECT server, function, version, what, rows, index, is_much, reference
    FROM ml_udf._drift();
COMMENT ON VIEW ml_udf.drift IS 'how far what functions are asked and answer has moved from what they were trained on';

REVOKE ALL ON FUNCTION ml_udf._drift() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._drift() TO ml_udf_reader;
GRANT SELECT ON ml_udf.drift TO ml_udf_reader;
