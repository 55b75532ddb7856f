"""The server's background tasks: each is watched, none dies unseen.

    once(kind, work)      a piece of work; its failure is logged and counted
    always(kind, work)    what runs as long as its owner; when it fails it begins again, after a pause

`Tasks` are those of one owner, who closes them. The `Supervisor` counts for the whole server, and ends it
when a task that nothing is served without keeps failing. Knows no task by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

__all__ = ["Backoff", "Supervisor", "Tasks"]

log = logging.getLogger("ml_udf.server.supervision")

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How failing tasks are begun again."""

    pause_first_s: float = 0.1
    pause_most_s: float = 30.0
    steady_s: float = 60.0  # a task that ran so long has recovered: its failures are counted anew
    most_failures: int = 10  # in a row, of a task that nothing is served without


class Supervisor:
    """Counts of all tasks. `end_server(reason)` is called when a vital one fails again and again."""

    def __init__(
        self, end_server: Callable[[str], None] = lambda reason: None, backoff: Backoff = Backoff()
    ) -> None:
        self.backoff = backoff
        self.failures: Counter[str] = Counter()  # by kind, since the start
        self.running: Counter[str] = Counter()  # by kind, now
        self._end_server = end_server

    def tasks(self) -> Tasks:
        """The tasks of one owner."""
        return Tasks(self)

    def failed(self, kind: str, name: str, error: BaseException | None) -> None:
        """Count and log a failure."""
        self.failures[kind] += 1
        log.error("task failed task=%r kind=%s", name or kind, kind, exc_info=error)

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception handler of the event loop: callbacks are counted as one kind, and logged as ever."""
        self.failures["callback"] += 1
        loop.default_exception_handler(context)

    def give_up(self, name: str, failures: int) -> None:
        """A vital task cannot be kept running."""
        reason = f"{name} failed {failures} times in a row; the log holds the causes"
        log.critical("ending the server reason=%r", reason)
        self._end_server(reason)


class Tasks:
    """The background tasks of one owner; without a supervisor, one of their own counts them."""

    def __init__(self, supervisor: Supervisor | None = None) -> None:
        self._supervisor = supervisor or Supervisor()
        self._tasks: set[asyncio.Task[None]] = set()

    def once(self, kind: str, work: Work, name: str = "") -> asyncio.Task[None]:
        """Do some work in the background."""
        supervisor = self._supervisor
        task = asyncio.create_task(work, name=name or kind)
        self._tasks.add(task)
        supervisor.running[kind] += 1

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            supervisor.running[kind] -= 1
            if not task.cancelled() and (error := task.exception()) is not None:
                supervisor.failed(kind, name, error)

        task.add_done_callback(over)
        return task

    def always(
        self, kind: str, work: Callable[[], Work], name: str = "", *, vital: bool = False
    ) -> asyncio.Task[None]:
        """Keep work running until it returns; `vital`: the server ends if that cannot be done."""
        return self.once(kind, self._kept(kind, work, name or kind, vital), name)

    async def close(self) -> None:
        """Cancel all, and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _kept(self, kind: str, work: Callable[[], Work], name: str, vital: bool) -> None:
        loop, backoff = asyncio.get_running_loop(), self._supervisor.backoff
        failures, pause_s = 0, backoff.pause_first_s
        while True:
            began_s = loop.time()
            try:
                await work()
                return
            except asyncio.CancelledError as error:
                # Of something that it waited for, perhaps: only who is cancelled itself may go.
                this = asyncio.current_task()
                if this is None or this.cancelling():
                    raise
                self._supervisor.failed(kind, name, error)
            except Exception as error:
                self._supervisor.failed(kind, name, error)
            if loop.time() - began_s >= backoff.steady_s:
                failures, pause_s = 0, backoff.pause_first_s
            failures += 1
            if vital and failures >= backoff.most_failures:
                self._supervisor.give_up(name, failures)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, backoff.pause_most_s)
