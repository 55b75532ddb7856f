"""Hostile names and conditions of `score_table`: the rows are scored or the call refused, nothing else.

Beside the table lies a victim, which what is smuggled in would drop, empty or change.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import duckdb
import pytest

from ml_udf.duckdb import score_table
from ml_udf.errors import MlUdfError
from tests.engines import FUNCTIONS, DuckDb, Engine, SqlError, make_engine
from tests.fuzz.budget import rounds
from tests.postgres.oip_server import OipServer, label_of, oip_server

LEAST = 20
ROWS = 5
PIECES = [
    *('"', "'", '""', "''", ";", "--", "/*", "*/", "$$", "$1", "%s", "{}", "\\", ".", ",", "(", ")", " "),
    *("a", "B", "é", "食", "🍜", "\n", "\t", "select", "DROP TABLE victim;", "x" * 20, "é" * 20),
]
CONDITIONS = [
    "true",
    "id < 3",
    "id > 0) OR (true",
    "true)) AS x) AS due; DROP TABLE victim; --",
    "true; DELETE FROM victim",
    "true); UPDATE victim SET id = 7; --",
    "id = 1 -- ) ; DROP TABLE victim",
    "id = $a$ ) $a$",
    "EXISTS (SELECT 1 FROM victim)",
]
# Refused by us or by the database: a name or a condition that is none, a table or column that is not there.
REFUSED = {
    "22023",
    "22P02",
    "42601",
    "42622",
    "42703",
    "42704",
    "42883",
    "42P01",
    "42P10",
    "42P18",
    "42804",
    "42846",
    "22003",
}


@pytest.fixture(scope="module")
def labels() -> Iterator[OipServer]:
    with oip_server() as server:
        server.functions = dict.fromkeys(FUNCTIONS, "text")
        yield server


@pytest.fixture(params=["duckdb", "postgres"])
def engine(labels: OipServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(request.param, labels.url, request)
    yield made
    made.close()


def hostile(random: Random) -> str:
    """A name for a table or column: anything but NUL, the empty name, and a name of blanks."""
    return "".join(random.choices(PIECES, k=random.randint(1, 6))).strip() or "a"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def scored(engine: Engine, server: OipServer, **given: str) -> tuple[int, str]:
    """How many rows were answered, or the SQLSTATE of the refusal."""
    if isinstance(engine, DuckDb):
        try:
            tally = score_table(
                engine.connection,
                server.url,
                given.pop("relation"),
                "udf_text",
                given.pop("input"),
                key=(given.pop("key"),),
                **given,  # type: ignore[arg-type]  # of any field
            )
        except MlUdfError as error:
            return 0, error.sqlstate
        except duckdb.Error:
            return 0, "42601"
        return tally.answered, ""
    listed = ", ".join(
        f"{name} => {f'ARRAY[{literal(text)}]' if name == 'key' else literal(text)}"
        for name, text in given.items()
    )
    try:
        ((answered, *_),) = engine.query(f"CALL ml_udf.score_table(function => 'udf_text', {listed})")
    except SqlError as error:
        return 0, error.sqlstate
    return int(answered), ""


@pytest.mark.security
def test_hostile_names_are_names_and_no_condition_is_more_than_one(engine: Engine, labels: OipServer) -> None:
    engine.query("DROP TABLE IF EXISTS victim")
    engine.query("CREATE TABLE victim AS SELECT 1 AS id")
    for seed in rounds(LEAST):
        random = Random(seed)
        table, key, path, food = [hostile(random) + suffix for suffix in ("", "k", "p", "f")]
        long = max(len(name.encode()) for name in (table, key, path, food)) > 63 and engine.name != "duckdb"
        said = f"seed {seed}: {(table, key, path, food)}"
        engine.query(
            f"CREATE TABLE {quoted(table)} ({quoted(key)} integer PRIMARY KEY, {quoted(path)} text,"
            f" {quoted(food)} text, id integer)"
        )
        try:
            engine.query(
                f"INSERT INTO {quoted(table)} SELECT n, '/' || n, NULL, n"
                f" FROM generate_series(1, {ROWS}) AS s(n)"
            )
            names = {"relation": quoted(table), "input": path, "output": food, "key": key}
            condition = random.choice([*CONDITIONS, hostile(random)])
            _, refusal = scored(engine, labels, condition=condition, **names)
            assert refusal in {"", *REFUSED}, f"{said} {condition!r}: {refusal}"
            _, refusal = scored(engine, labels, **names)
            assert (refusal == "") or (long and refusal in REFUSED), f"{said}: {refusal}"
            if not refusal:
                rows = engine.query(f"SELECT {quoted(path)}, {quoted(food)} FROM {quoted(table)}")
                assert sorted(rows) == [(f"/{n}", label_of(f"/{n}")) for n in range(1, ROWS + 1)], said
        finally:
            engine.query(f"DROP TABLE {quoted(table)}")
        assert engine.query("SELECT id FROM victim") == [(1,)], said
