"""What a pipeline answers to a picture: each thing that was found, and what is said of it. Pure."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from gpu_worker.wire.columns import JSON, LABELS, Column

__all__ = ["answers_of", "boxes_of", "objects_text"]

_FLOAT32 = struct.Struct("f")
_MOST_DIGITS = 9  # that tell one float32 from another; of most of them fewer do
_LEAST_DIGITS = 7


def boxes_of(text: str) -> list[dict[str, Any]]:
    """The boxes of a row, as its detector's column has them: label, score, box. Raises ValueError."""
    found = json.loads(text) if text else []
    if not isinstance(found, list) or not all(
        isinstance(box, dict) and len(box.get("box", ())) == 4 for box in found
    ):
        raise ValueError(f"{text[:100]!r} are no boxes")
    return found


def answers_of(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """By row, the columns of an answer by name; a number that is none is null."""
    values = [_values(column) for column in columns]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def objects_text(boxes: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any] | None]) -> str:
    """A row of the column: the boxes of a picture, each with its answer; null where nobody was sure."""
    told = [
        {"label": box["label"], "score": box["score"], "box": box["box"], "answer": answer}
        for box, answer in zip(boxes, answers, strict=True)
    ]
    return json.dumps(told, ensure_ascii=False)


def _values(column: Column) -> list[Any]:
    if isinstance(column.data, list):
        if column.content in (JSON, LABELS):
            return [json.loads(text) if text else None for text in column.data]
        return column.data
    is_short = column.datatype == "FP32"
    found = [_number(value, is_short=is_short) for value in column.values]
    if not column.shape:
        return found
    width = math.prod(column.shape)
    return [found[at : at + width] for at in range(0, len(found), width)]


def _number(value: float, *, is_short: bool) -> float | None:
    if not math.isfinite(value):
        return None
    return _shortest(value) if is_short else value


def _shortest(value: float) -> float:
    """A float32 with as few digits as it takes to read the same one back: 0.1, and not 0.10000000149."""
    for digits in range(_LEAST_DIGITS, _MOST_DIGITS):
        short = float(f"{value:.{digits}g}")
        if _FLOAT32.unpack(_FLOAT32.pack(short))[0] == value:
            return short
    return float(f"{value:.{_MOST_DIGITS}g}")
