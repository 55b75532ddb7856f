"""What goes wrong meanwhile: a worker hangs, a worker dies, another process locks the registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
from dataclasses import dataclass
from random import Random

from tests.inference_server import InferenceServer
from tests.stress.callers import PATIENCE_S
from tests.stress.wire import Connection, NoAnswer, request

__all__ = ["Faults", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """When, in seconds since the start of a round, and how long a round is.

    A worker that hangs does so for ever: the server has to see it.
    """

    hang_at_s: float = 3.0
    kill_at_s: float = 25.0
    lock_at_s: float = 30.0
    locked_s: float = 20.0
    round_s: float = 60.0


class Faults:
    """Rounds of them until the event is set."""

    def __init__(self, server: InferenceServer, plan: Plan, seed: int) -> None:
        self._server = server
        self._plan = plan
        self._random = Random(f"{seed} faults")
        self._stopped: set[int] = set()
        self.hung = self.killed = self.locked = 0
        self.admin: list[tuple[int, float]] = []  # status of calls while the registry was locked, seconds
        self.wrong: list[str] = []

    async def run(self, until: asyncio.Event) -> None:
        plan = self._plan
        while not until.is_set():
            began_s = asyncio.get_running_loop().time()
            for at_s, act in (
                (plan.hang_at_s, self._hang),
                (plan.kill_at_s, self._kill),
                (plan.lock_at_s, self._lock),
                (plan.round_s, self._rest),
            ):
                left_s = began_s + at_s - asyncio.get_running_loop().time()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(until.wait(), max(0.0, left_s))
                if until.is_set():
                    return
                await act()

    async def _hang(self) -> None:
        self.hung += self._signal(signal.SIGSTOP, but=set())

    async def _kill(self) -> None:
        self.killed += self._signal(signal.SIGKILL, but=self._stopped)

    async def _rest(self) -> None:
        pass

    def _signal(self, number: signal.Signals, but: set[int]) -> int:
        pids = [pid for pid in self._server.worker_pids() if pid not in but]
        if not pids:
            return 0
        pid = self._random.choice(pids)
        if number == signal.SIGSTOP:
            self._stopped.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return 1

    async def _lock(self) -> None:
        """Admin calls tell the truth meanwhile: what is read is there, what is written is, or is not."""
        other = sqlite3.connect(self._server.home / "registry.db", isolation_level=None, timeout=10)
        other.execute("BEGIN EXCLUSIVE")
        try:
            reads = [self._admin("GET", path) for path in ("/v1/models", "/v1/jobs", "/v1/datasets")]
            calls = asyncio.gather(*reads, self._deploy())
            await asyncio.sleep(self._plan.locked_s)
        finally:
            other.execute("ROLLBACK")
            other.close()
        self.locked += 1
        await calls

    async def _admin(self, method: str, path: str, body: bytes = b"") -> int:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            connection = await Connection.to(self._server.port)
            await connection.send(request(path, body, method))
            reply = await connection.reply(PATIENCE_S)
            connection.close()
        except (NoAnswer, OSError) as exc:
            self.wrong.append(f"{method} {path}: {exc}")
            return 0
        self.admin.append((reply.status, loop.time() - began_s))
        if reply.status not in (200, 201, 503):
            self.wrong.append(f"{method} {path}: {reply.code} {reply.body[:200]!r}")
        return reply.status

    async def _deploy(self) -> None:
        before = await self._version()
        status = await self._admin("PUT", "/v1/functions/spare", b'{"models": ["quick_hash"]}')
        after = await self._version()
        if (after > before) != (status in (200, 201)):
            self.wrong.append(f"PUT said {status}, version {before} → {after}")

    async def _version(self) -> int:
        """The version of `spare` that is served."""
        connection = await Connection.to(self._server.port)
        await connection.send(request("/v2/models/spare", b"", "GET"))
        reply = await connection.reply(PATIENCE_S)
        connection.close()
        return int(json.loads(reply.body)["versions"][-1]) if reply.status == 200 else 0
