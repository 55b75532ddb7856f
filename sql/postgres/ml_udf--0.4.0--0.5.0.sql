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

-- ── What trials and deployments score ──────────────────────────────────────────────────────────────

-- metric: by which the job's trials are compared, and what the scores are values of; test_low and test_high
-- too. baseline: what the best answer without a model scores on the test rows, and what it says. Accuracies are
-- empty where answers are no classes.
ALTER TYPE ml_udf.deployment
    ADD ATTRIBUTE metric text,
    ADD ATTRIBUTE validation_score double precision,
    ADD ATTRIBUTE test_score double precision,
    ADD ATTRIBUTE baseline double precision,
    ADD ATTRIBUTE baseline_said text;

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
