"""What several suites share: a private database cluster, and the engines by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError


@pytest.fixture(scope="session")
def cluster() -> Iterator[Sandbox]:
    try:
        running = Sandbox.start(PostgresServer.find())
    except SetupError as error:
        pytest.skip(f"PostgreSQL's part is left out: {error}")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(params=["duckdb", "postgres"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
