"""A worker in memory: it holds what it is told to load and answers when the test says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpu_worker.wire.protocol import (
    Answer,
    Done,
    Failed,
    Infer,
    ListResidents,
    Load,
    Loaded,
    Message,
    Read,
    ResidentsListed,
    RowError,
    Unload,
)
from server.workers.pool import OnReply, WorkerInfo
from tests.answers import classified


@dataclass(eq=False)
class FakeWorker:
    """Loads and unloads at once; batches wait in `batches` unless `answers` says to answer by itself."""

    name: str = "w0"
    sizes: dict[str, int] = field(default_factory=dict)
    unloadable: dict[str, str] = field(default_factory=dict)  # model → code with which its load fails
    answers: bool = False
    stalled: set[type[Message]] = field(default_factory=set)  # kinds that it does not get on with
    cancels: bool = True  # loads that it is stuck with, when asked to
    host: dict[str, int] = field(default_factory=dict)
    capacity_bytes: int = 0  # a model that does not fit beside the others is refused; 0 = no bound
    held: list[tuple[Message, OnReply]] = field(default_factory=list)  # messages that it is stuck with
    info: WorkerInfo = field(default_factory=lambda: WorkerInfo("cpu", "fake", 0))
    resident: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    batches: list[tuple[Infer, OnReply]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def send(self, message: Message, on_reply: OnReply) -> int:
        message.id = next(self.ids)
        if isinstance(message, Infer):
            self.batches.append((message, on_reply))
            if self.answers:
                asyncio.get_running_loop().call_soon(self._answer_what_is_left)
        elif type(message) in self.stalled:
            self.held.append((message, on_reply))
        else:
            asyncio.get_running_loop().call_soon(on_reply, self._carried_out(message))
        return message.id

    async def call(self, message: Message) -> Message:
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.send(message, lambda came: None if reply.done() else reply.set_result(came))
        return await reply

    def cancel(self, message_id: int) -> None:
        """A load that it is stuck with is given up at once; whatever else is only noted."""
        self.cancelled.append(message_id)
        for place, (message, on_reply) in enumerate(self.held):
            if message.id == message_id and isinstance(message, Load) and self.cancels:
                del self.held[place]
                self.loads.append(message.model)
                asyncio.get_running_loop().call_soon(on_reply, Failed(message_id, "cancelled", "given up"))
                return

    def kill(self, reason: str) -> None:
        self.killed.append(reason)

    def answer(self, label: Callable[[bytes], str] = bytes.decode, errors: tuple[int, ...] = ()) -> None:
        """Answer the oldest batch: `label` of each row, confidence 1."""
        message, on_reply = self.batches.pop(0)
        labels = ["" if i in errors else label(row) for i, row in enumerate(message.rows)]
        sizes = [part.rows for part in message.parts] or [len(labels)] * len(message.models)
        firsts = [sum(sizes[:place]) if message.parts else 0 for place in range(len(sizes))]
        members = [
            classified(model, labels[first : first + size], [1.0] * size)
            for model, first, size in zip(message.models, firsts, sizes, strict=True)
        ]
        faults = [RowError(i, "input_invalid", "bad row") for i in errors]
        on_reply(Answer(message.id, members, faults, 0.001, 0.002))

    def _answer_what_is_left(self) -> None:
        if self.batches:  # else it died meanwhile
            self.answer()

    def fail(
        self,
        code: str = "worker_lost",
        message: str = "its socket closed",
        wanted_bytes: int = 0,
        missing: Sequence[str] = (),
    ) -> None:
        """Fail the oldest batch."""
        infer, on_reply = self.batches.pop(0)
        on_reply(Failed(infer.id, code, message, wanted_bytes=wanted_bytes, missing=list(missing)))

    def go_on(self) -> None:
        """Carry out the message that it has been stuck with for longest."""
        message, on_reply = self.held.pop(0)
        on_reply(self._carried_out(message))

    def size(self, model: str) -> int:
        """Bytes of a model."""
        return self.sizes.get(model, 10)

    def _carried_out(self, message: Message) -> Message:
        if isinstance(message, Load):
            self.loads.append(message.model)
            if message.model in self.unloadable:
                code = self.unloadable[message.model]
                return Failed(message.id, code, "it cannot be loaded")
            size = self.size(message.model)
            held_bytes = sum(self.size(key) for key in self.resident)
            if self.capacity_bytes and held_bytes + size > self.capacity_bytes:
                return Failed(message.id, "overloaded", "there is no room for it", wanted_bytes=size)
            self.resident.append(message.model)
            return Loaded(message.id, size, 0.001)
        if isinstance(message, ListResidents):
            return ResidentsListed(message.id, {key: self.size(key) for key in self.resident}, self.host)
        if isinstance(message, Read):
            self.reads.append(message.model)
            return Done(message.id)
        assert isinstance(message, Unload)
        self.unloads.append(message.model)
        if message.model not in self.resident:
            return Failed(message.id, "unknown_function", "it is not resident")
        self.resident.remove(message.model)
        return Done(message.id)


async def settle(turns: int = 50) -> None:
    """Let everything happen that needs no time."""
    for _ in range(turns):
        await asyncio.sleep(0)
