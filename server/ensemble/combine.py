"""How the members' answers become one answer, and how far it can be trusted.

Pure, standard library and numpy; the server and `ml_udf/local.py` share it, so that a function answers the
same with and without a server. Knows rows and members, nothing of workers or wires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Combine", "Combined", "Votes", "combine", "unconfident_rows"]

Combine = Literal["majority_vote", "mean"]


@dataclass(frozen=True, slots=True)
class Votes:
    """One member's answers to n rows.

    labels: n · confidences: n, in [0, 1] · scores: n·classes float32, row-major, raw; empty if not asked for.
    """

    member: str
    accuracy: float
    labels: Sequence[str]
    confidences: Sequence[float]
    scores: bytes = b""


@dataclass(frozen=True, slots=True)
class Combined:
    """The answers to n rows; `scores` are the members' mean, float32 [n, classes] raw, or empty."""

    labels: Sequence[str]
    confidences: Sequence[float]
    scores: bytes = b""


def combine(rule: Combine, votes: Sequence[Votes], classes: Sequence[str]) -> Combined:
    """One answer per row from the members' answers.

    `majority_vote` (Rafiki §5.2): the label that most members name; "when there is a tie, the prediction
    from the model with the best accuracy is selected". Its confidence is the share of members that agree.
    `mean`: the class of the highest mean probability, and that probability; every member must bring scores.
    One member alone answers with its own confidence. A member's empty label (a row at fault) has no vote.

    Raises ValueError if there are no votes, their lengths differ, or `mean` lacks scores.
    """
    if not votes:
        raise ValueError("no member has answered")
    if len({len(vote.labels) for vote in votes}) != 1:
        raise ValueError("the members answered different numbers of rows")
    if len(votes) == 1:
        only = votes[0]
        return Combined(only.labels, only.confidences, only.scores)
    scores = _mean_scores(votes, len(classes)) if all(vote.scores for vote in votes) else None
    if rule == "mean":
        if scores is None:
            if not votes[0].labels:
                return Combined([], [])
            raise ValueError("the mean of probabilities needs every member's scores")
        return _by_mean(scores, votes, classes)
    labels, confidences = _by_majority(votes)
    return Combined(labels, confidences, b"" if scores is None else scores.tobytes())


def unconfident_rows(confidences: Sequence[float], min_confidence: float) -> list[int]:
    """The rows whose confidence is below the function's threshold."""
    if min_confidence <= 0.0:
        return []
    return [row for row, confidence in enumerate(confidences) if confidence < min_confidence]


def _by_majority(votes: Sequence[Votes]) -> tuple[list[str], list[float]]:
    # The best model first: `max` keeps the first of equals, which makes it win the ties.
    ranked = sorted(votes, key=lambda vote: -vote.accuracy)
    labels: list[str] = []
    confidences: list[float] = []
    members = len(ranked)
    for ballot in zip(*(vote.labels for vote in ranked), strict=True):
        first = ballot[0]
        agreeing = ballot.count(first)
        if agreeing * 2 <= members or not first:
            first = max(ballot, key=lambda label: ballot.count(label) if label else 0)
            agreeing = ballot.count(first)
        labels.append(first)
        confidences.append(agreeing / members if first else 0.0)
    return labels, confidences


def _mean_scores(votes: Sequence[Votes], classes: int) -> NDArray[np.float32]:
    rows = len(votes[0].labels)
    total = np.zeros((rows, classes), np.float32)
    for vote in votes:
        total += np.frombuffer(vote.scores, "<f4").reshape(rows, classes)
    total /= np.float32(len(votes))
    return total


def _by_mean(scores: NDArray[np.float32], votes: Sequence[Votes], classes: Sequence[str]) -> Combined:
    winners = scores.argmax(axis=1)
    confidences: list[float] = scores[np.arange(len(scores)), winners].tolist()
    labels = [classes[winner] for winner in winners.tolist()]
    for row, label in enumerate(votes[0].labels):
        if not label and not any(vote.labels[row] for vote in votes):  # it is at fault for every member
            labels[row], confidences[row] = "", 0.0
    return Combined(labels, confidences, scores.tobytes())
