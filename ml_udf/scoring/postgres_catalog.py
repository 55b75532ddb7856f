"""What PostgreSQL's catalog says of a scoring request; the table of answers, created where it is absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ml_udf.errors import BadOption, UnknownTable
from ml_udf.function_info import FunctionInfo
from ml_udf.scoring.layout import (
    ROLES,
    Column,
    Layout,
    Source,
    check_rescoring,
    input_of,
    key_of,
    places_beside,
    places_in,
    value_type_of,
)
from ml_udf.scoring.names import qualified, split_name
from ml_udf.scoring.queries import Queries
from ml_udf.scoring.request import Request

__all__ = ["Sql", "prepared_layout"]

_TABLES = {"r", "p", "f"}

_RELATION = """
    SELECT c.oid::text AS oid, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass($1::text) AND c.relkind IN ('r', 'p', 'f', 'v', 'm')"""

_COLUMNS = """
    SELECT a.attname::text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
           pg_catalog.format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) AS base,
           NOT a.attnotnull AS nullable
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = $1::text::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_KEYS = """
    SELECT i.indisprimary AS is_primary,
           ARRAY(SELECT a.attname::text FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS place
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[place]
                 ORDER BY place) AS names
    FROM pg_catalog.pg_index i
    WHERE i.indrelid = $1::text::pg_catalog.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL"""


class Sql(Protocol):
    """A connection to PostgreSQL. Its errors are `Error`, and have a `sqlstate`."""

    Error: type[Exception]

    def rows(self, query: str, *parameters: str | Sequence[str | None]) -> list[dict[str, Any]]:
        """The rows of a query; $1, … are text or text[]."""
        ...

    def change(self, query: str, *parameters: str | Sequence[str | None]) -> int:
        """How many rows a statement changed."""
        ...

    def commit(self) -> None:
        """End the transaction, keeping it."""
        ...

    def rollback(self) -> None:
        """End the transaction, forgetting it."""
        ...


def prepared_layout(sql: Sql, request: Request, info: FunctionInfo, value_type: str | None = None) -> Layout:
    """The layout of a request; a table of answers that is absent is created, and committed.

    value_type  of the answers in a new table; None = as the function's output says

    Raises `UnknownTable`, `UnknownColumn`, `NoKey`, `WrongType`, `BadOption`.
    """
    kind, source = _source(sql, request.relation)
    key = key_of(source, request.key)
    column = input_of(source, request, info)
    if request.output:
        if kind not in _TABLES:
            raise BadOption(
                f"{source.title} is a view: its rows cannot take answers", hint="give result_table instead"
            )
        places, found_type = places_beside(source, request.output)
        target, title = source, f"{source.title}.{places['value']}"
    else:
        places = {role: role for role in ROLES}
        made = Layout("", source.sql, "", key, column, places, value_type or value_type_of(info), frozenset())
        target = _result_table(sql, str(request.result_table), made, source)
        places, found_type = places_in(target, key)
        title = target.title
    rescore = check_rescoring(request, places, target)
    return Layout(title, source.sql, target.sql, key, column, places, found_type, rescore, request.condition)


def _source(sql: Sql, relation: str) -> tuple[str, Source]:
    """(kind, the relation). Raises `UnknownTable`, `BadOption`."""
    found = _found(sql, relation)
    if found is None:
        raise UnknownTable(
            f"there is no table or view {relation!r} here", hint="write its schema too: shop.foodlog"
        )
    return found


def _found(sql: Sql, relation: str) -> tuple[str, Source] | None:
    split_name(relation)  # refuses what is no name, before it costs the transaction
    row: Mapping[str, Any] | None = next(iter(sql.rows(_RELATION, relation)), None)
    if row is None:
        return None
    columns = tuple(
        Column(c["name"], c["type"], c["base"], c["nullable"]) for c in sql.rows(_COLUMNS, row["oid"])
    )
    keys = sql.rows(_KEYS, row["oid"])
    primary = next((tuple(key["names"]) for key in keys if key["is_primary"]), ())
    unique = tuple(frozenset(key["names"]) for key in keys) if row["kind"] in {"r", "p"} else None
    title = row["name"] if row["schema"] == "public" else f"{row['schema']}.{row['name']}"
    return row["kind"], Source(title, qualified(row["schema"], row["name"]), columns, primary, unique)


def _result_table(sql: Sql, name: str, made: Layout, source: Source) -> Source:
    """The table of answers, created where there is none."""
    found = _found(sql, name)
    if found is None:
        target = qualified(*split_name(name))
        clash = {column.name for column in made.key} & set(ROLES)
        if clash:
            raise BadOption(
                f"the key of {source.title} has a column {clash.pop()!r}, as tables of answers have",
                hint="give output, a column of the same table, instead",
            )
        query = Queries(
            Layout("", "", target, made.key, made.input, made.places, made.value_type, frozenset()), ""
        )
        sql.change(query.create())
        sql.commit()
        found = _found(sql, name)
    if found is None:
        raise UnknownTable(f"{name!r} was created, but not where it is found", hint="write its schema too")
    kind, target_table = found
    if kind not in _TABLES or target_table.sql == source.sql:
        raise BadOption(
            f"{target_table.title} cannot take the answers", hint="name another table, or a new one"
        )
    return target_table
