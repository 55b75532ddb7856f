"""An open-loop load generator: rows leave when the trace says, whatever became of the ones before.

Latency counts from the moment in the trace, not from when a connection was free or the loop had time, so that
no omission is coordinated with the server. One request is one row over HTTP/1.1 with kept-alive connections,
opened as the load needs them. The simulator takes the same traces.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

__all__ = ["Outcome", "Replay", "closed_loop", "in_turn", "replay", "request_bytes"]

_CONNECT_TIMEOUT_S = 5.0
_PATIENCE_S = 10.0  # for answers after the last row has left
_LONG_PATIENCE_S = 60.0  # the same, of rows without a goal


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row: seconds since it was due to leave, and the HTTP status; 0 = no answer.

    body: the answer's, where answers are kept.
    """

    at_s: float
    latency_s: float
    status: int
    body: bytes = b""


@dataclass(slots=True)
class Replay:
    """All rows of a trace. `lag_s`: how late the generator itself was, at worst."""

    outcomes: list[Outcome] = field(default_factory=list)
    lag_s: float = 0.0

    def good(self, slo_s: float) -> int:
        """Rows answered within their goal."""
        return sum(one.status == 200 and one.latency_s <= slo_s for one in self.outcomes)

    def late(self, slo_s: float) -> int:
        """Rows answered, but too late."""
        return sum(one.status == 200 and one.latency_s > slo_s for one in self.outcomes)

    def refused(self) -> int:
        """Rows refused by the server's own decision."""
        return sum(one.status in (503, 504) for one in self.outcomes)

    def lost(self) -> int:
        """Rows with another answer, or none."""
        return sum(one.status not in (200, 503, 504) for one in self.outcomes)

    def quantile_s(self, share: float) -> float:
        """Latency that `share` of the answered rows stay within."""
        answered = sorted(one.latency_s for one in self.outcomes if one.status == 200)
        if not answered:
            return math.nan
        return answered[min(len(answered) - 1, math.ceil(share * len(answered)) - 1)]


class _Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time: `ask` returns the status and the body."""

    def __init__(self, idle: list[_Connection]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((0, b""))

    @property
    def alive(self) -> bool:
        return self._transport is not None

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        length = 0
        for line in head.split(b"\r\n")[1:]:
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        answer, self._answer = self._answer, None
        if b"connection: close" in head:
            self.close()
        else:
            self._idle.append(self)
        if answer is not None and not answer.done():
            answer.set_result((int(head[9:12]), body))


def request_bytes(url: str, path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """A POST request, whole."""
    host = urlsplit(url).netloc
    lines = (
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def replay(
    url: str, arrivals_s: Sequence[float], request_of: Callable[[int], bytes], *, keeps_answers: bool = False
) -> Replay:
    """Send `request_of(number)` at each arrival, seconds from now; the answers, in the order of the trace.

    keeps_answers: whether the outcomes hold the answers' bodies. Raises OSError if the server cannot be
    reached at the beginning.
    """
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    loop = asyncio.get_running_loop()
    idle: list[_Connection] = []
    every: list[_Connection] = []

    async def connect() -> _Connection:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(lambda: _Connection(idle), host, port)
        every.append(connection)
        return connection

    async def one(number: int, due_s: float) -> Outcome:
        status, body = 0, b""
        try:
            connection = next_idle() or await connect()
            status, body = await connection.ask(request_of(number))
        except OSError:
            pass
        took_s = time.perf_counter() - due_s
        return Outcome(arrivals_s[number], took_s, status, body if keeps_answers else b"")

    def next_idle() -> _Connection | None:
        while idle:
            connection = idle.pop()
            if connection.alive:
                return connection
        return None

    idle += [await connect() for _ in range(8)]
    result = Replay()
    tasks: list[asyncio.Task[Outcome]] = []
    began_s = time.perf_counter() + 0.05
    for number, arrival_s in enumerate(arrivals_s):
        due_s = began_s + arrival_s
        if (early_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(early_s)
        result.lag_s = max(result.lag_s, time.perf_counter() - due_s)
        tasks.append(loop.create_task(one(number, due_s)))
    done, unanswered = await asyncio.wait(tasks, timeout=_PATIENCE_S) if tasks else (set(), set())
    for task in unanswered:
        task.cancel()
    result.outcomes = [
        task.result() if task in done else Outcome(arrivals_s[number], math.inf, 0)
        for number, task in enumerate(tasks)
    ]
    for connection in every:
        connection.close()
    return result


async def closed_loop(
    url: str, connections: int, seconds: float, request_of: Callable[[int], bytes]
) -> float:
    """As many callers, each asking anew as soon as it is answered: answers per second.

    Raises OSError if a connection breaks, ValueError if an answer is not 200.
    """
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    loop = asyncio.get_running_loop()
    answered = 0

    async def caller(number: int) -> None:
        nonlocal answered
        _, connection = await loop.create_connection(lambda: _Connection([]), host, port)
        turn = 0
        while time.perf_counter() < end_s:
            status, _ = await connection.ask(request_of(number + connections * turn))
            if status != 200:
                raise ValueError(f"a caller was answered {status}")
            turn += 1
            answered += 1
        connection.close()

    began_s = time.perf_counter()
    end_s = began_s + seconds
    await asyncio.gather(*(caller(number) for number in range(connections)))
    return answered / (time.perf_counter() - began_s)


async def in_turn(url: str, clients: int, seconds: float, request_of: Callable[[int], bytes]) -> Replay:
    """So many clients, each of whom sends the next request of one sequence as soon as its last is answered.

    No request begins after `seconds`; their outcomes, in the order of the sequence. Raises OSError if a
    connection breaks, TimeoutError if an answer does not come.
    """
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    loop = asyncio.get_running_loop()
    numbers = itertools.count()
    outcomes: dict[int, Outcome] = {}

    async def client() -> None:
        while (at_s := time.perf_counter() - began_s) < seconds:
            number = next(numbers)
            if not idle or not idle[-1].alive:
                raise ConnectionError(f"{url} has closed a connection")
            connection = idle.pop()
            status, body = await connection.ask(request_of(number))
            outcomes[number] = Outcome(at_s, time.perf_counter() - began_s - at_s, status, body)

    idle: list[_Connection] = []
    every = [(await loop.create_connection(lambda: _Connection(idle), host, port))[1] for _ in range(clients)]
    idle += every
    began_s = time.perf_counter()
    try:
        async with asyncio.timeout(seconds + _LONG_PATIENCE_S), asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
    finally:
        for connection in every:
            connection.close()
    return Replay([outcomes[number] for number in sorted(outcomes)])
