"""Answers as text that a database casts to the type of their column. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from ml_udf.client.statement import Outcome
from ml_udf.client.vectors import vector_text
from ml_udf.scoring.pages import Page

__all__ = ["columns_of", "sample_texts", "text_of"]

_WHOLE = {"smallint", "integer", "bigint", "hugeint", "tinyint"}


def text_of(value: Any, sql_type: str, brackets: str = "{}") -> str | None:  # noqa: ANN401  # of the wire's types
    """One answer for a column of `sql_type`; `brackets` are those of the engine's array literals."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return "\\x" + value.hex() if sql_type == "bytea" else value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | array):
        if not sql_type.endswith("]"):
            return vector_text(value)
        return brackets[0] + ",".join(text_of(part, "", brackets) or "NULL" for part in value) + brackets[1]
    if isinstance(value, float) and value.is_integer() and sql_type.lower() in _WHOLE:
        return str(int(value))
    return repr(value)


def sample_texts(
    classes: Sequence[str], datatype: str, width: int, sql_type: str, brackets: str
) -> list[str]:
    """Answers that a function may give, to try on the column that shall take them."""
    if datatype == "BYTES":
        return list(classes)
    number: Any = True if datatype == "BOOL" else 0.5 if datatype.startswith(("FP", "BF")) else 1
    return [text_of(number if width == 1 else [number] * max(1, width), sql_type, brackets) or ""]


def columns_of(
    page: Page, answers: Sequence[Outcome], value_type: str, brackets: str
) -> list[list[str | None]]:
    """What `Queries.write` takes: the key's columns, hashes, values, confidences, errors."""
    columns: list[list[str | None]] = [list(column) for column in zip(*page.keys, strict=True)]
    return [
        *columns,
        list(page.hashes),
        [text_of(answer.value, value_type, brackets) for answer in answers],
        [text_of(answer.confidence, "", brackets) for answer in answers],
        [None if a.error is None else f"{a.error.code}: {a.error.message}" for a in answers],
    ]
