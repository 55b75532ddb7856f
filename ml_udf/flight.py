"""Several requests of one call under way at once, waited for in slices.

Owns the threads. Signals are blocked while a thread is born, so that inside a database backend signals
reach only the main thread, which alone may act on them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from ml_udf.transport import Abort

__all__ = ["Flight", "signals_blocked"]

WAIT_SLICE_S = 0.05
MAX_THREADS = 64

Task = TypeVar("Task")
Result = TypeVar("Result")


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block all signals for this thread, and so for threads started meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Flight:
    """A pool of threads that carries out tasks with a bound on how many are under way per call."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

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
        abort = Abort()
        pending: dict[Future[Result], Task] = {}
        rest = iter(tasks)
        try:
            while True:
                for task in islice(rest, max_in_flight - len(pending)):
                    pending[self._submit(do, task, abort)] = task
                if not pending:
                    return
                done, _ = wait(pending, WAIT_SLICE_S, FIRST_COMPLETED)
                if on_wait is not None:
                    on_wait()
                for future in done:
                    yield pending.pop(future), future.result()
        finally:
            if pending:
                abort.set()
                for future in pending:
                    future.cancel()

    def close(self) -> None:
        """Let the threads end."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _submit(self, do: Callable[[Task, Abort], Result], task: Task, abort: Abort) -> Future[Result]:
        with self._lock, signals_blocked():
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ml_udf")
            return self._pool.submit(do, task, abort)
