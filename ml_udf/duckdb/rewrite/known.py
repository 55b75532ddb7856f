"""What a rewrite may know of a connection beside the query: names of functions, columns of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

__all__ = ["WRITTEN", "Known", "Relation", "function_names"]

WRITTEN = "written"  # in a function's meta: its name as the query has it, in lower case

# Operators and forms of SQL that sqlglot has as functions; each is as deterministic as its arguments.
_FORMS = (
    exp.And,
    exp.Or,
    exp.Not,
    exp.Case,
    exp.If,
    exp.Cast,
    exp.TryCast,
    exp.Coalesce,
    exp.Nullif,
    exp.Extract,
    exp.Exists,
    exp.Array,
    exp.Struct,
    exp.Trim,
    exp.Substring,
    exp.CurrentDate,
)
_DETERMINISTIC = frozenset({"lower", "upper", "md5", "length", "starts_with", "contains", "abs", "count"})


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a view. columns: name in lower case → DuckDB's name of its type; query: a view's.

    hidden: nothing is known of it but that it is there, such as of one of two tables of that name
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """All names are in lower case.

    models         the functions that ask a model, such as udf_food and ml_udf.predict
    deterministic  the functions that give the same for the same, and do nothing else
    relations      tables and views by the name that a query may give them; what is not there is a file, or
                   another thing that can only be read once
    seconds        what a row has taken so far, by the name of a model's function
    """

    models: frozenset[str]
    deterministic: frozenset[str] = _DETERMINISTIC
    relations: Mapping[str, Relation] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def is_model(self, node: exp.Expr) -> bool:
        """Whether it is a call of a function that asks a model."""
        return isinstance(node, exp.Func) and not self.models.isdisjoint(function_names(node))

    def is_deterministic(self, node: exp.Expr) -> bool:
        """Whether all functions that it calls are, those of its subqueries too. Models are."""
        return all(
            isinstance(each, _FORMS)
            or (isinstance(each, exp.Binary) and WRITTEN not in each.meta)  # an operator
            or not self.deterministic.isdisjoint(function_names(each))
            or self.is_model(each)
            for each in node.find_all(exp.Func)
        )


def function_names(node: exp.Func) -> Iterator[str]:
    """The name of a call as it is written, or its usual ones; of one in a schema also `schema.name`."""
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        names = [node.name.lower()]
    else:
        names = [node.meta[WRITTEN]] if WRITTEN in node.meta else [each.lower() for each in node.sql_names()]
    place = node.parent
    if isinstance(place, exp.Dot) and place.expression is node:
        before = place.this
        schema = before.expression if isinstance(before, exp.Dot) else before
        names += [f"{schema.name.lower()}.{name}" for name in names]
    yield from names
