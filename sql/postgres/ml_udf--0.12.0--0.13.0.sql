\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.13.0'" to load this file. \quit

-- What 0.13.0 adds to 0.12.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;

-- ── Semantic queries ───────────────────────────────────────────────────────────────────────────────
-- By rounding, one vector in five was like itself by a little more than 1, of which there is no acos.

-- PUBLIC. Nothing is like a vector with NaN. pgvector's vectors come here too: it casts them to real[] itself.
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
    RETURN (SELECT CASE WHEN cosine <> 'NaN' THEN least(1, greatest(-1, cosine)) END
            FROM (SELECT sum(x::float8 * y) / nullif(sqrt(sum(x::float8 * x)) * sqrt(sum(y::float8 * y)), 0)
                  FROM (SELECT unnest(a), unnest(b)) AS pair(x, y)) AS found(cosine));
END
$function$;

-- PUBLIC. What SQL calls float[]. The same body: one that casts real[] and calls this one takes a sixth longer.
CREATE OR REPLACE FUNCTION ml_udf.similarity(a double precision[], b double precision[]) RETURNS double precision
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
    RETURN (SELECT CASE WHEN cosine <> 'NaN' THEN least(1, greatest(-1, cosine)) END
            FROM (SELECT sum(x::float8 * y) / nullif(sqrt(sum(x::float8 * x)) * sqrt(sum(y::float8 * y)), 0)
                  FROM (SELECT unnest(a), unnest(b)) AS pair(x, y)) AS found(cosine));
END
$function$;
