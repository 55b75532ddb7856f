"""A query that somebody wrote as a text: one statement, which only reads."""

from __future__ import annotations

import duckdb

from ml_udf.errors import BadOption

__all__ = ["checked_query"]


def checked_query(con: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raises `BadOption` for what is not one SELECT, and DuckDB's own error for what cannot be read."""
    statements = con.extract_statements(query)
    if len(statements) != 1:
        raise BadOption(f"the query holds {len(statements)} statements", hint="give one SELECT, and no more")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise BadOption(f"the query is of type {kind.name}, and it may only read", hint="give one SELECT")
