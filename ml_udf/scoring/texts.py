"""Answers as text that a database casts to the type of their column. Pure."""

from __future__ import annotations

import contextlib
import functools
import re
from array import array
from collections.abc import Sequence
from typing import Any

from ml_udf.client.answer_type import answer_kind, sample_answer
from ml_udf.client.contents import labels_of
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Outcome
from ml_udf.client.vectors import vector_text
from ml_udf.errors import WrongType
from ml_udf.scoring.pages import Page

__all__ = [
    "array_literal",
    "columns_of",
    "float_width",
    "has_escaped_zero",
    "holds_zero",
    "sample_texts",
    "text_of",
    "unheld",
]

_LISTS = {"text[]", "character varying[]"}
_PGVECTOR = {"vector", "halfvec"}
_WHOLE = {"smallint", "integer", "bigint", "hugeint", "tinyint"}
_ESCAPED_ZERO = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def text_of(value: Any, sql_type: str, brackets: str = "{}") -> str | None:  # noqa: ANN401  # of the wire's types
    """One answer for a column of `sql_type`; `brackets` are those of the engine's array literals."""
    if isinstance(value, str) and brackets == "{}" and sql_type in _LISTS:
        with contextlib.suppress(WrongType):  # the column's own error will say it
            return array_literal(labels_of(value))
    if isinstance(value, str) and sql_type == "bytea":
        value = value.encode()  # as text a backslash would mean another byte
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return "\\x" + value.hex() if sql_type == "bytea" else value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, array) and (sql_type.endswith("]") or _is_pgvector(sql_type)):
        edges = brackets if sql_type.endswith("]") else "[]"
        return edges[0] + _numbers_format(len(value)) % tuple(value) + edges[1]
    if isinstance(value, list | array):
        if not sql_type.endswith("]"):
            return vector_text(value)
        return brackets[0] + ",".join(text_of(part, "", brackets) or "NULL" for part in value) + brackets[1]
    if isinstance(value, float) and value.is_integer() and sql_type.lower() in _WHOLE:
        return str(int(value))
    return repr(value)


def unheld(value: Any, sql_type: str) -> WrongType | None:  # noqa: ANN401  # of the wire's types
    """Why a column of PostgreSQL cannot hold an answer, where its type's name does not say so."""
    if sql_type == "bytea":
        return None
    if isinstance(value, bytes):
        return WrongType("the function answered bytes that are not text", hint="give a column of type bytea")
    if isinstance(value, str):
        reads_escapes = sql_type in _LISTS or sql_type == "jsonb"
        if "\0" in value or (reads_escapes and has_escaped_zero(value)):
            return holds_zero(value)
    return None


def has_escaped_zero(json_text: str) -> bool:
    """Whether a text of JSON has a zero character in a string."""
    return "u0000" in json_text and _ESCAPED_ZERO.search(json_text) is not None


def holds_zero(value: object) -> WrongType:
    """The error of an answer with a zero character."""
    return WrongType(
        f"the answer {value!r:.80} holds a zero character, which no text of PostgreSQL can",
        hint="the model behind the function has to leave it out",
    )


def float_width(values: Sequence[Any], sql_type: str) -> int:
    """How many numbers each of some answers has: vectors of float32, for a column of such vectors.

    0 where they are anything else, or of several lengths.
    """
    if not (sql_type == "real[]" or _is_pgvector(sql_type)):
        return 0
    if not all(isinstance(value, array) and value.typecode == "f" for value in values):
        return 0
    widths = set(map(len, values))
    return widths.pop() if len(widths) == 1 else 0


def _is_pgvector(sql_type: str) -> bool:
    """Whatever its schema and its length."""
    return sql_type.partition("(")[0].rpartition(".")[2] in _PGVECTOR


@functools.cache
def _numbers_format(count: int) -> str:
    """By which so many float32 are written at once, which takes less than one by one."""
    return ",".join(["%.9g"] * count)


def sample_texts(info: FunctionInfo, sql_type: str, brackets: str) -> list[str]:
    """Answers that a function may give, to try on the column that shall take them."""
    if answer_kind(info) == "text":
        return list(info.classes)
    sample = sample_answer(info)
    if answer_kind(info) == "number":
        sample = 0.5  # which no column of whole numbers holds
    return [text_of(sample, sql_type, brackets) or ""]


def columns_of(page: Page, answers: Sequence[Outcome], values: Sequence[str | None]) -> list[str]:
    """What `Queries.write` takes: the key's columns, hashes, values, confidences, errors, each a `text[]`."""
    columns: list[Sequence[str | None]] = [
        *zip(*page.keys, strict=True),
        page.hashes,
        values,
        [None if answer.confidence is None else repr(answer.confidence) for answer in answers],
        [None if a.error is None else f"{a.error.code}: {a.error.message}" for a in answers],
    ]
    return [array_literal(column) for column in columns]


def array_literal(texts: Sequence[str | None]) -> str:
    """A `text[]` as PostgreSQL reads it, which takes it less than the elements one by one."""
    together = "".join(filter(None, texts))
    if '"' in together or "\\" in together:
        texts = [t and t.replace("\\", "\\\\").replace('"', '\\"') for t in texts]
    return "{" + ",".join(["NULL" if text is None else f'"{text}"' for text in texts]) + "}"
