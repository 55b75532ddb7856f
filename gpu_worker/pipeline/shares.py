"""Whose the worker's time is: what each batch takes of it, also where several are worked on at once.

While one batch is worked on, on however many threads, the time is all its own; while several are, each has an
equal part. So the shares of all batches add up to the time in which the worker had work, in whatever order
they end. A batch's share falls into parts by the same rule: while several of its threads work, each has an
equal part of the batch's time. Knows no rows and no models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["COMMON", "Part", "Share", "Shares"]

COMMON = 0  # the number of what is done for all parts at once


class Shares:
    """The worker's clock. Thread-safe.

    `_fair_s` is what a batch that is always worked on would have had so far: it advances at 1/n while n
    batches are. The share of any batch is a difference of two of its readings, so nothing loops over batches.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._batches = 0  # being worked on
        self._fair_s = 0.0
        self._read_s = 0.0

    def share(self) -> Share:
        """That of one more batch."""
        return Share(self)

    def _enter(self, share: Share) -> None:
        with self._lock:
            fair_s = self._now()
            share._divide(fair_s)
            if share._threads == 0:
                share._entered_s = fair_s
                self._batches += 1
            share._threads += 1
            share._at[COMMON] += 1

    def _leave(self, share: Share) -> None:
        with self._lock:
            fair_s = self._now()
            share._divide(fair_s)
            share._threads -= 1
            share._at[COMMON] -= 1
            if share._threads == 0:
                share.seconds += fair_s - share._entered_s
                self._batches -= 1

    def _move(self, share: Share, part: int, other: int) -> None:
        with self._lock:
            share._divide(self._now())
            share._at[part] -= 1
            share._at[other] = share._at.get(other, 0) + 1

    def _now(self) -> float:
        now_s = self._clock()
        if self._batches:
            self._fair_s += (now_s - self._read_s) / self._batches
        self._read_s = now_s
        return self._fair_s


class Share:
    """`with share:` around each piece of a batch's work, in any thread; `seconds` counts what has ended.

    `with share.part(number):` within that, around what is done for that part; `parts_s` counts it. All that
    is done outside is `COMMON`. Of a batch that is over, the parts add up to `seconds`.
    """

    __slots__ = ("_at", "_divided_s", "_entered_s", "_of", "_threads", "parts_s", "seconds")

    def __init__(self, of: Shares) -> None:
        self._of = of
        self._threads = 0
        self._at = {COMMON: 0}  # threads, by part
        self._entered_s = self._divided_s = 0.0
        self.seconds = 0.0
        self.parts_s = {COMMON: 0.0}

    def part(self, number: int) -> Part:
        """What a thread that works on the batch does for part `number`, from 1."""
        return Part(self, number)

    def _divide(self, fair_s: float) -> None:
        """Divides what the batch has had since the last time among its threads."""
        if self._threads:
            each_s = (fair_s - self._divided_s) / self._threads
            for part, threads in self._at.items():
                self.parts_s[part] = self.parts_s.get(part, 0.0) + threads * each_s
        self._divided_s = fair_s

    def __enter__(self) -> None:
        self._of._enter(self)

    def __exit__(self, *_: object) -> None:
        self._of._leave(self)


class Part:
    """A thread's work for one part of a batch, between enter and exit."""

    __slots__ = ("_number", "_share")

    def __init__(self, share: Share, number: int) -> None:
        self._share = share
        self._number = number

    def __enter__(self) -> None:
        self._share._of._move(self._share, COMMON, self._number)

    def __exit__(self, *_: object) -> None:
        self._share._of._move(self._share, self._number, COMMON)
