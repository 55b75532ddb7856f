"""From a request to its layout, by what a catalog says; a table of answers is created where it is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from ml_udf.client.answer_type import AnswerKind, answer_kind
from ml_udf.client.function_info import FunctionInfo
from ml_udf.errors import BadOption, UnknownTable, WrongType
from ml_udf.quoting import qualified
from ml_udf.scoring.layout import (
    ROLES,
    Layout,
    Source,
    check_rescoring,
    input_of,
    key_of,
    places_beside,
    places_in,
    value_type_of,
)
from ml_udf.scoring.names import split_name
from ml_udf.scoring.queries import Queries
from ml_udf.scoring.request import ScoreRequest

__all__ = ["DatabaseCatalog", "resolved", "unfit"]


class DatabaseCatalog(Protocol):
    """What a database knows of its tables."""

    def found(self, name: str) -> Source | None:
        """The table or view that SQL would find by this name, for the one who asks."""
        ...

    @property
    def types(self) -> Mapping[AnswerKind, str]:
        """Its types for answers that are texts and mean more."""
        ...

    def cast(self, kind: AnswerKind, value_type: str) -> str:
        """The SQL by which the text of such an answer becomes what is cast to the type; {} is the text."""
        ...

    def create(self, statement: str) -> None:
        """Run and commit the statement that creates a table."""
        ...


def resolved(
    catalog: DatabaseCatalog, request: ScoreRequest, info: FunctionInfo, value_type: str | None = None
) -> Layout:
    """The layout of a request.

    value_type  of the answers in a new table; None = as the function's output says

    Raises `UnknownTable`, `UnknownColumn`, `NoKey`, `WrongType`, `BadOption`.
    """
    source = catalog.found(request.relation)
    if source is None:
        raise UnknownTable(
            f"there is no table or view {request.relation!r} here", hint="write its schema too: shop.foodlog"
        )
    key = key_of(source, request.key)
    column = input_of(source, request, info)
    if request.output:
        if not source.is_table:
            raise BadOption(
                f"{source.title} is a view: its rows cannot take answers", hint="give result_table instead"
            )
        places, found_type = places_beside(source, request.output)
        if places["value"] in {column.name, *(each.name for each in key)}:
            raise BadOption(
                f"column {places['value']} of {source.title} is the input, or part of the key",
                hint="name another column as output, or give result_table instead",
            )
        target, title = source, f"{source.title}.{places['value']}"
    else:
        places = {role: role for role in ROLES}
        made = Layout(
            "",
            source.sql,
            "",
            key,
            column,
            places,
            value_type or value_type_of(info, catalog.types),
            frozenset(),
        )
        target = _result_table(catalog, str(request.result_table), made, source)
        places, found_type = places_in(target, key)
        title = target.title
    rescore = check_rescoring(request, places, target)
    return Layout(
        title,
        source.sql,
        target.sql,
        key,
        column,
        places,
        found_type,
        rescore,
        request.condition,
        catalog.cast(answer_kind(info), found_type),
        source.is_table,
    )


def unfit(layout: Layout, error: Exception) -> WrongType:
    """That the database could not make a value of the column's type of an answer."""
    column = layout.places["value"]
    return WrongType(
        f"the function's answers do not fit into column {column} ({layout.value_type}) of {layout.target}:"
        f" {str(error).splitlines()[0]}",
        hint="give a column of another type; text takes every answer",
    )


def _result_table(catalog: DatabaseCatalog, name: str, made: Layout, source: Source) -> Source:
    found = catalog.found(name)
    if found is None:
        clash = sorted({column.name for column in made.key} & set(ROLES))
        if clash:
            raise BadOption(
                f"the key of {source.title} has a column {clash[0]!r}, as tables of answers have",
                hint="give output, a column of the same table, instead",
            )
        catalog.create(Queries(replace(made, target=qualified(*split_name(name))), "").create())
        found = catalog.found(name)
    if found is None:
        raise UnknownTable(f"{name!r} was created, but not where it is found", hint="write its schema too")
    if not found.is_table or found.sql == source.sql:
        raise BadOption(f"{found.title} cannot take the answers", hint="name another table, or a new one")
    return found
