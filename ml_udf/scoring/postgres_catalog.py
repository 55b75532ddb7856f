"""What PostgreSQL's catalog says of tables, and the connection by which it is asked."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ml_udf.client.answer_type import AnswerKind
from ml_udf.errors import ReadOnly
from ml_udf.quoting import qualified
from ml_udf.scoring.layout import ColumnDef, Source
from ml_udf.scoring.names import split_name

__all__ = ["TEXT_SETTINGS", "Parameter", "PostgresCatalog", "Reals", "Sql"]

Parameter: TypeAlias = str | bytes

# By which the texts of keys, and the hashes of inputs, are the same for all who write or read them.
TEXT_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}

_TABLES = {"r", "p", "f"}  # plain, partitioned, foreign
_INDEXED = {"r", "p"}

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


@dataclass(frozen=True, slots=True)
class Reals:
    """Vectors in PostgreSQL's binary format: a vector's text takes about twelve times as long as its numbers.

    one: the SQL of a vector as a `real[]`, by {parameter} and by {at}, its number from 0
    """

    parameter: bytes
    one: str


class Sql(Protocol):
    """A connection to PostgreSQL. Its errors are `Error`, and have a `sqlstate`.

    $1, … are texts, whatever they are cast to, or what `reals` gave.
    """

    Error: type[Exception]

    def rows(self, query: str, *parameters: Parameter) -> list[dict[str, Any]]:
        """The rows of a query."""
        ...

    def change(self, query: str, *parameters: Parameter) -> int:
        """How many rows a statement changed."""
        ...

    def reals(self, vectors: Sequence[array[float]]) -> Reals | None:
        """Vectors of float32, all of one width, as numbers. None where this connection takes texts alone."""
        ...

    def commit(self) -> None:
        """End the transaction, keeping it."""
        ...

    def rollback(self) -> None:
        """End the transaction, forgetting it."""
        ...


class PostgresCatalog:
    """The catalog, as the one who is connected sees it."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def check_writable(self) -> None:
        """Find out before rows are asked that their answers cannot be stored. Raises `ReadOnly`.

        A READ ONLY transaction of a primary may write to temporary tables.
        """
        (here,) = self._sql.rows("SELECT pg_catalog.pg_is_in_recovery() AS is_standby")
        if here["is_standby"]:
            raise ReadOnly("this database is a standby: answers cannot be stored here")

    def found(self, name: str) -> Source | None:
        """The table or view that SQL would find by this name. Raises `BadOption` for what is no name."""
        split_name(name)  # before it costs the transaction
        row = next(iter(self._sql.rows(_RELATION, name)), None)
        if row is None:
            return None
        columns = tuple(
            ColumnDef(c["name"], c["type"], c["base"], c["nullable"])
            for c in self._sql.rows(_COLUMNS, row["oid"])
        )
        keys = self._sql.rows(_KEYS, row["oid"])
        return Source(
            row["name"] if row["schema"] == "public" else f"{row['schema']}.{row['name']}",
            qualified(row["schema"], row["name"]),
            columns,
            is_table=row["kind"] in _TABLES,
            primary=next((tuple(key["names"]) for key in keys if key["is_primary"]), ()),
            unique=tuple(frozenset(key["names"]) for key in keys) if row["kind"] in _INDEXED else None,
        )

    @property
    def types(self) -> Mapping[AnswerKind, str]:
        """As result types of functions."""
        return {"boxes": "jsonb", "json": "jsonb"}

    def cast(self, kind: AnswerKind, value_type: str) -> str:
        """None: its types read their own literals."""
        return "{}"

    def create(self, statement: str) -> None:
        """Create a table."""
        self._sql.change(statement)
        self._sql.commit()
