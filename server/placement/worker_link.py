"""One life of a worker as a place of models: the messages that move them, one after the other.

    load    Load → Loaded | Failed; `give_up` cancels it, and it still ends with its reply
    unload  Unload → Done | Failed
    read    Read → Done | Failed, beside a load: into the host's memory, ahead of a load of its own
    listed  ListResidents → what it holds, by its own word

A worker that does not carry one out within its patience is killed, and counts as lost. Knows no policy and no
wish.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpu_worker.wire.protocol import Failed, ListResidents, Load, Message, Read, ResidentsListed, Unload
from server.catalog.functions import ModelVersion
from server.errors import WorkerLost
from server.workers.pool import Worker

__all__ = ["Differences", "WorkerLink", "differences"]

_LISTED_S = 10.0  # patience with a listing; whether the worker lives at all is its supervision's to see


class WorkerLink:
    """What one worker's link does, and what the worker has said of itself.

    gone: whether the worker is lost. word: its own, as it came last, at `word_at_s` (Unix time; None = it has
    said nothing yet).
    """

    def __init__(self, worker: Worker, patience_s: float) -> None:
        self.worker = worker
        self.gone = False
        self.word: ResidentsListed | None = None
        self.word_at_s: float | None = None
        self._patience_s = patience_s
        self._moving: frozenset[str] = frozenset()  # models that come or leave now
        self._moved: set[str] = set()  # the same since a listing was asked for
        self._loading: tuple[str, int] | None = None  # model and message id of a load that is not answered
        self._given_up = ""
        self._reading: tuple[str, int] | None = None  # model and message id of a reading ahead under way

    @property
    def name(self) -> str:
        """The worker's."""
        return self.worker.name

    def begin(self, models: Iterable[str]) -> None:
        """These move now; nothing of it is given up yet."""
        self._moving = frozenset(models)
        self._moved |= self._moving
        self._given_up = ""

    def over(self) -> None:
        """Nothing moves now."""
        self._moving = frozenset()

    async def load(self, model: ModelVersion) -> Message:
        """`Loaded`; or `Failed`, of code `cancelled` where it was given up in time."""
        if self.has_given_up(model.key):
            return Failed(0, "cancelled", f"the load of {model.key} was given up before it began")
        try:
            return await self._call(
                Load(0, model.key, str(model.directory)), f"loading {model.key}", loads=model.key
            )
        finally:
            self._loading = None

    def give_up(self, key: str) -> None:
        """Nobody wants that model's load any more; nothing if it is over, or was given up before."""
        if key not in self._moving or self.has_given_up(key):
            return
        self._given_up = key
        if self._loading is not None and self._loading[0] == key:
            self.worker.cancel(self._loading[1])

    def has_given_up(self, key: str) -> bool:
        """Whether that model's load was given up since it began."""
        return self._given_up == key

    async def unload(self, key: str) -> Message:
        """`Done` or `Failed`."""
        return await self._call(Unload(0, key), f"unloading {key}")

    def read(self, model: ModelVersion) -> None:
        """Have the model read into the host's memory, beside what moves; another that is read is given up."""
        self.stop_reading(but=model.key)
        if self._reading is None:
            message = Read(0, model.key, str(model.directory))
            self._reading = model.key, self.worker.send(message, self._was_read)

    def stop_reading(self, *, but: str = "") -> None:
        """Whatever is read ahead is wanted no more, but that model."""
        if self._reading is not None and self._reading[0] != but:
            self.worker.cancel(self._reading[1])
            self._reading = None

    def _was_read(self, reply: Message) -> None:
        if self._reading is not None and self._reading[1] == reply.id:
            self._reading = None

    async def listed(self) -> tuple[ResidentsListed, frozenset[str]] | None:
        """What the worker holds, and what has moved since it was asked; None where it does not say."""
        self._moved = set(self._moving)
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.worker.send(ListResidents(0), functools.partial(_arrived, reply))
        await asyncio.wait({reply}, timeout=_LISTED_S)
        if self.gone or not reply.done() or not isinstance(told := reply.result(), ResidentsListed):
            return None
        self.word, self.word_at_s = told, time.time()
        return told, frozenset(self._moved)

    async def _call(self, message: Message, what: str, *, loads: str = "") -> Message:
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        message_id = self.worker.send(message, functools.partial(_arrived, reply))
        if loads:
            self._loading = loads, message_id
        await asyncio.wait({reply}, timeout=self._patience_s)
        if reply.done():
            return reply.result()
        reason = f"{what} took over {self._patience_s:g} s"
        self.worker.kill(reason)
        return Failed(message_id, WorkerLost.code, reason)


@dataclass(frozen=True, slots=True)
class Differences:
    """Models that are believed to be on a worker and are not (missing), and the other way round (unknown)."""

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def differences(believed: Collection[str], told: Collection[str], moved: Collection[str] = ()) -> Differences:
    """moved: what moved meanwhile, of which neither side can be sure."""
    sure, there = set(believed).difference(moved), set(told).difference(moved)
    return Differences(tuple(sorted(sure - there)), tuple(sorted(there - sure)))


def _arrived(awaited: asyncio.Future[Message], reply: Message) -> None:
    if not awaited.done():
        awaited.set_result(reply)
