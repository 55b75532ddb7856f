"""Whose turn it is on a worker: jobs share its training process by time. On the event loop.

Whoever has used least goes next (start-time fair queueing, Goyal et al. 1996): a job that comes later begins
level with the least, so it neither waits for what others had before nor keeps them waiting for what it had
not. A job that has just had its turn, and is still behind all who wait, is waited for a moment (anticipatory
scheduling, Iyer & Druschel 2001): else a job of short epochs would wait for a long one of another after each.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable

__all__ = ["Turns"]

_MOMENT_S = 0.25  # in which a job that goes on has asked again: its report is on the disk by then


class Turns:
    """Of one worker. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used_s: dict[int, float] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._held_by: int | None = None
        self._kept_for: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def join(self, job: int) -> None:
        """A job has work for the worker; nothing if it has joined already."""
        self._used_s.setdefault(job, min(self._used_s.values(), default=0.0))

    def leave(self, job: int) -> None:
        """It has none for now."""
        self._used_s.pop(job, None)
        if self._kept_for == job:
            self._keep_for(None)
            self._choose()

    def in_order(self, jobs: Iterable[int]) -> list[int]:
        """Those that have used least first."""
        least = min(self._used_s.values(), default=0.0)
        return sorted(jobs, key=lambda job: (self._used_s.get(job, least), job))

    @contextlib.asynccontextmanager
    async def turn(self, job: int) -> AsyncIterator[None]:
        """The worker is this job's within the block; one block of a job at a time."""
        await self._taken(job)
        began_s = self._clock()
        try:
            yield
        finally:
            if job in self._used_s:
                self._used_s[job] += self._clock() - began_s
            self._held_by = None
            if len(self._used_s) > 1:
                self._keep_for(job)
            self._choose()

    async def _taken(self, job: int) -> None:
        mine = self._waiting[job] = asyncio.get_running_loop().create_future()
        if self._held_by is None:
            self._choose()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was given, and nobody takes it
                self._held_by = None
            elif self._waiting.get(job) is mine:
                del self._waiting[job]
            self._choose()
            raise

    def _choose(self) -> None:
        if self._held_by is not None or not self._waiting:
            return
        job = self.in_order(self._waiting)[0]
        kept_for = self._kept_for
        if kept_for is not None and kept_for != job and self.in_order((job, kept_for))[0] == kept_for:
            return  # the timer decides
        self._keep_for(None)
        self._held_by = job
        self._waiting.pop(job).set_result(None)

    def _keep_for(self, job: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._kept_for = job
        self._timer = None
        if job is not None:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT_S, self._moment_over)

    def _moment_over(self) -> None:
        self._keep_for(None)
        self._choose()
