"""What a connection's catalog says of the functions and tables that a query names."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
from sqlglot import exp

from ml_udf.duckdb.rewrite import Known, Relation
from ml_udf.duckdb.rewrite.known import function_names
from ml_udf.duckdb.rewrite.statements import parsed_expression, words_of
from ml_udf.duckdb.surface import CATALOG, GENERIC, STATEMENT

__all__ = ["known_of"]

_ACTS = frozenset(f"{CATALOG}.{name}" for name in GENERIC if name.startswith("feedback"))
_DEEPEST = 8  # of views in views

# `register` makes functions that take columns of any number and type; what they call is a model. Those behind
# the macros of the catalog are not called by name.
_FUNCTIONS = """
    SELECT lower(function_name), database_name,
           bool_and(function_type <> 'macro' AND stability IS DISTINCT FROM 'VOLATILE'),
           bool_or(varargs IS NOT DISTINCT FROM 'ANY' AND parameters = ['col0']
                   AND NOT starts_with(function_name, 'ml_udf_call_')),
           any_value(macro_definition)
    FROM duckdb_functions()
    WHERE function_type IN ('scalar', 'aggregate', 'window') OR (function_type = 'macro' AND NOT internal)
    GROUP BY ALL"""
_COLUMNS = """
    SELECT database_name, schema_name, table_name, lower(column_name), data_type
    FROM duckdb_columns() WHERE list_contains($names, lower(table_name))"""
_VIEWS = """
    SELECT database_name, schema_name, view_name, sql
    FROM duckdb_views() WHERE list_contains($names, lower(view_name))"""


def known_of(con: duckdb.DuckDBPyConnection, query: str) -> Known:
    """What a rewrite of `query` may know. Runs statements on `con`, which must have no unfinished result."""
    models, deterministic, has_statistics = _functions(con)
    return Known(
        frozenset(models),
        frozenset(deterministic),
        _relations(con, query),
        _seconds(con) if has_statistics else {},
    )


def _functions(con: duckdb.DuckDBPyConnection) -> tuple[set[str], set[str], bool]:
    models: set[str] = set()
    deterministic: set[str] = set()
    macros: dict[str, str] = {}
    has_statistics = False
    for name, database, is_deterministic, is_python, definition in con.execute(_FUNCTIONS).fetchall():
        written = f"{CATALOG}.{name}" if database == CATALOG else name
        has_statistics = has_statistics or database == CATALOG
        if definition is not None:
            macros[written] = definition
        elif is_python:
            models.add(name)
        elif is_deterministic:
            deterministic.add(name)
    deterministic -= models | macros.keys()
    _add_macros(macros, models, deterministic)
    return models, deterministic, has_statistics


def _add_macros(macros: Mapping[str, str], models: set[str], deterministic: set[str]) -> None:
    """Macros are what they call: models, deterministic, or neither."""
    calls: dict[str, set[str] | None] = {}
    for name, definition in macros.items():
        if STATEMENT not in definition:
            calls[name] = _calls(definition)
        elif name not in _ACTS:
            models.add(name)
    for _ in calls:  # each round settles one at least, or none is left to settle
        before = len(models), len(deterministic)
        for name, called in calls.items():
            if called is None:
                continue
            if called & models:
                models.add(name)
            elif called <= deterministic:
                deterministic.add(name)
        if before == (len(models), len(deterministic)):
            break


def _calls(definition: str) -> set[str] | None:
    """The functions that a macro calls; None where that cannot be told."""
    node = parsed_expression(definition)
    if node is None or any(isinstance(each, exp.Query) for each in node.walk()):
        return None
    return {next(iter(function_names(each)), "") for each in node.find_all(exp.Func)}


def _relations(con: duckdb.DuckDBPyConnection, query: str) -> dict[str, Relation]:
    """What a query names of tables and views, and what these name, by all that each may be called."""
    ((database, schema),) = con.execute("SELECT current_database(), current_schema()").fetchall()
    found: dict[tuple[str, str, str], Relation] = {}
    names = words_of(query)
    for _ in range(_DEEPEST):
        columns, queries = _named(con, names)
        found |= {
            place: Relation(
                columns[place],
                queries.get(place),
                hidden=place in queries and place[:2] != (database, schema),
            )
            for place in columns
        }
        more = frozenset(word for text in queries.values() for word in words_of(text)) - names
        if not more:
            break
        names = more
    relations: dict[str, Relation] = {}
    for (its_database, its_schema, name), relation in found.items():
        is_near = (its_database, its_schema) == (database, schema) or its_database == "temp"
        near = relation if is_near else Relation(hidden=True)  # the search path may lead to it, or not
        for written, meant in (
            (name, near),
            (f"{its_schema}.{name}", near),
            (f"{its_database}.{name}", relation),
            (f"{its_database}.{its_schema}.{name}", relation),
        ):
            key = written.lower()
            relations[key] = Relation(hidden=True) if key in relations else meant
    return relations


def _named(
    con: duckdb.DuckDBPyConnection, names: frozenset[str]
) -> tuple[dict[tuple[str, str, str], dict[str, str]], dict[tuple[str, str, str], str]]:
    """The columns of the tables and views of these names, and the views' definitions."""
    given = {"names": sorted(names)}
    columns: dict[tuple[str, str, str], dict[str, str]] = {}
    for *place, column, kind in con.execute(_COLUMNS, given).fetchall():
        columns.setdefault((place[0], place[1], place[2]), {})[column] = kind
    views = con.execute(_VIEWS, given).fetchall()
    return columns, {(database, schema, name): text for database, schema, name, text in views}


def _seconds(con: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """What a row has taken on this connection, by its function."""
    rows = con.execute(f"SELECT name, seconds / rows_sent FROM {CATALOG}.stat_functions WHERE rows_sent > 0")
    return {str(name).lower(): float(seconds) for name, seconds in rows.fetchall()}
