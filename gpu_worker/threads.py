"""A fixed group of threads that take tasks in the order given."""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Threads"]

_log = logging.getLogger(__name__)
_Task = Callable[[], object]


class Threads:
    """`count` threads, all started by the first `start`, `put` or `submit`.

    All at once, because a thread inherits the signal mask of the one that starts it: inside a database
    backend the caller blocks every signal around that first use, and none may be started later.

    A queue of their own and no `ThreadPoolExecutor`: a batch of one row is handed over twice or three times,
    and a hand-over with a future, an idle count and two locks costs 20 µs more than one without (2 cores).
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._started = False
        self._closed = False
        self._setups: list[Callable[[], None]] = []
        # Threads that nobody closed end with this object, which they must not refer to, or at exit.
        weakref.finalize(self, _end, self._tasks, count).atexit = False
        _open.add(self)

    def start(self) -> None:
        """Starts the threads, if they do not run yet. Raises `RuntimeError` after `close`."""
        with self._starting:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} are closed, and take nothing more")
            if not self._started:
                self._start_all()
                self._started = True

    def set_up(self, setup: Callable[[], None]) -> None:
        """Every thread runs `setup` once, before the next of its tasks; nobody waits for the others.

        It must not raise.
        """
        self._setups.append(setup)

    def put(self, task: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401 (passed on)
        """Queues a call, of which nobody waits for the outcome: what it raises is logged.

        Raises `RuntimeError` after `close`.
        """
        if not self._started or self._closed:
            self.start()
        self._tasks.put(partial(task, *arguments) if arguments else task)

    def submit(self, task: Callable[..., object], *arguments: Any) -> Future[object]:  # noqa: ANN401 (passed on)
        """Queues a call whose outcome the future brings. Raises `RuntimeError` after `close`."""
        future: Future[object] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(task(*arguments))
            except BaseException as exc:
                future.set_exception(exc)

        self.put(run)
        return future

    def close(self) -> None:
        """Drops what waits, waits for what runs, ends the threads."""
        with self._starting:
            self._closed = True
        with contextlib.suppress(Empty):
            while True:
                self._tasks.get_nowait()
        _end(self._tasks, self.count)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        _open.discard(self)

    def _start_all(self) -> None:
        # Nobody passes the barrier before every thread runs.
        together = threading.Barrier(self.count + 1)
        for number in range(self.count):
            thread = threading.Thread(
                target=_take_tasks,
                args=(self._tasks, self._setups, together),
                name=f"{self._name}_{number}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        together.wait()


def _take_tasks(
    tasks: SimpleQueue[_Task | None], setups: list[Callable[[], None]], together: threading.Barrier
) -> None:
    # Signals are for the process's main thread: inside a database backend, for the database.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    together.wait()
    del together
    done = 0
    while (task := tasks.get()) is not None:
        while done < len(setups):
            setups[done]()
            done += 1
        try:
            task()
        except BaseException:  # sys.exit() in somebody's model ends a task, not a thread that others need
            _log.exception("a task failed of which nobody waits for the outcome")
        del task  # and with it what it refers to: the next one may be long in coming


def _end(tasks: SimpleQueue[_Task | None], count: int) -> None:
    for _ in range(count):
        tasks.put(None)


_open: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for threads in list(_open):
        threads.close()
