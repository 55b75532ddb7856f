"""A worker's raw answer to a batch → the function's answer: combined, thresholded, defaulted.

Pure. Knows the worker's form of an answer and the server's; the threshold rule stands in `server.ensemble`.
"""

from __future__ import annotations

from collections.abc import Collection

from gpu_worker.wire.protocol import Answer, RowError
from server.catalog.functions import Function
from server.ensemble.combine import Vote, combine
from server.ensemble.threshold import NO_CONFIDENT_ANSWER, with_threshold
from server.errors import ServiceError
from server.serving.calls import Answers

__all__ = ["answers_of", "check_members"]


def answers_of(function: Function, answer: Answer, rows: int) -> Answers:
    """The function's answers to a batch of `rows` rows. Raises `ServiceError` if the worker's do not fit."""
    models = {model.key: model for model in function.members}
    try:
        votes = [
            Vote(
                models[member.model].name,
                models[member.model].accuracy,
                {column.name: column for column in member.columns},
            )
            for member in answer.members
        ]
        combined = combine(function.combine, votes, function.classes)
    except (KeyError, ValueError, TypeError) as exc:
        raise ServiceError(f"a worker's answer for {function.name} cannot be used: {exc}") from exc
    value = combined.get(function.task.value.name)
    if value is None or value.rows != rows:
        answered = 0 if value is None else value.rows
        raise ServiceError(f"a worker answered {answered} rows of {rows} for {function.name}")
    answered_by = ",".join(vote.member for vote in votes)
    found = with_threshold(
        function.name,
        function.task,
        combined,
        {error.index for error in answer.errors},
        min_confidence=function.min_confidence,
        default=function.default,
    )
    refused = [RowError(row, NO_CONFIDENT_ANSWER, why) for row, why in found.refusals.items()]
    errors = [*answer.errors, *refused] if refused else answer.errors
    return Answers(rows, found.columns, errors, answered_by, found.defaulted)


def check_members(function: Function, answer: Answer, members: Collection[str], rows: int) -> None:
    """Raises `ServiceError` unless each of these members, and nobody else, has answered so many rows."""
    said = [member.model for member in answer.members]
    if sorted(said) != sorted(members):
        raise ServiceError(f"a worker answered for {function.name} with {said} instead of {list(members)}")
    for member in answer.members:
        if any(column.rows != rows for column in member.columns):
            raise ServiceError(f"{member.model} answered other than {rows} rows for {function.name}")
