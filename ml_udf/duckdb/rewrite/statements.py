"""A statement's text, with the part of it that may be rewritten: its query, or an UPDATE or DELETE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlglot
from sqlglot import Token, TokenType, exp

from ml_udf.duckdb.rewrite.known import WRITTEN

__all__ = ["Statement", "numbered", "parsed_expression", "parsed_query", "query_place", "words_of"]

_EXPLAIN = re.compile(r"\s*EXPLAIN\b(\s+ANALYZE\b)?(\s*\(\s*(FORMAT|ANALYZE)\b[^)]*\))?", re.IGNORECASE)
_WORD = re.compile(r'"([^"]+)"|(\w+)')
_BEGINNINGS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN})
_CHANGES = frozenset({TokenType.UPDATE, TokenType.DELETE})
_QUERIES = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.FROM})


@dataclass(frozen=True, slots=True)
class Statement:
    """A query that sqlglot understands: its text, its tokens, which know their places in it, and its tree."""

    text: str
    tokens: Sequence[Token]
    node: exp.Expr


def parsed_query(text: str) -> Statement | None:
    """The query, UPDATE or DELETE that is the whole of `text`; None where sqlglot does not understand it."""
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
        nodes = [node for node in sqlglot.parse(text, read="duckdb") if node is not None]
    except sqlglot.errors.SqlglotError:
        return None
    if len(nodes) != 1 or not isinstance(nodes[0], exp.Query | exp.Update | exp.Delete | exp.Create):
        return None
    (node,) = nodes
    if isinstance(node, exp.Create):  # a view's definition, as DuckDB gives it
        node = node.expression
    _note_names(node, text)
    return Statement(text, tokens, node)


def parsed_expression(text: str) -> exp.Expr | None:
    """An expression, such as a macro's; None where sqlglot does not understand it."""
    try:
        node = sqlglot.parse_one(text, read="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    _note_names(node, text)
    return node


def words_of(text: str) -> frozenset[str]:
    """The words of a query in lower case: the names of its tables are among them."""
    return frozenset((quoted or word).lower() for quoted, word in _WORD.findall(text))


def query_place(text: str) -> tuple[int, int] | None:
    """Where in a statement its query stands, or its UPDATE or DELETE; None where none may be rewritten.

    That of a view or a macro is kept with it, and stays as it was written.
    """
    explain = _EXPLAIN.match(text)
    skipped = explain.end() if explain else 0
    place = _place(text[skipped:])
    return None if place is None else (skipped + place[0], skipped + place[1])


def _place(text: str) -> tuple[int, int] | None:
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        return None
    first, end = tokens[0], tokens[-1].end + 1
    if first.token_type in _BEGINNINGS or first.token_type in _CHANGES:
        return first.start, end
    if first.token_type == TokenType.INSERT or _makes_table(tokens):
        begins = next((token.start for token in _outside(tokens) if token.token_type in _QUERIES), None)
        in_brackets = next((after.start for before, after in pairwise(tokens) if _opens(before, after)), None)
        found = in_brackets if begins is None else begins
        return None if found is None else (found, end)
    if first.token_type == TokenType.COPY and len(tokens) > 1:
        return _bracketed(tokens[1:])
    return None


def numbered(text: str) -> str:
    """The same with `$1`, `$2`, … in the place of each `?`: then one may be written twice."""
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except sqlglot.errors.SqlglotError:
        return text
    marks = [token for token in tokens if token.token_type == TokenType.PLACEHOLDER and token.text == "?"]
    for number, token in reversed(list(enumerate(marks, start=1))):
        text = f"{text[: token.start]}${number}{text[token.end + 1 :]}"
    return text


def _note_names(node: exp.Expr, text: str) -> None:
    """Keep the name of each function as it is written: sqlglot has one for all of a kind."""
    for call in node.find_all(exp.Func):
        if "start" in call.meta:
            written = text[call.meta["start"] : call.meta["end"] + 1]
            call.meta[WRITTEN] = written.strip('"').lower()


def _opens(before: Token, after: Token) -> bool:
    """Whether a query in brackets begins here, as in CREATE TABLE … AS (…)."""
    return before.token_type == TokenType.ALIAS and after.token_type == TokenType.L_PAREN


def _makes_table(tokens: Sequence[Token]) -> bool:
    words = [token.text.upper() for token in tokens[:8]]
    if not words or words[0] != "CREATE" or "TABLE" not in words:
        return False
    return set(words[1 : words.index("TABLE")]) <= {"OR", "REPLACE", "OR REPLACE", "TEMP", "TEMPORARY"}


def _outside(tokens: Sequence[Token]) -> list[Token]:
    """Those that stand in no brackets."""
    depth, found = 0, []
    for token in tokens:
        if token.token_type == TokenType.R_PAREN:
            depth -= 1
        if depth == 0:
            found.append(token)
        if token.token_type == TokenType.L_PAREN:
            depth += 1
    return found


def _bracketed(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """What stands in the brackets that the tokens begin with."""
    if tokens[0].token_type != TokenType.L_PAREN:
        return None
    depth = 0
    for token in tokens:
        depth += token.token_type == TokenType.L_PAREN
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0:
            return tokens[0].end + 1, token.start
    return None
