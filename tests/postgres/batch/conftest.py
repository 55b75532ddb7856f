"""Fixtures of the plan node's tests: one cluster that loads it, one schema that is only read."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_udf.cli.pg_sandbox import SUPERUSER, Sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from tests.postgres.batch.building import batch_cluster
from tests.postgres.batch.session import Session

SCHEMA = Path(__file__).with_name("schema.sql")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg-config", type=Path, default=None, help="the server to test the plan node on")


@pytest.fixture(scope="session")
def batch_server(pytestconfig: pytest.Config) -> PostgresServer:
    try:
        server = PostgresServer.find(pytestconfig.getoption("--pg-config", default=None))
    except SetupError as error:
        pytest.skip(f"NO POSTGRESQL: {error.message}")
    if not server.has_headers() or shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip(f"NO COMPILER OR HEADERS for PostgreSQL {server.version} in {server.bin_dir}")
    return server


@pytest.fixture(scope="session")
def batches(batch_server: PostgresServer) -> Iterator[Sandbox]:
    """A cluster whose template holds the functions and tables of schema.sql."""
    with batch_cluster(batch_server) as cluster:
        cluster.sql("CREATE DATABASE items")
        cluster.sql(SCHEMA.read_text(), "items")
        yield cluster


@pytest.fixture(scope="session")
def copy_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def connect(batches: Sandbox, copy_numbers: Iterator[int]) -> Iterator[Callable[..., Session]]:
    """Opens sessions to a copy of the database that the test may change; `connect(user="…")` for a role."""
    name = f"copy_{next(copy_numbers)}"
    batches.sql(f"CREATE DATABASE {name} TEMPLATE items")
    opened: list[Session] = []

    def open_session(user: str = SUPERUSER) -> Session:
        opened.append(Session(batches.dsn(name, user=user)))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()
    batches.sql(f"DROP DATABASE {name}")


@pytest.fixture
def own(connect: Callable[..., Session]) -> Session:
    """A superuser's session to a database of the test's own."""
    return connect()


@pytest.fixture
def session(batches: Sandbox) -> Iterator[Session]:
    """A superuser's connection to the database of schema.sql; what it changes it must roll back."""
    connection = Session(batches.dsn("items"))
    yield connection
    connection.close()
