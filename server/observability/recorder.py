"""Looks at the counters once a second, and keeps the last looks: how fast it goes now."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from server.observability.readings import Reading, Stretch, between
from server.supervision import Tasks

__all__ = ["Recorder"]

_EVERY_S = 1.0
_RECENT_S = 10


class Recorder:
    """read: the counters as they are now, on the event loop."""

    def __init__(
        self, read: Callable[[], Reading], tasks: Tasks | None = None, *, every_s: float = _EVERY_S
    ) -> None:
        self._read = read
        self._tasks = tasks or Tasks()
        self._every_s = every_s
        self._readings: deque[Reading] = deque(maxlen=_RECENT_S + 1)

    def start(self) -> None:
        """Begin."""
        self._readings.append(self._read())
        self._tasks.always("record", self._record)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def recent(self) -> Stretch:
        """The last ten seconds, or less right after the start."""
        return between(self._readings[0], self._read())

    async def _record(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self._readings.append(self._read())
