"""A worker's raw answer to a batch → the function's answer, or why it cannot be used; and what answers cost.

Pure. Knows the worker's form of an answer and the server's; the rule itself is `server.ensemble.answer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from gpu_worker.wire.protocol import Answer, MemberAnswer, RowError
from server.catalog.functions import Function, ModelVersion
from server.catalog.selections import row_s
from server.ensemble.answer import FunctionAnswer
from server.ensemble.by_plan import answer_apart
from server.ensemble.combine import OwnRule
from server.errors import ServiceError
from server.scheduling.terms import Latency
from server.serving.calls import Reply

__all__ = [
    "answers_of",
    "check_members",
    "device_seconds",
    "each_part",
    "expected_accuracies",
    "part_of",
]


def answers_of(
    function: Function,
    answer: Answer,
    rows: int,
    shifts: tuple[float, ...] | None = None,
    by: OwnRule | None = None,
) -> FunctionAnswer:
    """The function's answers to a batch of `rows` rows. Raises `ServiceError` if the worker's do not fit.

    shifts: of the context of these rows, as in `Fit.in_context`; None for none. by: another rule than the
    function's own.
    """
    rule = function.rule if shifts is None else function.rule.in_context(shifts)
    try:
        found = answer_apart(rule, answer, rows) if answer.answered else rule.answer(answer, by)
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


def expected_accuracies(reply: Reply) -> list[float]:
    """By row, how often such an answer is right; nan where that is not known, as of a default answer, or of
    several functions one after the other.
    """
    if reply.function.pipeline is not None:
        return [math.nan] * reply.rows
    answered_by = ((range(first, end), members) for first, end, members in reply.answered_by)
    unknown = (*reply.errors, *reply.defaulted)
    return reply.function.rule.expected_by_row(reply.rows, reply.columns, answered_by, unknown)


def device_seconds(reply: Reply, latency_of: Callable[[ModelVersion], Latency]) -> list[float]:
    """By row, the seconds of a device that the members which answered it take for a row, each alone.

    By l̂, in a batch of usual size. nan where things in a row were asked, and not the row.
    """
    if reply.function.pipeline is not None:
        return [math.nan] * reply.rows
    each_s = {model.name: row_s(reply.function, model, latency_of) for model in reply.function.members}
    taken_s = [0.0] * reply.rows
    for first, end, members in reply.answered_by:
        together_s = sum(each_s.get(name, math.nan) for name in members.split(","))
        taken_s[first:end] = [together_s] * (end - first)
    return taken_s


def each_part(answer: Answer, sizes: Sequence[int]) -> list[Answer]:
    """What a worker answered to a batch of several parts, of so many rows each: as if each had come alone.

    What the batch took is said of the first, by which it is reported; decoding and passes by their rows.
    Raises `ServiceError` where it has not answered every part.
    """
    said = [[column.rows for column in member.columns] for member in answer.members]
    if len(said) != len(sizes) or any({*rows} != {size} for rows, size in zip(said, sizes, strict=True)):
        raise ServiceError(f"a worker answered a batch of parts of {list(sizes)} rows with {said}")
    found: list[Answer] = []
    first, total = 0, max(1, sum(sizes))
    for member, size in zip(answer.members, sizes, strict=True):
        part = size / total
        errors = _errors_of(answer, first, size)
        found.append(Answer(0, [member], errors, part * answer.decode_s, part * answer.forward_s))
        first += size
    found[0].work_s, found[0].stay_s = answer.work_s, answer.stay_s
    found[0].spared_rows = answer.spared_rows
    return found


def part_of(answer: Answer, first: int, rows: int) -> Answer:
    """What a worker answered to rows [first, first + rows) of a batch."""
    members = [
        MemberAnswer(told.model, [column.part(first, rows) for column in told.columns])
        for told in answer.members
    ]
    errors = _errors_of(answer, first, rows)
    return Answer(0, members, errors, answered=answer.answered[first : first + rows])


def _errors_of(answer: Answer, first: int, rows: int) -> list[RowError]:
    """The errors of rows [first, first + rows) of a batch, counted from the first."""
    return [
        RowError(error.index - first, error.code, error.message)
        for error in answer.errors
        if first <= error.index < first + rows
    ]
