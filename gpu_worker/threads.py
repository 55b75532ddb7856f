"""A fixed group of threads that take tasks in the order given."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Threads"]


class Threads:
    """`count` threads, all started by the first `start`, `each` or `submit`.

    All at once, because a thread inherits the signal mask of the one that starts it: inside a database
    backend the caller blocks every signal around that first use, and none may be started later.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, name, initializer=_leave_signals_to_others)
        self._starting = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Starts the threads, if they do not run yet."""
        with self._starting:
            if not self._started:
                self._everywhere(lambda: None)
                self._started = True

    def each(self, task: Callable[[], None]) -> None:
        """Runs `task` once in every thread, between other tasks, and waits for the last."""
        self.start()
        with self._starting:
            self._everywhere(task)

    def submit(self, task: Callable[..., None], *arguments: Any) -> Future[None]:  # noqa: ANN401 (passed on)
        """Queues a call. Raises `RuntimeError` after `close`."""
        if not self._started:
            self.start()
        return self._pool.submit(task, *arguments)

    def close(self) -> None:
        """Drops what waits, waits for what runs, ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _everywhere(self, task: Callable[[], None]) -> None:
        # Nobody passes the barrier before every thread holds one of these calls.
        together = threading.Barrier(self.count)

        def call() -> None:
            together.wait()
            task()

        for future in [self._pool.submit(call) for _ in range(self.count)]:
            future.result()


def _leave_signals_to_others() -> None:
    """Signals are for the process's main thread: inside a database backend, for the database."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
