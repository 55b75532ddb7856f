"""A function answers as a look-up would that is asked row by row: the same rows, or the same error.

On PostgreSQL the look-up fails at the same rows, so what a LIMIT, EXISTS, a cursor or a loop does not reach
must fail on neither side. DuckDB computes 2,048 rows at a time whoever asks: there a statement may fail by a
faulty row that nobody reaches, but what it answers is right, and with `on_error = 'null'` it never fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random

import pytest

from ml_udf.errors import error_from_code
from tests.engines import FUNCTIONS, Engine, SqlError, make_engine
from tests.fuzz.budget import rounds
from tests.fuzz.lookup_queries import FAULTS, Query, Table, random_query, random_table
from tests.postgres.oip_server import OipServer, label_of, oip_server

LEAST = 100
QUERIES = 12  # over the same two tables
Outcome = tuple[list[tuple[object, ...]], str]  # rows, SQLSTATE


@pytest.fixture(scope="module")
def labels() -> Iterator[OipServer]:
    with oip_server() as server:
        server.functions = dict.fromkeys(FUNCTIONS, "text")
        yield server


@pytest.fixture
def engine(engine_name: str, labels: OipServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, labels.url, request)
    yield made
    made.close()


def test_a_function_answers_as_a_look_up_does(engine: Engine) -> None:
    postgres = engine.name != "duckdb"
    for seed in rounds(LEAST // QUERIES):
        random = Random(f"{engine.name} {seed}")
        tables = [random_table(random, name) for name in ("t", "u")]
        make_tables(engine, tables, postgres=postgres)
        for _ in range(QUERIES):
            query = random_query(random, ordered=not postgres)
            on_error = random.choice(("error", "error", "null"))
            settings = set_up(engine, random, on_error, postgres=postgres)
            said = f"seed {seed}: {query}\n{settings}\n{tables}"
            faults = {error_from_code(code, "").sqlstate for table in tables for code in table.faults}
            if postgres:
                look_up = "look_up" if on_error == "error" else "look_up_or_null"
                expected = run(engine, query, look_up)
                assert expected[1] in {"", *faults}, said
                assert run(engine, query, "udf_text") == expected, said
            else:
                faults = {
                    error_from_code(p[6:], "").sqlstate for t in tables for p in t.inputs if p[0] == "f"
                }
                rows, sqlstate = run(engine, query, "udf_text")
                if sqlstate:
                    assert on_error == "error", said
                    assert sqlstate in faults, said
                else:
                    assert (rows, "") == run(engine, query, "look_up_or_null"), said


def make_tables(engine: Engine, tables: list[Table], *, postgres: bool) -> None:
    """The tables, and the answers to everything that may be asked of them."""
    for name in ("t", "u", "known"):
        engine.query(f"DROP TABLE IF EXISTS {name}")
    for table in tables:
        engine.query(table.create)
    known: dict[str, str] = {}
    asked = {"none", "not asked"}.union(*(table.inputs for table in tables))
    while asked := {text for text in asked if not text.startswith("fault:") and text not in known}:
        known.update({text: label_of(text) for text in asked})
        asked = set(known.values())
    values = ", ".join(f"('{text}', '{label}')" for text, label in known.items())
    engine.query(f"CREATE TEMPORARY TABLE known AS SELECT * FROM (VALUES {values}) AS v(input, label)")
    for statement in LOOK_UPS if postgres else (LOOK_UP_DUCKDB,):
        engine.query(statement)


def look_up_function(name: str, on_fault: str) -> str:
    """A function that looks up the answers row by row; what it costs is said to be the same."""
    return f"""
        CREATE OR REPLACE FUNCTION pg_temp.{name}(asked text) RETURNS text LANGUAGE plpgsql
        STABLE STRICT COST 10000 PARALLEL UNSAFE AS $$
        DECLARE found text;
        BEGIN
            IF asked LIKE 'fault:%' THEN {on_fault} END IF;
            SELECT label INTO found FROM known WHERE input = asked;
            RETURN found;
        END $$"""


SQLSTATES = " ".join(f"WHEN '{code}' THEN '{error_from_code(code, '').sqlstate}'" for code in FAULTS)
LOOK_UPS = (
    look_up_function("look_up", f"RAISE 'fault' USING ERRCODE = CASE substr(asked, 7) {SQLSTATES} END;"),
    look_up_function("look_up_or_null", "RETURN NULL;"),
)
LOOK_UP_DUCKDB = (
    "CREATE OR REPLACE TEMPORARY MACRO look_up_or_null(asked) AS"
    " (SELECT max(label) FROM known WHERE input = asked)"
)


def set_up(engine: Engine, random: Random, on_error: str, *, postgres: bool) -> list[str]:
    """Random settings of a query; those that were set."""
    engine.set("on_error", on_error)
    settings = [f"on_error = {on_error}"]
    engine.set("batch_rows", rows := random.choice(("1", "3", "20", "256")))
    settings.append(f"batch_rows = {rows}")
    if postgres:
        engine.set("gather_rows", rows := random.choice(("1", "3", "20", "4096")))
        settings.append(f"gather_rows = {rows}")
        for name in ("enable_hashjoin", "enable_mergejoin", "enable_nestloop", "ml_udf.overlap"):
            engine.query(f"SET {name} = {(value := random.choice(('on', 'on', 'off')))}")
            settings.append(f"{name} = {value}")
    return settings


def run(engine: Engine, query: Query, function: str) -> Outcome:
    """The rows, or the SQLSTATE of what failed; a cursor's and a loop's rows as far as they are read."""
    prefix = "pg_temp." if function != "udf_text" and engine.name != "duckdb" else ""
    text = query.text.replace("{f}", prefix + function)
    read: list[tuple[object, ...]] = []
    try:
        if query.kind == "cursor":
            with left_open(engine):
                engine.query(f"DECLARE reader CURSOR FOR {text}")
                for _ in range(2):
                    read += engine.query(f"FETCH {query.rows} FROM reader")
        elif query.kind == "loop":
            engine.query(loop(text, query.rows))
            read = engine.query("SELECT pg_temp.read_some()")
        else:
            read = engine.query(text)
    except SqlError as error:
        return read, error.sqlstate
    finally:
        engine.warned()
    in_order = query.kind != "query" or "LIMIT" in query.text
    return read if in_order else sorted(read, key=repr), ""


@contextlib.contextmanager
def left_open(engine: Engine) -> Iterator[None]:
    """A transaction that is given up."""
    engine.query("BEGIN")
    try:
        yield
    finally:
        engine.query("ROLLBACK")


def loop(text: str, rows: int) -> str:
    """A loop that is left after some rows, and says what it has seen as rows."""
    return (
        "CREATE OR REPLACE FUNCTION pg_temp.read_some() RETURNS SETOF text LANGUAGE plpgsql AS $loop$"
        f"DECLARE r record; n int := 0; BEGIN FOR r IN {text} LOOP RETURN NEXT r::text; n := n + 1;"
        f" EXIT WHEN n >= {rows}; END LOOP; END $loop$"
    )
