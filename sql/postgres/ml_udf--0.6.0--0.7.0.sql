\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.7.0'" to load this file. \quit

-- What 0.7.0 adds to 0.6.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;

-- ── Whose things are, and who sees them ────────────────────────────────────────────────────────────

-- PUBLIC. What the mapping's token may not, this does not either: a thing's owner and admins share it.
CREATE FUNCTION ml_udf.share(
    kind text,                              -- function, model or dataset
    name text,                              -- what it is called on the server
    visibility text DEFAULT NULL,           -- private, shared or public; NULL = shared where shared_with is given
    shared_with text[] DEFAULT NULL,        -- the names of the tokens that see it, beside its owner's and admins'
    owner text DEFAULT NULL,                -- the token whose it is from now on; admins say so
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].share({"kind": kind, "name": name, "visibility": visibility, "shared_with": shared_with, "owner": owner}, server)
$python$;
COMMENT ON FUNCTION ml_udf.share(text, text, text, text[], text, text) IS
    'says who sees a function, a model or a dataset of a server, and whose it is; its visibility from now on';
REVOKE ALL ON FUNCTION ml_udf.share(text, text, text, text[], text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf.share(text, text, text, text[], text, text) TO ml_udf_trainer, ml_udf_admin;

-- PRIVATE
CREATE FUNCTION ml_udf._owned_functions(
    OUT server text, OUT name text, OUT version text, OUT task text, OUT models text[], OUT policy text,
    OUT slo_ms double precision, OUT outputs jsonb, OUT combine text, OUT feedback jsonb, OUT selection jsonb,
    OUT owner text, OUT visibility text
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].functions()
$python$;
COMMENT ON FUNCTION ml_udf._owned_functions() IS 'the functions of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._owned_models(
    OUT server text, OUT name text, OUT version text, OUT task text, OUT architecture text,
    OUT accuracy double precision, OUT resident boolean, OUT owner text, OUT visibility text
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].models()
$python$;
COMMENT ON FUNCTION ml_udf._owned_models() IS 'the models of every server that the caller may use';

-- PRIVATE
CREATE FUNCTION ml_udf._owned_datasets(
    OUT server text, OUT name text, OUT snapshot text, OUT task text, OUT source text, OUT query text,
    OUT target text, OUT rows bigint, OUT classes text[], OUT splits jsonb, OUT unreadable bigint,
    OUT unreadable_rows jsonb, OUT taken_at timestamptz, OUT owner text, OUT visibility text
) RETURNS SETOF record
    LANGUAGE plpython3u STABLE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].training_view("datasets")
$python$;
COMMENT ON FUNCTION ml_udf._owned_datasets() IS 'the datasets of every server that the caller may use';
REVOKE ALL ON FUNCTION ml_udf._owned_functions(), ml_udf._owned_models(), ml_udf._owned_datasets() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._owned_functions(), ml_udf._owned_models() TO ml_udf_reader;
GRANT EXECUTE ON FUNCTION ml_udf._owned_datasets() TO ml_udf_trainer;

-- PUBLIC. The same views as before, grants and all. owner: a token's name, empty where it is nobody's; visibility:
-- private, shared, public.
CREATE OR REPLACE VIEW ml_udf.functions AS
    SELECT server, name, f.version, f.task, f.models, f.policy, f.slo_ms,
           w.oid::pg_catalog.regprocedure AS sql_function,
           pg_catalog.pg_get_function_result(w.oid) AS returns,
           w.record -> 'options' AS options,
           f.outputs,
           f.combine,
           f.feedback,
           f.selection,
           f.owner,
           f.visibility
    FROM ml_udf._owned_functions() f
    FULL JOIN (
        SELECT oid, record, record ->> 'server' AS server, record ->> 'function' AS name
        FROM ml_udf._wrappers() WHERE kind = 'scalar'
    ) w USING (server, name);
CREATE OR REPLACE VIEW ml_udf.models AS
    SELECT server, name, version, task, architecture, accuracy, resident, owner, visibility
    FROM ml_udf._owned_models();
CREATE OR REPLACE VIEW ml_udf.datasets AS
    SELECT server, name, snapshot, task, source, query, target, rows, classes, splits, unreadable,
           unreadable_rows, taken_at, owner, visibility
    FROM ml_udf._owned_datasets();
DROP FUNCTION ml_udf._served_functions();
DROP FUNCTION ml_udf._server_models();
DROP FUNCTION ml_udf._server_datasets();


-- ── Answers that were given before ─────────────────────────────────────────────────────────────────

-- PRIVATE. What _session_statistics() was, and cached_rows.
CREATE FUNCTION ml_udf._statement_statistics(
    OUT server text, OUT name text, OUT statements bigint, OUT failed_calls bigint, OUT rows bigint,
    OUT null_rows bigint, OUT rows_sent bigint, OUT rows_reused bigint, OUT batches bigint, OUT retries bigint,
    OUT failed_rows bigint, OUT seconds double precision, OUT median_ms double precision,
    OUT p99_ms double precision, OUT cached_rows bigint
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].stat_functions()
$python$;
COMMENT ON FUNCTION ml_udf._statement_statistics() IS 'what the statements of this session have asked of functions';
REVOKE ALL ON FUNCTION ml_udf._statement_statistics() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._statement_statistics() TO ml_udf_reader;

-- PUBLIC
CREATE OR REPLACE VIEW ml_udf.stat_functions AS
    SELECT server, name, statements, failed_calls, rows, null_rows, rows_sent, rows_reused, batches,
           pg_catalog.round(rows_sent::numeric / nullif(batches, 0), 1) AS avg_batch,
           retries, failed_rows, seconds, median_ms, p99_ms, cached_rows
    FROM ml_udf._statement_statistics();
COMMENT ON VIEW ml_udf.stat_functions IS
    'per function, what the ended statements of this session asked: rows_sent of rows went to the server in batches, of which cached_rows it had answered before; rows_reused were equal to others; median_ms and p99_ms are of calls that waited for it';
DROP FUNCTION ml_udf._session_statistics();

-- PRIVATE
CREATE FUNCTION ml_udf._deployments(
    OUT server text, OUT function text, OUT version text, OUT is_current boolean, OUT models text[],
    OUT rows bigint, OUT cached_rows bigint, OUT coalesced_rows bigint, OUT computed_rows bigint,
    OUT proxy_rows bigint, OUT cache_entries bigint, OUT cache_bytes bigint, OUT cache_evictions bigint, OUT last_asked timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].server_view("deployments")
$python$;
COMMENT ON FUNCTION ml_udf._deployments() IS 'the served versions of the functions of every server that you may use';
REVOKE ALL ON FUNCTION ml_udf._deployments() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._deployments() TO ml_udf_reader;

-- PUBLIC
CREATE VIEW ml_udf.deployments AS
    SELECT server, function, version, is_current, models, rows, cached_rows, coalesced_rows, computed_rows,
           proxy_rows, cache_entries, cache_bytes, cache_evictions, last_asked
    FROM ml_udf._deployments();
COMMENT ON VIEW ml_udf.deployments IS
    'per served version of a function, since the server started: rows it answered, of which cached_rows were kept answers, coalesced_rows came with equal ones under way, computed_rows were computed, proxy_rows answered by a proxy; what is kept of it';
GRANT SELECT ON ml_udf.deployments TO ml_udf_reader;

-- ── Bulk jobs ──────────────────────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._bulk_jobs(
    OUT server text, OUT id text, OUT owner text, OUT claimed_user text, OUT function text, OUT kind text,
    OUT what text, OUT state text, OUT rows_done bigint, OUT rows_total bigint, OUT lag_rows bigint,
    OUT rows_per_s double precision, OUT max_rows_per_s double precision, OUT since timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].server_view("bulk_jobs")
$python$;
COMMENT ON FUNCTION ml_udf._bulk_jobs() IS 'your bulk jobs on every server that you may use';
REVOKE ALL ON FUNCTION ml_udf._bulk_jobs() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._bulk_jobs() TO ml_udf_reader;

-- PUBLIC
CREATE VIEW ml_udf.bulk_jobs AS
    SELECT server, id, owner, claimed_user, function, kind, what, state, rows_done, rows_total, lag_rows,
           rows_per_s, max_rows_per_s, since
    FROM ml_udf._bulk_jobs();
COMMENT ON VIEW ml_udf.bulk_jobs IS
    'statements, tables that are scored and watches that ask for rows of the bulk class: how far each is, how fast, and whether it is paused, capped or cancelled; your own, to admins all';
GRANT SELECT ON ml_udf.bulk_jobs TO ml_udf_reader;

-- PUBLIC
CREATE FUNCTION ml_udf.pause_bulk(
    id text,                                -- its id in ml_udf.bulk_jobs
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].bulk("pause_bulk", id, None, server)
$python$;
COMMENT ON FUNCTION ml_udf.pause_bulk(text, text) IS 'nothing of a bulk job goes on until it is resumed, and who asked waits; its state';

-- PUBLIC
CREATE FUNCTION ml_udf.resume_bulk(
    id text,                                -- its id in ml_udf.bulk_jobs
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].bulk("resume_bulk", id, None, server)
$python$;
COMMENT ON FUNCTION ml_udf.resume_bulk(text, text) IS 'a bulk job that was paused goes on; its state';

-- PUBLIC
CREATE FUNCTION ml_udf.cancel_bulk(
    id text,                                -- its id in ml_udf.bulk_jobs
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS text
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].bulk("cancel_bulk", id, None, server)
$python$;
COMMENT ON FUNCTION ml_udf.cancel_bulk(text, text) IS 'a bulk job ends: its statement fails as one that is cancelled; its state';

-- PUBLIC
CREATE FUNCTION ml_udf.cap_bulk(
    id text,                                -- its id in ml_udf.bulk_jobs
    max_rows_per_s double precision,        -- over some seconds; NULL = no cap
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS double precision
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].bulk("cap_bulk", id, max_rows_per_s, server)
$python$;
COMMENT ON FUNCTION ml_udf.cap_bulk(text, double precision, text) IS 'how many rows of a bulk job are asked for a second, at the most';

REVOKE ALL ON FUNCTION ml_udf.pause_bulk(text, text), ml_udf.resume_bulk(text, text), ml_udf.cancel_bulk(text, text),
    ml_udf.cap_bulk(text, double precision, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf.pause_bulk(text, text), ml_udf.resume_bulk(text, text), ml_udf.cancel_bulk(text, text),
    ml_udf.cap_bulk(text, double precision, text) TO ml_udf_reader;

-- ── Semantic queries ───────────────────────────────────────────────────────────────────────────────

-- PUBLIC. Nothing is like a vector with NaN, which no longer comes first in a descending order. pgvector's vectors come
-- here too: it casts them to real[] itself. Two unnest() in a list take half the time of one in FROM, which stores rows.
CREATE OR REPLACE FUNCTION ml_udf.similarity(a real[], b real[]) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF cardinality(a) <> cardinality(b) THEN
        RAISE EXCEPTION 'similarity: a vector has % numbers, the other one %', cardinality(a), cardinality(b)
            USING ERRCODE = 'data_exception', HINT = 'compare answers of the same function';
    ELSIF array_position(a, NULL) IS NOT NULL OR array_position(b, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'similarity: NULL stands in the place of a number'
            USING ERRCODE = 'data_exception', HINT = 'a vector has a number in each place, or is NULL itself';
    END IF;
    RETURN (SELECT nullif(sum(x::float8 * y) / nullif(sqrt(sum(x::float8 * x)) * sqrt(sum(y::float8 * y)), 0), 'NaN')
            FROM (SELECT unnest(a), unnest(b)) AS pair(x, y));
END
$function$;

-- PUBLIC. What SQL calls float[]. The same body: one that casts real[] and calls this one takes a sixth longer.
CREATE FUNCTION ml_udf.similarity(a double precision[], b double precision[]) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF cardinality(a) <> cardinality(b) THEN
        RAISE EXCEPTION 'similarity: a vector has % numbers, the other one %', cardinality(a), cardinality(b)
            USING ERRCODE = 'data_exception', HINT = 'compare answers of the same function';
    ELSIF array_position(a, NULL) IS NOT NULL OR array_position(b, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'similarity: NULL stands in the place of a number'
            USING ERRCODE = 'data_exception', HINT = 'a vector has a number in each place, or is NULL itself';
    END IF;
    RETURN (SELECT nullif(sum(x::float8 * y) / nullif(sqrt(sum(x::float8 * x)) * sqrt(sum(y::float8 * y)), 0), 'NaN')
            FROM (SELECT unnest(a), unnest(b)) AS pair(x, y));
END
$function$;

-- PUBLIC. Numbers as they are written, ARRAY[0.5, 1]; without these two PostgreSQL could not tell which type is meant.
CREATE FUNCTION ml_udf.similarity(a numeric[], b numeric[]) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ml_udf.similarity(a::double precision[], b::double precision[]);

-- PUBLIC
CREATE FUNCTION ml_udf.similarity(a integer[], b integer[]) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ml_udf.similarity(a::double precision[], b::double precision[]);

COMMENT ON FUNCTION ml_udf.similarity(real[], real[]) IS
    'cosine of the angle between two vectors, from -1 to 1; NULL where one is NULL, all zeros or not of numbers';
COMMENT ON FUNCTION ml_udf.similarity(double precision[], double precision[]) IS
    'cosine of the angle between two vectors, from -1 to 1; NULL where one is NULL, all zeros or not of numbers';
COMMENT ON FUNCTION ml_udf.similarity(numeric[], numeric[]) IS
    'cosine of the angle between two vectors, from -1 to 1; NULL where one is NULL, all zeros or not of numbers';
COMMENT ON FUNCTION ml_udf.similarity(integer[], integer[]) IS
    'cosine of the angle between two vectors, from -1 to 1; NULL where one is NULL, all zeros or not of numbers';

-- PRIVATE. A constant is looked at once, when the statement is planned.
CREATE FUNCTION ml_udf._min_score(min_score double precision) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF min_score NOT BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION 'ml_udf.filter: min_score = %: a probability is from 0 to 1', min_score
            USING ERRCODE = 'invalid_parameter_value', HINT = 'such as ml_udf.filter(…, 0.8)';
    END IF;
    RETURN min_score;
END
$function$;
COMMENT ON FUNCTION ml_udf._min_score(double precision) IS 'private: the same, where it is a probability';

-- PUBLIC. PostgreSQL puts its body in its place, so that plans hold, and the plan node batches, ml_udf.score. A SET
-- clause would hinder that; the names in the body were looked up when it was made.
CREATE FUNCTION ml_udf.filter(
    function text,                          -- name of the function on the server
    input text,                             -- one value: a path, a text, a row as JSON
    label text,                             -- one of the function's classes
    min_score double precision DEFAULT 0.5, -- from which probability on
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS boolean
    LANGUAGE sql STABLE STRICT PARALLEL UNSAFE COST 10000
    RETURN ml_udf.score(function, input, label, server) >= ml_udf._min_score(min_score);
COMMENT ON FUNCTION ml_udf.filter(text, text, text, double precision, text) IS
    'whether a value is of a class: whether its probability is at least min_score';

-- PUBLIC
CREATE FUNCTION ml_udf.filter(
    function text,                          -- name of the function on the server
    input bytea,                            -- one value: an encoded image
    label text,                             -- one of the function's classes
    min_score double precision DEFAULT 0.5, -- from which probability on
    server text DEFAULT 'ml_udf'            -- name of the foreign server
) RETURNS boolean
    LANGUAGE sql STABLE STRICT PARALLEL UNSAFE COST 10000
    RETURN ml_udf.score(function, input, label, server) >= ml_udf._min_score(min_score);
COMMENT ON FUNCTION ml_udf.filter(text, bytea, text, double precision, text) IS
    'whether a value is of a class: whether its probability is at least min_score';

REVOKE ALL ON FUNCTION
    ml_udf._min_score(double precision),
    ml_udf.filter(text, text, text, double precision, text),
    ml_udf.filter(text, bytea, text, double precision, text)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    ml_udf._min_score(double precision),
    ml_udf.filter(text, text, text, double precision, text),
    ml_udf.filter(text, bytea, text, double precision, text)
    TO ml_udf_reader;

-- As ml_udf.score, which stands in its place: from PostgreSQL 17 on, a parallel plan may contain it.
DO $do$
DECLARE
    called regprocedure;
BEGIN
    IF pg_catalog.current_setting('server_version_num')::int >= 170000 THEN
        FOR called IN
            SELECT p.oid FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'ml_udf'::regnamespace AND p.proname = 'filter'
        LOOP
            EXECUTE pg_catalog.format('ALTER FUNCTION %s PARALLEL RESTRICTED', called);
        END LOOP;
    END IF;
END
$do$;

-- ── Watches ────────────────────────────────────────────────────────────────────────────────────────
-- A watch keeps a table's answers fresh. Triggers on the table note the keys of rows that came, changed or went;
-- `ml-udf score --watch`, outside the database, answers them. Both act as the watch's owner: the functions of the
-- triggers are his, and row security shows him alone his watches and notes. pg_dump keeps the rows of both tables.

-- PRIVATE
CREATE TABLE ml_udf._watch (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    owner regrole NOT NULL,                   -- whose rights it is answered with
    relation regclass NOT NULL,               -- the table whose rows are answered
    target regclass NOT NULL,                 -- the table that has the answers: the same, or one of their own
    place name NOT NULL,                      -- its column of the values
    definition jsonb NOT NULL,                -- what ml_udf.scoring.watch.Definition reads
    revision integer NOT NULL DEFAULT 1,      -- grows with every edit
    paused boolean NOT NULL DEFAULT false,
    waits boolean NOT NULL DEFAULT false,     -- whether a worker sleeps until it is notified
    version text,                             -- of the function, which answers now
    answered bigint NOT NULL DEFAULT 0,       -- answers stored so far
    failed bigint NOT NULL DEFAULT 0,         -- errors stored so far in place of an answer
    rate double precision NOT NULL DEFAULT 0, -- rows a second at rate_at, over about a minute
    rate_at timestamptz NOT NULL DEFAULT now(),
    failures integer NOT NULL DEFAULT 0,      -- tries since the last that went well
    error text,                               -- of the last try that did not
    error_at timestamptz,
    seen_at timestamptz,                      -- when a worker last looked after it
    UNIQUE (target, place)
);
COMMENT ON TABLE ml_udf._watch IS 'watches: see the view ml_udf.watches';

-- PRIVATE. One row for up to 1,000 keys: what a statement notes costs little, whatever it changed. The one index
-- is for those who take notes; a note that the whole table is to be looked at is due at -infinity.
CREATE TABLE ml_udf._note (
    watch integer NOT NULL,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id bigint GENERATED BY DEFAULT AS IDENTITY,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts smallint NOT NULL DEFAULT 0,     -- how often these rows were answered by an error
    size integer NOT NULL,                    -- how many keys
    keys text[] NOT NULL,                     -- of one column, or {{a, b}, …} of several
    PRIMARY KEY (watch, due_at, id)
);
COMMENT ON TABLE ml_udf._note IS 'keys of rows that watches have to look at';

ALTER TABLE ml_udf._watch ENABLE ROW LEVEL SECURITY;
ALTER TABLE ml_udf._note ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_owner ON ml_udf._watch USING (pg_catalog.pg_has_role(owner, 'USAGE'));
CREATE POLICY of_owner ON ml_udf._note USING (EXISTS (SELECT FROM ml_udf._watch w WHERE w.id = watch));

SELECT pg_catalog.pg_extension_config_dump('ml_udf._watch', '');
SELECT pg_catalog.pg_extension_config_dump('ml_udf._watch_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('ml_udf._note', '');
SELECT pg_catalog.pg_extension_config_dump('ml_udf._note_id_seq', '');

-- PUBLIC
CREATE VIEW ml_udf.watches WITH (security_invoker = true) AS
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
           n.rows AS lag_rows,
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
    'your watches: their state; lag_rows noted and not yet answered, the oldest lag_s seconds ago; rows answered, and failed with an error; retry_rows hold an error and are tried again';

ALTER PROCEDURE ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, bigint, bigint, bigint)
    RENAME TO _score_table_0_6;

-- PUBLIC. With one parameter behind the others. It commits, so it can have no SET clause: it runs with the caller's
-- search_path, as the statements would that it stands for, and with the caller's rights.
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
COMMENT ON PROCEDURE ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, boolean, bigint, bigint, bigint) IS
    'stores a function''s answers for all rows of a table that have none yet, in batches that commit; called again, it goes on; watch => true has them kept fresh by ml-udf score --watch';
REVOKE ALL ON PROCEDURE ml_udf.score_table(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, boolean, bigint, bigint, bigint) FROM PUBLIC;
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
                                   AND (old.proname, new.proname) = ('_score_table_0_6', 'score_table')
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = acl.grantee
        WHERE old.pronamespace = 'ml_udf'::regnamespace AND acl.grantee <> old.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON PROCEDURE %s TO %s%s', held.new, held.grantee, held.how);
    END LOOP;
    -- What an update grants counts as the extension's own, which pg_dump leaves out: only what was so before is.
    UPDATE pg_catalog.pg_init_privs given SET initprivs = before.initprivs
    FROM pg_catalog.pg_init_privs before
    JOIN pg_catalog.pg_proc old ON old.oid = before.objoid AND old.pronamespace = 'ml_udf'::regnamespace
    JOIN pg_catalog.pg_proc new ON new.pronamespace = old.pronamespace
                               AND (old.proname, new.proname) = ('_score_table_0_6', 'score_table')
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;
DROP PROCEDURE ml_udf._score_table_0_6(text, text, text, text, text, text[], text, bigint, integer, text, text, text, text, double precision, bigint, bigint, bigint);

-- PUBLIC
CREATE FUNCTION ml_udf.pause_watch(
    watch integer                -- its id in ml_udf.watches
) RETURNS void
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].pause_watch(watch)
$python$;
COMMENT ON FUNCTION ml_udf.pause_watch(integer) IS 'what changes is noted, and answered when the watch is resumed';

-- PUBLIC
CREATE FUNCTION ml_udf.resume_watch(
    watch integer                -- its id in ml_udf.watches
) RETURNS void
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].resume_watch(watch)
$python$;
COMMENT ON FUNCTION ml_udf.resume_watch(integer) IS 'goes on with a watch that was paused';

-- PUBLIC
CREATE FUNCTION ml_udf.drop_watch(
    watch integer                -- its id in ml_udf.watches
) RETURNS void
    LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].drop_watch(watch)
$python$;
COMMENT ON FUNCTION ml_udf.drop_watch(integer) IS 'removes a watch and its triggers; the answers stay as they are';

-- What becomes of a watch when its tables are changed. PL/pgSQL: PL/Python has no event triggers before PostgreSQL 18.
-- They run with their owner's rights, since who drops a table may see no watch of it; they take nothing from anybody.

-- PRIVATE
CREATE FUNCTION ml_udf._after_drop() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
DECLARE
    gone record;
    its_function regprocedure;
BEGIN
    FOR gone IN
        SELECT DISTINCT ON (w.id) w.id, w.owner, d.object_identity
        FROM pg_event_trigger_dropped_objects() d JOIN ml_udf._watch w ON d.objid IN (w.relation, w.target)
        WHERE d.classid = 'pg_class'::regclass AND (
            d.objsubid = 0
            OR (d.objid = w.relation AND (w.definition ->> 'input' = d.address_names[3]
                                          OR w.definition -> 'key' ? d.address_names[3]))
            OR (d.objid = w.target AND w.place = d.address_names[3]))
        ORDER BY w.id, d.objsubid
    LOOP
        DELETE FROM ml_udf._note WHERE watch = gone.id;
        DELETE FROM ml_udf._watch WHERE id = gone.id;
        FOR its_function IN
            SELECT p.oid FROM pg_proc p
            WHERE p.proname = 'ml_udf_note_' || gone.id AND p.pronargs = 0 AND p.proowner = gone.owner
        LOOP
            EXECUTE format('DROP FUNCTION %s CASCADE', its_function);
        END LOOP;
        RAISE NOTICE 'watch % is gone with %', gone.id, gone.object_identity;
    END LOOP;
END
$plpgsql$;
COMMENT ON FUNCTION ml_udf._after_drop() IS 'removes watches whose table or column is dropped';

-- PRIVATE
CREATE FUNCTION ml_udf._after_change() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $plpgsql$
DECLARE
    found record;
BEGIN
    IF NOT EXISTS (SELECT FROM ml_udf._watch) THEN
        RETURN;
    END IF;
    -- The triggers name columns: a write would fail, if one had another name.
    FOR found IN
        SELECT w.id, c.oid::regclass AS name, n.name AS was
        FROM pg_event_trigger_ddl_commands() d JOIN ml_udf._watch w ON d.objid IN (w.relation, w.target)
        JOIN pg_class c ON c.oid = d.objid,
        LATERAL (SELECT w.definition ->> 'input' AS name WHERE c.oid = w.relation
                 UNION ALL SELECT jsonb_array_elements_text(w.definition -> 'key') WHERE c.oid = w.relation
                 UNION ALL SELECT w.place WHERE c.oid = w.target) n
        WHERE d.classid = 'pg_class'::regclass AND d.objsubid > 0 AND d.command_tag = 'ALTER TABLE'
          AND NOT EXISTS (SELECT FROM pg_attribute a
                          WHERE a.attrelid = c.oid AND a.attname = n.name AND NOT a.attisdropped)
    LOOP
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('column %I of %s is watched', found.was, found.name),
            HINT = format('SELECT ml_udf.drop_watch(%s), rename it, and watch again:'
                ' what was answered stays, and is not asked again', found.id);
    END LOOP;
    -- A partition that has come is written by its own name too; one that has gone is no part of the watch.
    FOR found IN
        SELECT w.id, p.relid, t.tgname, t.tgfoid,
               upper(substring(t.tgname FROM '[a-z]+$')) AS event,
               coalesce(' REFERENCING' || nullif(concat(' OLD TABLE AS ' || t.tgoldtable,
                                                        ' NEW TABLE AS ' || t.tgnewtable), ''), '') AS tables
        FROM ml_udf._watch w JOIN pg_class c ON c.oid = w.relation AND c.relkind = 'p'
        CROSS JOIN LATERAL pg_partition_tree(w.relation) p
        JOIN pg_trigger t ON t.tgrelid = w.relation AND starts_with(t.tgname, 'ml_udf_note_' || w.id || '_')
        WHERE NOT EXISTS (SELECT FROM pg_trigger o WHERE o.tgrelid = p.relid AND o.tgname = t.tgname)
    LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER %s ON %s%s FOR EACH STATEMENT EXECUTE FUNCTION %s()',
            found.tgname, found.event, found.relid, found.tables, found.tgfoid::regproc);
        EXECUTE format('ALTER TRIGGER %I ON %s DEPENDS ON EXTENSION ml_udf', found.tgname, found.relid);
        INSERT INTO ml_udf._note (watch, due_at, size, keys) VALUES (found.id, '-infinity', 0, '{}');
    END LOOP;
    FOR found IN
        SELECT w.id, t.tgname, t.tgrelid::regclass AS name
        FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'p'
        JOIN ml_udf._watch w ON c.oid IN (SELECT relid FROM pg_partition_tree(w.relation)) OR c.oid = w.relation
        JOIN pg_trigger t ON starts_with(t.tgname, 'ml_udf_note_' || w.id || '_')
        WHERE d.command_tag = 'ALTER TABLE' AND t.tgrelid <> w.relation
          AND NOT EXISTS (SELECT FROM pg_partition_tree(w.relation) p WHERE p.relid = t.tgrelid)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found.tgname, found.name);
        INSERT INTO ml_udf._note (watch, due_at, size, keys) VALUES (found.id, '-infinity', 0, '{}');
    END LOOP;
END
$plpgsql$;
COMMENT ON FUNCTION ml_udf._after_change() IS 'lets watches follow partitions, and refuses to rename a watched column';

CREATE EVENT TRIGGER ml_udf_after_drop ON sql_drop EXECUTE FUNCTION ml_udf._after_drop();
CREATE EVENT TRIGGER ml_udf_after_change ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE')
    EXECUTE FUNCTION ml_udf._after_change();
REVOKE ALL ON FUNCTION ml_udf._after_drop(), ml_udf._after_change() FROM PUBLIC;

REVOKE ALL ON FUNCTION ml_udf.pause_watch(integer), ml_udf.resume_watch(integer), ml_udf.drop_watch(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf.pause_watch(integer), ml_udf.resume_watch(integer), ml_udf.drop_watch(integer)
    TO ml_udf_reader;
GRANT SELECT ON ml_udf.watches TO ml_udf_reader;
GRANT SELECT, INSERT, UPDATE, DELETE ON ml_udf._watch, ml_udf._note TO ml_udf_reader;
GRANT USAGE ON SEQUENCE ml_udf._watch_id_seq, ml_udf._note_id_seq TO ml_udf_reader;
-- What triggers need, so that a table can be written whatever its owner may otherwise.
GRANT SELECT ON ml_udf._watch, ml_udf._note TO PUBLIC;
GRANT INSERT ON ml_udf._note TO PUBLIC;


-- ── Cascades ───────────────────────────────────────────────────────────────────────────────────────

-- cascade: what was asked of a proxy, and what came of it: the share of rows that it answers, how often these and the
-- rest are as the full function's, the least that this can be with 97.5 % confidence, the rows that show it; or why it
-- is not used. NULL where nothing was asked.
ALTER TYPE ml_udf.deployment
    ADD ATTRIBUTE cascade jsonb;

-- PUBLIC. The function of 0.6.0, which has two arguments less, leaves its rights to this one, and goes.
ALTER FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name, text)
    RENAME TO _deploy_0_6;
CREATE FUNCTION ml_udf.deploy(
    function text,                          -- of the SQL function, and of the server's
    job bigint,                             -- from ml_udf.train
    choose text DEFAULT 'ensemble',         -- ensemble, best, or one of the job's models
    slo_ms double precision DEFAULT NULL,   -- latency goal; the members are chosen to meet it
    promote text DEFAULT 'always',          -- always, or if_better than what answers now, on the same rows
    schema name DEFAULT current_schema(),   -- where to create the SQL function
    server text DEFAULT 'ml_udf',           -- name of the foreign server
    grant_to name DEFAULT 'ml_udf_reader',  -- role that may execute it, or public; NULL = its owner alone; if new
    task text DEFAULT NULL,                 -- another one that the models do: image-embedding; NULL = their own
    cascade double precision DEFAULT NULL,  -- share of rows that a proxy has to answer as the full function would
    proxy text DEFAULT NULL                 -- the cheap model, or a function of one; NULL = the best of its own
) RETURNS ml_udf.deployment
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].train("deploy", {"function": function, "job": job, "choose": choose, "slo_ms": slo_ms, "promote": promote, "schema": schema, "grant_to": grant_to, "task": task, "cascade": cascade, "proxy": proxy}, server)
$python$;
COMMENT ON FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name, text, double precision, text) IS
    'creates or replaces an SQL function that answers with what a job has found; ml_udf.rollback takes it back';
REVOKE ALL ON FUNCTION ml_udf.deploy(text, bigint, text, double precision, text, name, text, name, text, double precision, text) FROM PUBLIC;
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
                                   AND old.proname = '_' || new.proname || '_0_6'
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
                               AND old.proname = '_' || new.proname || '_0_6'
    WHERE given.objoid = new.oid AND given.classoid = 'pg_catalog.pg_proc'::regclass
      AND before.classoid = given.classoid;
END
$do$;
DROP FUNCTION ml_udf._deploy_0_6(text, bigint, text, double precision, text, name, text, name, text);
