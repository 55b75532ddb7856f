"""What is known of rows whose members answer one after the other: combined anew as each batch comes.

One combination for all rows of a batch that the same members have answered. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu_worker.wire.protocol import Answer, MemberAnswer, RowError
from server.catalog.functions import Function
from server.ensemble.combine import OwnRule
from server.serving.answers import answers_of
from server.serving.evidence import Span

__all__ = ["combine_known"]

Shifts = tuple[float, ...] | None  # of the context that rows are asked in; None for none


def combine_known(
    function: Function,
    spans: Sequence[tuple[Span, Shifts]],
    reply: Answer,
    rows: int,
    by: OwnRule | None = None,
) -> list[float]:
    """Combine what has come of each span, `reply` included, a batch of so many rows for one member.

    By row of the batch, how probable the combined answer is, 0 where the task does not say; not a number for
    a row that is in no span.
    by: another rule than the function's own. Raises ServiceError for an answer that cannot be used.
    """
    sure = [math.nan] * rows
    (member,) = (told.model for told in reply.members)
    groups: dict[tuple[tuple[str, ...], Shifts], list[Span]] = {}
    for span, shifts in spans:
        answered = tuple(name for name in span.wanted if name in span.found)
        # One alone has nobody to be weighed against, in no context.
        groups.setdefault((answered, shifts if len(answered) > 1 else None), []).append(span)
    for (members, shifts), group in groups.items():
        if members == (member,):  # nobody answered before: the batch as it came
            found = answers_of(function, reply, rows, by=by)
            for span in group:
                span.known = (found, span.found[member][1])
        else:
            joined = _joined(group)
            found = answers_of(function, joined, sum(span.rows for span in group), shifts, by)
            first = 0
            for span in group:
                span.known = (found, first)
                first += span.rows
        confidence = found.columns.get(function.task.confidence or "")
        for span in group:
            assert span.known is not None, "it was just combined"
            first, at = span.known[1], span.found[member][1]
            sure[at : at + span.rows] = (
                [0.0] * span.rows if confidence is None else confidence.values[first : first + span.rows]
            )
    return sure


def _joined(spans: Sequence[Span]) -> Answer:
    """The answers to all rows of the spans, of the same members, as one."""
    if len(spans) == 1:
        return spans[0].answer()
    rows = sum(span.rows for span in spans)
    if (members := _of_one_batch_each(spans)) is not None:
        return Answer(0, members, _renumbered(spans, [span.row_errors() for span in spans]))
    answers = [span.answer() for span in spans]
    first = answers[0].members
    members = [MemberAnswer(told.model, [each.empty(rows) for each in told.columns]) for told in first]
    at = 0
    for span, answer in zip(spans, answers, strict=True):
        for whole, told in zip(members, answer.members, strict=True):
            for column, part in zip(whole.columns, told.columns, strict=True):
                column.put(at, part, 0, span.rows)
        at += span.rows
    return Answer(0, members, _renumbered(spans, [answer.errors for answer in answers]))


def _of_one_batch_each(spans: Sequence[Span]) -> list[MemberAnswer] | None:
    """What each member said of the rows, where it said it of all in one batch; None where one did not.

    So it is of the rows of a call that share one, which lie scattered once some have been sure enough: each
    member's are picked out at once, as to cut them out span by span takes longer than to combine them.
    """
    members: list[MemberAnswer] = []
    for name in spans[0].wanted:
        if name not in spans[0].found:
            continue
        told, _ = spans[0].found[name]
        rows: list[int] = []
        for span in spans:
            its, first = span.found[name]
            if its is not told or span.faults:
                return None
            rows += range(first, first + span.rows)
        members.append(MemberAnswer(told.model, [column.pick(rows) for column in told.columns]))
    return members


def _renumbered(spans: Sequence[Span], errors: Sequence[Sequence[RowError]]) -> list[RowError]:
    """The errors of each span as those of all, whose rows follow one another."""
    found: list[RowError] = []
    at = 0
    for span, own in zip(spans, errors, strict=True):
        found += (RowError(at + error.index, error.code, error.message) for error in own)
        at += span.rows
    return found
