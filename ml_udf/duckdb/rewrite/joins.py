"""A model before a join: asked only for the rows of its table that have a partner.

DuckDB asks a condition on one table before it joins it. In the table's place comes a subquery, in which the
condition waits for EXISTS over the other tables. Above the join it would be asked once for each joined row,
of which there may be more than the table has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import Token, TokenType, exp

from ml_udf.duckdb.rewrite.clauses import Clause, Item, Role
from ml_udf.duckdb.rewrite.conditions import first_character
from ml_udf.duckdb.rewrite.edits import Edit, without
from ml_udf.duckdb.rewrite.guards import AskedLast, case, cheapest_first
from ml_udf.duckdb.rewrite.known import Known
from ml_udf.duckdb.rewrite.scopes import Scope, Source
from ml_udf.duckdb.rewrite.statements import Statement

__all__ = ["Join"]

_HIDDEN_COLUMNS = frozenset({"rowid", "filename", "file_row_number", "file_index", "tableoid"})
_TABLE_WORDS = frozenset({TokenType.VAR, TokenType.IDENTIFIER, TokenType.DOT, TokenType.ALIAS})

# A condition of these is not TRUE where the column on one side of it is NULL.
_REJECTS_NULL = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.ILike, exp.In, exp.Between)


class Join:
    """The tables of one FROM that holds several."""

    def __init__(self, scope: Scope, clauses: Sequence[Clause], statement: Statement, known: Known) -> None:
        self._scope = scope
        self._clauses = [clause for clause in clauses if clause.name in ("where", "on")]
        self._statement = statement
        self._known = known
        self._joins = list(scope.node.args.get("joins") or [])
        first, *joined = scope.sources
        kinds = [_kind(join) for join in self._joins]
        self._pairs = {first.name} | {
            source.name
            for source, kind in zip(joined, kinds, strict=False)
            if kind in ("", "SEMI") or (kind == "LEFT" and self._is_wanted(source.name))
        }  # the sources of which each row that stays has a partner
        self._odd = next((kind for kind in kinds if kind not in ("", "SEMI", "LEFT", "ANTI")), "")

    @property
    def leaves_no_row_out(self) -> bool:
        """Whether its first table keeps all of its rows: conditions on it are as if it were alone."""
        if self._odd or len(self._pairs) > 1 or not isinstance(self._scope.node, exp.Select):
            return False
        own, *others = self._scope.sources
        if any(other.asks for other in others) or any(
            clause.of(Role.MODEL, Role.GUARDED) for clause in self._clauses if clause.name == "on"
        ):
            return False
        first = {own.name}
        return all(
            item.touched is not None and (item.touched <= first or isinstance(item.node, exp.Is))
            for clause in self._clauses
            if clause.name == "where"
            for item in clause.items
        )

    def edits(self) -> tuple[list[Edit], list[tuple[Item, str]]]:
        """The changes by which models wait for the partners of their rows, or why there are none."""
        models = [(clause, item) for clause in self._clauses for item in clause.of(Role.MODEL)]
        why_not = self._refused(models) if models else ""
        edits = [] if why_not or not models else self._reduced(models)
        return edits, [] if edits else [
            (item, why_not or "no join leaves rows of its table out") for _, item in models
        ]

    def _is_wanted(self, name: str) -> bool:
        """Whether a row without a partner in `name` does not stay, though the join would keep it."""
        return any(
            item.touched == frozenset({name})
            and isinstance(item.node, _REJECTS_NULL)
            and isinstance(item.node.this, exp.Column)
            for clause in self._clauses
            if clause.name == "where"
            for item in clause.of(Role.CHEAP)
        )

    def _refused(self, models: Sequence[tuple[Clause, Item]]) -> str:
        """Why these models cannot wait for the join; "" where they can."""
        if self._odd or not isinstance(self._scope.node, exp.Select) or self._scope.node.args.get("laterals"):
            return "a join of this kind keeps rows without a partner, or pairs them in another way"
        if any(not item.touched for _, item in models):
            return "which table its columns are of is not known: write the table's name before each"
        names = {name for _, item in models for name in item.touched or ()}
        if len(names) != 1:
            return "models are asked of several of the tables"
        (name,) = names
        if name not in self._pairs or any(clause.join and _kind(clause.join) != "" for clause, _ in models):
            return "its table is joined so that rows without a partner stay"
        if any(item.place is None for _, item in models):
            return "it stands in brackets with others"
        last = AskedLast(self._scope, self._statement, self._known)
        if not all(last.is_clear(item.piece) for _, item in models):
            return "it holds a subquery, a CASE that asks a model, or a NOT around AND or OR"
        source = self._scope.source(name)
        if _place(source, self._statement) is None or not source.single:
            return f"{name} is no table"
        if any(isinstance(each, exp.Column) for _, item in models for each in self._scope.asking(item.node)):
            return f"{name} asks the model itself, for all of its rows"
        return self._refused_by_names() or self._refused_by_conditions() or self._refused_by_partners(name)

    def _refused_by_names(self) -> str:
        if any(token.text.lower() in _HIDDEN_COLUMNS for token in self._statement.tokens):
            return "the query uses a hidden column, which a subquery does not have"
        if any(column.args.get("db") for column in self._scope.node.find_all(exp.Column)):
            return "the query names a column with its schema"
        return ""

    def _refused_by_conditions(self) -> str:
        """Any that is not cheap: it may fail for rows that come now, or keep rows away that come now."""
        for clause in self._clauses:
            for item in clause.items:
                if item.role is Role.RISKY:
                    return f"{self._text(item)} may fail"
                if item.role in (Role.GUARDED, Role.WIDE) or item.touched is None:
                    return f"what {self._text(item)} leaves is not known here"
        return ""

    def _refused_by_partners(self, name: str) -> str:
        for other in self._scope.sources:
            if other.name in self._pairs and other.name != name:
                if not other.stored or _place(other, self._statement) is None:
                    return f"{other.name or 'what it is joined with'} is no table that may be read twice"
                if other.asks:
                    return f"{other.name} asks a model itself"
        return ""

    def _reduced(self, models: Sequence[tuple[Clause, Item]]) -> list[Edit]:
        """The changes; none where no other table leaves rows out."""
        name = next(iter(models[0][1].touched or ("",)))
        others = [each for each in self._scope.sources if each.name in self._pairs and each.name != name]
        known = {source.name for source in others} | {name}
        holding = [
            clause
            for clause in self._clauses
            if clause.join is None or self._right(clause.join).name in self._pairs
        ]
        cheap = [
            item
            for clause in holding
            for item in clause.of(Role.CHEAP)
            if item.touched and item.touched <= known
        ]
        own = [self._text(item) for item in cheap if item.touched == frozenset({name})]
        linked = [self._text(item) for item in cheap if item.touched != frozenset({name})]
        conditions = [*self._merged(known), *linked]
        if not conditions or not others:
            return []
        tables = [
            self._slice(place) for each in others if (place := _place(each, self._statement)) is not None
        ]
        exists = f"EXISTS (SELECT 1 FROM {', '.join(tables)} WHERE {' AND '.join(conditions)})"
        asked = cheapest_first([item for _, item in models], self._scope, self._known)
        last = AskedLast(self._scope, self._statement, self._known)
        where = " AND ".join([*own, case([exists], [last.text(item.piece) for item in asked])])
        source = self._scope.source(name)
        place = _place(source, self._statement)
        assert place is not None
        derived = f"(SELECT * FROM {self._slice(place)} WHERE {where}) AS {self._alias(source)}"
        return [Edit(*place, derived), *self._without(models)]

    def _right(self, join: exp.Join) -> Source:
        """What it joins to what stands before it."""
        return self._scope.sources[1 + next(at for at, each in enumerate(self._joins) if each is join)]

    def _merged(self, known: set[str]) -> Iterator[str]:
        """What USING says of the tables, as far as it is known which of them each column is of."""
        for number, join in enumerate(self._joins, start=1):
            right = self._scope.sources[number]
            for column in join.args.get("using") or []:
                lefts = self._scope.sources[:number]
                if number == 1:
                    givers = lefts
                elif all(each.complete for each in lefts):
                    givers = [each for each in lefts if column.name.lower() in each.outputs]
                else:
                    continue
                if len(givers) == 1 and {givers[0].name, right.name} <= known:
                    text = self._slice((column.meta["start"], column.meta["end"] + 1))
                    yield f"{self._alias(givers[0])}.{text} = {self._alias(right)}.{text}"

    def _without(self, models: Sequence[tuple[Clause, Item]]) -> Iterator[Edit]:
        for clause in self._clauses:
            gone = [item.place for own, item in models if own is clause and item.place is not None]
            if not gone:
                continue
            if len(gone) < len(clause.parts):
                yield from without(clause.parts, gone)
            elif clause.name == "on":
                yield Edit(clause.whole.start, clause.whole.end, "TRUE")
            else:
                yield Edit(self._keyword(clause).start, clause.whole.end, "")

    def _keyword(self, clause: Clause) -> Token:
        before = [
            token
            for token in self._statement.tokens
            if token.token_type == clause.keyword and token.start < clause.whole.start
        ]
        return before[-1]

    def _alias(self, source: Source) -> str:
        alias = source.node.args.get("alias")
        named = alias.this if alias is not None else source.node.this
        return self._slice((named.meta["start"], named.meta["end"] + 1))

    def _text(self, item: Item) -> str:
        return self._slice((item.piece.start, item.piece.end))

    def _slice(self, place: tuple[int, int]) -> str:
        return self._statement.text[slice(*place)]


def _kind(join: exp.Join) -> str:
    """ "" of a join that keeps pairs alone; the others by their name."""
    if join.method or join.args.get("match_condition"):
        return join.method or "MATCH"
    if join.side:
        return join.side
    return "" if join.kind in ("", "INNER", "CROSS") else join.kind


def _place(source: Source, statement: Statement) -> tuple[int, int] | None:
    """Where a table stands with its alias; None of what is no table, or written in another way."""
    node = source.node
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        return None
    start = first_character(node)
    ends = [each.meta["end"] for each in node.walk() if "end" in each.meta]
    alias = node.args.get("alias")
    if start is None or (alias is not None and alias.this.meta.get("end") != max(ends)):
        return None
    inside = [token for token in statement.tokens if start <= token.start and token.end <= max(ends)]
    words = _TABLE_WORDS | {TokenType.STRING} if alias is not None else _TABLE_WORDS  # a file has a name then
    if any(token.token_type not in words for token in inside):
        return None
    return start, max(ends) + 1
