"""Connections over real sockets: every byte finds its reader, and nobody costs too much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import pytest
from fastapi import FastAPI

from server.access.caller import NOBODY
from server.http.application import (
    Admitted,
    AlikeInProgress,
    AlikeRequests,
    Refused,
    Reply,
    WholeRequest,
)
from server.http.asgi_exchange import path_of
from server.http.connection import Connection, ConnectionLimits, Connections
from server.http.replies import map_errors
from server.http.request_head import Head
from server.routes.infer import is_infer
from tests.waiting import until

BODY = b"0123456789" * 30


class Together:
    """Requests that came in one turn and were alike, each answered by itself."""

    def __init__(self, inside: Sequence[Application | None]) -> None:
        self._inside = inside

    def leave(self, place: int) -> None:
        if (one := self._inside[place]) is not None:
            one.leave()


class Application:
    """Answers by both ways and says by which; a body that begins with `wait` waits until `go`."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.left = 0
        self.admitted = 0
        self.limit_bytes = 8 << 20
        self.large_reply = 0
        self.rests_s = 0.0
        self.together: list[int] = []  # how many requests were offered at once

    def admit(self, head: Head, address: str) -> Admitted | Refused:
        self.admitted += 1
        path, query = path_of(head.target)
        if head.headers.get(b"authorization") == b"wrong":
            return Refused(401, b"{}", {})
        if head.length is not None and head.length > self.limit_bytes:
            return Refused(413, b"{}", {})
        return Admitted(path, query, is_infer(path), self.limit_bytes, NOBODY)

    def still_admits(self, admitted: Admitted) -> bool:
        return True

    def refusal(self, status: int, message: str) -> Refused:
        return Refused(status, json.dumps({"error": message}).encode(), {})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while scope["path"] != "/early":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] == "/raise":
            raise ValueError("on purpose")
        text = json.dumps({"way": "long", "path": scope["path"], "bytes": len(body)}).encode()
        headers = [] if scope["path"] == "/chunked" else [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def answer(self, request: WholeRequest, reply: Reply) -> Application | None:
        if request.body.startswith(b"wait"):
            self.replies.append(reply)
            return self
        text = {"way": "short", "path": request.path, "bytes": len(request.body)}
        reply(200, json.dumps(text).encode() + b" " * self.large_reply, {})
        return None

    def answer_alike(self, alike: AlikeRequests) -> AlikeInProgress:
        self.together.append(len(alike.rows))
        inside = [
            self.answer(alike.whole(place), partial(alike.reply, place)) for place in range(len(alike.rows))
        ]
        return Together(inside)

    def rest_s(self, *, is_busy: bool) -> float:
        return self.rests_s

    def leave(self) -> None:
        self.left += 1

    def go(self) -> None:
        self.replies.pop(0)(200, b'{"way": "short", "waited": true}', {})


@contextlib.asynccontextmanager
async def serving(
    application: Application, limits: ConnectionLimits
) -> AsyncIterator[tuple[Connections, int]]:
    connections = Connections(application, limits)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Counting(connections), "127.0.0.1", 0)
    try:
        yield connections, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(connections.open):
            connection.shutdown()
        await until(lambda: not connections.open)


class Counting(Connection):
    """Counts the bytes that came, so that a test can wait for them."""

    came_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.came_bytes += len(data)
        super().data_received(data)


async def has_come(connections: Connections, size: int) -> Connection:
    """The one connection, once so many bytes of its client have come."""

    def found() -> list[Connection]:
        return [one for one in connections.open if isinstance(one, Counting) and one.came_bytes == size]

    await until(found)
    (connection,) = found()
    return connection


def request(path: str = "/v2/models/m/infer", body: bytes = BODY, *more: str, length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", *([f"Content-Length: {len(body)}"] if length else []), *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def replies(port: int, pieces: list[bytes], count: int) -> list[dict[str, Any]]:
    """What `count` requests are answered that are sent in these pieces over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        if len(pieces) > 1:
            await asyncio.sleep(0.002)  # so that they come apart
    answers = [await one_reply(reader) for _ in range(count)]
    writer.close()
    return answers


async def one_reply(reader: asyncio.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(length)) if length else {}
    return answer


Test = Callable[[Application, Connections, int], Awaitable[None]]
Serving = Callable[
    [Application, ConnectionLimits], contextlib.AbstractAsyncContextManager[tuple[Connections, int]]
]


class Run(Protocol):
    """Runs a test on a front."""

    def __call__(self, test: Test, **limits: float) -> None: ...


def on_python(test: Test, **limits: float) -> None:
    _run(test, serving, limits)


def _run(test: Test, front: Serving, limits: dict[str, float]) -> None:
    async def body() -> None:
        application = Application()
        async with front(application, ConnectionLimits(**limits)) as (connections, port):  # type: ignore[arg-type]
            await test(application, connections, port)

    asyncio.run(body())


@pytest.fixture(params=["python", "native"])
def run(request: pytest.FixtureRequest) -> Run:
    """On either front; `on_python` for who looks into its connections."""
    if request.param == "python":
        return on_python
    request.getfixturevalue("native_front")
    from tests.unit.server.native_serving import serving_native

    return lambda test, **limits: _run(test, serving_native, limits)


async def raw(port: int, *pieces: bytes) -> bytes:
    """Everything that is sent back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            sent = await reader.read()
    writer.close()
    return sent


def chunked(*parts: bytes) -> bytes:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def test_rows_go_the_short_way_however_they_come_and_everything_else_the_long_one(run: Run):
    cases = [
        (request(), "short", len(BODY)),
        (request("/v2/models/m/versions/3/infer"), "short", len(BODY)),
        (request("/v2/models/m/infer", b""), "short", 0),
        (request("/v2/models/m%20n/infer"), "short", len(BODY)),
        (request("/v2/models/m/infer?x=1"), "short", len(BODY)),
        (request("/v2/models/m/infer", BODY, "Connection: keep-alive"), "short", len(BODY)),
        (request("/v2/models/m/infer", b"x" * (2 << 20)), "short", 2 << 20),
        (chunked(b"hello", b"you"), "short", 8),
        (request("/classify"), "long", len(BODY)),
        (request("/chunked", b""), "long", 0),
    ]

    async def test(application: Application, connections: Connections, port: int) -> None:
        for sent, way, size in cases:
            if b"/chunked" in sent:
                answer = (await raw(port, sent.replace(b"Host", b"Connection: close\r\nHost"))).lower()
                assert b"transfer-encoding: chunked" in answer
                assert answer.endswith(b"\r\n0\r\n\r\n")
                continue
            (got,) = await replies(port, [sent], 1)
            assert (got["way"], got["bytes"]) == (way, size), sent[:80]

    run(test)


@pytest.mark.parametrize("size", [1, 7, 40, 200, 400])
def test_requests_of_both_ways_may_come_in_any_pieces_over_one_connection(run: Run, size: int):
    order = ["short", "long", "short", "chunked", "short", "long", "long", "short"]
    order = order[:4] if size == 1 else order  # byte by byte takes seconds
    sent = {
        "short": request("/v2/models/m/infer", BODY),
        "long": request("/other", BODY),
        "chunked": chunked(BODY[:200], BODY[200:]),
    }
    stream = b"".join(sent[way] for way in order)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]

    async def test(application: Application, connections: Connections, port: int) -> None:
        answers = await replies(port, pieces, len(order))
        assert [answer["bytes"] for answer in answers] == [len(BODY)] * len(order)
        ways = ["long" if way == "long" else "short" for way in order]
        assert [answer["way"] for answer in answers] == ways

    run(test)


def test_a_head_like_the_one_before_it_is_decided_on_once():
    async def test(application: Application, connections: Connections, port: int) -> None:
        first, second = request(), request("/v2/models/n/infer")
        await replies(port, [first * 5 + second * 5 + request("/v2/models/n/infer", b"another") * 2], 12)
        assert application.admitted == 2

    on_python(test)


def test_a_head_that_differs_in_more_than_the_length_is_decided_on_anew():
    async def test(application: Application, connections: Connections, port: int) -> None:
        application.limit_bytes = 1000
        plain, at_limit = request(), request(body=b"x" * 1000)
        with_more = request("/v2/models/m/infer", BODY, "X-Content-Length: 7")
        sent = [plain, with_more, request(body=b""), plain, at_limit]
        answers = await replies(port, [b"".join(sent)], len(sent))
        assert [answer["bytes"] for answer in answers] == [300, 300, 0, 300, 1000]
        assert application.admitted == 4
        wrong = [plain, request("/v2/models/m/infer", BODY, "Authorization: wrong")]
        first, second = await replies(port, [b"".join(wrong)], 2)
        assert (first["way"], second) == ("short", {})
        over = await raw(port, plain + request(body=b"x" * 1001)[:-1])
        assert over.count(b"HTTP/1.1 200") == 1
        assert over.count(b"HTTP/1.1 413") == 1
        tricked = plain.replace(b"Content-Length: 300", b"Content-Length: 300\r\nContent-Length: 300")
        refused = await raw(port, plain + tricked)
        assert (refused.count(b"HTTP/1.1 200"), refused.count(b"HTTP/1.1 400")) == (1, 1)

    on_python(test)


def test_the_clients_and_what_they_hold_of_bodies_can_be_told(run: Run):
    async def test(application: Application, connections: Connections, port: int) -> None:
        assert connections.occupancy()[1] == 0
        await replies(port, [request()], 1)
        await until(lambda: connections.occupancy() == (0, 0))
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(2)]
        writers[0].write(request()[:-100])  # like the one before it
        writers[1].write(request("/v2/models/n/infer")[:-50])
        await until(lambda: connections.occupancy() == (2, 2 * len(BODY) - 150))
        writers[0].close()
        await until(lambda: connections.occupancy() == (1, len(BODY) - 50))
        writers[1].close()
        await until(lambda: connections.occupancy() == (0, 0))

    run(test)


def test_a_request_that_came_ahead_of_its_turn_waits_for_it(run: Run):
    async def test(application: Application, connections: Connections, port: int) -> None:
        both = request(body=b"wait") + request("/other") + request()
        answering = asyncio.create_task(replies(port, [both], 3))
        await until(lambda: bool(application.replies))
        application.go()
        first, second, third = await answering
        assert (first["waited"], second["way"], third["way"]) == (True, "long", "short")

    run(test)


def test_a_request_that_waits_longer_than_a_connection_may_idle_is_answered():
    async def test(application: Application, connections: Connections, port: int) -> None:
        both = request() + request(body=b"wait")
        answering = asyncio.create_task(replies(port, [both], 2))
        await until(lambda: bool(application.replies))
        for connection in list(connections.open):
            connection.look(time.monotonic() + 1000)
            assert not connection._transport.is_closing()
        application.go()
        assert (await answering)[1]["waited"]

    on_python(test)


def test_a_client_that_goes_is_noticed_at_once():
    async def test(application: Application, connections: Connections, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(body=b"wait"))
        await until(lambda: bool(application.replies))
        writer.close()
        await until(lambda: application.left > 0)
        application.go()  # too late for anybody, and no harm
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = request("/long", b"x" * 100)[:-50]
        writer.write(begun)
        await has_come(connections, len(begun))
        writer.close()
        await until(lambda: application.left > 1)

    on_python(test)


def test_a_server_that_stops_answers_what_it_was_asked():
    async def test(application: Application, connections: Connections, port: int) -> None:
        answering = asyncio.create_task(replies(port, [request(body=b"wait")], 1))
        await until(lambda: bool(application.replies))
        for connection in list(connections.open):
            connection.shutdown()
            assert not connection._transport.is_closing()
        application.go()
        assert (await answering)[0]["waited"]
        await until(lambda: not connections.open)

    on_python(test)


def test_a_reply_without_the_whole_body_drops_the_rest_and_the_connection_goes_on(run: Run):
    async def test(application: Application, connections: Connections, port: int) -> None:
        early = request("/early", b"x" * 100_000)
        answers = await replies(port, [early[:200], early[200:] + request()], 2)
        assert [answer["way"] for answer in answers] == ["long", "short"]

    run(test)


def test_who_waits_for_leave_to_send_a_body_gets_it_or_a_refusal(run: Run):
    async def test(application: Application, connections: Connections, port: int) -> None:
        for path in ("/v2/models/m/infer", "/other"):
            head = request(path, BODY, "Expect: 100-continue")[: -len(BODY)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            async with asyncio.timeout(20):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(BODY)
                assert (await one_reply(reader))["bytes"] == len(BODY)
            writer.close()
        refused = await raw(
            port, request("/x", BODY, "Expect: 100-continue", "Authorization: wrong")[: -len(BODY)]
        )
        assert refused.startswith(b"HTTP/1.1 401 ")

    run(test)


def test_what_the_application_raises_is_a_500_and_the_connection_goes_on(run: Run):
    async def test(application: Application, connections: Connections, port: int) -> None:
        stream = request("/raise") + request()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(stream)
        assert "internal" in (await one_reply(reader))["error"]
        assert (await one_reply(reader))["way"] == "short"
        writer.close()

    run(test)


def test_a_fault_stands_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    api = FastAPI()
    map_errors(api)

    @api.post("/fault")
    async def fault() -> None:
        raise ValueError("on purpose")

    class Behind(Application):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await api(scope, receive, send)

    async def asked() -> None:
        async with serving(Behind(), ConnectionLimits()) as (_, port):
            (told,) = await replies(port, [request("/fault")], 1)
            assert told == {"error": "internal: the server failed inside; its log holds the cause"}

    asyncio.run(asked())
    (told,) = [each for each in caplog.records if "request failed" in each.message]
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "on purpose"


# ── what a client may cost ──────────────────────────────────────────────────────────────────────────


@pytest.mark.security
def test_endless_headers_are_cut_off():
    async def test(application: Application, connections: Connections, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 50 << 20:
                writer.write(b"X-%d: %b\r\n" % (sent, b"y" * 1000))
                await writer.drain()
                sent += 1000
                if reader._buffer:  # type: ignore[attr-defined]  # a reply is there
                    break
        assert sent < 8 << 20
        assert (await reader.read(20)).startswith(b"HTTP/1.1 431 ")
        writer.close()
        (connection,) = connections.open or {None}
        assert connection is None or len(connection._held) == 0

    on_python(test)


@pytest.mark.security
def test_no_byte_of_a_body_is_kept_for_who_may_not_send_it():
    async def test(application: Application, connections: Connections, port: int) -> None:
        head = request("/v2/models/m/infer", b"x" * 1_000_000, "Authorization: wrong")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head[:900_000])
        await until(lambda: bool(connections.open))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
        (connection,) = connections.open
        assert (connection._held, connection._parts) == (b"", [])
        writer.close()

    on_python(test)


@pytest.mark.security
@pytest.mark.parametrize(
    ("sent", "later_s", "status"),
    [
        (b"", 11, b""),
        (b"POST /v2/mod", 11, b"408"),
        (request(body=BODY)[:-10], 11, b"408"),
        (request("/other", BODY)[:-10], 11, b""),
    ],
)
def test_what_comes_too_slowly_is_ended(sent: bytes, later_s: float, status: bytes):
    async def test(application: Application, connections: Connections, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        connection = await has_come(connections, len(sent))
        connection.look(time.monotonic() + 5)
        assert not connection._transport.is_closing()
        connection.look(time.monotonic() + later_s)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert (await reader.read(12))[9:] == status
        if not status:
            await until(lambda: not connections.open)
        writer.close()

    on_python(test)


@pytest.mark.security
def test_a_body_by_drops_is_ended_and_a_slow_one_is_not():
    async def test(application: Application, connections: Connections, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v2/models/m/infer", b"x" * (1 << 20))[: 40 << 10])
        await until(lambda: bool(connections.open))
        (connection,) = connections.open
        await until(lambda: connection._size > 30 << 10)
        connection.look(time.monotonic() + 10 + 25)  # 40 kB in 35 s
        assert connection._body is not None
        connection.look(time.monotonic() + 10 + 60)
        assert connection._body is None
        assert (await reader.read(12)).endswith(b"408")
        writer.close()

    on_python(test)


@pytest.mark.security
def test_a_reply_that_nobody_reads_is_given_up():
    async def test(application: Application, connections: Connections, port: int) -> None:
        application.large_reply = 64 << 20
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request())
        await until(lambda: bool(connections.open))
        (connection,) = connections.open
        await until(lambda: connection._transport.get_write_buffer_size() > 0)
        connection.look(time.monotonic())
        connection.look(time.monotonic() + 9)
        assert not connection._transport.is_closing()
        connection.look(time.monotonic() + 11)
        await until(lambda: not connections.open)
        writer.close()

    on_python(test)


@pytest.mark.security
def test_there_are_only_so_many_connections():
    async def test(application: Application, connections: Connections, port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(connections.open) == 3)
        assert (await raw(port)).startswith(b"HTTP/1.1 503 ")
        held[0][1].close()
        await until(lambda: len(connections.open) == 2)
        assert (await replies(port, [request()], 1))[0]["way"] == "short"
        for _, writer in held:
            writer.close()

    on_python(test, connections=3)


@pytest.mark.security
def test_bodies_that_are_being_received_are_bounded_together():
    async def test(application: Application, connections: Connections, port: int) -> None:
        half = request(body=b"x" * 100_000)[:-50_000]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in held:
            writer.write(half)
        statuses = []
        await until(lambda: any(reader._buffer for reader, _ in held))  # type: ignore[attr-defined]
        for reader, writer in held:
            if reader._buffer:  # type: ignore[attr-defined]
                statuses.append((await reader.read(12))[9:])
            writer.close()
        assert statuses == [b"503"]
        await until(lambda: not connections.open)
        assert connections.held_bytes == 0

    on_python(test, held_bytes=120_000)


@pytest.mark.security
def test_a_body_of_unannounced_length_is_refused_as_soon_as_it_is_over(run: Run):
    async def test(application: Application, connections: Connections, port: int) -> None:
        application.limit_bytes = 5000
        sent = chunked(b"x" * 3000, b"y" * 3000, b"z" * 3000)
        assert (await raw(port, sent[:6500])).startswith(b"HTTP/1.1 413 ")

    run(test)
