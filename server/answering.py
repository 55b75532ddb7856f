"""A worker's raw answer to a batch → the function's answer: combined, thresholded, defaulted.

Pure. Owns what a function promises of an answer: the rule, the confidence threshold, the default.
"""

from __future__ import annotations

from gpu_worker.protocol import Answer, RowError
from server.calls import Answers
from server.ensemble.combine import Votes, combine, unconfident_rows
from server.errors import ServiceError
from server.functions import Function

__all__ = ["answers_of"]


def answers_of(function: Function, answer: Answer, rows: int) -> Answers:
    """The function's answers to a batch of `rows` rows. Raises `ServiceError` if the worker's do not fit."""
    models = {model.key: model for model in function.members}
    try:
        votes = [
            Votes(models[m.model].name, models[m.model].accuracy, m.labels, m.confidences, m.scores)
            for m in answer.members
        ]
        combined = combine(function.combine, votes, function.classes)
    except (KeyError, ValueError) as exc:
        raise ServiceError(f"a worker's answer for {function.name} cannot be used: {exc}") from exc
    if len(combined.labels) != rows:
        raise ServiceError(f"a worker answered {len(combined.labels)} rows of {rows} for {function.name}")
    answered_by = ",".join(vote.member for vote in votes)
    faulty = {error.index for error in answer.errors}
    unsure = [
        row for row in unconfident_rows(combined.confidences, function.min_confidence) if row not in faulty
    ]
    if not unsure:
        return Answers(combined.labels, combined.confidences, combined.scores, answer.errors, answered_by)
    if function.default is not None:
        labels = list(combined.labels)
        for row in unsure:
            labels[row] = function.default
        return Answers(
            labels, combined.confidences, combined.scores, answer.errors, answered_by, frozenset(unsure)
        )
    errors = [*answer.errors, *(_no_answer(function, row, combined.confidences[row]) for row in unsure)]
    return Answers(combined.labels, combined.confidences, combined.scores, errors, answered_by)


def _no_answer(function: Function, row: int, confidence: float) -> RowError:
    return RowError(
        row,
        "no_confident_answer",
        f"confidence {confidence:.3f} is below the {function.min_confidence:g} that {function.name} asks for",
    )
