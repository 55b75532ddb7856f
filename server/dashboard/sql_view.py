"""What to paste into psql, DuckDB and pandas: pure, from a function and the server's address to texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from server.catalog.functions import Function

__all__ = ["Snippet", "connecting", "of_function"]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Snippet:
    """id: of its element on the page · language: "sql", "python", "shell" """

    id: str
    title: str
    language: str
    text: str
    note: str = ""


def connecting(url: str, *, with_token: bool, function: Function | None = None) -> tuple[Snippet, ...]:
    """How each engine comes to know the server at that address.

    with_token: whether it wants one. function: asked in the example.
    """
    example = "udf_name(t.column)" if function is None else _call(function.name, _rows(function)[2])
    mapping = (
        "CREATE USER MAPPING FOR CURRENT_USER SERVER ml_udf\n  OPTIONS (token '…');\n" if with_token else ""
    )
    token = ', token="…"' if with_token else ""
    postgres = (
        "CREATE EXTENSION IF NOT EXISTS ml_udf CASCADE;\n"
        f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf\n  OPTIONS (url {_text(url)});\n"
        f"{mapping if with_token else ''}"
        "SELECT ml_udf.create_function(name)\nFROM   ml_udf.functions WHERE sql_function IS NULL;"
    )
    duckdb = (
        "import duckdb, ml_udf.duckdb\n\n"
        'con = duckdb.connect("food.db")\n'
        f"ml_udf.duckdb.register(con, {json.dumps(url)}{token})"
    )
    pandas = (
        "import duckdb, pandas as pd, ml_udf.duckdb\n\n"
        "con = duckdb.connect()\n"
        f"ml_udf.duckdb.register(con, {json.dumps(url)}{token})\n"
        'rows = pd.read_csv("rows.csv")\n'
        f'rows["answer"] = con.sql("SELECT {example} AS answer FROM rows AS t").df()["answer"]'
    )
    return (
        Snippet(
            "connect-postgres",
            "PostgreSQL, in psql",
            "sql",
            postgres,
            "Once a database, as a superuser; the host has run: sudo ml-udf postgres install",
        ),
        Snippet("connect-duckdb", "DuckDB, in Python", "python", duckdb, "pip install 'ml_udf[duckdb]'"),
        Snippet(
            "connect-pandas",
            "pandas, in Python",
            "python",
            pandas,
            "pip install 'ml_udf[duckdb]' pandas; DuckDB reads the frame where it lies",
        ),
    )


def of_function(function: Function) -> tuple[Snippet, ...]:
    """How a function is asked; its engine has been told of the server."""
    name = function.name
    table, postgres_row, duckdb_row = _rows(function)
    postgres = _query(_call(name, postgres_row), table, function)
    duckdb = _query(_call(name, duckdb_row), table, function)
    sure = _query(f"(ml_udf.detail({_text(name)}, {postgres_row})).*", table, function)
    return (
        Snippet(f"psql-{name}", "PostgreSQL", "sql", postgres),
        Snippet(f"duckdb-{name}", "DuckDB", "sql", duckdb),
        Snippet(f"detail-{name}", "With confidence, and who answered (PostgreSQL)", "sql", sure),
    )


def _call(name: str, row: str) -> str:
    """By its own name where SQL can say that without quotes, else as a value."""
    return f"{name}({row})" if _PLAIN.fullmatch(name) else f"ml_udf.predict({_text(name)}, {row})"


def _query(value: str, table: str, function: Function) -> str:
    if function.task.picks_one and not value.endswith(".*"):
        return f"SELECT {value} AS answer, count(*)\nFROM   {table} AS t\nGROUP BY answer ORDER BY 2 DESC;"
    return f"SELECT {value}\nFROM   {table} AS t\nLIMIT  10;"


def _rows(function: Function) -> tuple[str, str, str]:
    """A table that might be asked about, and its row as the function takes it, by PostgreSQL and DuckDB."""
    if function.form == "row":
        return "your_table", "to_jsonb(t)::text", "t"
    if function.form == "text":
        return "your_table", "t.text", "t.text"
    column = "t.image_path" if function.form == "path" else "t.image"
    return "your_table", column, column


def _text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"
