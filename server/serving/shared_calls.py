"""A call that many clients share: row i is the i-th client's, who hears of it as soon as it is over.

To the queue and to workers it is one call of n rows; a row that fails, is refused or whose client goes leaves
the others as they are. Its clients asked in one turn of the loop and asked alike, so what is the same for all
of them (rights, shares, deadline, place in the queue) is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from server.catalog.functions import Function
from server.ensemble.answer import FunctionAnswer
from server.scheduling.core import Slice
from server.serving.calls import Call, PendingReply, Reply, reply_of, reply_of_rows
from server.serving.stretches import clear_stretches

__all__ = ["RowsOver", "SharedCall", "may_share"]


@dataclass(frozen=True, slots=True)
class RowsOver:
    """How rows of a shared call ended: those of `places`, which are the rows of the reply if it is one.

    sent_s: when they left the queue, on the clock of `time.monotonic`
    """

    places: Sequence[int]
    outcome: Reply | BaseException
    sent_s: float


@dataclass(slots=True)
class _Answered:
    """Rows of a call that were answered together: those of `places`, by the `rows` of what was answered.

    Plans answer rows that lie scattered, and to handle each piece by itself takes many times what a row does.
    """

    places: list[int]
    rows: list[int]
    answers: FunctionAnswer
    sent_s: float


@dataclass(slots=True, eq=False)
class SharedCall(PendingReply):
    """As `PendingReply`; its listener hears each time that rows are over, and asks `take_over` which."""

    _untold: list[RowsOver | _Answered] = field(default_factory=list)  # of which the listener has not heard
    _over: bytearray = field(default_factory=bytearray)  # by row
    _sent: dict[int, float] = field(default_factory=dict)  # by the first row of what left together

    def __post_init__(self) -> None:
        PendingReply.__post_init__(self)
        self._over = bytearray(self.missing)

    def is_over(self, row: int) -> bool:
        """Whether nobody waits for that row any more."""
        return self._over[row] == 1

    def take_over(self) -> list[RowsOver]:
        """What the listener has not heard of yet."""
        untold, self._untold = self._untold, []
        return [self._told(one) if isinstance(one, _Answered) else one for one in untold]

    def end_rows(self, places: Sequence[int], outcome: Reply | BaseException, sent_s: float) -> None:
        """Rows that wait get this; where it is a reply, its rows are theirs."""
        self._are_over(places)
        self._put(RowsOver(places, outcome, sent_s))
        if not self.missing:
            self.outcome = outcome

    def sent(self, now_s: float, part: Slice) -> None:
        """See `PendingReply`."""
        PendingReply.sent(self, now_s, part)
        self._sent[part.offset] = now_s

    def unanswered(self, part: Slice) -> list[Slice]:
        """See `PendingReply`."""
        return [Slice(part.request_id, first, rows) for first, rows in self._left(part)]

    def fail_part(self, part: Slice, error: BaseException) -> None:
        """These rows get no answer, those that wait yet."""
        if self.outcome is not None:  # all have failed: they have been told, or will be
            return
        for first, rows in list(self._left(part)):
            self.end_rows(range(first, first + rows), error, self._sent_s(first))

    def fail(self, error: BaseException) -> None:
        """All rows that still wait get no answer. What is `missing` stays so: it has to leave the queue."""
        if self.outcome is not None:
            return
        for first, rows in self._left(Slice(self.request_id, 0, len(self._over))):
            self._put(RowsOver(range(first, first + rows), error, self._sent_s(first)))
        self.outcome = error

    def listen(self, listener: Callable[[Self, Any], object], about: Any) -> None:  # noqa: ANN401  # the listener's own
        """Have `listener(self, about)` called in another turn each time that rows are over."""
        self._listener, self._about = listener, about
        if self._untold:
            self.outcomes.put(self)

    def tell_listener(self) -> None:
        """For `Outcomes`."""
        listener, about = self._listener, self._about
        if self.outcome is not None:
            self._listener = self._about = None  # no circle
        if listener is not None:
            listener(self, about)

    def _take(self, part: Slice, first: int, answers: FunctionAnswer) -> None:
        if self.outcome is not None:
            return
        for at, rows in list(self._left(part)):
            self._answer(range(at, at + rows), first + at - part.offset, answers)

    def _answer(self, places: range, first: int, answers: FunctionAnswer) -> None:
        """Rows that wait are answered, from number `first` of the answers."""
        count, sent_s = len(places), self._sent_s(places.start)
        self._are_over(places)
        last = self._untold[-1] if self._untold else None
        if isinstance(last, _Answered) and last.answers is answers and last.sent_s == sent_s:
            last.places += places
            last.rows += range(first, first + count)
        else:
            rows = list(range(first, first + count))
            self._put(_Answered(list(places), rows, answers, sent_s))
        if not self.missing:
            self.outcome = reply_of(self.call.function, count, first, answers)

    def _are_over(self, places: Sequence[int]) -> None:
        for place in places:
            self._over[place] = 1
        self.missing -= len(places)

    def _told(self, one: _Answered) -> RowsOver:
        return RowsOver(one.places, reply_of_rows(self.call.function, one.rows, one.answers), one.sent_s)

    def _left(self, part: Slice) -> Iterator[tuple[int, int]]:
        """(first, rows) of those of a part that are not over, in as few stretches as they make."""
        return clear_stretches(self._over, part.offset, part.offset + part.rows)

    def _sent_s(self, row: int) -> float:
        return self._sent.get(row, self.first_sent_s)

    def _put(self, over: RowsOver | _Answered) -> None:
        if not self._untold and self._listener is not None:
            self.outcomes.put(self)
        self._untold.append(over)


def may_share(call: Call) -> bool:
    """Whether clients that ask alike may share a call: each row of it goes its way as if it were alone.

    Not where rows are watched one by one: of a caller who is capped; of a function whose members may answer
    late, that a proxy answers for, that is chosen by wish, or whose rows go from stage to stage.
    """
    function, shares = call.function, call.shares
    return (
        call.row_class == "interactive"
        and not call.with_members
        and not call.context
        and not (shares.rows_per_s or shares.queued_rows or shares.queued_bytes)
        and _is_plain(function)
    )


def _is_plain(function: Function) -> bool:
    return (
        function.pipeline is None
        and function.proxy is None
        and function.late_rows is None
        and function.late_members != "leave_out"
        and len(function.candidates) <= 1
        and not function.is_candidate
    )
