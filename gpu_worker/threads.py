"""A fixed group of threads that take tasks in the order given."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Threads"]


class Threads:
    """`count` threads, all started by the first `start` or `submit`.

    All at once, because a thread inherits the signal mask of the one that starts it: inside a database
    backend the caller blocks every signal around that first use, and none may be started later.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, name, initializer=_leave_signals_to_others)
        self._starting = threading.Lock()
        self._started = False
        self._setups: list[Callable[[], None]] = []
        self._done = threading.local()  # .count: how many of the setups this thread has run

    def start(self) -> None:
        """Starts the threads, if they do not run yet."""
        with self._starting:
            if not self._started:
                self._start_all()
                self._started = True

    def set_up(self, setup: Callable[[], None]) -> None:
        """Every thread runs `setup` once, before the next of its tasks; nobody waits for the others.

        It must not raise.
        """
        self._setups.append(setup)

    def submit(self, task: Callable[..., None], *arguments: Any) -> Future[None]:  # noqa: ANN401 (passed on)
        """Queues a call. Raises `RuntimeError` after `close`."""
        if not self._started:
            self.start()
        return self._pool.submit(self._run, task, *arguments)

    def close(self) -> None:
        """Drops what waits, waits for what runs, ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 (passed on)
        done = getattr(self._done, "count", 0)
        if done < len(self._setups):
            for setup in self._setups[done:]:
                setup()
                done += 1
            self._done.count = done
        task(*arguments)

    def _start_all(self) -> None:
        # Nobody passes the barrier before every thread holds one of these calls.
        together = threading.Barrier(self.count)
        for future in [self._pool.submit(together.wait) for _ in range(self.count)]:
            future.result()


def _leave_signals_to_others() -> None:
    """Signals are for the process's main thread: inside a database backend, for the database."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
