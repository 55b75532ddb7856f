"""Boxes cut out of pictures by the workers, who have the files and the threads; never on the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gpu_worker.wire.devices import REMOTE
from gpu_worker.wire.protocol import Crop as CropMessage
from gpu_worker.wire.protocol import Cropped, Failed, Message, RowError
from server.errors import BadOption, Overloaded, ServiceError, WorkerLost
from server.workers.pool import Worker

__all__ = ["Cropper", "Pieces", "message_of"]

_TRIES = 20
_LOSSES = 2  # of workers under the same pictures: one of them may be what kills them
_WAIT_S = 0.05  # until a worker that had no room is asked again


@dataclass(frozen=True, slots=True)
class Pieces:
    """What was cut out. by_row: the pieces of each picture, as encoded images, in the order of its boxes ·
    errors: by row; such a row has no pieces · later: rows that are to be cut once these pieces are used.
    """

    by_row: list[list[bytes]]
    errors: dict[int, RowError]
    later: list[int]


class Cropper:
    """`workers()`: those that live. Asks the one that has the fewest pictures to cut."""

    def __init__(self, workers: Callable[[], Collection[Worker]]) -> None:
        self._workers = workers
        self._under_way: Counter[str] = Counter()  # pictures, by worker

    async def cut(self, asked: CropMessage, deadline_s: float = math.inf) -> Pieces:
        """The pieces of some pictures; given up as soon as whoever waits is cancelled.

        While no worker is up, they wait for one, as the rows of the stages do. Raises `Overloaded` where none
        takes them, `WorkerLost`, `BadOption`, `ServiceError`.
        """
        tries = losses = 0
        while tries < _TRIES:
            worker = self._next()
            if worker is None:
                await asyncio.sleep(_WAIT_S)
                continue
            tries += 1
            asked.patience_s = 0.0 if deadline_s == math.inf else max(0.001, deadline_s - time.monotonic())
            reply = await self._sent(worker, asked)
            if isinstance(reply, Cropped):
                return _pieces(reply, len(asked.rows))
            failed = reply if isinstance(reply, Failed) else Failed(0, "internal", f"it said {reply.kind!r}")
            if failed.code == WorkerLost.code:
                losses += 1
                if losses >= _LOSSES:
                    raise WorkerLost(f"{losses} workers died while they cut these pictures")
            elif failed.code == BadOption.code:
                raise BadOption(failed.message)
            elif failed.code not in (Overloaded.code, "cancelled"):
                raise ServiceError(failed.message)
            await asyncio.sleep(_WAIT_S)
        raise Overloaded("no worker has room to cut pictures; try again soon")

    def _next(self) -> Worker | None:
        there = [worker for worker in self._workers() if worker.info.device != REMOTE]
        return min(there, key=lambda worker: self._under_way[worker.name], default=None)

    async def _sent(self, worker: Worker, asked: CropMessage) -> Message:
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def came(message: Message) -> None:
            self._under_way[worker.name] -= len(asked.rows)
            if not reply.done():  # who waited may be cancelled
                reply.set_result(message)

        self._under_way[worker.name] += len(asked.rows)
        number = worker.send(asked, came)
        try:
            return await reply
        except asyncio.CancelledError:
            worker.cancel(number)
            raise


def _pieces(reply: Cropped, rows: int) -> Pieces:
    """Raises `ServiceError` for a reply that does not fit."""
    if len(reply.counts) != rows or sum(reply.counts) != len(reply.crops) or len(reply.later) >= rows:
        raise ServiceError(f"a worker cut {len(reply.counts) - len(reply.later)} pictures of {rows}")
    pieces = iter(reply.crops)
    by_row: list[list[bytes]] = [[next(pieces) for _ in range(count)] for count in reply.counts]
    errors = [RowError(**told) for told in reply.errors]
    return Pieces(by_row, {error.index: error for error in errors}, reply.later)


def message_of(
    form: str,
    rows: Sequence[bytes],
    boxes: Sequence[Sequence[Sequence[float]]],
    margin: float,
    media_roots: Sequence[str] | None,
    narrowed: Sequence[str] | None,
) -> CropMessage:
    """The request to cut these boxes. media_roots, narrowed: both, folders below which paths must lie."""
    return CropMessage(
        0,
        list(rows),
        form,
        [[list(box) for box in of_row] for of_row in boxes],
        margin,
        None if media_roots is None else list(media_roots),
        [] if narrowed is None else [(0, list(narrowed))],
    )
