"""What is to be decoded, and by how many threads at once: as many as get the processor while they do.

Decoding a large photo is a library's work, beside which other threads run; of a small one a part is Python's,
and threads that all want the interpreter wait for it longer than they work. By how much of its time a thread
had the processor the two are told apart. Rows/s of photos of 128×128 by the threads that decode, on 16 slow
cores (a CPU's µs a row below), of nothing but decoding:

    |      1 |      2 |      4 |      8 |     16 |
    | 11,600 | 20,600 | 23,600 | 18,100 | 11,900 |
    |     86 |     87 |    110 |    133 |    172 |

Two always may: where other programs take the cores, a thread's share says nothing of its own. Who is not
needed is not woken: threads that wait for a place to decode in, and find it taken, cost as much as they save.
Knows tasks, threads and seconds, no photos.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from gpu_worker.threads import Threads

__all__ = ["DecodingQueue", "next_width"]

_log = logging.getLogger(__name__)

_LEAST: Final = 2  # threads
_ENOUGH: Final = 0.75  # of its time that a thread should have the processor
_ALL: Final = 0.85  # from which on one more is tried
_JUDGED_S: Final = 0.02  # of threads' time, all together, by which a width is judged


def next_width(width: int, most: int, had_processor: float, *, was_full: bool) -> int:
    """Threads that should decode at once, after `width` did.

    had_processor: the share of their time. was_full: whether there was work for more of them.
    """
    if had_processor < _ENOUGH:
        return max(min(_LEAST, most), min(width, math.ceil(width * had_processor / _ENOUGH)))
    return min(most, width + 1) if had_processor > _ALL and was_full else width


class DecodingQueue:
    """Tasks in the order given, taken by at most `width` of `threads` at once; at first by all of them.

    A thread that has done one takes the next. Thread-safe.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.width = threads.count
        self._waiting: deque[Callable[[], object]] = deque()
        self._inside = 0
        self._was_full = False
        self._worked_s = self._took_s = 0.0
        self._lock = threading.Lock()

    def put(self, tasks: Iterable[Callable[[], object]]) -> None:
        """Queues calls, of which nobody waits for the outcome: what they raise is logged.

        Raises `RuntimeError` after the threads were closed.
        """
        with self._lock:
            self._waiting.extend(tasks)
            called = self._called()
        self._call(called)

    def took(self, worked_s: float, took_s: float) -> None:
        """A task has decoded for `took_s`, and had the processor for `worked_s` of it."""
        with self._lock:
            self._worked_s += worked_s
            self._took_s += took_s
            if self._took_s < _JUDGED_S * self.width:
                return
            share = min(1.0, self._worked_s / self._took_s)
            self.width = next_width(self.width, self._threads.count, share, was_full=self._was_full)
            self._was_full = False
            self._worked_s = self._took_s = 0.0
            called = self._called()
        self._call(called)

    def _called(self) -> int:
        """How many more threads have work and a place; they have it from now on. Holds the lock."""
        called = max(0, min(self.width - self._inside, len(self._waiting)))
        self._inside += called
        self._was_full |= self._inside >= self.width and len(self._waiting) > called
        return called

    def _call(self, called: int) -> None:
        for _ in range(called):
            self._threads.put(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._inside > self.width:
                    self._inside -= 1
                    return
                task = self._waiting.popleft()
                self._was_full |= bool(self._waiting)
            try:
                task()
            except BaseException:  # a thread that others need does not end by one of them
                _log.exception("a task failed of which nobody waits for the outcome")
            del task  # and with it what it refers to: the next one may be long in coming
