"""Whose the worker's time is: what each batch takes of it, also where several are worked on at once.

While one batch is worked on, on however many threads, the time is all its own; while several are, each has an
equal part. So the shares of all batches add up to the time in which the worker had work, in whatever order
they end. Knows no rows and no models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Share", "Shares"]


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
            if share._threads == 0:
                share._entered_s = fair_s
                self._batches += 1
            share._threads += 1

    def _leave(self, share: Share) -> None:
        with self._lock:
            fair_s = self._now()
            share._threads -= 1
            if share._threads == 0:
                share.seconds += fair_s - share._entered_s
                self._batches -= 1

    def _now(self) -> float:
        now_s = self._clock()
        if self._batches:
            self._fair_s += (now_s - self._read_s) / self._batches
        self._read_s = now_s
        return self._fair_s


class Share:
    """`with share:` around each piece of a batch's work, in any thread; `seconds` counts what has ended."""

    __slots__ = ("_entered_s", "_of", "_threads", "seconds")

    def __init__(self, of: Shares) -> None:
        self._of = of
        self._threads = 0
        self._entered_s = 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._of._enter(self)

    def __exit__(self, *_: object) -> None:
        self._of._leave(self)
