"""What the core keeps of one worker: its batches in flight, and when it will be free.

Knows nothing of queues or policies.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from server.record import record
from server.scheduling.bulk_sharing import Utilization
from server.scheduling.terms import BatchTimes, WorkerView

__all__ = ["SentBatch", "WorkerState", "hangs_after_s"]

_FADE_S = 1.0
_OVERDUE_TIMES = 2.0  # of what was predicted, and so long at least, beyond it: then it is sent nothing more
_OVERDUE_LEAST_S = 0.25
_DOUBTFUL_TIMES = 5.0  # what was predicted, and so long at least, it has said nothing
_DOUBTFUL_LEAST_S = 3.0
_HANGS_TIMES = 20.0  # what was predicted, and so long at least: then it is taken to hang
_HANGS_LEAST_S = 15.0
_PREDICTED_TIMES = 3.0  # what was predicted it may take in any case


@record
class SentBatch:
    """A batch under way."""

    batch_id: int
    members: tuple[str, ...]
    rows: int
    sent_s: float
    predicted_s: float  # its own time on the worker, without the batches before it
    dues: tuple[tuple[float, int], ...]  # (goal, rows) of its interactive runs
    is_guess: bool = False  # the prediction rests on no measurement
    alone: bool = True  # no other batch was on the worker when it was sent


def hangs_after_s(expected_s: float, *, is_guess: bool, most_s: float) -> float:
    """How long a worker may say nothing while it has batches that are expected to take `expected_s` in all.

    `most_s` is the operator's patience; all that is to be had with a batch of which nothing is known.
    """
    if is_guess:
        return most_s
    return min(max(_HANGS_LEAST_S, _HANGS_TIMES * expected_s), max(most_s, _PREDICTED_TIMES * expected_s))


class WorkerState:
    """A worker and its batches, which it works on in the order sent; they may end in any."""

    __slots__ = (
        "_turn_s",
        "_worked_at_s",
        "_worked_s",
        "end_s",
        "heard_s",
        "in_flight",
        "name",
        "used",
        "view",
    )

    def __init__(self, view: WorkerView) -> None:
        self.name = view.name
        self.view = view
        self.in_flight: dict[int, SentBatch] = {}  # changed by `send` and `finish` alone
        self.end_s = -math.inf  # when, by prediction, it has run all of them; it begins nothing sooner
        self.heard_s = -math.inf  # when a batch last landed
        self._turn_s = -math.inf  # since when the first of its batches has had it, or it has had none
        self._worked_s = 0.0  # seconds of interactive batches of late, fading
        self._worked_at_s = 0.0
        self.used = Utilization()  # by rows of any class

    @property
    def is_reserved(self) -> bool:
        """Whether it is kept for something that the core does not know."""
        return self.view.in_flight_limit == 0

    @property
    def is_idle(self) -> bool:
        """Whether no batch is on it."""
        return not self.in_flight

    @property
    def has_slot(self) -> bool:
        """Whether it has fewer batches than it may have."""
        return len(self.in_flight) < self.view.in_flight_limit

    def send(self, batch: SentBatch) -> None:
        """A batch leaves for it."""
        self.in_flight[batch.batch_id] = batch
        self.end_s = max(self.end_s, batch.sent_s) + batch.predicted_s

    def running(self, members: Collection[str]) -> list[tuple[WorkerState, tuple[str, ...]]]:
        """Which worker runs which of `members`: this one all of them."""
        return [(self, tuple(members))]

    def is_overdue(self, now_s: float) -> bool:
        """Whether what it has should have ended long ago: it may hang."""
        return bool(self.in_flight) and self._is_overdue(now_s)

    def has_room(self, now_s: float) -> bool:
        """Whether it may be sent another batch. Not while one is overdue: it may hang."""
        return self.has_slot and self.view.alive and not self.is_overdue(now_s)

    def free_at_s(self, now_s: float) -> float:
        """When, by prediction, it has run all that was sent; never in the past."""
        return max(self.end_s, now_s)

    def starts_at_s(self, now_s: float) -> float:
        """When it is to be counted on: one that is overdue, for as long again as it has been."""
        end_s = self.end_s
        return 2 * now_s - end_s if self.in_flight and end_s < now_s else max(end_s, now_s)

    def silent_s(self, now_s: float) -> float:
        """For how long it has had batches and ended none."""
        sent_s = next((batch.sent_s for batch in self.in_flight.values()), now_s)
        return now_s - max(sent_s, self.heard_s)

    def hangs(self, now_s: float, most_s: float) -> bool:
        """Whether it has said nothing for too long; `most_s` as in `hangs_after_s`."""
        if not self.in_flight:
            return False
        in_flight = self.in_flight.values()
        expected_s = sum(batch.predicted_s for batch in in_flight)
        is_guess = any(batch.is_guess for batch in in_flight)
        return self.silent_s(now_s) > hangs_after_s(expected_s, is_guess=is_guess, most_s=most_s)

    def is_doubtful(self, now_s: float) -> bool:
        """Whether it may well hang, so that what only it holds is worth having elsewhere too."""
        expected_s = sum(batch.predicted_s for batch in self.in_flight.values())
        return bool(self.in_flight) and self.silent_s(now_s) > max(
            _DOUBTFUL_LEAST_S, _DOUBTFUL_TIMES * expected_s
        )

    def work(self, now_s: float, seconds: float) -> None:
        """Interactive rows were sent that take it so long."""
        self._worked_s = self.share(now_s) * _FADE_S + seconds
        self._worked_at_s = now_s

    def share(self, now_s: float) -> float:
        """The share of its time that interactive rows took in the last second or so; 1 may be exceeded."""
        return self._worked_s / _FADE_S * math.exp((self._worked_at_s - now_s) / _FADE_S)

    def finish(
        self, now_s: float, batch_id: int, worked: BatchTimes | None = None
    ) -> tuple[SentBatch, float]:
        """A batch came back: the batch, and the time that it alone took. Raises KeyError if unknown.

        Without `worked` it is taken to have had the worker to itself since its turn came.
        """
        was_first = next(iter(self.in_flight), None) == batch_id
        batch = self.in_flight.pop(batch_id)
        service_s = self._service_s(now_s, batch, worked)
        if was_first or not self.in_flight:
            self._turn_s = now_s
        else:  # the first one is still under way, and had to do without what this one took
            first = next(iter(self.in_flight.values()))
            self._turn_s = min(now_s, max(self._turn_s, first.sent_s) + service_s)
        self.heard_s = now_s
        self.end_s = self._turn_s
        for left in self.in_flight.values():
            self.end_s = max(self.end_s, left.sent_s) + left.predicted_s
        return batch, service_s

    def _service_s(self, now_s: float, batch: SentBatch, worked: BatchTimes | None) -> float:
        if worked is None:
            return max(0.0, now_s - max(batch.sent_s, self._turn_s))
        if not batch.alone:
            return worked.work_s
        # Nothing hid the way there and back.
        return worked.work_s + max(0.0, now_s - batch.sent_s - worked.stay_s)

    def _is_overdue(self, now_s: float) -> bool:
        late_s = now_s - self.end_s
        if late_s <= _OVERDUE_LEAST_S:
            return False
        return late_s > _OVERDUE_TIMES * sum(batch.predicted_s for batch in self.in_flight.values())
