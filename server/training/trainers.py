"""The workers as training sees them: who is alive, and one message with its reply. Knows no study."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from gpu_worker.wire.protocol import Failed, Message
from server.errors import BadInput, BadOption, NoSpace, Overloaded, ServiceError, WorkerLost
from server.workers.pool import Worker, WorkerListener

__all__ = ["Ask", "Trainers", "error_of", "expect"]

_Reply = TypeVar("_Reply", bound=Message)


class Trainers:
    """A listener in front of another: both hear of workers that come and go."""

    def __init__(self, inner: WorkerListener, patience_s: float) -> None:
        self._inner = inner
        self._patience_s = patience_s
        self._workers: dict[str, Worker] = {}
        self._busy: Counter[str] = Counter()
        self._withdrawn: set[str] = set()
        self._came = asyncio.Event()
        self.on_up: Callable[[Worker], None] = lambda worker: None

    def worker_up(self, worker: Worker) -> None:
        """See `WorkerListener.worker_up`."""
        self._inner.worker_up(worker)
        self._workers[worker.name] = worker
        self._came.set()
        self.on_up(worker)

    def worker_down(self, worker: Worker) -> None:
        """See `WorkerListener.worker_down`."""
        self._inner.worker_down(worker)
        if self._workers.get(worker.name) is worker:
            del self._workers[worker.name]
        if not self._workers:
            self._came.clear()

    def alive(self) -> list[Worker]:
        """The live workers, by name."""
        return [self._workers[name] for name in sorted(self._workers)]

    def withdraw(self, name: str) -> None:
        """Nothing new is asked of the worker; what it is at goes on."""
        self._withdrawn.add(name)

    def readmit(self, name: str) -> None:
        """It may be asked again."""
        self._withdrawn.discard(name)

    def is_withdrawn(self, worker: Worker) -> bool:
        """Whether nothing new is asked of the worker."""
        return worker.name in self._withdrawn

    def is_busy(self, name: str) -> bool:
        """Whether a trial or a question is under way there."""
        return self._busy[name] > 0

    async def anyone(self, *, pictures: bool = False) -> Worker:
        """The live worker with the fewest trials and questions under way, soon; with `pictures` sooner one
        that sees the files of photos than one that is sent them. Raises `Overloaded`.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                await self._came.wait()
        except TimeoutError:
            raise Overloaded("no worker is up; GET /v1/workers says how they fare", 10.0) from None

        def cost(worker: Worker) -> tuple[bool, bool, int]:
            is_sent = pictures and not worker.info.sees_pictures
            return self.is_withdrawn(worker), is_sent, self._busy[worker.name]

        return min(self.alive(), key=cost)

    async def ask(self, message: Message, *, pictures: bool = False) -> Message:
        """The reply of a worker that has the least to do; it may be a `Failed`. As `anyone`.

        Where its process dies, another one is asked, or its successor, once.
        """
        for is_last in (False, True):
            worker = await self.anyone(pictures=pictures)
            with self.busy(worker):
                reply = await worker.call(message)
            if is_last or not (isinstance(reply, Failed) and reply.code == WorkerLost.code):
                break
        return reply

    @contextlib.contextmanager
    def busy(self, worker: Worker) -> Iterator[None]:
        """While it is entered, the worker has one thing more to do."""
        self._busy[worker.name] += 1
        try:
            yield
        finally:
            self._busy[worker.name] -= 1


class Ask:
    """One message under way. `cancel` takes it back; its reply comes all the same."""

    def __init__(self, worker: Worker, message: Message) -> None:
        self._worker = worker
        self._reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.id = worker.send(message, self._arrived)

    async def reply(self) -> Message:
        """The reply; it may be a `Failed`."""
        return await self._reply

    def cancel(self) -> None:
        """Ask the worker to stop."""
        self._worker.cancel(self.id)

    def _arrived(self, message: Message) -> None:
        if not self._reply.done():  # its awaiter may have been cancelled
            self._reply.set_result(message)


def expect(reply: Message, kind: type[_Reply]) -> _Reply:
    """The reply, if it is one of that kind. Raises the error that it stands for."""
    if isinstance(reply, kind):
        return reply
    raise error_of(reply)


def error_of(reply: Message) -> ServiceError:
    """The error that an unwanted reply stands for."""
    if not isinstance(reply, Failed):
        return ServiceError(f"a worker answered with {reply.kind!r}")
    if reply.code == WorkerLost.code:
        return WorkerLost(reply.message)
    if reply.code == NoSpace.code:
        return NoSpace(reply.message)
    if reply.code == BadOption.code:
        return BadOption(reply.message)
    if reply.code.startswith("input_"):
        return BadInput(reply.code, reply.message)
    return ServiceError(reply.message)
