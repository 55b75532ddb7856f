"""The tables of the food log on either engine: made by schema.sql, filled from the CSV files.

Knows how to load and how to ask; knows no function, no model and no question.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg

__all__ = ["TABLES", "Answer", "ask_duckdb", "ask_postgres", "load_duckdb", "load_postgres"]

SCHEMA_FILE = Path(__file__).with_name("schema.sql")
TABLES = ("foodlog", "users", "labels", "weighed", "portions", "trays")

Answer = tuple[tuple[str, ...], list[tuple[Any, ...]]]  # column names, rows


def load_duckdb(con: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Make the tables on a DuckDB connection and fill them from `folder`'s CSV files."""
    con.execute(SCHEMA_FILE.read_text(encoding="utf-8"))
    for table in TABLES:
        con.execute(f"COPY {table} FROM '{_literal(folder / f'{table}.csv')}' (FORMAT csv, HEADER)")


def load_postgres(connection: psycopg.Connection[Any], folder: Path) -> None:
    """Make the tables in a PostgreSQL database and fill them from `folder`'s CSV files."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(SCHEMA_FILE.read_bytes())
        for table in TABLES:
            with cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)".encode()) as copy:
                copy.write((folder / f"{table}.csv").read_bytes())
        cursor.execute("ANALYZE")


def ask_duckdb(con: duckdb.DuckDBPyConnection) -> Callable[[str], Answer]:
    """The function that runs a statement on a DuckDB connection."""

    def ask(sql: str) -> Answer:
        result = con.execute(sql)
        names = tuple(column[0] for column in result.description or ())
        return names, [_plain(row) for row in result.fetchall()]

    return ask


def ask_postgres(connection: psycopg.Connection[Any]) -> Callable[[str], Answer]:
    """The function that runs a statement on a PostgreSQL connection."""

    def ask(sql: str) -> Answer:
        with connection.cursor() as cursor:
            cursor.execute(sql.encode())
            names = tuple(column.name for column in cursor.description or ())
            return names, [_plain(row) for row in cursor.fetchall()]

    return ask


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers of one kind: an exact numeric on one engine is a double on the other."""
    return tuple(float(value) if isinstance(value, Decimal) else value for value in row)


def _literal(path: Path) -> str:
    return str(path).replace("'", "''")
