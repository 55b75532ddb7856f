"""Answers of classifications for tests: made from labels, and read back."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gpu_worker.wire.protocol import Column, MemberAnswer

__all__ = [
    "SCORED",
    "classified",
    "column_of",
    "confidences_of",
    "label_columns",
    "labels_of",
    "scores_of",
]

SCORED = ["label", "confidence", "scores"]


class _Answered(Protocol):
    @property
    def columns(self) -> Any: ...  # a list of columns, or a mapping by their names


def label_columns(
    labels: Sequence[str], confidences: Sequence[float], scores: bytes = b""
) -> dict[str, Column]:
    """The columns of a classification, by name."""
    columns = [
        Column("label", "BYTES", (), list(labels)),
        Column("confidence", "FP32", (), struct.pack(f"<{len(confidences)}f", *confidences)),
    ]
    if scores:
        columns.append(Column("scores", "FP32", (len(scores) // 4 // len(labels),), scores))
    return {column.name: column for column in columns}


def classified(
    model: str, labels: Sequence[str], confidences: Sequence[float], scores: bytes = b""
) -> MemberAnswer:
    """What a worker answers for a member."""
    return MemberAnswer(model, list(label_columns(labels, confidences, scores).values()))


def column_of(answered: _Answered | Mapping[str, Column], name: str) -> Column | None:
    """The column of that name, of an answer or of columns by name; None where there is none."""
    columns = answered if isinstance(answered, Mapping) else answered.columns
    found: Iterable[Column] = columns.values() if isinstance(columns, Mapping) else columns
    return next((column for column in found if column.name == name), None)


def labels_of(answered: _Answered | Mapping[str, Column]) -> list[str]:
    """The labels of an answer."""
    return list(_there(answered, "label").values)


def confidences_of(answered: _Answered | Mapping[str, Column]) -> list[float]:
    """The confidences of an answer."""
    return list(_there(answered, "confidence").values)


def scores_of(answered: _Answered | Mapping[str, Column]) -> bytes:
    """The scores of an answer as they travel; none where they were not asked for."""
    column = column_of(answered, "scores")
    return b"" if column is None else bytes(memoryview(column.data))  # type: ignore[arg-type]  # numbers


def _there(answered: _Answered | Mapping[str, Column], name: str) -> Column:
    column = column_of(answered, name)
    assert column is not None, f"the answer has no column {name!r}"
    return column
