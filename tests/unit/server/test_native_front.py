"""The native front alone: what it keeps for itself, what it gives away, and what a client may cost there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from server.http.application import Admitted, Refused, Reply, WholeRequest
from server.http.connection import TOO_MANY, ConnectionLimits
from server.http.native.choice import ChosenFront, FrontMissing, choose_front
from server.http.request_head import Head
from tests.unit.server.test_connection import BODY, Application, one_reply, raw, replies, request
from tests.waiting import until

Test = Callable[[Application, Any, int], Awaitable[None]]


@pytest.fixture(autouse=True, scope="module")
def front_is_built(native_front: None) -> None:
    """All of it needs the module."""


def run(test: Test, **limits: float) -> None:
    from tests.unit.server.native_serving import serving_native

    async def body() -> None:
        application = Application()
        async with serving_native(application, ConnectionLimits(**limits)) as (connections, port):  # type: ignore[arg-type]
            await test(application, connections, port)

    asyncio.run(body())


async def taught(port: int) -> None:
    """From here on the head of `request()` is known."""
    await replies(port, [request()], 1)


def test_requests_alike_stay_in_c_on_whatever_connection() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        for size in (1, 300, 20_000, 900_000):
            (answer,) = await replies(port, [request(body=b"x" * size)], 1)
            assert (answer["way"], answer["bytes"]) == ("short", size)
        counts = connections.counts()
        assert (counts["requests"], counts["handed"], application.admitted) == (4, 1, 1)

    run(test)


def test_who_mixes_requests_goes_to_and_fro_on_one_connection() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ways = []
        for one in [request("/health", b""), request(), request(), request("/x"), request(), request()]:
            writer.write(one)
            ways.append((await one_reply(reader))["way"])
        writer.close()
        assert ways == ["long", "short", "short", "long", "short", "short"]
        assert connections.counts()["requests"] == 3  # all but the one that taught it

    run(test)


def test_many_requests_that_come_at_once_are_answered_in_order() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        sizes = [1 + number % 50 for number in range(400)]
        answers = await replies(port, [b"".join(request(body=b"x" * size) for size in sizes)], len(sizes))
        assert [answer["bytes"] for answer in answers] == sizes
        assert connections.counts()["requests"] == len(sizes)

    run(test)


def test_heads_that_are_new_each_time_are_answered_and_do_not_pile_up() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        sent = [request("/v2/models/m/infer", b"x", f"traceparent: {number}") for number in range(1500)]
        answers = await replies(port, [b"".join(sent)], len(sent))
        assert {answer["way"] for answer in answers} == {"short"}
        assert (await replies(port, [sent[-1]], 1))[0]["bytes"] == 1
        assert connections.counts()["requests"] == 1  # the newest of 1,024 that are known

    run(test)


def test_a_head_that_is_no_longer_admitted_is_looked_at_again() -> None:
    class Revoking(Application):
        is_revoked = False

        def admit(self, head: Head, address: str) -> Admitted | Refused:
            return Refused(401, b"{}", {}) if self.is_revoked else super().admit(head, address)

        def still_admits(self, admitted: Admitted) -> bool:
            return not self.is_revoked

    async def test(_plain: Application, connections: Any, port: int) -> None:
        application = connections.application = Revoking()
        await taught(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        assert (await one_reply(reader))["way"] == "short"
        application.is_revoked = True
        writer.write(request() * 2)
        for _again in range(2):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
            assert await one_reply(reader) == {}
        writer.close()
        assert connections.counts()["requests"] == 2  # the second was given away before it was answered

    run(test)


class Refusing(Application):
    """Refuses every request, and those like it for `for_s`."""

    def __init__(self, for_s: float) -> None:
        super().__init__()
        self.for_s = for_s
        self.asked: list[bytes] = []
        self.counted: list[int] = []

    def answer(self, request: WholeRequest, reply: Reply) -> Application | None:
        self.asked.append(request.body)
        if request.body.endswith(b"fine"):
            return super().answer(request, reply)
        body = b'{"error":"no room"}'
        if request.shut is not None:
            request.shut(self.for_s, 503, body, {"Retry-After": "1"}, self.counted.append)
        reply(503, body, {"Retry-After": "1"})
        return None


RAW = "Inference-Header-Content-Length: 0"


def timed(row: bytes, timeout_us: int, tensor: str = "text") -> bytes:
    """A request whose JSON is of the ordinary kind."""
    one = {"name": tensor, "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(row)}}
    parameters = {"binary_data_output": True, "timeout": timeout_us}
    said = json.dumps({"inputs": [one], "parameters": parameters}, separators=(",", ":")).encode()
    return request("/v2/models/m/infer", said + row, f"Inference-Header-Content-Length: {len(said)}")


async def statuses(port: int, *sent: bytes) -> list[bytes]:
    """Of replies to requests on one connection, each sent when the one before was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for one in sent:
        writer.write(one)
        found.append((await reader.readuntil(b"\r\n")).split()[1])
        await one_reply(reader)
    writer.close()
    return found


def test_requests_like_one_that_was_refused_are_refused_unread_for_a_while_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.http.native.connections._MOST_SHUT_S", 0.5)

    async def test(_plain: Application, connections: Any, port: int) -> None:
        application = connections.application = Refusing(0.5)
        raw_one = request("/v2/models/m/infer", b"a photo", RAW)
        other = request("/v2/models/n/infer", b"fine", RAW)
        assert await statuses(port, raw_one, raw_one) == [b"503"] * 2  # taught, then shut
        asked = len(application.asked)
        larger = request("/v2/models/m/infer", b"a larger photo", RAW)
        assert await statuses(port, raw_one, larger, raw_one) == [b"503"] * 3
        assert len(application.asked) == asked
        assert await statuses(port, other, other) == [b"200"] * 2  # another function's
        assert await statuses(port, request("/v2/models/m/infer", b"JSON, fine")) == [b"200"]
        await until(lambda: sum(application.counted) == 3)

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # A body by drops, then two ahead of their turn.
        for piece in (raw_one[:-4], raw_one[-4:-2], raw_one[-2:] + raw_one * 2):
            writer.write(piece)
            await asyncio.sleep(0.002)
        for _ in range(3):
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"503"
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"retry-after: 1\r\n" in head
            assert await reader.readexactly(19) == b'{"error":"no room"}'
        writer.close()
        await until(lambda: sum(application.counted) == 6)
        assert connections.counts()["held_bytes"] == 0

        await asyncio.sleep(0.5)
        asked = len(application.asked)
        await statuses(port, raw_one)
        assert len(application.asked) == asked + 1, "it is asked again once the time is over"

    run(test)


def test_once_a_door_opens_a_few_are_let_in_and_twice_as_many_each_turn() -> None:
    from server.http.native._front import REQUEST, Front

    front = Front(
        held_bytes=1 << 20,
        ordinary_bytes=1 << 20,
        heads=4,
        head_s=5.0,
        idle_s=5.0,
        slow_s=5.0,
        least_bytes_per_s=1.0,
    )
    pairs = [socket.socketpair() for _ in range(30)]
    for mine, theirs in pairs:
        theirs.setblocking(False)
        id_ = front.adopt(theirs.fileno(), b"", 0)
        theirs.detach()
        mine.sendall(request())
    template = object()
    head = request().removesuffix(BODY)
    front.learn(id_, head, template, 1 << 20, 0)
    front.shut(template, None, (), time.monotonic() - 0.001, b"no", print)
    let_in: list[int] = []
    while sum(let_in) < len(pairs):
        events = front.turn()
        assert {kind for kind, *_ in events} == {REQUEST}
        let_in.append(len(events))
    assert let_in == [4, 8, 16, 2]
    front.close()
    for mine, _ in pairs:
        mine.close()


def test_of_requests_with_a_deadline_those_with_the_same_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.http.native.connections._MOST_SHUT_S", 5.0)

    async def test(_plain: Application, connections: Any, port: int) -> None:
        application = connections.application = Refusing(5.0)
        for timeout_us in (7000, 7000, 7000):  # a head, its JSON, the door
            await statuses(port, timed(b"a", timeout_us))
        asked = len(application.asked)
        assert await statuses(port, timed(b"b" * 9, 7000)) == [b"503"]
        assert len(application.asked) == asked
        for another in (
            timed(b"b", 9000),
            timed(b"b", 7000, "image"),
            request("/v2/models/m/infer", b"xfine"),
        ):
            await statuses(port, another)
        assert len(application.asked) == asked + 3
        await until(lambda: sum(application.counted) == 1)

    run(test)


def test_a_front_that_stops_refuses_nobody_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.native.connections._MOST_SHUT_S", 5.0)

    async def test(_plain: Application, connections: Any, port: int) -> None:
        connections.application = Refusing(5.0)
        raw_one = request("/v2/models/m/infer", b"a photo", RAW)
        await statuses(port, raw_one, raw_one)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_one[:-2])
        await until(lambda: connections.counts()["held_bytes"] > 0)
        connections.shutdown()
        writer.write(raw_one[-2:])
        assert b"connection: close\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    run(test)


def test_a_client_that_goes_is_noticed_and_its_reply_meets_nobody() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(body=b"wait"))
            await until(lambda: bool(application.replies))
            application.left = 0
            writer.close()
            await until(lambda: application.left == 1)
            await until(lambda: not connections.counts()["connections"])
            # Its slot is another's now.
            answering = asyncio.create_task(replies(port, [request()], 1))
            application.go()
            assert "waited" not in (await answering)[0]

    run(test)


def test_a_front_that_stops_answers_what_it_was_asked() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle, _ = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(body=b"wait"))
        await until(lambda: bool(application.replies))
        connections.shutdown()
        assert await idle.read() == b""
        application.go()
        answer = await reader.read()
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.endswith(b'{"way": "short", "waited": true}')
        await until(lambda: not connections.open)
        writer.close()

    run(test)


# ── what a client may cost ──────────────────────────────────────────────────────────────────────────


@pytest.mark.security
def test_what_comes_too_slowly_or_not_at_all_is_ended() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        slow, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request()[:-10])
        await until(lambda: connections.counts()["held_bytes"] == 290)
        connections.look(time.monotonic() + 9)
        assert connections.counts()["connections"] == 2
        connections.look(time.monotonic() + 11)
        assert await silent.read() == b""
        for connection in [one for one in connections.open if one is not connections]:
            connection.look(time.monotonic() + 11)  # the body began before it was handed over
        assert (await slow.read(12)).endswith(b"408")
        assert connections.counts()["held_bytes"] == connections.held_bytes == 0
        writer.close()

    run(test)


@pytest.mark.security
def test_a_connection_on_which_nothing_is_asked_is_kept_for_a_while() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await one_reply(reader)
        connections.look(time.monotonic() + 74)
        writer.write(request())
        await one_reply(reader)
        connections.look(time.monotonic() + 76)
        assert await reader.read() == b""
        writer.close()

    run(test)


@pytest.mark.security
def test_a_reply_that_nobody_reads_is_given_up() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        application.large_reply = 32 << 20
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request())
        await until(lambda: connections.counts()["requests"] == 1)
        connections._front.flush()
        connections.look(time.monotonic())
        connections.look(time.monotonic() + 9)
        assert connections.counts()["connections"] == 1
        connections.look(time.monotonic() + 60)
        await until(lambda: not connections.counts()["connections"])
        writer.close()

    run(test)


@pytest.mark.security
def test_there_are_only_so_many_connections() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: connections.counts()["connections"] == 3)
        for sent in (b"", request()):
            said = await raw(port, sent)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nconnection: close\r\n" in said
            assert json.loads(said.partition(b"\r\n\r\n")[2])["error"] == TOO_MANY
        assert connections.counts()["connections"] == 3
        held[0][1].close()
        await until(lambda: connections.counts()["connections"] == 2)
        assert (await replies(port, [request()], 1))[0]["way"] == "short"
        for _, writer in held:
            writer.close()

    run(test, connections=3)


@pytest.mark.security
def test_who_is_one_too_many_reads_why_also_where_its_request_is_still_on_the_way() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: connections.counts()["connections"] == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)  # by now the server has turned it away
        for part in request("/v2/models/m/infer", b"x" * 500_000), b"", b"y" * 500_000:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 503 ")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"] == TOO_MANY
        for _, one in (*held, (reader, writer)):
            one.close()

    run(test, connections=3)


@pytest.mark.security
def test_sockets_of_those_turned_away_are_closed_after_a_while_and_with_the_front() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def test(application: Application, connections: Any, port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: connections.counts()["connections"] == 3)
        before = open_files()
        for _ in range(300):
            assert (await raw(port, b"")).startswith(b"HTTP/1.1 503 ")
        await until(lambda: open_files() - before == 256)  # the others were closed to make room
        connections.look(time.monotonic())
        assert open_files() - before == 256
        connections.look(time.monotonic() + 2.1)
        await until(lambda: open_files() == before)
        for _ in range(5):
            assert (await raw(port, b"")).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()

    before = open_files()
    run(test, connections=3)
    assert open_files() <= before


def test_many_that_come_at_once_are_all_answered_or_turned_away() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        answers = await asyncio.gather(
            *(raw(port, request("/v2/models/m/infer", BODY, "Connection: close")) for _ in range(300))
        )
        statuses = [answer[9:12] for answer in answers]
        assert set(statuses) == {b"200", b"503"}
        assert statuses.count(b"200") >= 100
        await until(lambda: not connections.counts()["connections"])

    run(test, connections=100)


def test_clients_of_both_families_are_known_by_their_addresses() -> None:
    from server.http.native._front import Front

    front = Front(
        held_bytes=1, ordinary_bytes=1, heads=1, head_s=5.0, idle_s=5.0, slow_s=5.0, least_bytes_per_s=1.0
    )
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listening = socket.create_server((address, 0), family=family)
        except OSError:  # this machine has none of that family
            continue
        listening.setblocking(False)
        with listening, socket.create_connection(listening.getsockname()[:2]) as mine:
            assert front.accept(listening.fileno(), 5, 1, b"no") == 1
            assert front.accept(listening.fileno(), 5, 1, b"no") == 0
            mine.sendall(b"GET ")
            ((_, id_, *_),) = front.turn()
            assert front.peer(id_) == (address.encode(), mine.getsockname()[1])
        front.abort(id_)
        front.turn()
    with pytest.raises(OSError, match="Bad file descriptor"):
        front.accept(1 << 20, 5, 1, b"")
    front.close()


@pytest.mark.security
def test_bodies_that_come_to_c_and_to_python_are_bounded_together() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        known = request(body=b"x" * 60_000)[:-10_000]
        other = request("/v2/models/other/infer", b"x" * 60_000)[:-10_000]
        first, first_writer = await asyncio.open_connection("127.0.0.1", port)
        first_writer.write(known)
        await until(lambda: connections.counts()["held_bytes"] == 50_000)
        second, second_writer = await asyncio.open_connection("127.0.0.1", port)
        second_writer.write(other)  # Python's
        await until(lambda: connections.held_bytes == 100_000)
        third, third_writer = await asyncio.open_connection("127.0.0.1", port)
        third_writer.write(known)
        assert (await third.read(12)).endswith(b"503")
        first_writer.write(b"x" * 10_000)
        second_writer.write(b"x" * 10_000)
        assert (await one_reply(first))["bytes"] == (await one_reply(second))["bytes"] == 60_000
        assert connections.held_bytes == connections.counts()["held_bytes"] == 0
        for writer in (first_writer, second_writer, third_writer):
            writer.close()

    run(test, held_bytes=120_000)


@pytest.mark.security
def test_bodies_that_were_begun_together_are_never_over_the_limit_together() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        whole = request(body=b"x" * 100_000)  # each would fit alone
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in clients:
            writer.write(whole[:-99_000])
        await until(lambda: connections.held_bytes == 3 * 1000)
        most = 0
        for at in range(len(whole) - 99_000, len(whole), 9000):
            for _, writer in clients:
                writer.write(whole[at : at + 9000])
            for _ in range(20):
                await asyncio.sleep(0)
                most = max(most, connections.held_bytes)
        replies_ = [await asyncio.wait_for(reader.readuntil(b"\r\n"), 30) for reader, _ in clients]
        assert most <= 120_000
        assert sorted(line[9:12] for line in replies_) == [b"200", b"503", b"503"]
        assert connections.held_bytes == connections.counts()["held_bytes"] == 0
        for _, writer in clients:
            writer.close()

    run(test, held_bytes=120_000)


# ── which front serves ──────────────────────────────────────────────────────────────────────────────


def test_which_front_serves_is_said_with_the_reason() -> None:
    assert choose_front("native", has_tls=False) == ChosenFront("native", "--front native asks for it")
    assert choose_front("python", has_tls=True).name == "python"
    with pytest.raises(FrontMissing, match="speaks no TLS"):
        choose_front("native", has_tls=True)


def test_auto_is_native_where_that_can_serve_and_says_why_not_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose_front("auto", has_tls=False) == ChosenFront("native", "it is built here")
    assert choose_front("auto", has_tls=True) == ChosenFront("python", "the native one speaks no TLS")
    monkeypatch.setitem(sys.modules, "server.http.native._front", None)
    chosen = choose_front("auto", has_tls=False)
    assert chosen.name == "python"
    assert "not built here" in chosen.why
    assert "python -m server.extensions" in chosen.why


def test_a_front_that_is_not_built_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "server.http.native._front", None)
    with pytest.raises(FrontMissing, match=r"python -m server\.extensions"):
        choose_front("native", has_tls=False)


def test_what_would_wait_anyway_is_read_a_little_later_with_what_came_meanwhile() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        one = request("/v2/models/m/infer", b"row", "Inference-Header-Content-Length: 0")
        await replies(port, [one], 1)
        await until(lambda: connections.counts()["connections"] == 0)
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: connections.counts()["connections"] == 3)
        application.rests_s = 0.2
        began_s = time.monotonic()
        for _, writer in streams:
            writer.write(one)
            await asyncio.sleep(0.02)
        for reader, _ in streams:
            assert (await one_reply(reader))["way"] == "short"
        assert 0.15 < time.monotonic() - began_s < 5
        assert application.together[-1] == 3
        application.rests_s = 0.0
        streams[0][1].write(one)
        await one_reply(streams[0][0])
        for _, writer in streams:
            writer.close()

    run(test)


def test_reading_does_not_rest_while_each_turn_brings_many_or_the_front_stops() -> None:
    async def test(application: Application, connections: Any, port: int) -> None:
        await taught(port)
        await until(lambda: connections.counts()["connections"] == 0)
        application.rests_s = 60.0
        connections._brings_many = True
        (answer,) = await asyncio.wait_for(replies(port, [request()], 1), 5)
        assert answer["way"] == "short"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connections._brings_many = False
        writer.write(request())
        await until(lambda: connections._rest is not None)
        connections.shutdown()  # what has come by now is answered yet
        assert (await asyncio.wait_for(one_reply(reader), 5))["way"] == "short"
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    run(test)
