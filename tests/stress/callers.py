"""Callers of every kind, each asking again and again until it is told to stop, and what became of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tests.models import label_of
from tests.stress.wire import Connection, NoAnswer, Reply, infer_request, request

__all__ = ["KINDS", "Caller", "Tally"]

PATIENCE_S = 90.0  # an answer that takes longer is none
MOST_ROWS = 65_536  # that a server takes in one request
_REFUSALS = {"503 overloaded", "504 deadline_exceeded"}  # what a busy server may say, and means
_TWICE_LOST = "500 worker_lost"  # two workers died under the same rows


@dataclass(slots=True)
class Tally:
    """What became of the requests of one kind of caller."""

    asked: int = 0
    answered: int = 0  # rightly
    refused: Counter[str] = field(default_factory=Counter)  # as documented
    vanished: int = 0  # they waited for no answer
    wrong: list[str] = field(default_factory=list)  # another answer than the true one, or another error
    lost: list[str] = field(default_factory=list)  # nothing came
    slowest_s: float = 0.0

    @property
    def accounted(self) -> int:
        """Requests of which it is known what became."""
        ended = self.answered + self.refused.total() + self.vanished
        return ended + len(self.wrong) + len(self.lost)


class Caller:
    """One caller of a kind, on a connection that it keeps as long as it can."""

    def __init__(self, port: int, kind: str, tally: Tally, seed: str) -> None:
        self._port = port
        self._ask = KINDS[kind]
        self.tally = tally
        self.random = Random(seed)
        self._connection: Connection | None = None

    async def run(self, until: asyncio.Event) -> None:
        """Ask until the event is set; the last request is waited for."""
        while not until.is_set():
            self.tally.asked += 1
            began_s = asyncio.get_running_loop().time()
            try:
                await self._ask(self)
            except (NoAnswer, OSError) as exc:
                self.tally.lost.append(str(exc))
                await asyncio.sleep(0.05)
            self.tally.slowest_s = max(self.tally.slowest_s, asyncio.get_running_loop().time() - began_s)
        self.hang_up()

    async def connection(self) -> Connection:
        if self._connection is None or not self._connection.is_open or self.random.random() < 0.02:
            self.hang_up()
            self._connection = await Connection.to(self._port)
        return self._connection

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rows(self, least: int, most: int) -> list[str]:
        return [f"row {self.random.getrandbits(40):x}" for _ in range(self.random.randint(least, most))]

    async def asked(self, function: str, rows: list[str], **parameters: object) -> None:
        """Send, wait, and look at the answer."""
        connection = await self.connection()
        await connection.send(infer_request(function, rows, **parameters))
        self.judge(await connection.reply(PATIENCE_S), rows)

    def judge(self, reply: Reply, rows: list[str]) -> None:
        if reply.status == 200:
            if reply.labels() == [label_of(row) for row in rows]:
                self.tally.answered += 1
            else:
                self.tally.wrong.append("another label")
        elif reply.code in _REFUSALS or reply.code == _TWICE_LOST:
            self.tally.refused[reply.code] += 1
        else:
            self.tally.wrong.append(f"{reply.code}: {reply.body[:200]!r}")


async def plain(caller: Caller) -> None:
    await caller.asked("steady", caller.rows(1, 8))
    await asyncio.sleep(caller.random.expovariate(20.0))


async def with_deadlines(caller: Caller) -> None:
    deadline_ms = caller.random.choice([1, 20, 100, 300, 2000])
    await caller.asked("steady", caller.rows(1, 8), ml_udf_deadline_ms=deadline_ms)
    await asyncio.sleep(caller.random.expovariate(20.0))


async def of_a_faulty_policy(caller: Caller) -> None:
    function = caller.random.choice(["faulty_decide", "faulty_observe"])
    await caller.asked(function, caller.rows(1, 8))
    await asyncio.sleep(caller.random.expovariate(10.0))


async def bulk(caller: Caller) -> None:
    await caller.asked("quick", caller.rows(200, 2000), ml_udf_class="bulk")


async def huge(caller: Caller) -> None:
    """The largest are more than a mebibyte of JSON, which another process reads."""
    await caller.asked("quick", caller.rows(20_000, MOST_ROWS))
    await asyncio.sleep(caller.random.uniform(0.5, 2.0))


async def slow(caller: Caller) -> None:
    """The request comes in drops."""
    rows = caller.rows(1, 4)
    data = infer_request("quick", rows)
    connection = await caller.connection()
    cuts = sorted(caller.random.sample(range(1, len(data)), 6))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await connection.send(data[start:end])
        await asyncio.sleep(caller.random.uniform(0.0, 0.4))
    caller.judge(await connection.reply(PATIENCE_S), rows)


async def vanishing(caller: Caller) -> None:
    """Gone before the answer: while its rows wait, in the middle of the request, or at once."""
    connection = await Connection.to(caller._port)
    data = infer_request("steady", caller.rows(1, 16))
    share = caller.random.choice([0.0, 0.3, 0.9, 1.0, 1.0, 1.0])
    with contextlib.suppress(NoAnswer):
        await connection.send(data[: int(share * len(data))])
        await asyncio.sleep(caller.random.uniform(0.0, 0.2))
    (connection.abort if caller.random.random() < 0.5 else connection.close)()
    caller.tally.vanished += 1


_STEADY = "/v2/models/steady/infer"
_RUBBISH: tuple[tuple[str, str, bytes], ...] = (
    ("POST", _STEADY, b"{"),
    ("POST", _STEADY, b"[1, 2, 3]"),
    ("POST", _STEADY, b'{"inputs": []}'),
    ("POST", _STEADY, b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[-1],"data":[]}]}'),
    ("POST", _STEADY, b'{"inputs":[{"name":"nope","datatype":"BYTES","shape":[1],"data":["a"]}]}'),
    ("POST", _STEADY, b'{"inputs":[{"name":"text","datatype":"FP32","shape":[1],"data":[1.0]}]}'),
    ("POST", _STEADY, b"\xff\xfe\x00"),
    ("GET", _STEADY, b"{}"),
    ("POST", "/v2/models/nobody/infer", b"{}"),
    ("POST", "/nowhere", b"{}"),
)


async def malformed(caller: Caller) -> None:
    method, path, body = caller.random.choice(_RUBBISH)
    connection = await Connection.to(caller._port)
    await connection.send(request(path, body, method))
    reply = await connection.reply(PATIENCE_S)
    connection.close()
    if 400 <= reply.status < 500:
        caller.tally.refused[str(reply.status)] += 1
    else:
        caller.tally.wrong.append(f"{reply.code} to rubbish: {body!r}")
    await asyncio.sleep(caller.random.expovariate(20.0))


KINDS: dict[str, Callable[[Caller], Awaitable[None]]] = {
    "plain": plain,
    "with deadlines": with_deadlines,
    "of a faulty policy": of_a_faulty_policy,
    "bulk": bulk,
    "huge": huge,
    "slow": slow,
    "vanishing": vanishing,
    "malformed": malformed,
}
