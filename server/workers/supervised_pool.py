"""Workers by their numbers: started, watched, started again when they die, wherever they live.

Knows lives and their ends; how a worker is started and ended is its launcher's. Knows no model.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpu_worker.wire.protocol import Failed, Message, Ping, Pong
from server.supervision import Tasks
from server.workers.pool import Worker, WorkerInfo, WorkerListener, WorkerStatus

__all__ = ["Launcher", "StartedWorker", "SupervisedPool", "Timing"]

log = logging.getLogger("ml_udf.server.workers")

_SECOND_LOOK_S = 0.5  # if this process stood still itself, the answer is there and not yet read


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient the supervision is, in seconds."""

    start_s: float = 120.0
    backoff_first_s: float = 0.1
    backoff_most_s: float = 5.0  # rows wait for it: a worker killed now and then must not be long away
    steady_s: float = 60.0  # a worker that lived this long is started again at once when it dies
    term_grace_s: float = 5.0
    ping_every_s: float = 2.0
    silent_s: float = 30.0  # without an answer to a ping; then it counts as hung. 0 = never


class StartedWorker(Worker, Protocol):
    """One life of a worker, as its pool holds it. Until it has answered, `info` says only where it is."""

    info: WorkerInfo

    @property
    def pid(self) -> int | None:
        """Of its process, or of that which started it, on its node."""
        ...

    @property
    def node(self) -> str:
        """Where it runs; "" for this machine."""
        ...

    @property
    def sees_pictures(self) -> bool:
        """Whether it reads the files itself that rows name, as training by them wants it."""
        ...

    async def ended(self, reason: str) -> str:
        """Of a worker that was lost, why, with what its end says beside `reason`. Waits a moment for that."""
        ...

    async def end(self, grace_s: float) -> None:
        """Hang up and have it end, by force after the grace; returns when it is gone, or is left behind."""
        ...


class Launcher(Protocol):
    """Starts workers of one kind of place."""

    async def launch(self, index: int, name: str, on_lost: Callable[[str], None]) -> StartedWorker:
        """Start worker number `index`; its socket is connected when this returns.

        on_lost: called once, with the reason, before the worker's replies fail. Raises whatever keeps it from
        starting; nothing of it is left then.
        """
        ...

    async def close(self) -> None:
        """Let go of what is shared by the workers, which have ended."""
        ...


class SupervisedPool:
    """`count` workers that `launcher` starts. prefix: of their names."""

    def __init__(
        self,
        count: int,
        launcher: Launcher,
        timing: Timing | None = None,
        tasks: Tasks | None = None,
        prefix: str = "w",
    ) -> None:
        self._launcher = launcher
        self._timing = timing or Timing()
        self._prefix = prefix
        self._states = {index: self._unborn(index) for index in range(count)}  # by number
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._retired: set[int] = set()
        self._listener: WorkerListener | None = None
        self._tasks = tasks or Tasks()

    async def start(self, listener: WorkerListener) -> None:
        """See `WorkerPool.start`."""
        self._listener = listener
        for index in self._states:
            self._begin(index, listener)

    async def close(self) -> None:
        """See `WorkerPool.close`."""
        self._listener = None
        await self._tasks.close()
        await self._launcher.close()

    def states(self) -> Sequence[WorkerStatus]:
        """See `WorkerPool.states`."""
        return tuple(self._states[index] for index in sorted(self._states))

    def add(self, numbers: Iterable[int]) -> str:
        """See `ElasticPool.add`. Raises RuntimeError before the pool is started, and once it is closed."""
        if self._listener is None:
            raise RuntimeError("the pool does not run")
        index = next((number for number in numbers if number not in self._states), None)
        if index is None:
            raise ValueError("none of these numbers is free")
        self._states[index] = self._unborn(index)
        self._begin(index, self._listener)
        return self._states[index].name

    def retire(self, name: str) -> None:
        """See `ElasticPool.retire`."""
        self._retired.add(self.number(name))

    def keep(self, name: str) -> None:
        """See `ElasticPool.keep`."""
        index = self.number(name)
        self._retired.discard(index)
        if self._listener is not None and self._lives[index].done():
            self._note(index, restarts=self._states[index].restarts + 1)
            self._begin(index, self._listener)

    async def end(self, name: str) -> None:
        """See `ElasticPool.end`."""
        index = next((index for index, state in self._states.items() if state.name == name), None)
        if index is None:
            return
        life = self._lives.get(index)
        if life is not None:
            life.cancel()
            await asyncio.wait({life})
        for kept in (self._lives, self._states):
            kept.pop(index, None)
        self._retired.discard(index)

    async def move(self, name: str) -> None:
        """See `ElasticPool.move`."""
        index = self.number(name)
        life = self._lives.get(index)
        if life is not None:
            life.cancel()
            await asyncio.wait({life})
        self._note(
            index, state="down", pid=None, node="", last_error="it was moved", last_error_at=time.time()
        )
        if self._listener is not None:
            self._note(index, restarts=self._states[index].restarts + 1)
            self._begin(index, self._listener)

    def drain(self, node: str) -> Sequence[str]:
        """See `ElasticPool.drain`: workers of this machine are on no node."""
        raise KeyError(node)

    def undrain(self, node: str) -> None:
        """See `ElasticPool.undrain`."""
        raise KeyError(node)

    def _unborn(self, index: int) -> WorkerStatus:
        return WorkerStatus(f"{self._prefix}{index}", "starting", None, 0, None, "")

    def number(self, name: str) -> int:
        """See `ElasticPool.number`."""
        for index, state in self._states.items():
            if state.name == name:
                return index
        raise KeyError(name)

    def _begin(self, index: int, listener: WorkerListener) -> None:
        life = functools.partial(self._supervise, index, listener)
        name = f"supervise {self._states[index].name}"
        self._lives[index] = self._tasks.always("worker", life, name, vital=True)

    async def _supervise(self, index: int, listener: WorkerListener) -> None:
        """Run one life after the other, until cancelled, or retired and lost."""
        timing = self._timing
        name = self._states[index].name
        backoff_s = timing.backoff_first_s
        for life in itertools.count(self._states[index].restarts):
            began = asyncio.get_running_loop().time()
            self._note(index, state="starting", restarts=life)
            try:
                reason = await self._live(index, listener)
            except Exception as exc:
                log.exception("worker could not be run worker=%s", name)
                reason = str(exc)
            if asyncio.get_running_loop().time() - began > timing.steady_s:
                backoff_s = timing.backoff_first_s
            self._note(index, state="down", pid=None, node="", last_error=reason, last_error_at=time.time())
            if index in self._retired:
                log.warning("worker lost as it was to leave worker=%s reason=%r", name, reason)
                return
            log.warning("worker lost worker=%s reason=%r restart_in_s=%.1f", name, reason, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, timing.backoff_most_s)

    async def _live(self, index: int, listener: WorkerListener) -> str:
        """One life: start, announce, wait for the end. Why it ended."""
        name = self._states[index].name
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        announced = False

        def on_lost(reason: str) -> None:
            if announced:
                listener.worker_down(worker)
            if not lost.done():
                lost.set_result(reason)

        worker = await self._launcher.launch(index, name, on_lost)
        self._note(index, pid=worker.pid, node=worker.node)
        try:
            try:
                async with asyncio.timeout(self._timing.start_s):
                    pong = await worker.call(Ping(0))
            except TimeoutError:
                return f"it did not answer within {self._timing.start_s:g} s of its start"
            if not isinstance(pong, Pong):
                return pong.message if isinstance(pong, Failed) else f"it answered a ping with {pong.kind}"
            worker.info = replace(
                worker.info,
                device=pong.device,
                device_name=pong.device_name,
                capacity_bytes=pong.capacity_bytes,
                sees_pictures=worker.sees_pictures,
            )
            self._note(index, state="up", info=worker.info)
            log.info(
                "worker up worker=%s pid=%s node=%r device=%s name=%r",
                name,
                worker.pid,
                worker.node,
                pong.device,
                pong.device_name,
            )
            announced = True
            listener.worker_up(worker)
            return await worker.ended(await self._watch(worker, lost))
        finally:
            await worker.end(self._timing.term_grace_s)

    async def _watch(self, worker: StartedWorker, lost: asyncio.Future[str]) -> str:
        """Ping until the worker is lost, and kill it if it does not answer. Why it was lost.

        Its reader answers, so this sees a process that is stopped, or whose interpreter is: whatever it was
        at, a load, a warm-up or nothing.
        """
        timing = self._timing
        while timing.silent_s:
            await asyncio.wait({lost}, timeout=timing.ping_every_s)
            if lost.done():
                break
            pong: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            worker.send(Ping(0), functools.partial(_arrived, pong))
            for patience_s in (timing.silent_s, _SECOND_LOOK_S):
                await asyncio.wait({pong}, timeout=patience_s)
            if not pong.done():
                worker.kill(f"it hangs: no answer to a ping within {timing.silent_s:g} s")
        return await lost

    def _note(self, index: int, **changes: Any) -> None:  # noqa: ANN401  # fields of WorkerStatus
        self._states[index] = replace(self._states[index], **changes)


def _arrived(awaited: asyncio.Future[Message], reply: Message) -> None:
    if not awaited.done():
        awaited.set_result(reply)
