"""Which expressions can never fail, and of what kind their values are.

A comparison casts where its sides differ, and a cast may fail: `'abc' = 7`. So an expression is known not to
fail only if the types of its columns are known. Whatever is not listed here may fail; that is never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime

from sqlglot import exp

__all__ = ["ANY", "BOOLEAN", "ColumnKind", "kind_of", "kind_of_type"]

BOOLEAN = "boolean"
TEXT = "text"
WHOLE = "whole"  # up to 64 bits
HUGE = "huge"
DECIMAL = "decimal"  # of at most 18 digits: compared with WHOLE it stays within DuckDB's 38
FLOAT = "float"
DATE = "date"
TIMESTAMP = "timestamp"
ANY = "any"  # not known

ColumnKind = Callable[[exp.Column], str | None]

_TYPES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), WHOLE),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"), WHOLE),
    **dict.fromkeys(("HUGEINT", "UHUGEINT"), HUGE),
    **dict.fromkeys(("FLOAT", "DOUBLE"), FLOAT),
    "VARCHAR": TEXT,
    "BOOLEAN": BOOLEAN,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
}
_DECIMAL_TYPE = re.compile(r"DECIMAL\((\d+),\s*\d+\)")
_DECIMAL_DIGITS = 18
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_NUMBERS = ({WHOLE, DECIMAL, FLOAT}, {WHOLE, HUGE})

# Functions of columns of these kinds, and the kind of what they give.
_FUNCTIONS: Mapping[type[exp.Expr], tuple[tuple[str, ...], str]] = {
    exp.Lower: ((TEXT,), TEXT),
    exp.Upper: ((TEXT,), TEXT),
    exp.MD5: ((TEXT,), TEXT),
    exp.Length: ((TEXT,), WHOLE),
    exp.StartsWith: ((TEXT, TEXT), BOOLEAN),
    exp.EndsWith: ((TEXT, TEXT), BOOLEAN),
    exp.Contains: ((TEXT, TEXT), BOOLEAN),
    exp.Year: ((DATE,), WHOLE),
    exp.Month: ((DATE,), WHOLE),
    exp.Day: ((DATE,), WHOLE),
}
_RANKS = (exp.RowNumber, exp.Rank, exp.DenseRank)


def kind_of_type(name: str) -> str:
    """The kind of a column by DuckDB's name of its type; of the others the name itself."""
    upper = name.upper()
    if upper in _TYPES:
        return _TYPES[upper]
    decimal = _DECIMAL_TYPE.fullmatch(upper)
    return DECIMAL if decimal and int(decimal[1]) <= _DECIMAL_DIGITS else upper


def kind_of(node: exp.Expr, column: ColumnKind) -> str | None:
    """The kind of an expression that cannot fail; None of one that may.

    column: of a column; None where that stands for something that may fail
    """
    for types, kind in _RULES:
        if isinstance(node, types):
            return kind(node, column)
    return None


def _column(node: exp.Expr, column: ColumnKind) -> str | None:
    assert isinstance(node, exp.Column)
    return column(node)


def _literal(node: exp.Expr, _: ColumnKind) -> str | None:
    if node.args["is_string"]:
        return TEXT
    text = str(node.this).replace("_", "")
    if text.isdigit():
        return WHOLE if int(text) < 2**63 else HUGE
    if re.fullmatch(r"\d*\.\d*", text):
        return DECIMAL if len(text) - 1 <= _DECIMAL_DIGITS else None
    return FLOAT


def _boolean(_: exp.Expr, __: ColumnKind) -> str:
    return BOOLEAN


def _same(node: exp.Expr, column: ColumnKind) -> str | None:
    return kind_of(node.this, column)


def _negative(node: exp.Expr, column: ColumnKind) -> str | None:
    return kind_of(node.this, column) if isinstance(node.this, exp.Literal) else None


def _compared(node: exp.Expr, column: ColumnKind) -> str | None:
    return BOOLEAN if _comparable([node.this, node.expression], column) else None


def _between(node: exp.Expr, column: ColumnKind) -> str | None:
    low, high = node.args["low"], node.args["high"]
    return BOOLEAN if _comparable([node.this, low, high], column) else None


def _in(node: exp.Expr, column: ColumnKind) -> str | None:
    if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
        return None
    return BOOLEAN if _comparable([node.this, *node.expressions], column) else None


def _is(node: exp.Expr, column: ColumnKind) -> str | None:
    known = kind_of(node.this, column)
    if isinstance(node.expression, exp.Null):
        return BOOLEAN if known else None
    return BOOLEAN if isinstance(node.expression, exp.Boolean) and known == BOOLEAN else None


def _logic(node: exp.Expr, column: ColumnKind) -> str | None:
    parts = [part for part in (node.this, node.args.get("expression")) if part is not None]
    return BOOLEAN if all(kind_of(part, column) == BOOLEAN for part in parts) else None


def _like(node: exp.Expr, column: ColumnKind) -> str | None:
    return BOOLEAN if {kind_of(node.this, column), kind_of(node.expression, column)} == {TEXT} else None


def _concatenated(node: exp.Expr, column: ColumnKind) -> str | None:
    return TEXT if {kind_of(node.this, column), kind_of(node.expression, column)} == {TEXT} else None


def _function(node: exp.Expr, column: ColumnKind) -> str | None:
    takes, gives = _FUNCTIONS[type(node)]
    given = [node.this] if node.args.get("expression") is None else [node.this, node.expression]
    kinds = [kind_of(one, column) for one in given]
    if takes == (DATE,):
        return gives if len(kinds) == 1 and kinds[0] in (DATE, TIMESTAMP) else None
    return gives if kinds == list(takes) else None


def _coalesced(node: exp.Expr, column: ColumnKind) -> str | None:
    kinds = {kind_of(one, column) for one in (node.this, *node.expressions)}
    return kinds.pop() if len(kinds) == 1 else None


def _cast(node: exp.Expr, column: ColumnKind) -> str | None:
    if isinstance(node, exp.TryCast):
        return None
    wanted = kind_of_type(node.args["to"].sql("duckdb"))
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        return wanted if _is_moment(node.this.name, wanted) else None
    given = kind_of(node.this, column)
    if given is None:
        return None
    return wanted if wanted == given or (given, wanted) == (TIMESTAMP, DATE) else None


def _aggregate(node: exp.Expr, column: ColumnKind) -> str | None:
    counted = node.this
    if isinstance(node, exp.Count):
        if isinstance(counted, exp.Distinct):
            (counted,) = counted.expressions if len(counted.expressions) == 1 else (None,)
        fails = not isinstance(counted, exp.Star) and (counted is None or kind_of(counted, column) is None)
        return None if fails else WHOLE
    return None if node.args.get("expressions") else kind_of(counted, column)


def _ranked(node: exp.Expr, column: ColumnKind) -> str | None:
    if not isinstance(node.this, _RANKS):
        return None
    inside = [each for key, each in node.args.items() if key != "this" and each is not None]
    columns = [each for one in inside for each in _columns(one)]
    return WHOLE if all(column(each) for each in columns) and not _computes(inside) else None


def _columns(one: object) -> Iterable[exp.Column]:
    for each in one if isinstance(one, list) else [one]:
        if isinstance(each, exp.Expr):
            yield from each.find_all(exp.Column)


def _computes(inside: Iterable[object]) -> bool:
    """Whether a window is over more than columns as they are."""
    plain = (exp.Column, exp.Identifier, exp.Order, exp.Ordered, exp.Boolean)
    nodes = (each for one in inside for each in (one if isinstance(one, list) else [one]))
    return any(
        not isinstance(node, plain) for each in nodes if isinstance(each, exp.Expr) for node in each.walk()
    )


def _comparable(nodes: Iterable[exp.Expr], column: ColumnKind) -> bool:
    """Whether DuckDB compares them without a cast that may fail."""
    kinds = set()
    texts = []
    for node in nodes:
        kind = kind_of(node, column)
        if kind is None or kind == ANY:
            return False
        if isinstance(node, exp.Literal) and node.is_string:
            texts.append(node.name)
        else:
            kinds.add(kind)
    if any(kinds <= numbers for numbers in _NUMBERS) and kinds:
        return not texts
    if len(kinds) > 1:
        return False
    kind = kinds.pop() if kinds else TEXT
    return kind == TEXT or all(_is_moment(text, kind) for text in texts)


def _is_moment(text: str, kind: str) -> bool:
    try:
        if kind == DATE:
            return len(text) == len("2024-01-31") and bool(date.fromisoformat(text))
        return kind == TIMESTAMP and len(text) >= len("2024-01-31") and _is_naive(text)
    except ValueError:
        return False


def _is_naive(text: str) -> bool:
    return bool(re.fullmatch(r"[\d\- :.]+", text)) and datetime.fromisoformat(text).tzinfo is None


_RULES: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[exp.Expr, ColumnKind], str | None]], ...] = (
    ((exp.Column,), _column),
    ((exp.Literal,), _literal),
    ((exp.Boolean,), _boolean),
    ((exp.Paren,), _same),
    ((exp.Neg,), _negative),
    (_COMPARED, _compared),
    ((exp.Between,), _between),
    ((exp.In,), _in),
    ((exp.Is,), _is),
    ((exp.And, exp.Or, exp.Not), _logic),
    ((exp.Like, exp.ILike), _like),
    ((exp.DPipe,), _concatenated),
    (tuple(_FUNCTIONS), _function),
    ((exp.Coalesce,), _coalesced),
    ((exp.Cast,), _cast),
    ((exp.Count, exp.Min, exp.Max), _aggregate),
    ((exp.Window,), _ranked),
)
