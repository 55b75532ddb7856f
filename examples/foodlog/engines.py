"""DuckDB and PostgreSQL with the food log's tables and the inference server's functions, ready to be asked.

Owns what an engine needs before its first question; knows no question and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psycopg

import ml_udf.duckdb
from examples.foodlog.tables import Answer, ask_duckdb, ask_postgres, load_duckdb, load_postgres
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer

__all__ = ["Engine", "create_functions", "open_duckdb", "open_postgres"]


@dataclass(frozen=True, slots=True)
class Engine:
    """One connection. uri: by which others reach the same database, where they can."""

    name: str
    ask: Callable[[str], Answer]
    uri: str | None = None


def open_duckdb(stack: ExitStack, folder: Path, endpoint: str) -> Engine:
    """A DuckDB of its own that has the tables, and all functions that the endpoint has now."""
    con = duckdb.connect()
    stack.callback(con.close)
    load_duckdb(con, folder)
    stack.callback(ml_udf.duckdb.register(con, endpoint).close)
    return Engine("DuckDB", ask_duckdb(con))


def open_postgres(stack: ExitStack, folder: Path, url: str) -> Engine:
    """A private PostgreSQL cluster that has the tables and the extension. Raises `SetupError`."""
    cluster = Sandbox.start(PostgresServer.find(), batching=None)
    stack.callback(cluster.stop)
    uri = cluster.database("food", url=url)
    connection = stack.enter_context(psycopg.connect(uri, autocommit=True))
    load_postgres(connection, folder)
    return Engine(f"PostgreSQL {cluster.server.version}", ask_postgres(connection), uri)


def create_functions(postgres: Engine, names: Iterable[str]) -> None:
    """Make functions that the inference server has SQL functions; those that are there stay the same."""
    for name in names:
        postgres.ask(f"SELECT ml_udf.create_function('{name}')")
