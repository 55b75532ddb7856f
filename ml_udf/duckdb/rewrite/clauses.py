"""The conditions of one clause, each with what can be done with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from sqlglot import TokenType, exp

from ml_udf.duckdb.rewrite.conditions import Condition, Part, condition_of
from ml_udf.duckdb.rewrite.kinds import BOOLEAN
from ml_udf.duckdb.rewrite.known import Known
from ml_udf.duckdb.rewrite.scopes import Scope
from ml_udf.duckdb.rewrite.statements import Statement

__all__ = ["Clause", "Item", "Role", "clauses_of", "role_of"]

_KEYWORDS = {"where": TokenType.WHERE, "having": TokenType.HAVING, "qualify": TokenType.QUALIFY}
_GUARDS = (exp.Case, exp.If, exp.Coalesce)


class Role(Enum):
    """What a condition is to a rewrite."""

    MODEL = auto()  # asks a model of every row that comes to it
    GUARDED = auto()  # asks a model within a CASE or its like, an aggregate, or a subquery
    CHEAP = auto()  # asks none, and cannot fail
    RISKY = auto()  # asks none, and may fail
    WIDE = auto()  # asks none, and holds a subquery
    UNSURE = auto()  # may give another value when it is evaluated at another time


@dataclass(frozen=True, slots=True)
class Item:
    """One of the conditions that AND joins.

    place  its place among those that no brackets hold; None of one that is in brackets with others
    """

    piece: Part | Condition
    role: Role
    touched: frozenset[str] | None
    place: int | None

    @property
    def node(self) -> exp.Expr:
        """Its tree."""
        return self.piece.node


@dataclass(frozen=True, slots=True)
class Clause:
    """WHERE, HAVING, QUALIFY, or the ON of one join."""

    name: str
    keyword: TokenType
    whole: Part | Condition
    items: tuple[Item, ...]
    join: exp.Join | None = None

    @property
    def parts(self) -> tuple[Part | Condition, ...]:
        """What AND joins, brackets left as they are."""
        if isinstance(self.whole, Condition) and self.whole.joined_by is exp.And:
            return self.whole.parts
        return (self.whole,)

    def of(self, *roles: Role) -> list[Item]:
        """The items of these roles, in order."""
        return [item for item in self.items if item.role in roles]


def clauses_of(scope: Scope, statement: Statement, known: Known) -> tuple[list[Clause], list[exp.Expr]]:
    """The clauses of a scope, and the conditions whose text could not be read."""
    found: list[Clause] = []
    unread: list[exp.Expr] = []
    for name, keyword, node, join in _written(scope.node):
        whole = condition_of(node, statement.tokens, keyword)
        if whole is None:
            unread.append(node)
        else:
            items = tuple(_items(whole, scope, known))
            found.append(Clause(name, keyword, whole, items, join))
    return found, unread


def role_of(node: exp.Expr, scope: Scope, known: Known) -> Role:
    """What a condition of `scope` is to a rewrite."""
    if not known.is_deterministic(node):
        return Role.UNSURE
    asking = list(scope.asking(node))
    if any(not _is_guarded(each, node) for each in asking):
        return Role.MODEL
    if asking or any(known.is_model(each) for each in node.walk()):
        return Role.GUARDED
    if any(isinstance(each, exp.Query) for each in node.walk()):
        return Role.WIDE
    return Role.CHEAP if scope.kind(node) == BOOLEAN else Role.RISKY


def _written(node: exp.Expr) -> Iterator[tuple[str, TokenType, exp.Expr, exp.Join | None]]:
    for join in node.args.get("joins") or []:
        if join.args.get("on") is not None:
            yield "on", TokenType.ON, join.args["on"], join
    for name, keyword in _KEYWORDS.items():
        clause = node.args.get(name)
        if clause is not None:
            yield name, keyword, clause.this, None


def _items(whole: Part | Condition, scope: Scope, known: Known) -> Iterator[Item]:
    if not (isinstance(whole, Condition) and whole.joined_by is exp.And):
        yield _item(whole, 0, scope, known)
        return
    for place, part in enumerate(whole.parts):
        if isinstance(part, Condition) and part.joined_by is exp.And:
            yield from (_item(each.piece, None, scope, known) for each in _items(part, scope, known))
        else:
            yield _item(part, place, scope, known)


def _item(piece: Part | Condition, place: int | None, scope: Scope, known: Known) -> Item:
    return Item(piece, role_of(piece.node, scope, known), scope.touched(piece.node), place)


def _is_guarded(node: exp.Expr, condition: exp.Expr) -> bool:
    """Whether it is asked only where something else in the condition says so, or for more than its row."""
    above: exp.Expr | None = node
    while above is not None:
        if isinstance(above, (*_GUARDS, exp.AggFunc, exp.Window)):
            return True
        if above is condition:
            return False
        above = above.parent
    return False
