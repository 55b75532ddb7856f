"""Our parser of requests beside two others, on the same bytes: what it takes, they read in the same way.

It may refuse more, and never less: behind a request that two parsers end at different bytes, a second one
can be hidden from whoever stands between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import httptools
import pytest

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
from server.http.connection import Connection, Connections
from server.http.request_head import ChunkedBody, Head, MalformedRequest, SizedBody, check_part, parse_head
from server.routes.infer import is_infer
from tests.fuzz.budget import rounds

pytestmark = pytest.mark.security

Message = tuple[str, bytes, list[tuple[bytes, bytes]], bytes]  # method, target, headers, body

INFER = "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = "GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n"

# Each hides a request from some parser, or lets two of them disagree about where a body ends.
SMUGGLING = [
    INFER + "Content-Length: 5\r\nX: y\nTransfer-Encoding: chunked\r\n\r\nhello",
    INFER + "Content-Length: 5\n\nhello" + HIDDEN,
    INFER.replace("\r\n", "\n") + "Content-Length: 5\n\nhello",
    INFER + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    INFER + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    INFER + "Content-Length: 5\r\nContent-Length: 50\r\n\r\nhello" + HIDDEN,
    INFER + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    INFER + "Content-Length: 5, 5\r\n\r\nhello",
    INFER + "Content-Length: +5\r\n\r\nhello",
    INFER + "Content-Length: -5\r\n\r\nhello",
    INFER + "Content-Length: 0x5\r\n\r\nhello",
    INFER + "Content-Length: 5 5\r\n\r\nhello",
    INFER + "Content-Length: 5_0\r\n\r\nhello",
    INFER + "Content-Length: ٥\r\n\r\nhello",
    INFER + "Content-Length: 1e1\r\n\r\nhello",
    INFER + "Content-Length: \r\n\r\n" + HIDDEN,
    INFER + "Content-Length: 99999999999999999999999999\r\n\r\n",
    INFER + "Content-Length : 5\r\n\r\nhello",
    INFER + "Content-Length\t: 5\r\n\r\nhello",
    INFER + " Content-Length: 5\r\n\r\nhello",
    INFER + "X: y\r\n Content-Length: 5\r\n\r\nhello",
    INFER + "X: y\r\n\tTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n",
    INFER + "Content-Length: 5\t\r\n\r\nhello",
    INFER + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    INFER + "Transfer-Encoding: chunked\x00\r\n\r\n0\r\n\r\n",
    INFER + 'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    INFER + "X: a\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
    INFER + "X: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
    INFER + "Content-Length: 5\r\n: x\r\n\r\nhello",
    INFER + "Content-Length: 5\r\nno colon\r\n\r\nhello",
    INFER + "Content-Length: 5\r\nX y: z\r\n\r\nhello",
    INFER + "Content-Length: 5\r\n\r\r\n\r\nhello",
    INFER + "Host: other\r\nContent-Length: 5\r\n\r\nhello",
    "POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "POST /v2/models/m/infer HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /v2/models/m/infer HTTP/2.0\r\nHost: x\r\n\r\n",
    "POST /v2/models/m/infer HTTP/1.1 \r\nHost: x\r\n\r\n",
    "POST  /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST\t/v2/models/m/infer\tHTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /v2/models/m/infer\r\nHost: x\r\n\r\n",
    "POST /v2/models/\x00m/infer HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST http://localhost/v2/models/m/infer HTTP/1.1\r\nHost: x\r\n\r\n",
    "post /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT localhost:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "\r\n" + INFER + "\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    *(
        INFER + "Transfer-Encoding: chunked\r\n\r\n" + chunks + HIDDEN
        for chunks in (
            "5\nhello\n0\n\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhelloXX0\r\n\r\n",
            "5;a=b\r\nhello\r\n0\r\n\r\n",
            "5;\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "+5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "\r\nhello\r\n0\r\n\r\n",
            "ffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "0\r\nContent-Length: 3\r\n\r\n",
            "0\r\n\nGET",
            "0\r\rGET",
        )
    ),
]


def ours(stream: bytes) -> tuple[list[Message], bool]:
    """What our parser reads in a stream, and whether it refuses what comes then."""
    messages: list[Message] = []
    while stream:
        end = stream.find(b"\r\n\r\n") + 4
        try:
            if end < 4:
                check_part(stream)
                return messages, False
            head = parse_head(stream[:end])
            body = ChunkedBody() if head.length is None else SizedBody(head.length)
            parts = list(body.feed(stream[end:]))
        except MalformedRequest:
            return messages, True
        if not body.ended:
            return messages, False
        messages.append((head.method, head.target, head.lines, b"".join(parts)))
        if not head.keep_alive:
            return messages, False
        stream = body.rest if stream[end:] else b""
    return messages, False


@dataclass
class Others:
    """httptools' callbacks."""

    messages: list[Message] = field(default_factory=list)
    target: bytes = b""
    lines: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    parser: Any = None

    def on_message_begin(self) -> None:
        self.target, self.lines, self.body = b"", [], b""

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.lines.append((name.lower(), value.strip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        method = self.parser.get_method().decode()
        self.messages.append((method, self.target, self.lines, self.body))


def by_httptools(stream: bytes) -> list[Message]:
    others = Others()
    others.parser = httptools.HttpRequestParser(others)
    others.parser.set_dangerous_leniencies(lenient_data_after_close=True)
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        others.parser.feed_data(stream)
    return others.messages


def by_h11(stream: bytes) -> list[Message]:
    """The first message alone: h11 wants a reply before it goes on."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(stream)
    request, body = None, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                lines = [(bytes(name), bytes(value)) for name, value in request.headers]
                return [(request.method.decode(), bytes(request.target), lines, body)]
            else:
                return []
    except h11.RemoteProtocolError:
        return []


@pytest.mark.parametrize("raw", SMUGGLING, ids=range(len(SMUGGLING)))
def test_what_two_parsers_may_read_in_two_ways_is_refused(raw: str) -> None:
    _, refused = ours(raw.encode())
    assert refused
    asyncio.run(_is_refused(raw.encode()))


async def _is_refused(raw: bytes) -> None:
    """By a connection too, whatever way the request would go, and in whatever pieces it comes."""
    for stream in (raw, raw.replace(b"/v2/models/m/infer", b"/anything")):
        for size in (len(stream), 1):
            door = Door()
            for at in range(0, len(stream), size):
                door.feed(stream[at : at + size])
            await door.settled()
            assert door.statuses[-1:] in ([400], [501], [431]) or door.transport.aborted, stream
            assert not any(target.startswith("/admin") for target in door.application.targets)


def requests(random_: random.Random) -> bytes:
    """One to three requests, most of them right."""
    stream = b""
    for _ in range(random_.randint(1, 3)):
        path = random_.choice(["/v2/models/m/infer", "/v2/models/m/versions/2/infer", "/a?b=c", "/%41"])
        method = random_.choice(["POST", "POST", "GET", "PUT", "HEAD"])
        head = [f"{method} {path} HTTP/1.{random_.choice('1110')}", "Host: localhost"]
        body = bytes(random_.choices(b"abc\r\n0", k=random_.randint(0, 30)))
        how = random_.random()
        if how < 0.5:
            head.append(f"{random_.choice(['Content-Length', 'content-length'])}: {len(body)}")
        elif how < 0.8:
            head.append("Transfer-Encoding: chunked")
            cut = random_.randint(0, len(body))
            chunks = [part for part in (body[:cut], body[cut:]) if part]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
        else:
            body = b""
        for _ in range(random_.randint(0, 3)):
            head.append(
                random_.choice(
                    ["X-A: b", "Connection: keep-alive", "Accept:*/*", "X-Empty:", "A: \t b \t", "E: \xe9"]
                )
            )
        random_.shuffle(body_lines := head[1:])
        stream += "\r\n".join([head[0], *body_lines, "", ""]).encode("latin-1") + body
    return stream


_ALPHABET = [b"\r", b"\n", b"\r\n", b"\n\n", b" ", b"\t", b":", b"0", b"5", b"\x00", b"\x0b", b"\xff", b","]
_ALPHABET += [b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"HTTP/1.0", b"a", b"-", b"x"]


def mutated(random_: random.Random, stream: bytes) -> bytes:
    for _ in range(random_.randint(0, 3)):
        at = random_.randint(0, len(stream))
        kind = random_.random()
        if kind < 0.5:
            stream = stream[:at] + random_.choice(_ALPHABET) + stream[at:]
        elif kind < 0.75:
            stream = stream[:at] + stream[at + random_.randint(1, 3) :]
        else:
            stream = stream[:at] + random_.choice(_ALPHABET) + stream[at + 1 :]
    return stream


def test_what_is_taken_is_read_as_two_other_parsers_read_it() -> None:
    taken = 0
    for seed in rounds(4000):
        random_ = random.Random(seed)
        stream = mutated(random_, requests(random_))
        if b"upgrade" in stream.lower():
            continue  # the others stop there; it is never granted here
        messages, _ = ours(stream)
        taken += len(messages)
        theirs = by_httptools(stream)
        assert theirs[: len(messages)] == messages, (seed, stream)
        if messages:
            assert by_h11(stream) == messages[:1], (seed, stream)
    assert taken > 2000  # most of them are right, so that the comparison means something


def test_both_ways_give_the_same_verdict_on_the_same_bytes() -> None:
    async def compare() -> None:
        for seed in rounds(400):
            random_ = random.Random(seed)
            stream = mutated(random_, requests(random_))
            short = re.sub(rb"/(v2/models/m/(versions/2/)?infer|a\?b=c|%41)", b"/v2/models/m/infer", stream)
            long = short.replace(b"/v2/models/m/infer", b"/v2/models/m/other")
            seen = []
            for way in (short, long):
                door = Door()
                at = 0
                while at < len(way):
                    size = random_.choice([1, 3, 50, 1000])
                    door.feed(way[at : at + size])
                    at += size
                    if random_.random() < 0.3:
                        await door.settled()
                await door.settled()
                seen.append((door.application.read, door.statuses))
            (short_read, short_said), (long_read, long_said) = seen
            # A request that a mutation moved into another's body was renamed there too.
            long_read = [body.replace(b"/v2/models/m/other", b"/v2/models/m/infer") for body in long_read]
            # The framework's way reads a body while it comes: one that turns out wrong ends the connection.
            assert short_read == long_read, (seed, short)
            assert short_said[: len(short_read)] == long_said[: len(long_read)] == [200] * len(short_read)

    asyncio.run(compare())


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Nothing:
    """Requests that are answered already, or whose replies meet nobody once their clients have gone."""

    def leave(self, place: int) -> None:
        pass


class Application:
    """Notes the bodies that it was given whole."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.targets: list[str] = []

    def admit(self, head: Head, address: str) -> Admitted | Refused:
        path, query = path_of(head.target)
        self.targets.append(path)
        return Admitted(path, query, is_infer(path), 1 << 20, NOBODY)

    def still_admits(self, admitted: Admitted) -> bool:
        return True

    def refusal(self, status: int, message: str) -> Refused:
        return Refused(status, json.dumps({"error": message}).encode(), {})

    def answer(self, request: WholeRequest, reply: Reply) -> None:
        self.read.append(request.body)
        reply(200, b"", {})

    def rest_s(self, *, is_busy: bool) -> float:
        return 0.0

    def answer_alike(self, alike: AlikeRequests) -> AlikeInProgress:
        for place in range(len(alike.rows)):
            self.answer(alike.whole(place), partial(alike.reply, place))
        return Nothing()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.read.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class Door:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.application, self.transport = Application(), Transport()
        self.connections = Connections(self.application)
        self.connection: Connection = self.connections.new()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        if not self.transport.closed:
            self.connection.data_received(data)

    async def settled(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)
        if self.transport.aborted:
            self.connection.connection_lost(None)
            await asyncio.sleep(0)

    @property
    def statuses(self) -> list[int]:
        return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", self.transport.written)]
