-- Quiet functions with twins, and small tables full of NULLs and duplicates, for random queries.

CREATE FUNCTION ft(x text) RETURNS text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN
    IF x = 'bad' THEN RAISE EXCEPTION 'ft of bad' USING ERRCODE = '22P02'; END IF;
    RETURN CASE WHEN x = 'none' THEN NULL ELSE 't' || x END;
END $$;
CREATE FUNCTION ft_batch(xs text[]) RETURNS text[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000
SET ml_udf.answers_later = on AS $$
DECLARE r text[] := '{}'; x text;
BEGIN
    IF current_setting('ml_udf.asked') <> 'answers' THEN RETURN NULL; END IF;
    FOREACH x IN ARRAY xs LOOP
        IF x IS NULL THEN RAISE EXCEPTION 'NULL was sent' USING ERRCODE = 'XX000'; END IF;
        IF x = 'bad' THEN RAISE EXCEPTION 'ft of bad' USING ERRCODE = '22P02'; END IF;
        r := array_append(r, CASE WHEN x = 'none' THEN NULL ELSE 't' || x END);
    END LOOP;
    RETURN r;
END $$;

-- Answers NULL, too.
CREATE FUNCTION fi(x int) RETURNS int LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN RETURN CASE WHEN x IS NULL THEN -1 WHEN x % 7 = 3 THEN NULL ELSE (x * 3) % 11 END; END $$;
CREATE FUNCTION fi_batch(xs int[]) RETURNS int[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000
SET ml_udf.answers_later = on AS $$
DECLARE r int[] := '{}'; x int;
BEGIN
    IF current_setting('ml_udf.asked') <> 'answers' THEN RETURN NULL; END IF;
    FOREACH x IN ARRAY xs LOOP
        r := array_append(r, CASE WHEN x IS NULL THEN -1 WHEN x % 7 = 3 THEN NULL ELSE (x * 3) % 11 END);
    END LOOP;
    RETURN r;
END $$;

CREATE FUNCTION fti(x text, n int) RETURNS int LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN RETURN length(x) + n; END $$;
CREATE FUNCTION fti_batch(xs text[], ns int[]) RETURNS int[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
DECLARE r int[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(xs) LOOP
        r := array_append(r, length(xs[i]) + ns[i]);
    END LOOP;
    RETURN r;
END $$;

CREATE FUNCTION fb(x text) RETURNS boolean LANGUAGE plpgsql STABLE STRICT PARALLEL RESTRICTED COST 10000 AS $$
BEGIN RETURN CASE WHEN x = 'bad' THEN NULL ELSE x < 'f' END; END $$;
CREATE FUNCTION fb_batch(xs text[]) RETURNS boolean[]
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED COST 10000 AS $$
DECLARE r boolean[] := '{}'; x text;
BEGIN
    FOREACH x IN ARRAY xs LOOP
        r := array_append(r, CASE WHEN x = 'bad' THEN NULL ELSE x < 'f' END);
    END LOOP;
    RETURN r;
END $$;

CREATE TABLE a (i int, t text, n int, b boolean);
INSERT INTO a
SELECT CASE WHEN k % 9 = 0 THEN NULL ELSE k % 13 END,
       (ARRAY['apple', 'fig', NULL, 'none', 'kiwi', 'fig', 'plum', 'bad'])[1 + k % 8], k % 4, k % 5 > 2
FROM generate_series(1, 45) AS k;

CREATE TABLE b (i int PRIMARY KEY, t text, n int, b boolean);
INSERT INTO b
SELECT k, (ARRAY['apple', 'lime', NULL, 'fig', 'none'])[1 + k % 5], nullif(k % 6, 2), k % 3 = 0
FROM generate_series(0, 24) AS k;
CREATE INDEX ON b (n);

CREATE TABLE c (i int, t text, n int, b boolean) PARTITION BY LIST (n);
CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (0, 1);
CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2, NULL);
CREATE TABLE c_3 (gone int, b boolean, n int, t text, i int);
ALTER TABLE c_3 DROP COLUMN gone;
ALTER TABLE c ATTACH PARTITION c_3 DEFAULT;
INSERT INTO c SELECT k % 8, (ARRAY['apple', 'fig', 'plum', NULL])[1 + k % 4], nullif(k % 5, 4), NULL
FROM generate_series(1, 30) AS k;
CREATE INDEX ON c (i);

CREATE VIEW v WITH (security_barrier) AS SELECT i, ft(t) AS t, n, b FROM b WHERE n > 0 OR fi(n) = 9;
ANALYZE;
