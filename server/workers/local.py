"""Worker processes on this machine: each a child at the other end of a socketpair.

A child whose socket closes ends by itself, so that no worker outlives its server, not even one that was
killed. Knows processes, not models.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence

from gpu_worker.wire.protocol import Message
from gpu_worker.wire.shared_rows import SharedRows
from server.supervision import Tasks
from server.workers.channel import Channel
from server.workers.child import start_child
from server.workers.pool import OnReply, WorkerInfo
from server.workers.supervised_pool import SupervisedPool, Timing

__all__ = ["LocalPool", "LocalWorker"]

log = logging.getLogger("ml_udf.server.workers")

# The command of worker number i, given its end of the socket.
CommandFor = Callable[[int, int], Sequence[str]]


class LocalWorker:
    """One life of a worker process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.name = name
        self.process = process
        self._channel = channel
        self.info = WorkerInfo("", "", 0)

    @property
    def pid(self) -> int | None:
        """See `StartedWorker.pid`."""
        return self.process.pid

    @property
    def node(self) -> str:
        """See `StartedWorker.node`."""
        return ""

    @property
    def sees_pictures(self) -> bool:
        """See `StartedWorker.sees_pictures`."""
        return True

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

    async def ended(self, reason: str) -> str:
        """See `StartedWorker.ended`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                reason = f"{reason}; exit status {await self.process.wait()}"
        return reason

    async def end(self, grace_s: float) -> None:
        """See `StartedWorker.end`; after the grace it is killed, and after another left behind."""
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


class _Processes:
    """Starts workers as children of this process. environment: their variables; None for its own."""

    def __init__(
        self, command_for: CommandFor, environment: Mapping[str, str] | None, *, shares_rows: bool
    ) -> None:
        self._command_for = command_for
        self._environment = environment
        self._shares_rows = shares_rows

    async def launch(self, index: int, name: str, on_lost: Callable[[str], None]) -> LocalWorker:
        """See `Launcher.launch`."""
        shared = self._shared_rows()
        channel = Channel(on_lost, shared=shared)
        try:
            return LocalWorker(name, await self._spawn(index, channel, shared), channel)
        except BaseException:
            if shared is not None:
                shared.close()
            raise

    async def close(self) -> None:
        """See `Launcher.close`: nothing is shared."""

    def _shared_rows(self) -> SharedRows | None:
        if not self._shares_rows:
            return None
        try:
            return SharedRows()
        except OSError as exc:
            log.warning("no memory can be shared with a worker, its rows go through its socket: %s", exc)
            return None

    async def _spawn(
        self, index: int, channel: Channel, shared: SharedRows | None
    ) -> asyncio.subprocess.Process:
        def command(fd: int) -> Sequence[str]:
            plain = self._command_for(index, fd)
            return plain if shared is None else [*plain, f"--rows-fd={shared.fd}"]

        fds = () if shared is None else (shared.fd,)
        process, ours = await start_child(command, self._environment, fds)
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=ours)
        return process


class LocalPool(SupervisedPool):
    """`count` workers; `command_for(index, fd)` is the command line of each.

    environment: their variables; None for this process's own. prefix: of their names. shares_rows: large
    rows lie in memory that they see, by a descriptor that `--rows-fd` behind their command line names.
    """

    def __init__(
        self,
        count: int,
        command_for: CommandFor,
        timing: Timing | None = None,
        tasks: Tasks | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: str = "w",
        *,
        shares_rows: bool = False,
    ) -> None:
        launcher = _Processes(command_for, environment, shares_rows=shares_rows)
        super().__init__(count, launcher, timing, tasks, prefix)
