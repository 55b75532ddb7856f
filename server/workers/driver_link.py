"""The server's end of a cluster's driver: started when it is needed, asked, and started again when it is
gone.

The driver is a child at the other end of a socketpair (`cluster_driver.py` has its protocol). Every question
has a time. Workers end with the driver that started them, and serve rows while their cluster's head is away:
so a driver is ended only if it misses time after time, as its calls may never come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server.supervision import Tasks
from server.workers.child import start_child

__all__ = ["ClusterError", "DriverLink"]

log = logging.getLogger("ml_udf.server.workers")

_LINE_BYTES = 1 << 22
_END_S = 6.0
_MOST_MISSES = 6  # in a row


class ClusterError(Exception):
    """What the cluster was asked cannot be had; the text says what, and why."""


class DriverLink:
    """command_for(fd): the driver's command line. environment: its variables, with the cluster's token.

    on_lost(host, reason): a host has ended. Once the driver has gone, with "": of
    those that it started no more is heard. connect_s: that joining the cluster may take.
    """

    def __init__(
        self,
        command_for: Callable[[int], Sequence[str]],
        environment: Mapping[str, str] | None,
        on_lost: Callable[[str, str], None],
        connect_s: float = 60.0,
        tasks: Tasks | None = None,
    ) -> None:
        self._command_for = command_for
        self._environment = environment
        self._on_lost = on_lost
        self._connect_s = connect_s
        self._tasks = tasks or Tasks()
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._starting = asyncio.Lock()
        self._misses = 0
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, op: str, within_s: float, **what: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        """The driver's answer. Raises `ClusterError`."""
        async with self._starting:
            if self._writer is None:
                await self._start()
        return await self._ask(op, within_s, what)

    def tell(self, op: str, **what: Any) -> None:  # noqa: ANN401  # JSON
        """Without waiting; nothing where there is no driver, since its hosts end with it."""
        if self._writer is not None:
            self._write({"id": next(self._ids), "op": op, **what})

    async def close(self) -> None:
        """End the driver, and with it every host that is left."""
        async with self._starting:
            await self._end()

    async def _ask(self, op: str, within_s: float, what: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._write({"id": number, "op": op, **what})
            async with asyncio.timeout(within_s):
                told = await answer
        except TimeoutError:
            reason = f"the cluster did not answer {op!r} within {within_s:g} s: is its head there?"
            self._misses += 1
            if self._misses >= _MOST_MISSES and self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            raise ClusterError(reason) from None
        finally:
            self._asked.pop(number, None)
        self._misses = 0
        if "error" in told:
            raise ClusterError(str(told["error"]))
        return told

    def _write(self, asked: dict[str, Any]) -> None:
        if self._writer is None:
            raise ClusterError("the cluster's driver has gone")
        self._writer.write(json.dumps(asked).encode() + b"\n")

    async def _start(self) -> None:
        self._process, ours = await start_child(self._command_for, self._environment)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        self._tasks.once("cluster driver", self._read(reader, self._writer))
        try:
            await self._ask("connect", self._connect_s, {})
        except ClusterError as exc:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()  # its call may never come back
            await self._end()
            raise ClusterError(f"cannot join the cluster: {exc}") from None
        except BaseException:
            await self._end()
            raise

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                told = json.loads(line)
                if "lost" in told:
                    self._on_lost(told["lost"], told["reason"])
                elif (answer := self._asked.get(told["id"])) is not None and not answer.done():
                    answer.set_result(told)
        if self._writer is writer:
            self._writer = None
            log.warning("cluster driver gone")
        writer.close()
        self._on_lost("", "the cluster's driver has gone")
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result({"error": "the cluster's driver has gone"})

    async def _end(self) -> None:
        writer, self._writer = self._writer, None
        process, self._process = self._process, None
        if writer is not None:
            writer.close()
        if process is not None:
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        await self._tasks.close()
