"""Several requests of one call under way at once, waited for in slices.

Owns the threads. Signals are blocked while a thread is born, so that inside a database backend signals
reach only the main thread, which alone may act on them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

# `signal`'s own makes an enum's member of each of 64 numbers: 130 µs, a third of what a request costs.
from _signal import pthread_sigmask  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Generic, TypeVar

from ml_udf.client.transport import Abort

__all__ = ["RequestPool", "Underway", "signals_blocked"]

WAIT_SLICE_S = 0.05
MAX_THREADS = 64
_EVERY_SIGNAL = frozenset(map(int, signal.valid_signals()))

Task = TypeVar("Task")
Result = TypeVar("Result")


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block all signals for this thread, and so for threads started meanwhile."""
    before = pthread_sigmask(signal.SIG_BLOCK, _EVERY_SIGNAL)
    try:
        yield
    finally:
        pthread_sigmask(signal.SIG_SETMASK, before)


class Underway(Generic[Task, Result]):
    """Tasks that have been begun with, each with what it will return."""

    def __init__(self, pending: dict[Future[Result], Task], abort: Abort) -> None:
        self.pending = pending
        self.abort = abort

    def results(
        self, on_wait: Callable[[], None] | None = None, more: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Task, Result]]:
        """Yield (task, result) as each ends; `more` may add tasks. What anybody raises aborts the rest."""
        try:
            while True:
                more()
                if not self.pending:
                    return
                done, _ = wait(self.pending, WAIT_SLICE_S, FIRST_COMPLETED)
                if on_wait is not None:
                    on_wait()
                for future in done:
                    yield self.pending.pop(future), future.result()
        finally:
            self.drop()

    def drop(self) -> None:
        """Abort what has not ended."""
        if self.pending:
            self.abort.set()
            for future in self.pending:
                future.cancel()
            self.pending = {}


class RequestPool:
    """A pool of threads that carries out tasks with a bound on how many are under way per call."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def run(
        self,
        tasks: Iterable[Task],
        do: Callable[[Task, Abort], Result],
        *,
        max_in_flight: int,
        on_wait: Callable[[], None] | None = None,
    ) -> Iterator[tuple[Task, Result]]:
        """Do every task; yield (task, result) as each ends, at most `max_in_flight` at once.

        `on_wait` runs in the caller's thread at least every 50 ms. Whatever it, a task or the consumer
        raises aborts the other tasks and propagates.
        """
        underway: Underway[Task, Result] = Underway({}, Abort())
        rest = iter(tasks)

        def more() -> None:
            for task in islice(rest, max_in_flight - len(underway.pending)):
                underway.pending[self._submit(do, task, underway.abort)] = task

        yield from underway.results(on_wait, more)

    def begin(
        self,
        tasks: Iterable[Task],
        do: Callable[[Task, Abort, Callable[[], None]], Result],
        *,
        on_wait: Callable[[], None] | None = None,
    ) -> Underway[Task, Result]:
        """Begin with every task at once; return when each has called its third argument, or has ended.

        From then on they need nothing of this thread, not even the interpreter's lock, to be under way: what
        they had to send has left. `on_wait` as in `run`.
        """
        underway: Underway[Task, Result] = Underway({}, Abort())
        left: list[threading.Event] = []

        def one(begun: tuple[Task, threading.Event], abort: Abort) -> Result:
            task, has_left = begun
            try:
                return do(task, abort, has_left.set)
            finally:
                has_left.set()

        try:
            for task in tasks:
                left.append(threading.Event())
                underway.pending[self._submit(one, (task, left[-1]), underway.abort)] = task
            for has_left in left:
                while not has_left.wait(WAIT_SLICE_S):
                    if on_wait is not None:
                        on_wait()
        except BaseException:
            underway.drop()
            raise
        return underway

    def close(self) -> None:
        """Let the threads end."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _submit(self, do: Callable[[Task, Abort], Result], task: Task, abort: Abort) -> Future[Result]:
        if self._process != os.getpid():  # a fork has none of the threads, and the lock as it was just then
            self._pool, self._lock, self._process = None, threading.Lock(), os.getpid()
        with self._lock, signals_blocked():
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ml_udf")
            return self._pool.submit(do, task, abort)
