"""What a request means in one database: tables, key, input, and the columns that take answers.

Pure: a store asks its catalog and hands the columns in. Answers go to columns by their *roles*. In a table of
answers a role is the column's name; beside the rows themselves, `output` is the value and `OUTPUT_error`,
`OUTPUT_confidence`, … are the others. All but the value may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ml_udf.client.answer_type import AnswerKind, answer_kind
from ml_udf.client.function_info import FunctionInfo
from ml_udf.errors import BadOption, NoKey, UnknownColumn, WrongType
from ml_udf.quoting import quoted
from ml_udf.scoring.names import found_name
from ml_udf.scoring.request import ScoreRequest

__all__ = [
    "ROLES",
    "ColumnDef",
    "Kind",
    "Layout",
    "Source",
    "check_rescoring",
    "input_of",
    "key_of",
    "places_beside",
    "places_in",
    "value_type_of",
]

Kind = Literal["bytes", "text", "number", "vector"]

ROLES = ("value", "confidence", "error", "model_version", "input_hash", "scored_at")

_NUMBERS = {
    *("smallint", "integer", "bigint", "real", "double precision", "numeric"),
    *("tinyint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "decimal"),
}
_BYTES = {"bytea", "blob"}


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column, its type as the engine prints it, and `base`, the type without its length or domain."""

    name: str
    type: str
    base: str
    nullable: bool = True

    @property
    def kind(self) -> Kind | None:
        """How its values travel; None where they cannot."""
        base = self.base.lower().partition("(")[0].strip()
        if base in _BYTES:
            return "bytes"
        if base in _NUMBERS:
            return "number"
        if base.endswith("]"):
            return "vector" if base.partition("[")[0] in _NUMBERS else None
        return "text"


@dataclass(frozen=True, slots=True)
class Source:
    """The relation whose rows are scored, as the catalog knows it.

    `unique` holds the columns of its unique indexes; None where it can have none (a view, a foreign table).
    """

    title: str
    sql: str  # its name, quoted
    columns: tuple[ColumnDef, ...]
    is_table: bool = True  # whether its rows can be written
    primary: tuple[str, ...] = ()
    unique: tuple[frozenset[str], ...] | None = None

    def column(self, asked: str, what: str) -> ColumnDef:
        """The column that the caller means. Raises `UnknownColumn`."""
        name = found_name(asked, [column.name for column in self.columns])
        if name is None:
            raise UnknownColumn(
                f"{self.title} has no column {asked!r} for {what}",
                hint="its columns: " + ", ".join(column.name for column in self.columns),
            )
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that the SQL of a run is made of."""

    title: str  # of the place, for people
    source: str  # quoted
    target: str  # quoted; the same where the answers go beside the rows
    key: tuple[ColumnDef, ...]
    input: ColumnDef
    places: Mapping[str, str]  # role → column of the target
    value_type: str
    rescore: frozenset[str]
    condition: str | None = None
    cast: str = "{}"  # the SQL by which the text of a value becomes what is cast to its type
    of_table: bool = True  # and not of a view, of which each look may be a query that takes long

    @property
    def beside(self) -> bool:
        """Whether the answers go to columns of the source itself."""
        return self.source == self.target


def key_of(source: Source, asked: Sequence[str]) -> tuple[ColumnDef, ...]:
    """The columns that tell the rows apart. Raises `NoKey`, `UnknownColumn`."""
    names = asked or source.primary
    if not names:
        table = source.is_table
        raise NoKey(
            f"{source.title} has no primary key"
            if table
            else f"{source.title} is no table, so it has no key",
            hint=(f"ALTER TABLE {source.sql} ADD PRIMARY KEY (…), or " if table else "")
            + "name the columns that tell its rows apart (key)",
        )
    key = tuple(source.column(name, "the key") for name in names)
    chosen = {column.name for column in key}
    if source.unique is not None and not any(unique <= chosen for unique in source.unique):
        listed = ", ".join(quoted(name) for name in sorted(chosen))
        if source.primary:  # a second one cannot be added, and DuckDB counts constraints, no indexes
            hint = f"name its primary key ({', '.join(source.primary)}), "
            hint += f"or on PostgreSQL CREATE UNIQUE INDEX ON {source.sql} ({listed})"
        else:
            hint = f"ALTER TABLE {source.sql} ADD PRIMARY KEY ({listed}), or name other columns"
        raise NoKey(
            f"several rows of {source.title} may have the same key ({', '.join(sorted(chosen))})", hint=hint
        )
    return key


def input_of(source: Source, request: ScoreRequest, info: FunctionInfo) -> ColumnDef:
    """The column that the function gets. Raises `UnknownColumn`, `WrongType`."""
    column = source.column(request.input, "the input")
    vectors = len(info.row_shape) > 1 or (info.row_shape not in ((), (1,)))
    takes = ("text", "bytes") if info.input_datatype == "BYTES" else ("vector",) if vectors else ("number",)
    if column.kind not in takes:
        raise WrongType(
            f"column {column.name} of {source.title} is {column.type}, {request.function} takes"
            f" {' or '.join(takes)}",
            hint="name another column, or score a view that casts this one",
        )
    return column


def places_beside(source: Source, output: str) -> tuple[dict[str, str], str]:
    """(role → column, type of the value) of answers beside the rows. Raises `UnknownColumn`."""
    names = [column.name for column in source.columns]
    value = found_name(output, names)
    if value is None:
        raise UnknownColumn(
            f"{source.title} has no column {output!r} for the answers",
            hint=f"ALTER TABLE {source.sql} ADD COLUMN {output} text, or give result_table instead",
        )
    places = {"value": value}
    for role in ROLES[1:]:
        column = found_name(quoted(f"{value}_{role}"), names)
        if column is not None:
            places[role] = column
    return places, source.column(value, "the answers").type


def places_in(table: Source, key: Sequence[ColumnDef]) -> tuple[dict[str, str], str]:
    """(role → column, type of the value) of a table of answers. Raises `UnknownColumn`, `NoKey`."""
    names = [column.name for column in table.columns]
    for column in key:
        if column.name not in names:
            raise UnknownColumn(
                f"{table.title} has no column {column.name!r} for the key",
                hint="it needs the key's columns under the same names; a table that is absent is created",
            )
    if "value" not in names:
        raise UnknownColumn(
            f"{table.title} has no column 'value' for the answers",
            hint=f"ALTER TABLE {table.sql} ADD COLUMN value text",
        )
    wanted = frozenset(column.name for column in key)
    if wanted not in (table.unique or ()):
        listed = ", ".join(quoted(column.name) for column in key)
        raise NoKey(
            f"{table.title} may hold several answers for one row",
            hint=f"ALTER TABLE {table.sql} ADD PRIMARY KEY ({listed})",
        )
    return {role: role for role in ROLES if role in names}, table.column("value", "the answers").type


def value_type_of(info: FunctionInfo, types: Mapping[AnswerKind, str]) -> str:
    """The type of a new table's values. types: those of the engine for texts that mean more."""
    kind = answer_kind(info)
    if kind == "floats" and info.output_width > 1:
        return f"real[{info.output_width}]"  # PostgreSQL leaves the length out
    usual: Mapping[AnswerKind, str] = {
        "text": "text",
        "labels": "text[]",
        "boolean": "boolean",
        "whole": "bigint",
        "number": "double precision",
    }
    return types.get(kind) or usual.get(kind, "double precision[]")


def check_rescoring(request: ScoreRequest, places: Mapping[str, str], target: Source) -> frozenset[str]:
    """Why rows are scored again. Raises `BadOption` where the place has no column for it, or for errors."""
    prefix = "" if "value" not in places or places["value"] == "value" else f"{places['value']}_"
    types = {"error": "text", "model_version": "text", "input_hash": "uuid"}

    def need(role: str, why: str) -> None:
        if role not in places:
            raise BadOption(
                f"{why} needs a column {prefix}{role} of {target.title}",
                hint=f"ALTER TABLE {target.sql} ADD COLUMN {quoted(prefix + role)} {types[role]}",
            )

    if request.on_error == "null":
        need("error", "on_error = null, so that faulty rows are not tried for ever,")
    if request.rescore is None:
        return frozenset({"changed"} if "input_hash" in places else ())
    for reason, role in (("changed", "input_hash"), ("version", "model_version"), ("errors", "error")):
        if reason in request.rescore:
            need(role, f"rescore = {reason}")
    return request.rescore
