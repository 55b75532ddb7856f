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
