"""What dashboards send: every statement gives what it would give of a table in which the answers stand.

`dashboards/TOOL-ENGINE.sql` says of each tool whether it was recorded, or written after its documentation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.engines import DuckDb, Postgres
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of

RECORDINGS = sorted(Path(__file__).with_name("dashboards").glob("*.sql"))
STATEMENT = re.compile(r"^-- (?P<name>[^\n]+)\n(?P<sql>.*?;)$", re.DOTALL | re.MULTILINE)
ENGINES = {"postgres": ("postgres", "postgres-by-row"), "duckdb": ("duckdb",)}
MEALS = 90
Ask = Callable[[str], list[tuple[Any, ...]]]


def recorded() -> Iterator[Any]:
    for file in RECORDINGS:
        tool, _, engine = file.stem.partition("-")
        for found in STATEMENT.finditer(file.read_text().partition("\n\n")[2]):
            for name in ENGINES[engine]:
                yield pytest.param(name, found["sql"], id=f"{name}-{tool}-{found['name']}")


def photo(number: int) -> str | None:
    return None if number % 15 == 7 else f"meals/{number * number % 23}.jpg"


def rows() -> str:
    """`(time, location, age, image_path, truth)` of meals all over 2025, at times of their own."""
    made = []
    for number in range(MEALS):
        path = photo(number)
        known = "NULL, NULL" if path is None else f"'{path}', '{label_of(path)}'"
        place = ("Katong", "Bedok", "Tiong Bahru")[number % 3]
        month, day = 1 + number * 12 // MEALS, 1 + number % 28
        time = f"2025-{month:02}-{day:02} {number % 24:02}:{number % 60:02}"
        made.append(f"('{time}', '{place}', {20 + number % 40}, {known})")
    return ", ".join(made)


TABLES = (
    "CREATE TABLE foodlog (time text, location text, age int, image_path text, truth text)",
    f"INSERT INTO foodlog VALUES {rows()}",
    "CREATE VIEW meals AS SELECT time::timestamp AS time, location, age,"
    " udf_food_name(image_path) AS food_name FROM foodlog",
    "CREATE TABLE true_meals AS SELECT time::timestamp AS time, location, age, truth AS food_name"
    " FROM foodlog",
)
ROLE = (
    "CREATE ROLE dashboards LOGIN IN ROLE ml_udf_reader",
    "GRANT SELECT ON foodlog, meals, true_meals TO dashboards",
    "ALTER ROLE dashboards SET default_transaction_read_only = on",
)
CLEAR = (
    "DROP VIEW IF EXISTS meals",
    "DROP TABLE IF EXISTS foodlog, true_meals",
    "DROP ROLE IF EXISTS dashboards",
)


@pytest.fixture(scope="module")
def dishes(open_folder: Path) -> Iterator[InferenceServer]:
    with inference_server(open_folder / "dashboards") as server:
        server.deploy(hashing_model(open_folder / "dishes", "dishes"), "udf_food_name")
        yield server


@pytest.fixture(scope="module")
def duckdb_asks(dishes: InferenceServer) -> Iterator[Ask]:
    engine = DuckDb(dishes.url, ["udf_food_name"])
    for statement in TABLES:
        engine.query(statement)
    yield engine.query
    engine.close()


@pytest.fixture(scope="module")
def postgres_asks(dishes: InferenceServer, cluster: Sandbox) -> Iterator[Ask]:
    """A session of a role that may read, and nothing else."""
    if not cluster.sql("SELECT 1 FROM pg_database WHERE datname = 'dashboards'"):
        cluster.sql("CREATE DATABASE dashboards")
        cluster.sql("CREATE EXTENSION ml_udf CASCADE", "dashboards")
    dsn = cluster.dsn("dashboards")
    owner = Postgres(dsn, dishes.url, ["udf_food_name"], batching=True)
    for statement in (*CLEAR, *TABLES, *ROLE):
        owner.query(statement)
    with psycopg.connect(dsn, user="dashboards", autocommit=True) as connection:
        yield lambda sql: connection.execute(sql.encode()).fetchall()
    owner.query("DROP OWNED BY dashboards")
    for statement in CLEAR:
        owner.query(statement)
    owner.close()


@pytest.fixture
def asks(engine_name: str, request: pytest.FixtureRequest) -> Ask:
    ask: Ask = request.getfixturevalue("duckdb_asks" if engine_name == "duckdb" else "postgres_asks")
    if engine_name != "duckdb":
        switch = "off" if engine_name == "postgres-by-row" else "on"
        ask(f"SELECT set_config('ml_udf.batching', '{switch}', false)")
    return ask


def of_the_truth(sql: str) -> str:
    """The same statement over answers that stand in a table."""
    sql = re.sub(r'((?:FROM|JOIN) (?:public\.)?|"public"\.")meals\b', r"\1true_meals", sql)
    return re.sub(r"udf_food_name\(image_path\)", "truth", sql, flags=re.IGNORECASE)


@pytest.mark.parametrize(("engine_name", "sql"), list(recorded()))
def test_a_dashboard_gets_what_a_table_of_the_answers_would_give(asks: Ask, sql: str) -> None:
    truth = of_the_truth(sql)
    assert truth != sql
    found = asks(sql)
    assert found
    assert Counter(found) == Counter(asks(truth))
