"""A condition as its text has it: which parts AND and OR join, and where each stands.

sqlglot's tree says what a part means, its tokens where it stands. Both are read here, and compared: a
condition that they see differently is `None`, and nobody touches it. Knows no tables and no functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType, exp

__all__ = ["Condition", "Part", "condition_of", "first_character"]

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
_ENDS = frozenset(
    {
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.WINDOW,
        TokenType.QUALIFY,
        TokenType.ORDER_BY,
        TokenType.LIMIT,
        TokenType.OFFSET,
        TokenType.FETCH,
        TokenType.UNION,
        TokenType.EXCEPT,
        TokenType.INTERSECT,
        TokenType.SEMICOLON,
        TokenType.TABLE_SAMPLE,
        TokenType.USING,
        TokenType.RETURNING,
        TokenType.SELECT,
        TokenType.ON,
        TokenType.COMMA,
        TokenType.JOIN,
        TokenType.INNER,
        TokenType.LEFT,
        TokenType.RIGHT,
        TokenType.FULL,
        TokenType.CROSS,
        TokenType.NATURAL,
        TokenType.ASOF,
        TokenType.SEMI,
        TokenType.ANTI,
        TokenType.POSITIONAL,
        TokenType.LATERAL,
        TokenType.PIVOT,
        TokenType.UNPIVOT,
    }
)


@dataclass(frozen=True, slots=True)
class Part:
    """A condition that AND and OR do not divide. [start, end) are characters of the query."""

    start: int
    end: int
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class Condition:
    """AND or OR over parts and further conditions; [start, end) holds the brackets around it, if any."""

    start: int
    end: int
    node: exp.Expr
    joined_by: type[exp.And] | type[exp.Or]
    parts: tuple[Part | Condition, ...]


def condition_of(node: exp.Expr, tokens: Sequence[Token], keyword: TokenType) -> Part | Condition | None:
    """The condition `node` of a clause that begins with `keyword`; None where text and tree differ.

    tokens: of the whole query that `node` was parsed from
    """
    begins = first_character(node)
    if begins is None:
        return None
    before = [at for at, token in enumerate(tokens) if token.token_type == keyword and token.start < begins]
    if not before:
        return None
    first = before[-1] + 1
    return _read(node, tokens[first : first + _length(tokens[first:])])


def first_character(node: exp.Expr) -> int | None:
    """Where the first of its words stands in the query."""
    return min((start for start, _ in _places(node)), default=None)


def _length(tokens: Sequence[Token]) -> int:
    """How many tokens the clause takes that begins with the first of them."""
    depth = 0
    for count, token in enumerate(tokens):
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            if depth == 0:
                return count
            depth -= 1
        elif depth == 0 and token.token_type in _ENDS:
            return count
    return len(tokens)


def _read(node: exp.Expr, tokens: Sequence[Token]) -> Part | Condition | None:
    if not tokens:
        return None
    start, end = tokens[0].start, tokens[-1].end + 1
    if isinstance(node, exp.Paren) and _is_bracketed(tokens):
        inside = _read(node.this, tokens[1:-1])
        if isinstance(inside, Condition):
            return Condition(start, end, inside.node, inside.joined_by, inside.parts)
    for joined_by, word in ((exp.Or, TokenType.OR), (exp.And, TokenType.AND)):
        if isinstance(node, joined_by):
            nodes = list(_flat(node, joined_by))
            pieces = _split(tokens, word)
            if len(nodes) != len(pieces):
                return None
            parts = [_read(one, piece) for one, piece in zip(nodes, pieces, strict=True)]
            known = tuple(part for part in parts if part is not None)
            return Condition(start, end, node, joined_by, known) if len(known) == len(parts) else None
    places = list(_places(node))
    if not places or any(not start <= first <= last < end for first, last in places):
        return None
    return Part(start, end, node)


def _flat(node: exp.Expr, joined_by: type[exp.And] | type[exp.Or]) -> Iterator[exp.Expr]:
    if isinstance(node, joined_by):
        yield from _flat(node.this, joined_by)
        yield from _flat(node.expression, joined_by)
    else:
        yield node


def _split(tokens: Sequence[Token], word: TokenType) -> list[Sequence[Token]]:
    """The pieces between the `word`s that stand in no brackets; the AND of a BETWEEN is none of them."""
    pieces: list[Sequence[Token]] = []
    depth = begins = betweens = 0
    for at, token in enumerate(tokens):
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        elif depth == 0 and token.token_type == TokenType.BETWEEN:
            betweens += 1
        elif depth == 0 and token.token_type == TokenType.AND and betweens:
            betweens -= 1
        elif depth == 0 and token.token_type == word:
            pieces.append(tokens[begins:at])
            begins = at + 1
    return [*pieces, tokens[begins:]]


def _is_bracketed(tokens: Sequence[Token]) -> bool:
    """Whether the first token's bracket closes with the last."""
    if tokens[0].token_type != TokenType.L_PAREN:
        return False
    depth = 0
    for at, token in enumerate(tokens):
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
            if depth == 0:
                return at == len(tokens) - 1
    return False


def _places(node: exp.Expr) -> Iterator[tuple[int, int]]:
    """First and last character of each of its words that sqlglot gives a place."""
    for each in node.walk():
        start, end = each.meta.get("start"), each.meta.get("end")
        if start is not None and end is not None:
            yield start, end
