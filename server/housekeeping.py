"""What happens on the side, once a second: hung workers end, what was measured and learned is stored.

Owns what waits to be written; a registry that cannot be written costs these notes, never a request.
"""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import SQLAlchemyError

from server.dispatcher import Dispatcher
from server.functions import ModelVersion
from server.latencies import Latencies
from server.residency import Residency
from server.store.repository import Repository

__all__ = ["Housekeeping"]

log = logging.getLogger("ml_udf.server.housekeeping")

_EVERY_S = 1.0
_WRITE_EVERY = 15  # rounds


class Housekeeping:
    """`residency` is set before `start`. `worker_hang_s` 0 = no worker counts as hung."""

    residency: Residency

    def __init__(
        self, repository: Repository, latencies: Latencies, dispatcher: Dispatcher, worker_hang_s: float
    ) -> None:
        self._repository = repository
        self._latencies = latencies
        self._dispatcher = dispatcher
        self._worker_hang_s = worker_hang_s
        self._measured: list[tuple[ModelVersion, int, float]] = []
        self._written: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="housekeeping")

    async def close(self) -> None:
        """Stop, after a last write."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()

    def measured(self, model: ModelVersion, resident_bytes: int, load_s: float) -> None:
        """Keep what a load showed."""
        self._measured.append((model, resident_bytes, load_s))

    async def _run(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._worker_hang_s:
                self._dispatcher.end_hung_workers(self._worker_hang_s)
            rounds += 1
            if rounds % _WRITE_EVERY == 0 or self._measured:
                await self._write()

    async def _write(self) -> None:
        measured, self._measured = self._measured, []
        used = {key: at for key, at in self.residency.last_used().items() if at > self._written.get(key, 0.0)}
        self._written |= used
        await self._latencies.save(used)
        try:
            for model, resident_bytes, load_s in measured:
                await asyncio.to_thread(self._repository.measured, model, resident_bytes, load_s)
            if used:
                await asyncio.to_thread(
                    self._repository.touched, {_named(key): at for key, at in used.items()}
                )
        except SQLAlchemyError as error:
            log.error("registry not written error=%r", str(error.__cause__ or error))


def _named(key: str) -> tuple[str, int]:
    name, _, version = key.rpartition("/")
    return name, int(version)
