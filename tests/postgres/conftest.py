"""PostgreSQL's fixtures for this directory, and a line at the end that says which server was tested."""

from __future__ import annotations

import pytest

from ml_udf.cli.pg_server import PostgresServer, SetupError
from tests.postgres.fixtures import (
    batching_cluster,
    cluster,
    databases,
    engine,
    fake_server,
    postgres_engine,
    postgres_server,
    template,
)

__all__ = [
    "batching_cluster",
    "cluster",
    "databases",
    "engine",
    "fake_server",
    "postgres_engine",
    "postgres_server",
    "template",
]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    try:
        server = PostgresServer.find()
    except SetupError as error:
        terminalreporter.write_line(f"PostgreSQL: NOT TESTED, {error.message}", red=True)
        return
    if server.plpython() is None:
        terminalreporter.write_line(f"PostgreSQL {server.version}: NOT TESTED, no plpython3u", red=True)
    else:
        terminalreporter.write_line(f"PostgreSQL {server.version} ({server.bin_dir})")
