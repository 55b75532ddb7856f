"""Fixtures over a real PostgreSQL: one private cluster per test run, one fresh database per test.

`tests/postgres/conftest.py` imports them; so may any other directory of tests that wants PostgreSQL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from tests.postgres.oip_server import OipServer, oip_server

__all__ = [
    "Engine",
    "batching_cluster",
    "cluster",
    "databases",
    "engine",
    "fake_server",
    "postgres_engine",
    "postgres_server",
    "template",
]

TEMPLATE = "template_ml_udf"


class Warned(NamedTuple):
    message: str
    detail: str
    hint: str


class Engine:
    """A connection to a database with the extension; every statement is its own transaction."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.warnings: list[Warned] = []
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.add_notice_handler(self._notice)

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a statement; [] of one that has none."""
        cursor = self.connection.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *parameters: object) -> Any:
        """The one value of a statement."""
        ((value,),) = self.query(sql, *parameters)
        return value

    def close(self) -> None:
        self.connection.close()

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            fields = (notice.message_primary, notice.message_detail, notice.message_hint)
            self.warnings.append(Warned(*(field or "" for field in fields)))


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    try:
        server = PostgresServer.find()
    except SetupError as error:
        pytest.skip(f"NO POSTGRESQL: {error.message}")
    if server.plpython() is None:
        pytest.skip(f"NO PL/PYTHON for PostgreSQL {server.version} in {server.bin_dir}")
    return server


@pytest.fixture(scope="session")
def cluster(postgres_server: PostgresServer) -> Iterator[Sandbox]:
    """With the batching module there, for the triggers of watches, and batching nothing: what statements do
    without it stands here, and with it in tests/postgres/batch.
    """
    settings = {"log_statement": "all", "max_prepared_transactions": "2", "session_preload_libraries": ""}
    with sandbox(postgres_server, settings=settings, batching=None) as running:
        yield running


@pytest.fixture(scope="module")
def batching_cluster(postgres_server: PostgresServer) -> Iterator[Sandbox]:
    """A cluster with the batching module, where that can be built."""
    with sandbox(postgres_server, batching=None, local=False) as running:
        assert running.installed is not None
        if running.installed.module is None:
            pytest.skip(f"BATCHING NOT TESTED: {running.installed.notes}")
        yield running


@pytest.fixture(scope="session")
def template(cluster: Sandbox) -> str:
    """A database with the extension, which `CREATE DATABASE … TEMPLATE` copies in a moment."""
    cluster.sql(f"CREATE DATABASE {TEMPLATE}")
    cluster.sql("SET client_min_messages = warning; CREATE EXTENSION ml_udf CASCADE", TEMPLATE)
    return TEMPLATE


class Databases:
    """Databases with the extension. Making one takes half a second, emptying one does not: they are kept."""

    def __init__(self, cluster: Sandbox, template: str) -> None:
        self._cluster = cluster
        self._template = template
        self._numbers = itertools.count(1)
        self._empty: list[str] = []

    def borrow(self) -> str:
        """The name of a database that holds the extension and nothing else."""
        if self._empty:
            return self._empty.pop()
        name = f"test_{next(self._numbers)}"
        self._cluster.sql(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return name

    def give_back(self, name: str) -> None:
        """Empty a database that nobody is connected to any more."""
        self._cluster.sql(EMPTY, name)
        self._empty.append(name)


EMPTY = """
    SET client_min_messages = warning;
    DO $$ DECLARE found text; BEGIN
        FOR found IN SELECT srvname FROM pg_foreign_server LOOP
            EXECUTE format('DROP SERVER %I CASCADE', found);
        END LOOP;
        FOR found IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^(pg_|information_schema$|ml_udf$)' LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', found);
        END LOOP;
        DELETE FROM ml_udf._new_note;
        DELETE FROM ml_udf._note;
        DELETE FROM ml_udf._marked;
        DELETE FROM ml_udf._rings;
        DELETE FROM ml_udf._watch;
    END $$;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO PUBLIC"""


@pytest.fixture(scope="session")
def databases(cluster: Sandbox, template: str) -> Databases:
    return Databases(cluster, template)


@pytest.fixture
def postgres_engine(cluster: Sandbox, databases: Databases) -> Iterator[Callable[..., Engine]]:
    """Makes engines: `postgres_engine(url, token=None, functions=["udf_food_name"])`."""
    made: list[tuple[Engine, str]] = []

    def new(url: str, *, token: str | None = None, functions: list[str] | None = None) -> Engine:
        name = databases.borrow()
        engine = Engine(cluster.dsn(name))
        made.append((engine, name))
        connect(engine, url, token)
        for function in functions or []:
            engine.query("SELECT ml_udf.create_function(%s)", function)
        return engine

    yield new
    for engine, name in made:
        engine.close()
        databases.give_back(name)


def connect(engine: Engine, url: str, token: str | None = None) -> None:
    """Create the server `ml_udf`, and a mapping for everybody where there is a token."""
    engine.query(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{url}')")
    if token is not None:
        engine.query(f"CREATE USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (token '{token}')")


@pytest.fixture
def fake_server() -> Iterator[OipServer]:
    with oip_server() as server:
        yield server


@pytest.fixture
def engine(postgres_engine: Callable[..., Engine], fake_server: OipServer) -> Engine:
    """A superuser's connection with `udf_food_name`, answered by `fake_server`."""
    made = postgres_engine(fake_server.url, functions=["udf_food_name"])
    fake_server.forget()
    return made
