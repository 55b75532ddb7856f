-- Functions with twins that report their calls, and tables for them.

CREATE FUNCTION label(path text) RETURNS text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row label %', json_build_array(path);
    IF path LIKE 'bad%' THEN
        RAISE EXCEPTION 'cannot label %', path USING ERRCODE = '22P02';
    END IF;
    RETURN upper(left(path, 2)) || right(path, 1);
END $$;
CREATE FUNCTION label_batch(paths text[]) RETURNS text[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
DECLARE
    result text[];
    path text;
BEGIN
    RAISE NOTICE 'batch label %', to_json(paths);
    FOREACH path IN ARRAY paths LOOP
        IF path LIKE 'bad%' THEN
            RAISE EXCEPTION 'cannot label %', path USING ERRCODE = '22P02';
        END IF;
        result := result || (upper(left(path, 2)) || right(path, 1));
    END LOOP;
    RETURN result;
END $$;

-- Not strict: it has an answer for NULL.
CREATE FUNCTION score(x float8) RETURNS float8 LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row score %', json_build_array(x);
    RETURN coalesce(x * 2 + 1, -1);
END $$;
CREATE FUNCTION score_batch(xs float8[]) RETURNS float8[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'batch score %', to_json(xs);
    RETURN ARRAY(SELECT coalesce(x * 2 + 1, -1) FROM unnest(xs) WITH ORDINALITY AS u(x, i) ORDER BY i);
END $$;

-- Two arguments, a NULL result for some.
CREATE FUNCTION match(path text, n int) RETURNS int LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row match %', json_build_array(json_build_array(path, n));
    RETURN nullif(ascii(right(path, 1)) - 48 + n, 7);
END $$;
CREATE FUNCTION match_batch(paths text[], ns int[]) RETURNS int[]
LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'batch match %', (SELECT json_agg(json_build_array(p, n)) FROM unnest(paths, ns) AS u(p, n));
    RETURN ARRAY(SELECT nullif(ascii(right(p, 1)) - 48 + n, 7) FROM unnest(paths, ns) WITH ORDINALITY AS u(p, n, i) ORDER BY i);
END $$;

CREATE FUNCTION is_food(path text) RETURNS boolean
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row is_food %', json_build_array(path);
    RETURN path !~ '[46]$';
END $$;
CREATE FUNCTION is_food_batch(paths text[]) RETURNS boolean[]
LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'batch is_food %', to_json(paths);
    RETURN ARRAY(SELECT p !~ '[46]$' FROM unnest(paths) WITH ORDINALITY AS u(p, i) ORDER BY i);
END $$;

-- Vectors in and out: an array type has no array type, so they travel wrapped.
CREATE TYPE vector_of_float8 AS (v float8[]);
CREATE FUNCTION embed(x float8[]) RETURNS float8[]
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row embed %', json_build_array(x);
    RETURN ARRAY(SELECT e * 10 FROM unnest(x) WITH ORDINALITY AS u(e, i) ORDER BY i);
END $$;
CREATE FUNCTION embed_batch(xs vector_of_float8[]) RETURNS vector_of_float8[]
LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
DECLARE
    result vector_of_float8[] := '{}';
    x vector_of_float8;
BEGIN
    RAISE NOTICE 'batch embed %', to_json(xs);
    FOREACH x IN ARRAY xs LOOP
        result := result || ROW(ARRAY(SELECT e * 10 FROM unnest(x.v) WITH ORDINALITY AS u(e, i) ORDER BY i))::vector_of_float8;
    END LOOP;
    RETURN result;
END $$;

CREATE TYPE verdict AS (value text, confidence float8);
CREATE FUNCTION judge(path text) RETURNS verdict LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row judge %', json_build_array(path);
    RETURN ROW('j' || path, length(path) / 10.0)::verdict;
END $$;
CREATE FUNCTION judge_batch(paths text[]) RETURNS verdict[]
LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RAISE NOTICE 'batch judge %', to_json(paths);
    RETURN ARRAY(SELECT ROW('j' || p, length(p) / 10.0)::verdict
                 FROM unnest(paths) WITH ORDINALITY AS u(p, i) ORDER BY i);
END $$;

CREATE FUNCTION tags(path text) RETURNS jsonb LANGUAGE plpgsql STABLE STRICT PARALLEL RESTRICTED COST 10000 AS $$
BEGIN
    RAISE NOTICE 'row tags %', json_build_array(path);
    RETURN jsonb_build_object('tag', path);
END $$;
CREATE FUNCTION tags_batch(paths text[]) RETURNS jsonb[]
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED COST 10000 AS $$
BEGIN
    RAISE NOTICE 'batch tags %', to_json(paths);
    RETURN ARRAY(SELECT jsonb_build_object('tag', p) FROM unnest(paths) WITH ORDINALITY AS u(p, i) ORDER BY i);
END $$;

-- 200 rows, 7 distinct paths, some NULLs.
CREATE TABLE items (id int PRIMARY KEY, path text, grp int, price numeric, flag boolean, features float8[]);
INSERT INTO items
SELECT i, 'path/' || i % 7, i % 5, (i % 13)::numeric / 4, CASE i % 3 WHEN 0 THEN true WHEN 1 THEN false END,
       ARRAY[i % 4, 1.5]
FROM generate_series(1, 200) AS i;

-- Like items, with NULL paths among them and paths that cannot be labelled.
CREATE TABLE dirty (id int PRIMARY KEY, path text, divisor int);
INSERT INTO dirty
SELECT i, CASE WHEN i % 10 = 0 THEN NULL WHEN i % 25 = 0 THEN 'bad/' || i ELSE 'path/' || i % 7 END, i % 20
FROM generate_series(1, 100) AS i;

CREATE TABLE users (grp int PRIMARY KEY, name text, favourite text);
INSERT INTO users SELECT i, 'user' || i, 'PA' || i % 3 FROM generate_series(0, 6) AS i;

CREATE TABLE labels (name text PRIMARY KEY, cuisine text);
INSERT INTO labels VALUES ('PA6', 'thai'), ('PA3', 'peranakan'), ('XX1', 'none');

CREATE TABLE parted (id int, path text, day int) PARTITION BY RANGE (day);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 (day int, extra int, id int, path text);
ALTER TABLE parted_2 DROP COLUMN extra;
ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (10) TO (20);
CREATE TABLE parted_3 PARTITION OF parted FOR VALUES FROM (20) TO (30);
INSERT INTO parted SELECT i, 'path/' || i % 7, i % 30 FROM generate_series(1, 90) AS i;
CREATE INDEX ON parted (day, id);

CREATE TABLE parent (id int, path text);
CREATE TABLE child (kind text) INHERITS (parent);
INSERT INTO parent SELECT i, 'path/' || i % 7 FROM generate_series(1, 10) AS i;
INSERT INTO child SELECT i, 'path/' || i % 7, 'k' FROM generate_series(11, 20) AS i;

CREATE TABLE big (id int, path text, grp int);
INSERT INTO big SELECT i, 'path/' || i % 50, i % 10 FROM generate_series(1, 5000) AS i;

CREATE INDEX big_id ON big (id);
CREATE INDEX items_grp ON items (grp);

CREATE VIEW labelled AS SELECT id, grp, label(path) AS name FROM items;
CREATE VIEW fenced WITH (security_barrier) AS SELECT * FROM items WHERE grp < 3;

CREATE SEQUENCE counter;

ANALYZE;
