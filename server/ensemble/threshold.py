"""What a function promises beyond its members' answer: its confidence threshold, and its default answer.

Pure; the server and `ml_udf.local` share it, so that a function answers the same with and without a server.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from server.ensemble.combine import Combined, unconfident_rows

__all__ = ["NO_CONFIDENT_ANSWER", "Thresholded", "with_threshold"]

NO_CONFIDENT_ANSWER = "no_confident_answer"


@dataclass(frozen=True, slots=True)
class Thresholded:
    """Labels of all rows; by row, why one has none; and the rows that got the default answer."""

    labels: Sequence[str]
    refusals: dict[int, str]
    defaulted: frozenset[int]


def with_threshold(
    name: str, combined: Combined, faulty: Collection[int], *, min_confidence: float, default: str | None
) -> Thresholded:
    """The answers of function `name`. faulty: rows that have an error of their own already."""
    unsure = [row for row in unconfident_rows(combined.confidences, min_confidence) if row not in faulty]
    if not unsure or default is None:
        asked = f"is below the {min_confidence:g} that {name} asks for"
        refusals = {row: f"confidence {combined.confidences[row]:.3f} {asked}" for row in unsure}
        return Thresholded(combined.labels, refusals, frozenset())
    labels = list(combined.labels)
    for row in unsure:
        labels[row] = default
    return Thresholded(labels, {}, frozenset(unsure))
