"""What happens in jobs, sent to whoever watches. On the event loop; who is slow loses the oldest events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

__all__ = ["Events"]

_WAITING = 1_000


class Events:
    """Watchers by job. After `close` every stream ends."""

    def __init__(self) -> None:
        self._watchers: dict[int, set[asyncio.Queue[dict[str, Any] | None]]] = {}
        self._closed = False

    def tell(self, job: int, event: dict[str, Any]) -> None:
        """Something happened in `job`."""
        for queue in self._watchers.get(job, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait({"job": job, **event})

    def end(self, job: int) -> None:
        """Nothing more will happen in `job`."""
        for queue in self._watchers.get(job, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def close(self) -> None:
        """End every stream, and those to come."""
        self._closed = True
        for job in self._watchers:
            self.end(job)

    async def watch(self, job: int) -> AsyncIterator[dict[str, Any]]:
        """What happens in `job` from now on, until it ends."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_WAITING)
        watchers = self._watchers.setdefault(job, set())
        watchers.add(queue)
        try:
            while not self._closed and (event := await queue.get()) is not None:
                yield event
        finally:
            watchers.discard(queue)
            if not watchers:
                self._watchers.pop(job, None)
