"""How the members' answers become one answer, and how far it can be trusted.

Pure, over columns; standard library and numpy. The server and `ml_udf.local` share it, so that a function
answers the same with and without a server. Knows rows and members, nothing of workers, wires or tasks: which
rules a task's members may have stands in the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.protocol import Column

__all__ = ["Vote", "combine", "needs_of", "unconfident_rows"]

Columns = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Vote:
    """One member's answers to n rows, by the names of their columns."""

    member: str
    accuracy: float
    columns: Columns

    @property
    def rows(self) -> int:
        """How many rows it answers."""
        return next((column.rows for column in self.columns.values()), 0)


def combine(rule: str, votes: Sequence[Vote], classes: Sequence[str]) -> Columns:
    """One answer per row from the members' answers.

    One member alone answers as it does. Of several, `majority_vote` or `mean` decides, over their columns
    `label`, `confidence` and, where all bring them, `scores`.

    Raises ValueError if there are no votes, their lengths differ, the rule is none, or a column is missing.
    """
    if not votes:
        raise ValueError("no member has answered")
    rows = votes[0].rows
    if any(column.rows != rows for vote in votes for column in vote.columns.values()):
        raise ValueError("the members answered different numbers of rows")
    if len(votes) == 1:
        return votes[0].columns
    if rule not in _RULES:
        raise ValueError(f"{len(votes)} members answered, and no rule {rule!r} combines them")
    return _RULES[rule].combined(votes, classes)


def needs_of(rule: str, members: int) -> tuple[str, ...]:
    """The columns that each of so many members must bring, beyond those that it answers by default."""
    return _RULES[rule].needs if members > 1 and rule in _RULES else ()


def unconfident_rows(confidences: Sequence[float], min_confidence: float) -> list[int]:
    """The rows whose confidence is below the function's threshold, both as the float32 that is answered."""
    if min_confidence <= 0.0:
        return []
    threshold = float(np.float32(min_confidence))
    return [row for row, confidence in enumerate(confidences) if confidence < threshold]


def _majority_vote(votes: Sequence[Vote], classes: Sequence[str]) -> Columns:
    """Rafiki §5.2: the label that most members name, and as its confidence the share of members that agree.

    "When there is a tie, the prediction from the model with the best accuracy is selected". A member's empty
    label (a row at fault) has no vote.
    """
    labels, confidences = _by_majority(votes)
    columns = _answer(labels, np.asarray(confidences, np.float32))
    if all("scores" in vote.columns for vote in votes):
        columns["scores"] = _scores(_mean_scores(votes, len(classes)))
    return columns


def _mean(votes: Sequence[Vote], classes: Sequence[str]) -> Columns:
    """The class of the highest mean probability, and that probability; every member must bring scores."""
    if not all("scores" in vote.columns for vote in votes):
        raise ValueError("the mean of probabilities needs every member's scores")
    scores = _mean_scores(votes, len(classes))
    winners = scores.argmax(axis=1)
    confidences = scores[np.arange(len(scores)), winners]
    labels = [classes[winner] for winner in winners.tolist()]
    told = [vote.columns["label"].values for vote in votes]
    for row, label in enumerate(told[0]):
        if not label and not any(labels_of[row] for labels_of in told):  # it is at fault for every member
            labels[row], confidences[row] = "", 0.0
    return {**_answer(labels, confidences), "scores": _scores(scores)}


@dataclass(frozen=True, slots=True)
class _Rule:
    """needs: columns beyond those that a member answers by default."""

    combined: Callable[[Sequence[Vote], Sequence[str]], Columns]
    needs: tuple[str, ...] = ()


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {"majority_vote": _Rule(_majority_vote), "mean": _Rule(_mean, ("scores",))}
)


def _answer(labels: list[str], confidences: NDArray[np.float32]) -> dict[str, Column]:
    return {
        "label": Column("label", "BYTES", (), labels),
        "confidence": Column("confidence", "FP32", (), confidences.tobytes()),
    }


def _scores(scores: NDArray[np.float32]) -> Column:
    return Column("scores", "FP32", scores.shape[1:], scores.tobytes())


def _by_majority(votes: Sequence[Vote]) -> tuple[list[str], list[float]]:
    # The best model first: `max` keeps the first of equals, which makes it win the ties.
    ranked = sorted(votes, key=lambda vote: -vote.accuracy)
    labels: list[str] = []
    confidences: list[float] = []
    members = len(ranked)
    told: list[list[str]] = [vote.columns["label"].data for vote in ranked]  # type: ignore[misc]  # texts
    for ballot in zip(*told, strict=True):
        first = ballot[0]
        agreeing = ballot.count(first)
        if agreeing * 2 <= members or not first:
            first = max(ballot, key=lambda label: ballot.count(label) if label else 0)
            agreeing = ballot.count(first)
        labels.append(first)
        confidences.append(agreeing / members if first else 0.0)
    return labels, confidences


def _mean_scores(votes: Sequence[Vote], classes: int) -> NDArray[np.float32]:
    rows = votes[0].rows
    total = np.zeros((rows, classes), np.float32)
    for vote in votes:
        scores: bytes = vote.columns["scores"].data  # type: ignore[assignment]  # numbers
        total += np.frombuffer(scores, "<f4").reshape(rows, classes)
    total /= np.float32(len(votes))
    return total
