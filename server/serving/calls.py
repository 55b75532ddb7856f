"""One request between route and worker: what was asked, what has come back so far.

Owns the scattering of a batch's answers over the requests whose rows it held. Knows no wire, no queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpu_worker.wire.protocol import Answer, Column, RowError
from server.access.caller import DEFAULT_SHARES, Shares
from server.catalog.functions import Form, Function
from server.ensemble.answer import FunctionAnswer
from server.record import record
from server.scheduling.bulk_jobs import BulkTag, BulkWhose
from server.scheduling.core import Slice
from server.scheduling.policy import RowClass
from server.serving.evidence import Evidence
from server.serving.outcomes import UnderWay

if TYPE_CHECKING:
    from server.serving.like_rows import LikeCalls
from server.serving.stretches import clear_stretches

__all__ = ["BulkRequest", "Call", "PendingReply", "Reply", "reply_of", "reply_of_rows"]


@record
class BulkRequest:
    """Which bulk job a call is a part of."""

    tag: BulkTag
    whose: BulkWhose = BulkWhose()


@record
class Call:
    """Rows for a function. `deadline_s` is absolute, on `time.monotonic`.

    outputs: the columns of the answer that are wanted; none for those that it has by default.
    context: in which it is asked, as `Contexts` writes it; "" for none. with_members: whether what each
    member said is wanted too. is_traffic: whether somebody wants to know; False = it shows how good answers
    are, and says nothing of what is asked. is_part: of a call that was taken before; it is answered while the
    server shuts down, too.
    """

    function: Function
    form: Form
    rows: list[bytes]
    nbytes: int
    outputs: tuple[str, ...] = ()
    deadline_s: float = math.inf
    row_class: RowClass = "interactive"
    priority: int = 0
    slo_s: float | None = None
    members: tuple[str, ...] | None = None  # model keys; None = all of the function's
    min_accuracy: float | None = None  # that plans which its rows follow are expected to have
    min_agreement: float | None = None  # with the full function, where a proxy answers
    caller: str = ""  # who shares the queue with others
    in_name_of: str = ""  # the database's user that the caller names
    shares: Shares = DEFAULT_SHARES  # and how much of it is theirs
    context: str = ""
    with_members: bool = False
    is_traffic: bool = True
    # Below which its paths must lie, beside the function's own; None = anywhere.
    media_roots: tuple[str, ...] | None = None
    is_part: bool = False
    answer_cache: bool = True  # whether it may be answered by what was answered before, and be kept
    bulk: BulkRequest | None = None  # the job that it is a part of
    turn: str = ""  # whose turn its rows wait for, where that is not the caller's
    turn_weight: float = 0.0
    decision: str = ""  # which model a function by wish has for it, and why

    @property
    def least(self) -> float | None:
        """What plans that its rows follow are expected to be at the least: right so often, or, where a proxy
        answers, so often as the full function would answer.
        """
        return self.min_accuracy if self.function.proxy is None else self.min_agreement

    def answered_by(self, function: Function, decision: str) -> Call:
        """The same rows, asked of that form of the function, and why: `replace`, at half its time."""
        _, *between, _ = _VALUES(self)
        values: list[Any] = [function, *between, decision]
        return Call(*values)

    def of_rows(self, rows: list[bytes], nbytes: int, deadline_s: float = math.inf) -> Call:
        """Other rows, and their own deadline, asked of the same: `replace`, at half its time."""
        function, form, _, _, outputs, _, *rest = _VALUES(self)
        values: list[Any] = [function, form, rows, nbytes, outputs, deadline_s, *rest]
        return Call(*values)

    @classmethod
    def of_all_members(
        cls,
        function: Function,
        form: Form,
        rows: list[bytes],
        *,
        caller: str = "",
        shares: Shares = DEFAULT_SHARES,
        deadline_s: float = math.inf,
        media_roots: tuple[str, ...] | None = None,
    ) -> Call:
        """What each member says of the rows: of all, whatever a plan would ask, and when there is time."""
        return cls(
            function,
            form,
            rows,
            sum(map(len, rows)),
            outputs=() if function.answers_numbers else ("scores",),
            deadline_s=deadline_s,
            row_class="bulk",
            members=tuple(member.key for member in function.members),
            caller=caller,
            shares=shares,
            with_members=True,
            media_roots=media_roots,
            answer_cache=False,
        )


_VALUES: Callable[[Call], tuple[Any, ...]] = attrgetter(*(one.name for one in fields(Call)))


@dataclass(slots=True)
class Reply:
    """The answers to all rows of a call, in its order.

    told: what each member said, where that is wanted: of the rows from a number on. cached: how many of its
    rows were answered by what was kept.
    """

    function: Function
    rows: int
    columns: dict[str, Column]
    errors: dict[int, RowError]
    answered_by: list[tuple[int, int, str]]  # rows [first, end) and who answered them
    defaulted: set[int]
    told: Sequence[tuple[int, Answer]] = ()
    cached: int = 0

    def row(self, at: int) -> Reply:
        """That row alone, without what members tell, of a reply whose rows all were kept, or none."""
        columns = {name: column.part(at, 1) for name, column in self.columns.items()}
        errors = {0: self.errors[at]} if at in self.errors else {}
        by = [(0, 1, members) for first, end, members in self.answered_by if first <= at < end]
        defaulted = {0} if at in self.defaulted else set()
        return Reply(self.function, 1, columns, errors, by, defaulted, cached=min(1, self.cached))


@dataclass(slots=True, eq=False)
class PendingReply(UnderWay[Reply]):
    """A call under way: the answers that are there, and the rows that are not."""

    request_id: int
    call: Call
    began_s: float
    missing: int = 0
    first_sent_s: float = math.inf  # when its first rows left the queue
    batches: set[int] = field(default_factory=set)  # in flight
    refusals: bytearray | None = None  # by row, how often workers refused it; None: never any
    timers: tuple[asyncio.TimerHandle, ...] = ()  # at its goal, at its deadline
    evidence: Evidence | None = None  # of the rows whose members answer apart
    is_late: bool = False  # its goal has passed, and what has come is to be its answer
    told: list[tuple[int, Answer]] | None = None  # what each member said of the rows that are answered
    # By row, whether it is answered, where more than one batch may answer it; None: one does.
    is_answered: bytearray | None = None
    place: tuple[LikeCalls, int] | None = None  # in the queue, where it waits there with calls like it
    _so_far: Reply | None = None  # of a call whose rows are answered in several parts

    def __post_init__(self) -> None:
        self.missing = len(self.call.rows)
        if self.call.function.late_rows is not None:
            self.is_answered = bytearray(self.missing)

    def expect(self, part: Slice, members: Collection[str]) -> None:
        """These rows wait for these members, which answer apart."""
        if self.evidence is None:
            proxy = self.call.function.proxy
            self.evidence = Evidence("" if proxy is None else proxy.model.key)
        self.evidence.expect(part, members)

    def sent(self, now_s: float, part: Slice) -> None:
        """These rows left the queue."""
        self.first_sent_s = min(self.first_sent_s, now_s)

    def refused(self, part: Slice) -> int:
        """A worker refused these rows: how often the one of them was that was refused most."""
        if self.refusals is None:
            self.refusals = bytearray(len(self.call.rows))
        for row in range(part.offset, part.offset + part.rows):
            self.refusals[row] = min(255, self.refusals[row] + 1)
        return max(self.refusals[part.offset : part.offset + part.rows])

    def fail_part(self, part: Slice, error: BaseException) -> None:
        """These rows get no answer, those that wait yet; so there is none to the call, if there are any."""
        if self.unanswered(part):
            self.fail(error)

    def waits_for(self, part: Slice, members: Collection[str]) -> bool:
        """Whether any of these rows waits for one of these members."""
        if self.evidence is None or not self.unanswered(part):
            return False
        return not self.evidence.missing(part).isdisjoint(members)

    def unanswered(self, part: Slice) -> list[Slice]:
        """The rows of a part that nobody has answered yet, in as few parts as they make."""
        if self.is_answered is None:
            return [part]
        left = clear_stretches(self.is_answered, part.offset, part.offset + part.rows)
        return [Slice(part.request_id, first, rows) for first, rows in left]

    def tell(self, row: int, answer: Answer) -> None:
        """What each member said of the rows from `row` on, before they are answered; once each."""
        if self.told is None:
            self.told = []
        self.told.append((row, answer))

    def answer(self, part: Slice, first: int, answers: FunctionAnswer) -> None:
        """Take the answers [first, first + part.rows) of a batch for the rows of `part`.

        Where several batches may answer a row, the first does.
        """
        if self.is_answered is None:
            self._take(part, first, answers)
            return
        for left in self.unanswered(part):
            self.is_answered[left.offset : left.offset + left.rows] = b"\1" * left.rows
            self._take(left, first + left.offset - part.offset, answers)

    def _take(self, part: Slice, first: int, answers: FunctionAnswer) -> None:
        if self.outcome is not None:
            return
        total = len(self.call.rows)
        if part.rows == total:
            self._finish_whole(first, answers)
            return
        reply = self._so_far
        if reply is None:
            reply = self._so_far = Reply(self.call.function, total, {}, {}, [], set())
        end, offset = first + part.rows, part.offset
        for name, column in answers.columns.items():
            if name not in reply.columns:
                reply.columns[name] = column.empty(total)
            reply.columns[name].put(offset, column, first, part.rows)
        for error in answers.errors:
            if first <= error.index < end:
                reply.errors[error.index - first + offset] = error
        if answers.defaulted:
            reply.defaulted.update(row - first + offset for row in answers.defaulted if first <= row < end)
        reply.answered_by += _answered_by(answers, first, offset, part.rows)
        self.missing -= part.rows
        if self.missing == 0:
            reply.answered_by.sort()
            reply.told = self.told or ()
            self.finish(reply)

    def _finish_whole(self, first: int, answers: FunctionAnswer) -> None:
        """The common case of a request all of whose rows were in one batch, from number `first` of it."""
        self.missing = 0
        self.finish(reply_of(self.call.function, len(self.call.rows), first, answers, self.told or ()))


def reply_of(
    function: Function,
    rows: int,
    first: int,
    answers: FunctionAnswer,
    told: Sequence[tuple[int, Answer]] = (),
) -> Reply:
    """So many answers of a batch, from number `first` on, as a reply of their own."""
    end = first + rows
    errors: dict[int, RowError] = {}
    defaulted: set[int] = set()
    if answers.errors:
        errors = {error.index - first: error for error in answers.errors if first <= error.index < end}
    if answers.defaulted:
        defaulted = {row - first for row in answers.defaulted if first <= row < end}
    return Reply(
        function,
        rows,
        {name: column.part(first, rows) for name, column in answers.columns.items()},
        errors,
        _answered_by(answers, first, 0, rows),
        defaulted,
        told,
    )


def reply_of_rows(function: Function, rows: list[int], answers: FunctionAnswer) -> Reply:
    """The answers of a batch with these numbers, in this order, as a reply of their own."""
    first, count = rows[0], len(rows)
    if rows == list(range(first, first + count)):
        return reply_of(function, count, first, answers)
    errors: dict[int, RowError] = {}
    defaulted: set[int] = set()
    if answers.errors or answers.defaulted:
        place_of = {row: place for place, row in enumerate(rows)}
        errors = {place_of[error.index]: error for error in answers.errors if error.index in place_of}
        defaulted = {place_of[row] for row in answers.defaulted if row in place_of}
    if answers.by_row:
        by = _answered_by(replace(answers, by_row=[answers.by_row[row] for row in rows]), 0, 0, count)
    else:
        by = _answered_by(answers, 0, 0, count)
    columns = {name: column.pick(rows) for name, column in answers.columns.items()}
    return Reply(function, count, columns, errors, by, defaulted)


def _answered_by(answers: FunctionAnswer, first: int, offset: int, rows: int) -> list[tuple[int, int, str]]:
    """As `Reply.answered_by`, of the call's rows from `offset` on, which are the answers' from `first` on."""
    if not answers.by_row:
        return [(offset, offset + rows, answers.answered_by)]
    found: list[tuple[int, int, str]] = []
    for alike, members in answers.answered(first, rows):
        found.append((offset, offset + alike, members))
        offset += alike
    return found
