"""A worker's raw answer to a batch → the function's answer, or why it cannot be used.

Pure. Knows the worker's form of an answer and the server's; the rule itself is `server.ensemble.answer`.
"""

from __future__ import annotations

from collections.abc import Collection

from gpu_worker.wire.protocol import Answer
from server.catalog.functions import Function
from server.ensemble.answer import FunctionAnswer
from server.errors import ServiceError

__all__ = ["answers_of", "check_members"]


def answers_of(function: Function, answer: Answer, rows: int) -> FunctionAnswer:
    """The function's answers to a batch of `rows` rows. Raises `ServiceError` if the worker's do not fit."""
    try:
        found = function.rule.answer(answer)
    except (KeyError, ValueError, TypeError) as exc:
        raise ServiceError(f"a worker's answer for {function.name} cannot be used: {exc}") from exc
    value = found.columns.get(function.task.value.name)
    if value is None or value.rows != rows:
        answered = 0 if value is None else value.rows
        raise ServiceError(f"a worker answered {answered} rows of {rows} for {function.name}")
    return found


def check_members(function: Function, answer: Answer, members: Collection[str], rows: int) -> None:
    """Raises `ServiceError` unless each of these members, and nobody else, has answered so many rows."""
    said = [member.model for member in answer.members]
    if sorted(said) != sorted(members):
        raise ServiceError(f"a worker answered for {function.name} with {said} instead of {list(members)}")
    for member in answer.members:
        if any(column.rows != rows for column in member.columns):
            raise ServiceError(f"{member.model} answered other than {rows} rows for {function.name}")
