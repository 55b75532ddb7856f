"""The cheap first: a query in which a model is asked only for the rows that cheap conditions leave.

DuckDB does not know what a function costs. It evaluates `md5(s) LIKE 'a%' AND udf(x) = 'a'` in an order of
its own, and asks a join's rows before they are joined. A CASE it leaves as it is: what stands behind THEN is
evaluated for the rows of WHEN alone. So here `udf(x) = 'a'` becomes

    CASE WHEN md5(s) LIKE 'a%' THEN udf(x) = 'a' END

beside the cheap conditions, which stay where they are, and of an inner join its table becomes

    (SELECT * FROM t WHERE CASE WHEN EXISTS (SELECT 1 FROM d WHERE t.k = d.k) THEN udf(t.x) = 'a' END) AS t

Text is put into the query, and nothing else in it changes: names of columns, comments, and what sqlglot
knows nothing of stay. Each change is one that can be seen to keep the meaning:

- Where only TRUE counts (WHERE, ON, HAVING, QUALIFY), `c AND m` is `c AND CASE WHEN c THEN m END`, and
  `m OR c` is `CASE WHEN c THEN TRUE ELSE m END`, for NULL as well.
- A condition that may fail is asked with TRY before the model, and again as it was after it. It then fails
  for no row for which it did not.
- Where a model's condition moves to another place of DuckDB's plan, nothing that may fail, and that it may
  have kept from rows, is left.
- What is volatile, and LIMIT without ORDER BY over a join, are left alone.

And a model is never asked for more rows: a condition moves only to where each row of its table comes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from ml_udf.duckdb.rewrite.clauses import Clause, Item, Role, clauses_of
from ml_udf.duckdb.rewrite.conditions import first_character
from ml_udf.duckdb.rewrite.edits import Edit, edited
from ml_udf.duckdb.rewrite.guards import Guards
from ml_udf.duckdb.rewrite.joins import Join
from ml_udf.duckdb.rewrite.known import Known
from ml_udf.duckdb.rewrite.scopes import Scope, scope_of
from ml_udf.duckdb.rewrite.statements import Statement, numbered, parsed_query, query_place

__all__ = ["LeftAlone", "Rewrite", "rewrite"]

_MOST_CHANGES = 64
_SCOPES = (exp.Select, exp.Update, exp.Delete)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A condition that asks a model and stayed as it was, and why."""

    condition: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A query as it is to run. left: the conditions on models in it that no cheap one stands before."""

    query: str
    is_changed: bool
    left: tuple[LeftAlone, ...] = ()


def rewrite(query: str, known: Known) -> Rewrite:
    """The same query, with models asked last. Pure; never fails: what is not understood stays as it is."""
    place = query_place(query)
    if place is None:
        return Rewrite(query, False, _unread(query, known))
    begins, ends = place
    text = numbered(query[begins:ends])
    left: tuple[LeftAlone, ...] = ()
    is_changed = False
    for _ in range(_MOST_CHANGES):
        statement = parsed_query(text)
        if statement is None:
            left = _unread(query, known)
            break
        edits, left = _next_change(statement, known)
        if not edits:
            break
        text = edited(text, edits)
        is_changed = True
    return Rewrite(query[:begins] + text + query[ends:] if is_changed else query, is_changed, left)


def _unread(query: str, known: Known) -> tuple[LeftAlone, ...]:
    lower = query.lower()
    if any(name.rpartition(".")[2] in lower for name in known.models):
        return (LeftAlone(query.strip(), "statements of this kind are run as they are written"),)
    return ()


def _next_change(statement: Statement, known: Known) -> tuple[list[Edit], tuple[LeftAlone, ...]]:
    """The edits of the first scope that has some; or what all of them leave alone."""
    left: list[LeftAlone] = []
    nodes = [node for node in statement.node.walk() if isinstance(node, _SCOPES)]
    for node in sorted(nodes, key=lambda each: first_character(each) or 0):
        scope = scope_of(node, known)
        clauses, unread = clauses_of(scope, statement, known)
        left += [
            LeftAlone(each.sql("duckdb"), "its text could not be matched with its meaning")
            for each in unread
            if any(True for _ in scope.asking(each))
        ]
        edits, reasons = _change(scope, clauses, statement, known)
        if edits:
            return edits, ()
        left += [
            LeftAlone(statement.text[item.piece.start : item.piece.end], reason) for item, reason in reasons
        ]
    return [], tuple(left)


def _change(
    scope: Scope, clauses: Sequence[Clause], statement: Statement, known: Known
) -> tuple[list[Edit], list[tuple[Item, str]]]:
    if not any(clause.of(Role.MODEL) for clause in clauses):
        return [], []
    unsure = next((item for clause in clauses for item in clause.of(Role.UNSURE)), None)
    if unsure is not None:
        why = f"{_text(statement, unsure)} may give another value each time"
        return [], [(item, why) for clause in clauses for item in clause.of(Role.MODEL)]
    if scope.node.args.get("sample"):
        return [], [(item, "the query takes a sample") for each in clauses for item in each.of(Role.MODEL)]
    if _takes_any_rows(scope.node):
        why = "LIMIT without ORDER BY over a join may then take other rows"
        return [], [(item, why) for clause in clauses for item in clause.of(Role.MODEL)]
    if len(scope.sources) > 1:
        join = Join(scope, clauses, statement, known)
        if not join.leaves_no_row_out:
            return join.edits()
    reasons: list[tuple[Item, str]] = []
    for clause in clauses:
        edits, told = Guards(scope, clause, statement, known).edits()
        if edits:
            return edits, []
        reasons += told
    return [], reasons


def _takes_any_rows(node: exp.Expr) -> bool:
    """Whether there is a join whose order says which rows are given: another plan may give others."""
    chooses = joins = False
    above: exp.Expr | None = node
    while above is not None:
        joins = joins or bool(above.args.get("joins"))
        if isinstance(above, exp.Query) and not above.args.get("order"):
            distinct = above.args.get("distinct")
            on = isinstance(distinct, exp.Distinct) and distinct.args.get("on")
            chooses = chooses or bool(above.args.get("limit") or above.args.get("offset") or on)
        above = above.parent
    return chooses and joins


def _text(statement: Statement, item: Item) -> str:
    return statement.text[item.piece.start : item.piece.end]
