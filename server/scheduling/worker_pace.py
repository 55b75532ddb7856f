"""How much slower or faster one worker is than others of its kind, as far as batches have shown.

A core that others use, a throttled GPU, a node with older memory: the kind of device has the same name, and
batches take longer. One l̂ for all would lie in between, too long for one and too short for the other. So the
median of what a worker's last batches deviated from the kind's curve is held beside that of the others; where
it lies apart, what the curve predicts is multiplied by it there, and its batches teach the curve no more.
Workers that are alike, or alone, are left out of it: their pace is 1. So is always that of the one nearest to
the curve, which it goes on teaching: were all apart, nothing would hold the curve where they are, and it
would drift.

Knows rows and seconds; no clock, no queue. Not kept over restarts: workers get new cores then.
"""

from __future__ import annotations

import math
from statistics import median

__all__ = ["WorkerPace", "WorkerPaces"]

_RECENT = 12  # batches whose median is a worker's pace
_ENOUGH = 6  # of them, before anything is said
_APART = 0.2  # ln: from here on a worker is not like the others
_ALIKE = 0.1  # ln: down to here it stays so
_MOST_WORKERS = 256  # that are remembered; names of workers that came and went are forgotten


class WorkerPace:
    """Of one worker.

    is_apart: whether it is not like the others. deviation: ln, the median of what its recent batches took, of
    the kind's curve without its level.
    """

    __slots__ = ("deviation", "is_apart", "recent")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """As if nothing had run there."""
        self.is_apart = False
        self.deviation = 0.0
        self.recent: list[float] = []

    def ratio(self, level: float) -> float:
        """What a batch takes there, of what it takes on others of a kind whose curve has that level, ln."""
        return math.exp(self.deviation - level) if self.is_apart else 1.0


class WorkerPaces:
    """Of all workers of one kind."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerPace] = {}
        self.are_alike = True  # nobody lies apart

    def of(self, worker: str) -> WorkerPace:
        """That of a worker, the same object as long as it is remembered."""
        pace = self._workers.get(worker)
        if pace is None:
            if len(self._workers) >= _MOST_WORKERS:
                del self._workers[next(iter(self._workers))]
            pace = self._workers[worker] = WorkerPace()
        return pace

    def forget(self) -> None:
        """The curve begins anew, and so does what lies apart from it."""
        for pace in self._workers.values():
            pace.begin()  # whoever predicts by it holds the object
        self.are_alike = True

    def observe(self, pace: WorkerPace, deviation: float, level: float) -> None:
        """A batch on a worker took exp(`deviation`) times the kind's curve without its level, ln, of now.

        Without it, as the level may have moved since others of the workers ran something.
        """
        pace.recent = [*pace.recent, deviation][-_RECENT:]
        if len(self._workers) < 2:
            return
        pace.deviation = median(pace.recent)
        known = [each for each in self._workers.values() if len(each.recent) >= _ENOUGH]
        others = sorted(each.deviation for each in known if each is not pace)
        if not others or len(pace.recent) < _ENOUGH:
            return
        # Of two in the middle the nearer one: where two of three are alike, only the third is apart.
        middle = (others[(len(others) - 1) // 2], others[len(others) // 2])
        apart = min(abs(pace.deviation - each) for each in middle)
        was_apart = pace.is_apart
        pace.is_apart = apart > (_ALIKE if was_apart else _APART)
        if pace.is_apart:
            min(known, key=lambda each: abs(each.deviation - level)).is_apart = False
        if pace.is_apart or was_apart:
            self.are_alike = not any(each.is_apart for each in self._workers.values())
