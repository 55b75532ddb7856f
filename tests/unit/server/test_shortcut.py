"""The short way of infer requests, over real sockets: every byte finds its reader, in whatever pieces."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn

from server.shortcut import Reply, Shortcut, WholeRequest

BODY = b"0123456789" * 30


class Application:
    """Answers by both ways and says by which; a body that begins with `wait` waits until `go`."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.left = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        text = json.dumps({"way": "long", "path": scope["path"], "bytes": len(body)}).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def answer(self, request: WholeRequest, reply: Reply) -> Application | None:
        if request.body.startswith(b"wait"):
            self.replies.append(reply)
            return self
        text = {"way": "short", "path": request.path, "bytes": len(request.body)}
        reply(200, json.dumps(text).encode(), {})
        return None

    def leave(self) -> None:
        self.left += 1

    def go(self) -> None:
        self.replies.pop(0)(200, b'{"way": "short", "waited": true}', {})


@contextlib.asynccontextmanager
async def serving(application: Application) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    config = uvicorn.Config(
        application, http=Shortcut, port=0, lifespan="off", log_config=None, proxy_headers=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110 (what is waited for belongs to somebody else)
            await asyncio.sleep(0.005)


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
            await asyncio.sleep(0.002)
    answers = [await one_reply(reader) for _ in range(count)]
    writer.close()
    return answers


async def one_reply(reader: asyncio.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(length)) if length else {}
    return answer


def run(test: Any) -> None:
    async def body() -> None:
        application = Application()
        async with serving(application) as (server, port):
            await test(application, server, port)

    asyncio.run(body())


def test_a_plain_infer_request_goes_the_short_way_and_everything_else_the_long_one():
    chunked = (
        request(length=False)[: -len(BODY) - 2] + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    cases = [
        (request(), "short", len(BODY)),
        (request("/v2/models/m/versions/3/infer"), "short", len(BODY)),
        (request("/v2/models/m/infer", b""), "short", 0),
        (request("/v2/models/m/infer", BODY, "Connection: keep-alive"), "short", len(BODY)),
        (request("/v2/models/m%20n/infer"), "long", len(BODY)),
        (request("/v2/models/m/infer?x=1"), "long", len(BODY)),
        (request("/classify"), "long", len(BODY)),
        (request("/v2/models/m/infer", BODY, "Origin: http://page"), "long", len(BODY)),
        (request("/v2/models/m/infer", BODY, "Content-Encoding: gzip"), "long", len(BODY)),
        (request("/v2/models/m/infer", b"x" * (2 << 20)), "long", 2 << 20),
        (chunked, "long", 5),
    ]

    async def test(application: Application, server: uvicorn.Server, port: int) -> None:
        for sent, way, size in cases:
            (answer,) = await replies(port, [sent], 1)
            assert (answer["way"], answer["bytes"]) == (way, size), sent[:80]

    run(test)


@pytest.mark.parametrize("size", [1, 7, 40, 200, 400])
def test_requests_of_both_ways_may_come_in_any_pieces_over_one_connection(size):
    order = ["short", "long", "short", "short", "long", "long", "short"]
    paths = {"short": "/v2/models/m/infer", "long": "/other"}
    stream = b"".join(request(paths[way], BODY) for way in order)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]

    async def test(application: Application, server: uvicorn.Server, port: int) -> None:
        answers = await replies(port, pieces, len(order))
        assert [answer["bytes"] for answer in answers] == [len(BODY)] * len(order)
        assert [answer["path"] for answer in answers] == [paths[way] for way in order]

    run(test)


def test_a_request_that_came_ahead_of_its_turn_waits_for_it():
    async def test(application: Application, server: uvicorn.Server, port: int) -> None:
        both = request(body=b"wait") + request("/other") + request()
        answering = asyncio.create_task(replies(port, [both], 3))
        await until(lambda: bool(application.replies))
        application.go()
        first, second, third = await answering
        assert (first["waited"], second["way"], third["way"]) == (True, "long", "long")

    run(test)


def test_a_client_that_goes_is_noticed_at_once():
    async def test(application: Application, server: uvicorn.Server, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(body=b"wait"))
        await until(lambda: bool(application.replies))
        writer.close()
        await until(lambda: application.left > 0)
        application.go()  # too late for anybody, and no harm

    run(test)


def test_a_server_that_stops_answers_what_it_was_asked():
    async def test(application: Application, server: uvicorn.Server, port: int) -> None:
        answering = asyncio.create_task(replies(port, [request(body=b"wait")], 1))
        await until(lambda: bool(application.replies))
        server.should_exit = True
        await asyncio.sleep(0.3)
        application.go()
        assert (await answering)[0]["waited"]

    run(test)
