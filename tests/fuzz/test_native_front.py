"""The native front beside the Python one and two parsers of others, on the same bytes in any pieces.

What it takes by itself must be what `Connection` would have taken, and the replies the same to the byte
(`front_waves`; `many_requests` goes on with them). And whatever is called in whatever order, with memory that
runs out: nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from server.http.connection import ConnectionLimits
from tests.fuzz.budget import FUZZ_SECONDS, rounds
from tests.fuzz.front_waves import Seen, Waves
from tests.fuzz.sanitized import fail_after, has_faults, use_sanitized_front
from tests.fuzz.test_request_head import Application, mutated

if TYPE_CHECKING:
    from server.http.native._front import Front
    from server.http.native.connections import NativeConnections

pytestmark = pytest.mark.security


@pytest.fixture(autouse=True, scope="module")
def front_is_built(request: pytest.FixtureRequest) -> None:
    """With `make fuzz-front` the one that watches its memory."""
    if not use_sanitized_front():
        request.getfixturevalue("native_front")


class NativeDoor:
    """A connection of the native front's, by a pair of sockets."""

    def __init__(self, connections: NativeConnections) -> None:
        self.connections = connections
        self.mine, theirs = socket.socketpair()
        self.mine.setblocking(False)
        connections.adopt(theirs)
        self.written = b""
        self.ended = False

    def feed(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.mine.sendall(data)

    async def settled(self) -> None:
        for _ in range(12):
            self.connections._turn(time.monotonic())
            await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.mine.recv(1 << 16):
                self.written += data
            self.ended = True

    async def close(self) -> None:
        self.mine.close()
        for _ in range(4):
            self.connections._turn(time.monotonic())
            await asyncio.sleep(0)


def test_both_fronts_and_two_other_parsers_understand_requests_alike() -> None:
    async def compare() -> Seen:
        waves = Waves()
        for seed in rounds(40):
            await waves.run(seed)
        await waves.close()
        return waves.seen

    seen = asyncio.run(compare())
    assert seen.read > 100 * seen.waves
    assert seen.in_c > seen.read / 4  # so that the comparison is of what C has taken
    assert seen.shaped > seen.read / 50
    assert seen.together > seen.read / 100
    assert seen.replied > seen.read  # some are refused, in the same words


SHAPE = b'{"parameters":{"timeout":%d},"inputs":[{"parameters":{"binary_data_size":9}}]}'
HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


def _new_front() -> Front:
    from server.http.native._front import Front

    return Front(
        held_bytes=50_000,
        ordinary_bytes=20_000,
        heads=4,
        head_s=10.0,
        idle_s=75.0,
        slow_s=10.0,
        least_bytes_per_s=1024.0,
    )


def template_of(head: bytes) -> str:
    """The same object for the same head."""
    return sys.intern(f"template {head!r}")


class Walk:
    """Whatever may be called, in whatever order, also of connections that are gone."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.front = _new_front()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.strangers: list[socket.socket] = []  # whose ids nobody knows
        self.clients: dict[int, socket.socket] = {}
        self.ids: list[int] = [0, 1 << 40, (1 << 64) - 1]
        self.asked: dict[int, tuple[Any, bytes]] = {}
        self.now_s = 0.0
        self.refused = 0

    def step(self) -> None:
        name = self.random.choice(_STEPS)
        with contextlib.suppress(MemoryError):
            getattr(self, name)()

    def adopt(self) -> None:
        if len(self.clients) > 12:
            return
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        theirs.setblocking(False)
        if self.random.random() < 0.3:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # a client that reads slowly
        try:
            id_ = self.front.adopt(theirs.fileno(), self.random.choice([b"127.0.0.1", b""]), 7)
        except MemoryError:
            mine.close()
            theirs.close()
            raise
        theirs.detach()
        self.clients[id_] = mine
        self.ids.append(id_)

    def accept(self) -> None:
        if len(self.clients) > 12:
            return
        mine = socket.create_connection(self.listening.getsockname())
        mine.setblocking(False)
        before = self.front.counts()["connections"]
        with contextlib.suppress(OSError):  # no memory for it
            self.front.accept(self.listening.fileno(), 5, self.random.choice([0, 50, 50]), b"r" * 200)
        if self.front.counts()["connections"] > before:
            self.strangers.append(mine)
        else:
            mine.close()

    def send(self) -> None:
        if not self.clients:
            return
        mine = self.clients[self.random.choice(list(self.clients))]
        body = b"x" * self.random.choice([1, 10, 5000, 30_000])
        if self.random.random() < 0.5:
            body = SHAPE % self.random.choice([5, 7, 5000]) + body
        data = HEAD % len(body) + body
        data *= self.random.choice([1, 1, 3])
        if self.random.random() < 0.4:
            data = mutated(self.random, data)
        with contextlib.suppress(OSError):
            mine.send(data[: self.random.choice([1, 40, 1000, 1 << 20])])

    def vanish(self) -> None:
        if self.clients:
            id_ = self.random.choice(list(self.clients))
            if self.random.random() < 0.3:
                with contextlib.suppress(OSError):
                    self.clients[id_].shutdown(socket.SHUT_WR)
            else:
                self.clients.pop(id_).close()

    def read(self) -> None:
        for mine in self.clients.values():
            with contextlib.suppress(OSError):
                mine.recv(1 << 16)

    def turn(self) -> None:
        for kind, id_, first, second in self.front.turn():
            assert kind in range(9)
            if kind == 8:
                assert (id_, first) == (0, "counter")
                assert second > 0
                self.refused += second
            if kind in (0, 6, 7):
                assert isinstance(first, str)
                body = second[1] if kind == 7 else second
                assert 0 < len(body) <= 20_000
                self.asked[id_] = first, body
        assert self.front.counts()["held_bytes"] <= 50_000

    def flush(self) -> None:
        self.front.flush()

    def reply(self) -> None:
        id_ = self.random.choice(self.ids)
        size = self.random.choice([0, 5, 200_000])
        self.front.reply(id_, b"HTTP/1.1 200 OK\r\n", b"r" * size, self.random.random() < 0.1)

    def learn(self) -> None:
        head = HEAD % 5
        if self.random.random() < 0.5:
            head = mutated(self.random, head)
        size = self.random.choice([0, 0, len(SHAPE % 5), len(SHAPE % 5000)])
        ids = list(self.clients) if self.clients and self.random.random() < 0.8 else self.ids
        self.front.learn(self.random.choice(ids), head, template_of(head), 20_000, size)

    def learn_shape(self) -> None:
        json_part = SHAPE % self.random.choice([5, 5000])
        if self.random.random() < 0.5:
            json_part = mutated(self.random, json_part)
        self.front.shape_of(json_part)
        self.front.learn_shape(json_part, self.random.choice([None, "shape"]))

    def shut(self) -> None:
        shape = self.random.choice([None, None, "shape", "another"])
        numbers = tuple(self.random.choice([5, 7, 5000]) for _ in range(self.random.choice([0, 1, 2, 2])))
        until_s = time.monotonic() + self.random.choice([-1.0, 9.0, 9.0, 9.0])
        reply = b"r" * self.random.choice([0, 20, 20, 100_000])
        self.front.shut(template_of(HEAD % 5), shape, numbers, until_s, reply, "counter")

    def forget(self) -> None:
        self.front.forget(template_of(HEAD % 5))

    def one(self) -> None:
        id_ = self.random.choice(self.ids)
        kind = self.random.randrange(9)
        if kind == 0:
            self.front.hand_over(id_)
        elif kind <= 3:
            self.front.take_back(id_)
        elif kind == 4:
            self.front.write(id_, b"w" * self.random.choice([0, 10, 100_000]))
        elif kind == 5:
            assert self.front.buffered(id_) >= 0
        elif kind == 6:
            self.front.read_on(id_, self.random.random() < 0.7)
        elif kind == 7:
            self.front.end_output(id_)
        else:
            self.front.peer(id_)

    def end(self) -> None:
        id_ = self.random.choice(self.ids)
        (self.front.close_one if self.random.random() < 0.5 else self.front.abort)(id_)

    def look(self) -> None:
        self.now_s += self.random.choice([0.0, 1.0, 50.0])
        self.front.look(time.monotonic() + self.now_s % 100)

    def starve(self) -> None:
        fail_after(self.random.choice([-1, 0, 1, 2, 5, -1]))

    def finish(self) -> None:
        fail_after(-1)
        for mine in (*self.clients.values(), *self.strangers):
            mine.close()
        self.listening.close()
        for id_ in self.ids:
            self.front.abort(id_)
        for _ in range(3):
            self.front.turn()
        counts = self.front.counts()
        assert (counts["connections"], counts["held_bytes"]) == (0, 0)
        self.front.close()


_STEPS = [
    *["send"] * 8,
    *["turn"] * 8,
    *["reply"] * 4,
    *["read", "flush", "learn", "learn_shape", "one"] * 3,
    *["shut"] * 5,
    *["adopt", "adopt", "accept", "vanish", "end", "look", "forget", "starve"],
]


def test_nothing_is_left_behind_whatever_is_called_in_whatever_order() -> None:
    taken = refused = 0
    for seed in rounds(150):
        walk = Walk(random.Random(seed))
        for _ in range(200):
            walk.step()
        taken += len(walk.asked)
        refused += walk.refused
        walk.finish()
    assert taken > 50
    assert refused > 5


def test_memory_that_runs_out_costs_one_client_and_no_other() -> None:
    if not has_faults():
        pytest.skip("failures of malloc are injected by `make fuzz-front`")
    for allowed in range(12):
        front = _new_front()
        pairs = [socket.socketpair() for _ in range(2)]
        ids = []
        for mine, theirs in pairs:
            theirs.setblocking(False)
            ids.append(front.adopt(theirs.fileno(), b"", 0))
            theirs.detach()
            mine.sendall(HEAD % 9000 + b"x" * 9000)
        fail_after(allowed)
        with contextlib.suppress(MemoryError):
            front.turn()
        fail_after(-1)
        for _ in range(3):
            front.turn()
        mine, theirs = socket.socketpair()
        theirs.setblocking(False)
        id_ = front.adopt(theirs.fileno(), b"", 0)
        theirs.detach()
        mine.sendall(b"hello")
        assert (1, id_, b"hello", 0.0) in front.turn()
        front.close()


@pytest.mark.skipif(not FUZZ_SECONDS, reason="takes 20,000 open files: `make fuzz-front`")
def test_thousands_of_clients_that_send_by_drops_or_vanish_cost_nobody_else_an_answer() -> None:
    """10,000 of them, or as many as a process may open files for: both ends are here."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, (before[1] - 300) // 2)
    if count < 1000:
        pytest.skip(f"a process may open {before[1]} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))

    async def all_of_them() -> None:
        from server.http.native.connections import NativeConnections

        application = Application()
        connections = NativeConnections(application, ConnectionLimits(connections=count))
        doors = [NativeDoor(connections) for _ in range(count)]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            with socket.create_connection(listening.getsockname()) as refused:
                assert connections.accept(listening, 5) == 1
                assert refused.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        assert connections.counts()["connections"] == count
        first = doors[0]
        first.feed(HEAD % 5 + b"hello")
        await first.settled()
        head = HEAD % 9
        for cut in (len(head) + 1, len(head) + 5, len(head) + 9):  # the head at once: it is known
            at = 0 if cut == len(head) + 1 else cut - 4
            for door in doors[1:]:
                door.feed((head + b"123456789")[at:cut])
            for _ in range(count // 256 + 2):
                connections._turn(time.monotonic())
                await asyncio.sleep(0)
        assert connections.counts()["held_bytes"] == 0
        assert len(application.read) == count
        assert connections.counts()["requests"] == count - 1
        for door in doors[1::2]:
            door.mine.close()
        for _ in range(count // 256 + 2):
            connections._turn(time.monotonic())
            await asyncio.sleep(0)
        assert connections.counts()["connections"] == count - len(doors[1::2])
        reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        for door in doors[2::2]:
            assert door.mine.recv(1000) == reply
            door.mine.close()
        await first.close()
        for _ in range(count // 256 + 2):
            connections._turn(time.monotonic())
            await asyncio.sleep(0)
        assert connections.counts()["connections"] == 0
        connections.shutdown()

    try:
        asyncio.run(all_of_them())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(autouse=True)
def enough_memory() -> Iterator[None]:
    yield
    fail_after(-1)


def test_a_front_says_what_it_is_given_wrongly() -> None:
    from server.http.native._front import Front

    front = _new_front()
    with pytest.raises(ValueError, match="at most 64 bytes"):
        front.adopt(0, b"x" * 65, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        front.adopt(1 << 20, b"", 0)
    front.close()
    with pytest.raises(ValueError, match="the front is closed"):
        front.turn()
    with pytest.raises(ValueError, match="heads must be"):
        Front(
            held_bytes=1,
            ordinary_bytes=1,
            heads=0,
            head_s=1.0,
            idle_s=1.0,
            slow_s=1.0,
            least_bytes_per_s=1.0,
        )
