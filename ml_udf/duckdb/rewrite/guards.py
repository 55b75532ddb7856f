"""Cheap conditions before a model's, in one clause: where it stands, a CASE whose WHEN they are."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from ml_udf.duckdb.rewrite.clauses import Clause, Item, Role, role_of
from ml_udf.duckdb.rewrite.conditions import Condition, Part
from ml_udf.duckdb.rewrite.edits import Edit, without
from ml_udf.duckdb.rewrite.known import Known, function_names
from ml_udf.duckdb.rewrite.scopes import Scope, own_nodes, scope_of
from ml_udf.duckdb.rewrite.statements import Statement

__all__ = ["AskedLast", "Guards", "case", "cheapest_first"]

_CHOOSING = ("limit", "offset", "sample", "having", "qualify", "distinct", "group", "joins", "laterals")
_NOTHING = "no condition beside it is cheaper"


class Guards:
    """What stands before the models of one clause."""

    def __init__(self, scope: Scope, clause: Clause, statement: Statement, known: Known) -> None:
        self._scope = scope
        self._clause = clause
        self._text = statement.text
        self._known = known
        self._last = AskedLast(scope, statement, known)

    def edits(self) -> tuple[list[Edit], list[tuple[Item, str]]]:
        """The changes of the clause, or for each condition on a model why there is none."""
        edits: list[Edit] = []
        reasons: list[tuple[Item, str]] = []
        for models in self._together():
            refused = self._refused(models[0])
            if refused:
                reasons += [(model, refused) for model in models]
                continue
            refused = self._refused_beside(models)
            changes = [] if refused else self._guarded(models)
            edits += changes
            if not changes:
                reasons += [(model, refused or _NOTHING) for model in models]
        return edits, reasons

    def _together(self) -> list[list[Item]]:
        """The models' conditions; in one list those that become one, as nothing that may fail is between."""
        models = self._clause.of(Role.MODEL)
        together: dict[frozenset[str] | None, list[Item]] = {}
        if self._clause.of(Role.RISKY) or any(model.place is None for model in models):
            return [[model] for model in models]
        for model in models:
            together.setdefault(model.touched, []).append(model)
        return list(together.values())

    def _refused(self, model: Item) -> str:
        if model.touched is None:
            return "its columns could not be told apart: write the table's name before each"
        if not model.touched:
            return "it is of no column"
        for name in sorted(model.touched):
            source = self._scope.source(name)
            if not source.single:
                return f"{name or 'what it reads'} is made of several tables: put the condition in there"
            if not source.plain and self._clause.of(Role.RISKY):
                return f"{self._written(self._clause.of(Role.RISKY)[0])} may fail"
        if self._clause.name == "on":
            return "its table is joined so that rows without a partner stay"
        if self._clause.name == "having" and self._is_grouped_by_model():
            return "the rows are grouped by what a model says"
        if self._clause.name in ("having", "qualify") and len(self._scope.sources) > 1:
            return f"{self._clause.name.upper()} over a join"
        return ""

    def _is_grouped_by_model(self) -> bool:
        node = self._scope.node
        group = node.args.get("group")
        written = [*node.expressions, *([group] if group is not None else [])]
        return any(True for each in written for _ in self._scope.asking(each))

    def _refused_beside(self, models: Sequence[Item]) -> str:
        """Whether DuckDB could now evaluate a model before what it evaluates before it as it is written."""
        for model in models:
            if not self._last.is_clear(model.piece):
                return "it holds a subquery, a CASE that asks a model, or a NOT around AND or OR"
        used = [item for item, _ in self._used(models, models[0].touched or frozenset())]
        for item in self._clause.items:
            if item.role is Role.RISKY and item.touched is None:
                return f"which table the columns of {self._written(item)} are of is not known"
            if item.role is not Role.MODEL and item not in used:
                return f"what {self._written(item)} leaves is not known here"
        if self._clause.name != "where" and not any(self._is_of_groups(each) for each in (*models, *used)):
            return "it is of the groups' keys alone: DuckDB asks it beside the conditions of WHERE"
        return ""

    def _guarded(self, models: Sequence[Item]) -> list[Edit]:
        touched = models[0].touched
        assert touched is not None
        used = self._used(models, touched)
        before = [tried(text) if item.role is Role.RISKY else text for item, text in used]
        moved = [item for item, _ in used if self._moves(item)]
        ordered = cheapest_first(models, self._scope, self._known)
        if not before and ordered == list(models):
            return [edit for model in models for edit in self._alone(model)]
        texts = [self._last.text(model.piece) for model in ordered]
        first = models[0].piece
        edits = [Edit(first.start, first.end, case(before, texts))]
        gone = [each.place for each in (*models[1:], *moved) if each.place is not None]
        return edits + (without(self._clause.parts, gone) if gone else [])

    def _alone(self, model: Item) -> list[Edit]:
        """The change of a condition that holds its cheap parts itself."""
        if not self._last.has_cheap(model.piece):
            return []
        return [Edit(model.piece.start, model.piece.end, self._last.text(model.piece))]

    def _used(self, models: Sequence[Item], touched: frozenset[str]) -> list[tuple[Item, str]]:
        """The conditions that can stand before a model, with their texts."""
        alone = len(models) == len(self._clause.of(Role.MODEL))  # then what moves has one place to go to
        stays = not alone or any(model.place is None for model in models)
        used: list[tuple[Item, str]] = []
        for item in self._clause.items:
            if item.touched is None or not item.touched <= touched:
                continue
            if self._moves(item) and (stays or item.place is None):
                continue
            if item.role is Role.WIDE:
                may = self._may_move(item)
            elif self._is_of_groups(item):
                may = item.role is Role.CHEAP and self._may_follow_groups(models)
            else:
                may = item.role in (Role.CHEAP, Role.RISKY)
            if may:
                used.append((item, self._written(item)))
        return used

    def _moves(self, item: Item) -> bool:
        """Whether it does not stay beside the model: a subquery or a window would be computed twice."""
        return item.role is Role.WIDE or (self._clause.name == "qualify" and self._is_of_groups(item))

    def _is_of_groups(self, item: Item) -> bool:
        return self._clause.name != "where" and self._scope.uses_groups(item.node)

    def _may_follow_groups(self, models: Sequence[Item]) -> bool:
        """Whether a model may be asked after groups are made, where DuckDB may have asked it before."""
        if all(self._scope.uses_groups(model.node) for model in models):
            return True
        return not self._clause.of(Role.RISKY, Role.WIDE)

    def _may_move(self, item: Item) -> bool:
        """Whether a condition with a subquery may stand before a model: it cannot fail, in no row."""
        if self._clause.name != "where" or len(self._scope.sources) != 1 or self._clause.of(Role.RISKY):
            return False
        if self._scope.sources[0].asks:  # below the subquery, for all of its rows
            return False
        node = item.node.this if isinstance(item.node, exp.Not) else item.node
        if isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Exists):
            return self._is_harmless(node.this)
        if not isinstance(node, exp.In) or node.args.get("query") is None:
            return False
        query = node.args["query"].unnest()
        if not self._is_harmless(query) or len(query.expressions) != 1:
            return False
        within = scope_of(query, self._known, self._scope)
        given, wanted = self._scope.kind(node.this), within.kind(query.expressions[0].unalias())
        return given is not None and given == wanted

    def _is_harmless(self, query: exp.Expr) -> bool:
        """Whether a subquery cannot fail, and gives the same wherever it stands."""
        if not isinstance(query, exp.Select) or any(query.args.get(key) for key in _CHOOSING):
            return False
        scope = scope_of(query, self._known, self._scope)
        if not all(source.stored and source.plain and not source.asks for source in scope.sources):
            return False
        where = query.args.get("where")
        return where is None or role_of(where.this, scope, self._known) is Role.CHEAP

    def _written(self, item: Item) -> str:
        return self._text[item.piece.start : item.piece.end]


class AskedLast:
    """Conditions behind THEN, where DuckDB evaluates both sides of an OR or AND for every row."""

    def __init__(self, scope: Scope, statement: Statement, known: Known) -> None:
        self._scope = scope
        self._text = statement.text
        self._known = known

    def text(self, piece: Part | Condition) -> str:
        """The condition as CASEs, models last; TRUE for the same rows, and for the others FALSE or NULL."""
        parts = self._parts(piece)
        if isinstance(piece, Part) or all(role is Role.CHEAP for _, role in parts):
            return self._text[piece.start : piece.end]
        if not any(role is Role.MODEL for _, role in parts):
            return self._one_by_one(piece)
        cheap = [self._slice(part) for part, role in parts if role is Role.CHEAP]
        risky = [self._slice(part) for part, role in parts if role is Role.RISKY]
        others = [self.text(part) for part, role in parts if role is not Role.CHEAP]
        if piece.joined_by is exp.And:
            return case([*cheap, *(tried(text) for text in risky)], others)
        known = [*cheap, *(f"TRY({text})" for text in risky)]
        *firsts, last = others
        whens = [" OR ".join(known)] * bool(known) + firsts
        if not whens:
            return last
        return "CASE " + " ".join(f"WHEN {when} THEN TRUE" for when in whens) + f" ELSE {last} END"

    def _one_by_one(self, piece: Condition) -> str:
        """One that may fail, `k <> 0 AND 9 // k > 2`: each part only where those before it settle nothing."""
        parts = sorted(self._parts(piece), key=lambda each: each[1] is not Role.CHEAP)
        *firsts, last = [self.text(part) for part, _ in parts]
        if piece.joined_by is exp.And:
            return case([], [*firsts, last])
        return "CASE " + " ".join(f"WHEN {when} THEN TRUE" for when in firsts) + f" ELSE {last} END"

    def is_clear(self, piece: Part | Condition) -> bool:
        """Whether all in it is open models and conditions that may stand before them."""
        if isinstance(piece, Part):
            return not any(isinstance(each, exp.And | exp.Or) for each in own_nodes(piece.node))
        return all(
            role in (Role.CHEAP, Role.RISKY) or (role is Role.MODEL and self.is_clear(part))
            for part, role in self._parts(piece)
        )

    def has_cheap(self, piece: Part | Condition) -> bool:
        """Whether anything beside its models can be asked before them."""
        if isinstance(piece, Part):
            return False
        return any(
            role in (Role.CHEAP, Role.RISKY) or (role is Role.MODEL and self.has_cheap(part))
            for part, role in self._parts(piece)
        )

    def _parts(self, piece: Part | Condition) -> list[tuple[Part | Condition, Role]]:
        parts = piece.parts if isinstance(piece, Condition) else (piece,)
        return [(part, self._role(part.node)) for part in parts]

    def _role(self, node: exp.Expr) -> Role:
        role = role_of(node, self._scope, self._known)
        # TRY takes no aggregates and no windows.
        return Role.GUARDED if role is Role.RISKY and self._scope.uses_groups(node) else role

    def _slice(self, piece: Part | Condition) -> str:
        return self._text[piece.start : piece.end]


def tried(condition: str) -> str:
    """Whether a condition that may fail is TRUE, or fails."""
    return f"TRY(({condition}) IS TRUE) IS NOT FALSE"


def case(before: Sequence[str], models: Sequence[str]) -> str:
    """The models' conditions, each asked only where those before it are TRUE."""
    first, *others = models
    text = first if not others else case([first], others)
    return f"CASE WHEN {' AND '.join(before)} THEN {text} END" if before else text


def cheapest_first(models: Sequence[Item], scope: Scope, known: Known) -> list[Item]:
    """The models' conditions by what a row of theirs has taken; as they stand where that is not known."""
    seconds = [_seconds(model, scope, known) for model in models]
    if any(each is None for each in seconds):
        return list(models)
    return [model for _, model in sorted(zip(seconds, models, strict=True), key=lambda pair: pair[0] or 0.0)]


def _seconds(model: Item, scope: Scope, known: Known) -> float | None:
    total = 0.0
    for each in scope.asking(model.node):
        names = list(function_names(each)) if isinstance(each, exp.Func) else []
        if isinstance(each, exp.Func) and each.expressions and isinstance(each.expressions[0], exp.Literal):
            names.append(each.expressions[0].name)  # ml_udf.predict('udf_food', …)
        took = next((known.seconds[name] for name in names if name in known.seconds), None)
        if took is None:
            return None
        total += took
    return total
