"""What the names of one SELECT stand for: its sources, their columns, and which of them ask a model.

A column of a subquery, a WITH or a view asks a model where the expression behind it does. Knows no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from ml_udf.duckdb.rewrite.kinds import ANY, kind_of, kind_of_type
from ml_udf.duckdb.rewrite.known import WRITTEN, Known, Relation
from ml_udf.duckdb.rewrite.statements import parsed_query

__all__ = ["Meaning", "Output", "Scope", "Source", "own_nodes", "scope_of"]

_READERS = frozenset(
    {
        "read_csv",
        "read_csv_auto",
        "read_parquet",
        "parquet_scan",
        "read_json",
        "read_json_auto",
        "read_ndjson",
        "read_ndjson_auto",
        "read_blob",
        "read_text",
        "range",
        "generate_series",
    }
)
_DEEPEST = 8  # of views in views
_TABLE_PARTS = frozenset({"this", "db", "catalog", "alias"})
_COLUMNS_ALONE = frozenset({"expressions", "from_", "where", "with_"})


@dataclass(frozen=True, slots=True)
class Output:
    """A column that a source gives. kind: as `kind_of` has it; None of one that computes what may fail."""

    kind: str | None = ANY
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One of the things after FROM.

    complete  whether `outputs` are all its columns
    single    whether each of its rows comes of its own row of one table, so that no condition that stands
              above it is asked of more rows than one that stands at the table
    plain     whether it does no more than choose rows and columns
    stored    whether it may be read a second time, and gives the same then
    asks      whether anything in it asks a model
    """

    name: str
    node: exp.Expr
    outputs: Mapping[str, Output] = field(default_factory=dict)
    complete: bool = False
    single: bool = True
    plain: bool = True
    stored: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a column is. sources: the names of those that it comes from; None where that is not known."""

    sources: frozenset[str] | None
    kind: str | None = None
    asks: bool = False
    stands_for: exp.Expr | None = None  # what the SELECT list says, where its name is from there


class Scope:
    """The names that the conditions of one SELECT, UPDATE or DELETE may use."""

    def __init__(
        self,
        node: exp.Expr,
        sources: list[Source],
        known: Known,
        *,
        inside: bool = False,
        around: Scope | None = None,
    ) -> None:
        """inside: whether a query around it may give it columns, too. around: the scope of that, if known."""
        self.node = node
        self.sources = sources
        self._known = known
        self._inside = inside
        self._around = around
        self._by_name = {source.name: source for source in sources}
        self._aliases = {
            item.alias.lower(): item.this
            for item in node.args.get("expressions") or []
            if isinstance(item, exp.Alias)
        }
        self._merged = _merged(node)
        self._resolving: set[str] = set()

    def source(self, name: str) -> Source:
        """The source of that name."""
        return self._by_name[name]

    def meaning(self, column: exp.Column) -> Meaning:
        """What a column of this scope is."""
        name, table = column.name.lower(), column.table.lower()
        if table:
            if column.args.get("db") is not None:
                return Meaning(None)
            if table not in self._by_name:
                return self._outside(column)
            return self._of(self._by_name[table], name)
        givers = [source for source in self.sources if name in source.outputs]
        if len(givers) == 1 and (len(self.sources) == 1 or all(each.complete for each in self.sources)):
            return self._of(givers[0], name)
        if givers and name in self._merged:
            return self._of(givers[0], name)  # equal in all of them
        if givers:
            return Meaning(None, asks=any(giver.outputs[name].asks for giver in givers))
        alias = self._of_alias(name)
        if all(each.complete for each in self.sources):
            return alias or self._outside(column)
        if len(self.sources) == 1 and not self._inside and not self.sources[0].complete:
            only = self._of(self.sources[0], name)
            return only if alias is None else Meaning(only.sources, None, alias.asks, alias.stands_for)
        return Meaning(None, asks=alias is not None and alias.asks)

    def kind(self, node: exp.Expr) -> str | None:
        """The kind of an expression that cannot fail; None of one that may."""
        return kind_of(node, lambda column: self.meaning(column).kind)

    def touched(self, node: exp.Expr) -> frozenset[str] | None:
        """The sources whose columns an expression uses, subqueries in it left out; None: not known."""
        touched: frozenset[str] = frozenset()
        for each in own_nodes(node):
            if isinstance(each, exp.Column):
                sources = self.meaning(each).sources
                if sources is None:
                    return None
                touched |= sources
        return touched

    def uses_groups(self, node: exp.Expr) -> bool:
        """Whether it is computed of the rows of a group, or of a window."""
        for each in own_nodes(node):
            if isinstance(each, exp.AggFunc | exp.Window):
                return True
            if isinstance(each, exp.Column):
                written = self.meaning(each).stands_for
                if written is not None and self.uses_groups(written):
                    return True
        return False

    def asking(self, node: exp.Expr) -> Iterator[exp.Expr]:
        """What in an expression, but for its subqueries, asks a model: calls, columns that stand for one."""
        for each in own_nodes(node):
            if self._known.is_model(each) or (isinstance(each, exp.Column) and self.meaning(each).asks):
                yield each

    def _of(self, source: Source, name: str) -> Meaning:
        output = source.outputs.get(name, Output())
        return Meaning(frozenset({source.name}), output.kind, output.asks)

    def _outside(self, column: exp.Column) -> Meaning:
        """Of a column that is none of here. Its sources are none of here, either."""
        if self._around is None:
            return Meaning(None)
        told = self._around.meaning(column)
        return Meaning(None, told.kind, told.asks)

    def _of_alias(self, name: str) -> Meaning | None:
        written = self._aliases.get(name)
        if written is None or name in self._resolving:
            return None
        self._resolving.add(name)
        try:
            asks = any(True for _ in self.asking(written))
            return Meaning(self.touched(written), self.kind(written), asks, written)
        finally:
            self._resolving.discard(name)


def _merged(node: exp.Expr) -> frozenset[str]:
    """The columns that USING makes one of, where no join gives rows without a partner."""
    joins = node.args.get("joins") or []
    if any(join.side or join.method or join.kind not in ("", "INNER", "CROSS") for join in joins):
        return frozenset()
    return frozenset(column.name.lower() for join in joins for column in join.args.get("using") or [])


def own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of an expression without those of the queries in it."""
    yield from node.walk(prune=lambda each: isinstance(each, exp.Query) and each is not node)


def scope_of(node: exp.Expr, known: Known, around: Scope | None = None, depth: int = 0) -> Scope:
    """The scope of a SELECT, an UPDATE or a DELETE that stands in its whole statement."""
    sources = [_source(each, known, depth) for each in _from(node)]
    return Scope(node, sources, known, inside=_is_inside(node), around=around)


def _from(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.Update | exp.Delete):
        yield node.this
        yield from node.args.get("using") or []
    begins = node.args.get("from_")
    if begins is not None:
        yield begins.this
    for join in node.args.get("joins") or []:
        yield join.this
    yield from node.args.get("laterals") or []


def _is_inside(node: exp.Expr) -> bool:
    """Whether a query around it may give it columns."""
    below, above = node, node.parent
    while above is not None:
        if isinstance(above, exp.Insert | exp.Create | exp.Copy):
            return False
        if isinstance(above, exp.CTE):
            above = above.parent.parent if above.parent is not None else None  # the query that has the WITH
            below = above if above is not None else below
            above = above.parent if above is not None else None
            continue
        if isinstance(above, exp.From):
            select = above.parent
            if select is None or select.args.get("joins") or select.args.get("laterals"):
                return True
            below, above = select, select.parent
            continue
        if not isinstance(above, exp.Subquery | exp.SetOperation | exp.Paren | exp.With):
            return True
        below, above = above, above.parent
    return False


def _source(node: exp.Expr, known: Known, depth: int) -> Source:
    source = _unnamed_source(node, known, depth)
    alias = node.args.get("alias")
    if alias is None or not alias.args.get("columns"):
        return source
    if source.asks:
        return Source(source.name, node, single=False, plain=False, asks=True)
    return replace(source, outputs={}, complete=False)  # its columns have other names here


def _unnamed_source(node: exp.Expr, known: Known, depth: int) -> Source:
    name = node.alias_or_name.lower()
    if isinstance(node, exp.Subquery) and _is_simple(node, frozenset({"this", "alias"})):
        return _of_query(name, node, node.this, known, depth)
    if not isinstance(node, exp.Table) or not _is_simple(node, _TABLE_PARTS):
        return Source(name, node, single=False, plain=False, asks=_asks(node, known))
    if not isinstance(node.this, exp.Identifier):  # a function that gives a table
        reads = isinstance(node.this, exp.Func) and node.this.meta.get(WRITTEN) in _READERS
        return Source(name, node, single=reads, plain=reads, asks=not reads or _asks(node, known))
    cte = None if node.args.get("db") else _cte(node)
    if cte is not None:
        return _of_cte(name, node, cte, known, depth)
    relation = known.relations.get(".".join(part.name for part in node.parts).lower())
    if relation is None:  # a file, or a frame of Python's
        return Source(name, node)
    if relation.hidden:
        return Source(name, node, single=False, plain=False, asks=True)
    return _of_relation(name, node, relation, known, depth)


def _is_simple(node: exp.Expr, parts: frozenset[str]) -> bool:
    """Whether it has no other parts, such as a sample."""
    return all(key in parts for key, value in node.args.items() if value)


def _of_relation(name: str, node: exp.Expr, relation: Relation, known: Known, depth: int) -> Source:
    outputs = {column: Output(kind_of_type(kind)) for column, kind in relation.columns.items()}
    if relation.query is None:
        return Source(name, node, outputs, complete=True, stored=True)
    query = _parsed(relation.query) if depth < _DEEPEST else None
    if query is None:
        return Source(name, node, outputs, complete=True, single=False, plain=False, asks=True)
    told = _of_query(name, node, query, known, depth + 1)
    if told.complete and told.outputs.keys() == outputs.keys():
        outputs = dict(told.outputs)
    else:
        outputs = {column: Output(None, told.asks) for column in outputs}
    return Source(name, node, outputs, True, told.single, told.plain, told.stored, told.asks)


def _parsed(query: str) -> exp.Expr | None:
    """The SELECT of a view's definition."""
    statement = parsed_query(query)
    return statement.node if statement is not None and isinstance(statement.node, exp.Query) else None


def _cte(table: exp.Table) -> exp.CTE | None:
    """The WITH that a table's name stands for."""
    wanted = table.name.lower()
    below: exp.Expr = table
    while below.parent is not None:
        below = below.parent
        if isinstance(below, exp.CTE) and below.alias.lower() == wanted:
            return below  # it names itself
        own = below.args.get("with_")
        if own is not None:
            for cte in reversed(own.expressions):
                if cte.alias.lower() == wanted:
                    return cte if isinstance(cte, exp.CTE) else None
    return None


def _of_cte(name: str, node: exp.Expr, cte: exp.CTE, known: Known, depth: int) -> Source:
    names = cte.args["alias"].args.get("columns") if cte.args.get("alias") else None
    inside_itself = any(each is cte for each in _ancestors(node))
    if names or inside_itself or depth >= _DEEPEST or not isinstance(cte.this, exp.Query):
        return Source(name, node, single=False, plain=False, asks=_asks(cte, known))
    return _of_query(name, node, cte.this, known, depth + 1)


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _of_query(name: str, node: exp.Expr, query: exp.Expr, known: Known, depth: int) -> Source:
    query = query.unnest() if isinstance(query, exp.Subquery) else query
    asks = _asks(query, known)
    if isinstance(query, exp.Union):
        sides = [_of_query(name, node, side, known, depth) for side in (query.this, query.expression)]
        return _united(name, node, sides)
    if not isinstance(query, exp.Select):
        return Source(name, node, single=False, plain=False, asks=asks)
    scope = scope_of(query, known, depth=depth)
    outputs, complete = _outputs(query, scope)
    only = scope.sources[0] if len(scope.sources) == 1 else None
    multiplies = any(True for each in query.expressions for _ in each.find_all(exp.Unnest, exp.Explode))
    single = only is not None and only.single and not multiplies
    plain = single and only is not None and only.plain and _is_plain(query)
    stored = all(each.stored for each in scope.sources) and _is_repeatable(query, known)
    asks = asks or any(each.asks for each in scope.sources)
    return Source(name, node, outputs, complete, single, plain, stored, asks)


def _is_plain(query: exp.Select) -> bool:
    """Whether a SELECT only chooses rows and columns."""
    if any(value and key not in _COLUMNS_ALONE for key, value in query.args.items()):
        return False
    return not any(
        isinstance(each, exp.AggFunc | exp.Window | exp.Query)
        for item in query.expressions
        for each in item.walk()
    )


def _is_repeatable(query: exp.Select, known: Known) -> bool:
    chooses = any(query.args.get(key) for key in ("limit", "offset", "sample", "distinct"))
    return not chooses and known.is_deterministic(query)


def _united(name: str, node: exp.Expr, sides: list[Source]) -> Source:
    """A UNION: the first side names the columns."""
    first = sides[0]
    asks = any(side.asks for side in sides)
    by_place = zip(first.outputs, *(side.outputs.values() for side in sides), strict=False)
    outputs = {
        column: Output(
            told[0].kind if len({output.kind for output in told}) == 1 else ANY,
            any(output.asks for output in told),
        )
        for column, *told in by_place
    }
    same = len({len(side.outputs) for side in sides}) == 1 and all(side.complete for side in sides)
    return Source(
        name,
        node,
        outputs if same else {column: Output(asks=asks) for column in first.outputs},
        complete=same,
        single=all(side.single for side in sides),
        plain=False,
        stored=all(side.stored for side in sides),
        asks=asks,
    )


def _outputs(query: exp.Select, scope: Scope) -> tuple[dict[str, Output], bool]:
    """The columns of a SELECT, as far as they are known, and whether these are all."""
    outputs: dict[str, Output] = {}
    complete = True
    for item in query.expressions:
        if isinstance(item, exp.Star):
            complete = complete and not any(item.args.values())
            for source in scope.sources:
                outputs.update(source.outputs)
                complete = complete and source.complete
        elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            complete = False
        elif isinstance(item, exp.Column):
            told = scope.meaning(item)
            outputs[item.name.lower()] = Output(told.kind, told.asks)
        elif isinstance(item, exp.Alias):
            asks = any(True for _ in scope.asking(item.this))
            outputs[item.alias.lower()] = Output(scope.kind(item.this), asks)
        else:
            complete = False
    return outputs, complete


def _asks(node: exp.Expr, known: Known) -> bool:
    return any(known.is_model(each) for each in node.walk())
