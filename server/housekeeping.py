"""What happens on the side: hung workers end, what was measured and learned is stored, leftovers are removed.

A task each, so that a registry which answers late, or not at all, keeps no hung worker alive. Owns what waits
to be written; a registry that cannot be written costs these notes a delay, never a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from server.catalog.functions import ModelVersion
from server.catalog.latencies import Latencies
from server.errors import ServiceError
from server.placement.residency import Residency
from server.serving.dispatcher import Dispatcher
from server.store.repository import Repository
from server.supervision import Tasks

__all__ = ["Housekeeping", "Measured"]

log = logging.getLogger("ml_udf.server.housekeeping")

_EVERY_S = 1.0
_WRITE_EVERY_S = 15.0
_TIDY_EVERY_S = 3600.0


class Measured:
    """What loads showed and is not stored yet: model → (resident bytes, seconds of its load)."""

    def __init__(self) -> None:
        self.waiting: dict[ModelVersion, tuple[int, float]] = {}
        self.came = asyncio.Event()

    def __call__(self, model: ModelVersion, resident_bytes: int, load_s: float) -> None:
        """Note a load; the newest of a model counts."""
        self.waiting[model] = (resident_bytes, load_s)
        self.came.set()


class Housekeeping:
    """`worker_hang_s` 0 = no worker counts as hung."""

    def __init__(
        self,
        repository: Repository,
        latencies: Latencies,
        dispatcher: Dispatcher,
        residency: Residency,
        measured: Measured,
        worker_hang_s: float,
        tasks: Tasks | None = None,
        *,
        every_s: float = _EVERY_S,
        write_every_s: float = _WRITE_EVERY_S,
        tidy: Callable[[float], object] = lambda now_s: None,
    ) -> None:
        """tidy: removes what killed processes left in the home folder, as of that time. Blocking."""
        self._repository = repository
        self._latencies = latencies
        self._dispatcher = dispatcher
        self._residency = residency
        self._measured = measured
        self._worker_hang_s = worker_hang_s
        self._tasks = tasks or Tasks()
        self._every_s = every_s
        self._write_every_s = write_every_s
        self._tidy = tidy
        self._stored: dict[str, float] = {}  # model key → its last use, as the registry has it

    def start(self) -> None:
        """Begin."""
        if self._worker_hang_s:
            self._tasks.always("watch workers", self._watch_workers)
        self._tasks.always("store notes", self._store_notes)
        self._tasks.always("tidy", self._keep_tidy)

    async def close(self) -> None:
        """Stop, after a last write."""
        await self._tasks.close()
        await asyncio.wait({self._tasks.once("store notes", self._store())})

    async def _watch_workers(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self._dispatcher.end_hung_workers(self._worker_hang_s)

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.to_thread(self._tidy, time.time())
            await asyncio.sleep(_TIDY_EVERY_S)

    async def _store_notes(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._write_every_s):
                    await self._measured.came.wait()
            await self._store()

    async def _store(self) -> None:
        self._measured.came.clear()
        last_used = self._residency.last_used()
        self._stored = {key: at_s for key, at_s in self._stored.items() if key in last_used}
        used = {key: at for key, at in last_used.items() if at > self._stored.get(key, 0.0)}
        await self._latencies.save(used)
        try:
            for model, (resident_bytes, load_s) in list(self._measured.waiting.items()):
                await asyncio.to_thread(self._repository.measured, model, resident_bytes, load_s)
                if self._measured.waiting.get(model) == (resident_bytes, load_s):
                    del self._measured.waiting[model]
            if used:
                noted = {_named(key): (at, self._residency.rows_per_s(key)) for key, at in used.items()}
                await asyncio.to_thread(self._repository.touched, noted)
                self._stored |= used
        except (SQLAlchemyError, ServiceError, OSError) as error:  # they stay noted, for the next time
            log.error("registry not written error=%r", str(error.__cause__ or error))


def _named(key: str) -> tuple[str, int]:
    name, _, version = key.rpartition("/")
    return name, int(version)
