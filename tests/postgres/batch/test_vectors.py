"""Answers that are vectors: `real[]`, what it is cast to, and pgvector's own type, batched like any other."""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest

from tests.postgres.batch.session import Session, layers_of

# A vector of `width` numbers made of the path; NULL for some paths, an error for others. The function and its
# twin both call it, and not each other: a twin that calls its function is batched itself.
MADE = """
CREATE FUNCTION made(path text) RETURNS {kind} LANGUAGE plpgsql STABLE STRICT AS $$BEGIN
    IF path LIKE 'bad%' THEN RAISE EXCEPTION 'cannot read %', path USING ERRCODE = '22P02'; END IF;
    IF path LIKE 'none%' THEN RETURN NULL; END IF;
    RETURN (SELECT array_agg((hashtext(path) % 1000 + i) / 8.0::real ORDER BY i)
            FROM generate_series(1, {width}) AS i)::real[]::{kind}; END$$"""
SCALAR = """
CREATE FUNCTION vectorize(path text) RETURNS {kind} LANGUAGE plpgsql STABLE STRICT COST 10000 AS
$$BEGIN RETURN made(path); END$$"""
TWIN = """
CREATE FUNCTION vectorize_batch(paths text[]) RETURNS {returns} LANGUAGE plpgsql STABLE COST 10000 AS $$BEGIN
    RETURN (SELECT array_agg({element} ORDER BY i)
            FROM unnest(paths) WITH ORDINALITY AS u(path, i)); END$$"""
COMPOSITE = ("wide[]", "ROW(made(path))::wide")
BINARY = ("bytea[]", "array_send(made(path))")
PATHS = """
CREATE TABLE photos AS SELECT i AS id, CASE WHEN i % 11 = 0 THEN NULL WHEN i % 7 = 0 THEN 'none/' || i
                                       ELSE 'photo/' || i % 900 END AS path
FROM generate_series(1, {rows}) AS i"""


def vectorizing(
    session: Session,
    form: tuple[str, str] = BINARY,
    *,
    kind: str = "real[]",
    width: int = 4,
    rows: int = 100,
) -> Session:
    """`session` with the function, its twin of this form, and a table of paths."""
    session.must(
        "CREATE TYPE wide AS (vector real[])",
        MADE.format(kind=kind, width=width),
        SCALAR.format(kind=kind),
        TWIN.format(returns=form[0], element=form[1]),
        PATHS.format(rows=rows),
    )
    return session


def same_either_way(session: Session, query: str) -> list[object]:
    """The rows of a query that is batched, which are those of the same query row by row."""
    assert layers_of(session.plan(query)), "it is not batched"
    batched = session.run(query)
    unbatched = session.run("SET ml_udf.batching = off", query, "RESET ml_udf.batching")
    if "ORDER BY" not in query:
        batched.rows.sort(key=str)
        unbatched.rows.sort(key=str)
    assert batched.result == unbatched.result
    return batched.rows


@pytest.mark.parametrize("form", [COMPOSITE, BINARY])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, vectorize(path) FROM photos ORDER BY id",
        "SELECT id, (vectorize(path))[2], cardinality(vectorize(path)) FROM photos ORDER BY id",
        "SELECT count(*) FROM photos WHERE vectorize(path) IS NULL",
        "SELECT vectorize(path), count(*) FROM photos GROUP BY 1 ORDER BY 1",
        "SELECT DISTINCT vectorize(path) FROM photos ORDER BY 1",
        "SELECT id, unnest(vectorize(path)) FROM photos ORDER BY 1, 2",
        "SELECT a.id, b.id FROM photos a JOIN photos b ON vectorize(a.path) = vectorize(b.path)",
        "SELECT CASE WHEN id % 2 = 0 THEN vectorize(path) END FROM photos ORDER BY id",
        "SELECT vectorize(path) FROM photos ORDER BY id LIMIT 5",
        "SELECT vectorize(path)::text FROM photos ORDER BY id",
        "SELECT vectorize(path)::float8[] FROM photos ORDER BY id",
    ],
)
def test_a_vector_is_the_one_that_a_row_by_row_query_gives(
    own: Session, form: tuple[str, str], query: str
) -> None:
    assert same_either_way(vectorizing(own, form), query)


@pytest.mark.parametrize("form", [COMPOSITE, BINARY])
def test_null_goes_in_and_comes_out_as_null(own: Session, form: tuple[str, str]) -> None:
    rows = same_either_way(
        vectorizing(own, form, rows=22), "SELECT id, vectorize(path) FROM photos ORDER BY id"
    )
    assert [row[0] for row in rows if row[1] is None] == [7, 11, 14, 21, 22]  # type: ignore[index]


@pytest.mark.parametrize("form", [COMPOSITE, BINARY])
def test_a_row_at_fault_fails_when_it_is_reached(own: Session, form: tuple[str, str]) -> None:
    vectorizing(own, form).must("UPDATE photos SET path = 'bad/1' WHERE id = 40")
    query = "SELECT vectorize(path) FROM (SELECT * FROM photos ORDER BY id) AS p LIMIT {}"
    assert len(same_either_way(own, query.format(39))) == 39
    assert own.run(query.format(40)).error == ("22P02", "cannot read bad/1")
    assert own.run("SELECT count(vectorize(path)) FROM photos").error == ("22P02", "cannot read bad/1")


def test_a_cast_of_a_vector_stays_above_the_batch(own: Session) -> None:
    vectorizing(own).must(
        "CREATE DOMAIN unit AS real[] CHECK (cardinality(VALUE) = 4)",
        "CREATE TYPE point AS (x real, y real)",
        "CREATE FUNCTION to_point(real[]) RETURNS point IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN ROW($1[1], $1[2])::point; END'",
        "CREATE CAST (real[] AS point) WITH FUNCTION to_point(real[])",
    )
    for kind in ("unit", "point"):
        same_either_way(own, f"SELECT id, vectorize(path)::{kind} FROM photos ORDER BY id")


@pytest.mark.parametrize("form", [COMPOSITE, BINARY])
def test_vectors_of_a_thousand_numbers_keep_a_batch_within_work_mem(
    own: Session, form: tuple[str, str]
) -> None:
    vectorizing(own, form, width=1024, rows=1500)
    own.must("SET work_mem = '2MB'", "UPDATE photos SET path = 'photo/' || id")
    query = "SELECT count(vectorize(path)) FROM photos"
    (layer,) = layers_of(own.plan(query, analyze=True))
    (call,) = layer["Batched Calls"]
    vector_bytes = 1024 * 4
    assert call["Inputs Sent"] == 1500
    assert call["Maximum Batch Size"] * vector_bytes <= 2 * 1024 * 1024
    assert call["Minimum Batch Size"] > 100  # and no smaller than they need be
    assert own.must(query).rows == [(1500,)]


def test_vectors_that_are_stored_out_of_line_are_read_whole(own: Session) -> None:
    vectorizing(own, width=1024, rows=60).must(
        "CREATE TABLE compressed (id int, v real[])",
        "CREATE TABLE external (id int, v real[])",
        "ALTER TABLE external ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO compressed SELECT id, vectorize(path) FROM photos",
        "INSERT INTO external SELECT * FROM compressed",
        "CREATE FUNCTION doubled(v real[]) RETURNS real[] LANGUAGE plpgsql STABLE STRICT AS"
        " 'BEGIN RETURN v || v; END'",
        "CREATE FUNCTION doubled_batch(vs wide[]) RETURNS bytea[] LANGUAGE plpgsql STABLE AS"
        " 'BEGIN RETURN (SELECT array_agg(array_send(vector || vector) ORDER BY i)"
        " FROM unnest(vs) WITH ORDINALITY AS u(vector, i)); END'",
    )
    for table in ("compressed", "external"):
        rows = same_either_way(own, f"SELECT id, doubled(v) FROM {table} ORDER BY id")
        assert len(rows) == 60
    same_either_way(own, "SELECT c.id FROM compressed c JOIN photos p ON c.v = vectorize(p.path) ORDER BY 1")


def test_bytes_that_are_no_vector_are_an_error_of_their_row(own: Session) -> None:
    vectorizing(own, (BINARY[0], "CASE WHEN path = 'photo/9' THEN '\\x01'::bytea ELSE " + BINARY[1] + " END"))
    query = "SELECT vectorize(path) FROM (SELECT * FROM photos ORDER BY id) AS p LIMIT {}"
    assert len(own.must(query.format(8)).rows) == 8
    error = own.run(query.format(9)).error
    assert error is not None
    assert error[0] == "08P01" or error[0][:2] == "22"


def test_bytes_behind_a_vector_are_an_error_that_says_so(own: Session) -> None:
    vectorizing(own, (BINARY[0], BINARY[1] + " || '\\x00'::bytea"))
    assert own.run("SELECT vectorize(path) FROM photos").error == (
        "22P03",
        "function vectorize_batch(text[]) returned a value that is not in the binary format of type real[]",
    )


def test_no_bytes_that_a_twin_returns_bring_the_server_down(own: Session) -> None:
    ((good,),) = vectorizing(own).must("SELECT array_send(ARRAY[1, 2.5, NULL, 4]::real[])").rows
    own.must(
        "CREATE TABLE answers (path text, answer bytea)",
        TWIN.format(
            returns="bytea[]", element="(SELECT answer FROM answers a WHERE a.path = u.path)"
        ).replace("CREATE", "CREATE OR REPLACE"),
        "TRUNCATE photos",
        "INSERT INTO photos VALUES (1, 'x')",
    )
    chance = random.Random(1)
    for _ in range(300):
        answer = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            answer[chance.randrange(len(answer))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )
        del answer[chance.choice((len(answer), chance.randrange(len(answer)))) :]
        own.must("DELETE FROM answers", f"INSERT INTO answers VALUES ('x', '\\x{answer.hex()}')")
        outcome = own.run("SELECT vectorize(path) FROM photos")
        assert outcome.error is None or outcome.error[0][:2] in ("22", "08", "42", "54", "XX")


def test_bytes_carry_results_and_not_arguments(own: Session) -> None:
    vectorizing(own).must(
        "CREATE FUNCTION plain(text) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'",
        "CREATE FUNCTION plain_batch(bytea[]) RETURNS text[] STABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN $1::text[]; END'",
    )
    assert not layers_of(own.plan("SELECT plain(path) FROM photos"))


def test_explain_names_the_function_and_counts_its_vectors(own: Session) -> None:
    (layer,) = layers_of(vectorizing(own).plan("SELECT vectorize(path)::text FROM photos", analyze=True))
    (call,) = layer["Batched Calls"]
    assert call["Batched"] == "vectorize(photos.path)"
    assert (call["Rows"], call["Inputs Sent"]) == (100, 91)


# ── pgvector ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pgvector(connect: Callable[..., Session]) -> Session:
    session = connect()
    if not session.must("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").rows:
        pytest.skip("PGVECTOR NOT TESTED: it is not installed")
    session.must("CREATE EXTENSION vector")
    return session


@pytest.mark.parametrize("form", [COMPOSITE, BINARY])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, vectorize(path)::vector FROM photos ORDER BY id",
        "SELECT id, vectorize(path)::vector(4) FROM photos ORDER BY id",
        "SELECT id FROM photos ORDER BY vectorize(path)::vector <-> '[1,2,3,4]', id LIMIT 5",
    ],
)
def test_an_array_is_cast_to_a_vector_above_the_batch(
    pgvector: Session, form: tuple[str, str], query: str
) -> None:
    assert same_either_way(vectorizing(pgvector, form), query)


def test_texts_are_utf_8_whatever_encoding_the_client_speaks(session: Session) -> None:
    """An array of one text, é, as a server hands it to a twin, which knows nothing of clients."""
    binary = "0000000100000000000000190000000100000001" + "00000002c3a9"
    session.must(
        "CREATE FUNCTION named(int) RETURNS text[] STABLE STRICT COST 10000 LANGUAGE plpgsql AS"
        " $$BEGIN RETURN ARRAY[chr(233)]; END$$",
        "CREATE FUNCTION named_batch(ids int[]) RETURNS bytea[] STABLE LANGUAGE plpgsql AS $$BEGIN RETURN"
        f" array_fill('\\x{binary}'::bytea, ARRAY[cardinality(ids)]); END$$",
        "CREATE TABLE things AS SELECT generate_series(1, 20) AS id",
    )
    for encoding in ("LATIN1", "SQL_ASCII", "UTF8"):
        session.must(f"SET client_encoding = '{encoding}'")
        query = "SELECT id, ascii((named(id))[1]), octet_length((named(id))[1]) FROM things ORDER BY id"
        assert same_either_way(session, query)[0] == (1, 233, 2)
    session.must("SET client_encoding = 'LATIN1'")
    session.must("ALTER FUNCTION named_batch COST 1")  # another plan
    session.must(
        "CREATE OR REPLACE FUNCTION named_batch(ids int[]) RETURNS bytea[] STABLE LANGUAGE plpgsql AS"
        " $$BEGIN RETURN array_fill('\\x00'::bytea, ARRAY[cardinality(ids)]); END$$"
    )
    assert session.run("SELECT named(id) FROM things").error is not None
    assert session.run("SELECT chr(233)").rows == [("é",)], "what the client speaks is as before"
    session.must("RESET client_encoding")


@pytest.mark.parametrize("form", [("vector[]", "made(path)"), ("bytea[]", "vector_send(made(path))")])
def test_a_function_returns_vectors_of_pgvector(pgvector: Session, form: tuple[str, str]) -> None:
    vectorizing(pgvector, form, kind="vector")
    same_either_way(pgvector, "SELECT id, vectorize(path) FROM photos ORDER BY id")
    same_either_way(pgvector, "SELECT id FROM photos ORDER BY vectorize(path) <-> '[1,2,3,4]', id LIMIT 5")


def test_vectors_are_stored_indexed_and_found(pgvector: Session) -> None:
    vectorizing(pgvector, ("bytea[]", "vector_send(made(path))"), kind="vector")
    pgvector.must(
        "CREATE TABLE found AS SELECT id, vectorize(path)::vector(4) AS v FROM photos",
        "CREATE INDEX ON found USING hnsw (v vector_l2_ops)",
        "SET enable_seqscan = off",
    )
    nearest = "SELECT id FROM found ORDER BY v <-> (SELECT v FROM found WHERE id = 9) LIMIT 1"
    assert pgvector.must(nearest).rows == [(9,)]


def test_a_vector_of_the_wrong_width_is_an_error(pgvector: Session) -> None:
    error = vectorizing(pgvector).run("SELECT vectorize(path)::vector(3) FROM photos").error
    assert error is not None
    assert error[0] == psycopg.errors.DataException.sqlstate
