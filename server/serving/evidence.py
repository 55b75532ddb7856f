"""What members have answered of one call's rows, where they answer apart.

Rows that were cut together wait for the same members and are kept together, as a *span*, which is cut where
some of its rows run again without the others. Answers are kept as they came, and cut out when all are there.
Pure. Knows which members a row waits for and who has answered; not what answers say, nor how they combine.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpu_worker.wire.protocol import Answer, MemberAnswer, RowError
from server.ensemble.answer import FunctionAnswer
from server.scheduling.core import Slice
from server.serving.stretches import clear_stretches

__all__ = ["MEMBER_FAULTS", "Evidence", "Span"]

MEMBER_FAULTS = frozenset(("remote_unavailable", "remote_invalid"))
"""Codes of errors that are one member's, and not its row's: others may answer it."""


@dataclass(slots=True, eq=False)
class Span:
    """Rows [offset, offset + rows) of the call. `found`: member → its answer, and where in it they begin.

    known: what the members found so far answer together, and where in it they begin, where that is combined
    before all are there. is_resubmitted: a batch of theirs failed, and they were queued for all they lack.
    absent: member → why it answers none of these rows. faults: row of the call → why some members have no
    answer to it, though others may.
    """

    offset: int
    rows: int
    wanted: tuple[str, ...]
    found: dict[str, tuple[MemberAnswer, int]] = field(default_factory=dict)
    errors: dict[int, RowError] = field(default_factory=dict)  # by row of the call
    known: tuple[FunctionAnswer, int] | None = None
    is_resubmitted: bool = False
    absent: dict[str, RowError] = field(default_factory=dict)
    faults: dict[int, dict[str, RowError]] = field(default_factory=dict)

    @property
    def missing(self) -> set[str]:
        """The members that have not answered and may yet."""
        return {member for member in self.wanted if member not in self.found and member not in self.absent}

    @property
    def is_complete(self) -> bool:
        """Whether every member that it waits for has answered, or never will."""
        return all(member in self.found or member in self.absent for member in self.wanted)

    def answer(self) -> Answer:
        """What has come, as one worker would have said it: of each row too which members answered it, where
        some have a fault. Rows that none has an answer to have an error.
        """
        members = [_cut(*self.found[member], self.rows) for member in self.wanted if member in self.found]
        errors = self.row_errors()
        if not self.faults:
            return Answer(0, members, errors)
        everybody, answered = (1 << len(members)) - 1, []
        for row in range(self.offset, self.offset + self.rows):
            faults = self.faults.get(row, {})
            mask = sum(1 << place for place, told in enumerate(members) if told.model not in faults)
            if faults and not mask and row not in self.errors:
                first = next(iter(faults.values()))
                errors.append(RowError(row - self.offset, first.code, first.message))
            answered.append(mask or everybody)
        return Answer(0, members, sorted(errors, key=lambda error: error.index), answered=answered)

    def row_errors(self) -> list[RowError]:
        """Of rows that are at fault themselves; numbered from its first row, in order."""
        return [
            RowError(row - self.offset, error.code, error.message)
            for row, error in sorted(self.errors.items())
        ]

    def rest(self, rows: int) -> Span:
        """Keep the first `rows` rows; the others are the span that is returned."""
        end = self.offset + rows
        other = Span(
            end,
            self.rows - rows,
            self.wanted,
            {member: (answer, first + rows) for member, (answer, first) in self.found.items()},
            {row: error for row, error in self.errors.items() if row >= end},
            None if self.known is None else (self.known[0], self.known[1] + rows),
            self.is_resubmitted,
            dict(self.absent),
            {row: faults for row, faults in self.faults.items() if row >= end},
        )
        self.rows = rows
        self.errors = {row: error for row, error in self.errors.items() if row < end}
        self.faults = {row: faults for row, faults in self.faults.items() if row < end}
        return other


class Evidence:
    """Of one call. A row has a span from when it is first sent to some of its members until its answer.

    And none after it, whoever is asked of it again: a row that is answered twice leaves another without.
    """

    def __init__(self, proxy: str = "") -> None:
        """proxy: of which every error is its own, and not its row's; "" where nobody is one."""
        self._proxy = proxy
        self._spans: dict[int, Span] = {}  # by offset
        self._offsets: list[int] = []  # ascending
        self._over = bytearray()  # by row, of those up to the last that is: whether its span has left

    def expect(self, part: Slice, members: Collection[str]) -> None:
        """These rows are sent, and wait for these members; those that wait already go on as they are."""
        row, end = part.offset, part.offset + part.rows
        for span in self.waiting(part):
            if span.offset > row:
                self._begin(row, span.offset, members)
            row = span.offset + span.rows
        if row < end:
            self._begin(row, end, members)

    def missing(self, part: Slice) -> set[str]:
        """The members that have not answered all of these rows."""
        return {member for span in self.waiting(part) for member in span.missing}

    def take(self, part: Slice, first: int, answer: Answer) -> list[Span]:
        """Take the answers to these rows, the first of which is number `first` of the batch's.

        The spans that are complete now, which leave. Rows that wait no more had their answer: this is late.
        """
        spans = [span for span in self.keep(part, first, answer) if span.is_complete]
        for span in spans:
            self._remove(span)
        return spans

    def keep(self, part: Slice, first: int, answer: Answer) -> list[Span]:
        """As `take`, but none leaves: the spans of these rows that wait, in order."""
        spans = self.waiting(part)
        for span in spans:
            at = first + span.offset - part.offset
            for member in answer.members:
                if member.model in span.wanted:
                    span.found.setdefault(member.model, (member, at))
            for error in answer.errors:
                if not at <= error.index < at + span.rows:
                    continue
                row = error.index - at + span.offset
                is_alone = len(answer.members) == 1
                if is_alone and (error.code in MEMBER_FAULTS or answer.members[0].model == self._proxy):
                    span.faults.setdefault(row, {})[answer.members[0].model] = error
                else:
                    span.errors.setdefault(row, error)
        return spans

    def leave_out(self, part: Slice, why: Mapping[str, RowError]) -> list[Span]:
        """These members answer none of these rows that they have not answered yet.

        The spans that are complete now, which leave.
        """
        spans = self.waiting(part)
        for span in spans:
            lost = {member: error for member, error in why.items() if member in span.wanted}
            span.absent |= {member: error for member, error in lost.items() if member not in span.found}
        done = [span for span in spans if span.is_complete]
        for span in done:
            self._remove(span)
        return done

    def close(self, part: Slice) -> list[Span]:
        """These rows wait no longer, whoever has answered: their spans, which leave."""
        spans = self.waiting(part)
        for span in spans:
            self._remove(span)
        return spans

    def begun(self) -> list[Span]:
        """The spans of which some members have answered; they leave."""
        spans = [self._spans[offset] for offset in self._offsets if self._spans[offset].found]
        for span in spans:
            self._remove(span)
        return spans

    def waiting(self, part: Slice) -> list[Span]:
        """The spans of these rows that wait, cut at both ends, in order."""
        first, end = self._cut_at(part.offset), self._cut_at(part.offset + part.rows)
        return [self._spans[offset] for offset in self._offsets[first:end]]

    def _cut_at(self, row: int) -> int:
        """See to it that no span lies on both sides of the row's beginning: how many lie before it."""
        at = bisect_left(self._offsets, row)
        if at:
            before = self._spans[self._offsets[at - 1]]
            if before.offset + before.rows > row:
                self._add(before.rest(row - before.offset))
        return at

    def _begin(self, row: int, end: int, members: Collection[str]) -> None:
        """Spans of those rows of [row, end) that have had none yet."""
        for first, rows in clear_stretches(self._over, row, end):
            self._add(Span(first, rows, tuple(members)))

    def _add(self, span: Span) -> None:
        self._spans[span.offset] = span
        insort(self._offsets, span.offset)

    def _remove(self, span: Span) -> None:
        del self._spans[span.offset]
        del self._offsets[bisect_left(self._offsets, span.offset)]
        end = span.offset + span.rows
        self._over.extend(bytes(max(0, end - len(self._over))))
        self._over[span.offset : end] = b"\1" * span.rows


def _cut(answer: MemberAnswer, first: int, rows: int) -> MemberAnswer:
    """Rows [first, first + rows) of it."""
    return MemberAnswer(answer.model, [column.part(first, rows) for column in answer.columns])
