"""Whose the worker's time is: what each batch takes of it, also where several are worked on at once.

While one batch is worked on, on however many threads, the time is all its own; while several are, each has an
equal part. So the times of all batches add up to the time in which the worker had work, in whatever order
they end. A batch's time falls into parts by the same rule: while several of its threads work, each has an
equal part of the batch's time. Knows no rows and no models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["COMMON", "Part", "WorkClock", "WorkTimer"]

COMMON = 0  # the number of what is done for all parts at once


class WorkClock:
    """The clock of a worker that shares itself among batches. Thread-safe.

    `_fair_s` is what a batch that is always worked on would have had so far: it advances at 1/n while n
    batches are. The time of any batch is a difference of two of its readings, so nothing loops over batches.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._batches = 0  # being worked on
        self._fair_s = 0.0
        self._read_s = 0.0

    def timer(self) -> WorkTimer:
        """A timer for one more batch."""
        return WorkTimer(self)

    def _enter(self, timer: WorkTimer, part: int) -> None:
        with self._lock:
            fair_s = self._now()
            if timer._threads:
                timer._divide(fair_s)
            else:
                timer._divided_s = fair_s
                self._batches += 1
            timer._threads += 1
            timer._at[part] = timer._at.get(part, 0) + 1

    def _leave(self, timer: WorkTimer, part: int) -> None:
        with self._lock:
            timer._divide(self._now())
            timer._threads -= 1
            timer._at[part] -= 1
            if not timer._threads:
                self._batches -= 1

    def _now(self) -> float:
        now_s = self._clock()
        if self._batches:
            self._fair_s += (now_s - self._read_s) / self._batches
        self._read_s = now_s
        return self._fair_s


class WorkTimer:
    """`with timer:` around each piece of a batch's work that is done for all its parts at once (`COMMON`),
    `with timer.part(number):` around what is done for one part; in any thread, never one within the other.

    parts_s: what each part has had, up to when one of its threads last came or went.
    """

    __slots__ = ("_at", "_divided_s", "_of", "_threads", "parts_s")

    def __init__(self, of: WorkClock) -> None:
        self._of = of
        self._threads = 0
        self._at: dict[int, int] = {}  # threads, by part
        self._divided_s = 0.0
        self.parts_s: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """What the batch has had: its parts together."""
        return sum(self.parts_s.values())

    def part(self, number: int) -> Part:
        """What a thread does for part `number`, from 1."""
        return Part(self, number)

    def spared(self, seconds: float, part: int = COMMON) -> None:
        """So long a thread would have worked for a part, or for all at once, beside what is at work now."""
        with self._of._lock:
            beside = max(1, self._threads) * max(1, self._of._batches)
            self.parts_s[part] = self.parts_s.get(part, 0.0) + seconds / beside

    def _divide(self, fair_s: float) -> None:
        """Divides what the batch has had since the last time among its threads."""
        each_s = (fair_s - self._divided_s) / self._threads
        for part, threads in self._at.items():
            self.parts_s[part] = self.parts_s.get(part, 0.0) + threads * each_s
        self._divided_s = fair_s

    def __enter__(self) -> None:
        self._of._enter(self, COMMON)

    def __exit__(self, *_: object) -> None:
        self._of._leave(self, COMMON)


class Part:
    """A thread's work for one part of a batch, between enter and exit."""

    __slots__ = ("_number", "_timer")

    def __init__(self, timer: WorkTimer, number: int) -> None:
        self._timer = timer
        self._number = number

    def __enter__(self) -> None:
        self._timer._of._enter(self._timer, self._number)

    def __exit__(self, *_: object) -> None:
        self._timer._of._leave(self._timer, self._number)
