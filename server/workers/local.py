"""Worker processes on this machine: started, watched, started again when they die.

Each is a child at the other end of a socketpair. A child whose socket closes ends by itself, so that no
worker outlives its server, not even one that was killed. Knows processes, not models.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_worker.wire.protocol import Failed, Message, Ping, Pong
from server.supervision import Tasks
from server.workers.channel import Channel
from server.workers.pool import OnReply, WorkerInfo, WorkerListener, WorkerStatus

__all__ = ["LocalPool", "LocalWorker", "Timing"]

log = logging.getLogger("ml_udf.server.workers")

_SECOND_LOOK_S = 0.5  # if this process stood still itself, the answer is there and not yet read

# The command of worker number i, given its end of the socket.
CommandFor = Callable[[int, int], Sequence[str]]


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


class LocalWorker:
    """One life of a worker process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.name = name
        self.process = process
        self._channel = channel
        self.info = WorkerInfo("", "", 0)

    def send(self, message: Message, on_reply: OnReply) -> int:
        """See `Worker.send`."""
        return self._channel.send(message, on_reply)

    async def call(self, message: Message) -> Message:
        """See `Worker.call`."""
        return await self._channel.call(message)

    def cancel(self, message_id: int) -> None:
        """See `Worker.cancel`."""
        self._channel.cancel(message_id)

    def kill(self, reason: str) -> None:
        """See `Worker.kill`."""
        log.error("worker killed worker=%s pid=%d reason=%r", self.name, self.process.pid, reason)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        # One that cannot die yet, as while its disk stands still, is lost all the same.
        self._channel.abort()

    async def end(self, grace_s: float) -> None:
        """Hang up and ask to end; force it after the grace, and leave it behind after another."""
        self._channel.close()
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        except TimeoutError:
            self.kill("it did not end when asked to")
            try:
                async with asyncio.timeout(grace_s):
                    await self.process.wait()
            except TimeoutError:
                log.error(
                    "worker left behind, it cannot be ended worker=%s pid=%d", self.name, self.process.pid
                )


class LocalPool:
    """`count` workers; `command_for(index, fd)` is the command line of each.

    environment: their variables; None for this process's own. prefix: of their names.
    """

    def __init__(
        self,
        count: int,
        command_for: CommandFor,
        timing: Timing | None = None,
        tasks: Tasks | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: str = "w",
    ) -> None:
        self._environment = environment
        self._command_for = command_for
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
            self._note(index, state="down", pid=None, last_error=reason, last_error_at=time.time())
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

        channel = Channel(on_lost)
        process = await self._spawn(index, channel)
        worker = LocalWorker(name, process, channel)
        self._note(index, pid=process.pid)
        try:
            try:
                async with asyncio.timeout(self._timing.start_s):
                    pong = await channel.call(Ping(0))
            except TimeoutError:
                return f"it did not answer within {self._timing.start_s:g} s of its start"
            if not isinstance(pong, Pong):
                return pong.message if isinstance(pong, Failed) else f"it answered a ping with {pong.kind}"
            worker.info = WorkerInfo(pong.device, pong.device_name, pong.capacity_bytes)
            self._note(index, state="up", info=worker.info)
            log.info(
                "worker up worker=%s pid=%d device=%s name=%r",
                name,
                process.pid,
                pong.device,
                pong.device_name,
            )
            announced = True
            listener.worker_up(worker)
            reason = await self._watch(worker, lost)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    status = await process.wait()
                reason = f"{reason}; exit status {status}"
            return reason
        finally:
            await worker.end(self._timing.term_grace_s)

    async def _watch(self, worker: LocalWorker, lost: asyncio.Future[str]) -> str:
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

    async def _spawn(self, index: int, channel: Channel) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *self._command_for(index, theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=self._environment,
                # A terminal's Ctrl-C is the server's to handle: it lets its workers finish first.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=ours)
        return process

    def _note(self, index: int, **changes: Any) -> None:  # noqa: ANN401  # fields of WorkerStatus
        self._states[index] = replace(self._states[index], **changes)


def _arrived(awaited: asyncio.Future[Message], reply: Message) -> None:
    if not awaited.done():
        awaited.set_result(reply)
