"""What a function promises beyond its members' answer: its confidence threshold, and its default answer.

Pure; the server and `ml_udf.local` share it, so that a function answers the same with and without a server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpu_worker.tasks import Task
from gpu_worker.wire.protocol import Column
from server.ensemble.combine import unconfident_rows

__all__ = ["NO_CONFIDENT_ANSWER", "Thresholded", "with_threshold"]

NO_CONFIDENT_ANSWER = "no_confident_answer"


@dataclass(frozen=True, slots=True)
class Thresholded:
    """The columns of all rows; by row, why one has no answer; and the rows that got the default one."""

    columns: Mapping[str, Column]
    refusals: dict[int, str]
    defaulted: frozenset[int]


def with_threshold(
    name: str,
    task: Task,
    columns: Mapping[str, Column],
    faulty: Collection[int],
    *,
    min_confidence: float,
    default: str | None,
) -> Thresholded:
    """The answers of function `name`. faulty: rows that have an error of their own already."""
    if task.confidence is None or min_confidence <= 0.0:
        return Thresholded(columns, {}, frozenset())
    confidences: list[float] = list(columns[task.confidence].values)
    unsure = [row for row in unconfident_rows(confidences, min_confidence) if row not in faulty]
    if not unsure or default is None:
        asked = f"is below the {min_confidence:g} that {name} asks for"
        refusals = {row: f"confidence {confidences[row]:.3f} {asked}" for row in unsure}
        return Thresholded(columns, refusals, frozenset())
    value = columns[task.value.name]
    values: list[str] = list(value.values)  # a task with a threshold answers texts
    for row in unsure:
        values[row] = default
    return Thresholded({**columns, value.name: replace(value, data=values)}, {}, frozenset(unsure))
