"""Waves of clients that send requests in pieces to both fronts, beside what llhttp and h11 read in them.

    pool of requests → streams of up to 24, some mutated → pieces
        → NativeConnections, Connection   replies alike to the byte
        → llhttp, h11                     the same requests

Every reply holds what was read: a digest of path, headers and body. So what is compared is how each request
was understood, on whichever connection it came. A wave is made from its seed alone; heads that are known by
then come from the waves before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import h11

from ml_udf.oip import HEADER_LENGTH, InferRequest, Tensor, decode_request, encode_request
from server.http.application import AlikeInProgress, AlikeRequests, Reply, WholeRequest
from server.http.asgi_exchange import path_of
from server.http.connection import Connections
from tests.fuzz.test_request_head import (
    Application,
    Nothing,
    Transport,
    by_httptools,
    mutated,
    ours,
    requests,
)

if TYPE_CHECKING:
    from server.http.native.connections import NativeConnections

__all__ = ["Seen", "Waves"]

_CLIENTS = 32  # of a wave, at once
_POOL = 512  # requests that the streams of some waves are put together of
_WAVES_OF_A_POOL = 32
_LENGTHS = (1, 2, 4, 8, 16, 24)  # of streams, in requests
_CUTS = (0, 1, 2, 4, 12, 30)
_QUIET_TURNS = 8  # of the event loop, twice without a word: nothing more is said
_ALIKE_WAVES = 4  # of so many waves one has clients that ask alike
_ALIKE_CLIENTS = 12
_MOST_HEADS = 100_000  # that are remembered as h11 read them
_PATHS = [b"/v2/models/m/infer", b"/v2/models/n/versions/2/infer"]
_READ = re.compile(rb"(?:x-read: |\r\n\r\n)([0-9a-f]{16})")

_Headers = Iterable[tuple[bytes, bytes]]


@dataclass
class Seen:
    """What was sent, and what became of it; all but `waves` and `vanished` in requests.

    replied: answered or refused, by both fronts and in the same words · read: answered; llhttp and h11 read
    them in the same way · in_c: by the native front alone, without Python's parser · shaped: their JSON too
    together: answered together with others like them
    h11_heads: heads that h11 was given; those behind were the same to the byte
    """

    waves: int = 0
    replied: int = 0
    read: int = 0
    in_c: int = 0
    shaped: int = 0
    together: int = 0
    h11_heads: int = 0
    vanished: int = 0


def _digest(path: str, headers: _Headers, body: bytes) -> bytes:
    """Of one request as it was understood; but for its length, which the body tells."""
    told = sum(hash(line) for line in headers if line[0] != b"content-length") & 0xFFFFFFFF
    return b"%08x%08x" % (zlib.crc32(body, zlib.crc32(path.encode())), told)


def _of_lines(target: bytes, lines: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Of one request as another parser read it. Of a header that came twice, the first value counts here."""
    return _digest(path_of(target)[0], dict(reversed(lines)).items(), body)


class _Echo(Application):
    """Replies with the digest of what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.shaped = 0
        self.together = 0
        self._replies: list[Callable[[], None]] = []

    def answer(self, request: WholeRequest, reply: Reply) -> None:
        """Rows; of those whose JSON was known, what was read is compared with what the reader reads."""
        if request.request is not None:
            self.shaped += 1
            length = request.headers[HEADER_LENGTH.lower().encode()].decode()
            assert request.request == decode_request(request.body, length), request.body
        reply(200, _digest(request.path, request.headers.items(), request.body), {})

    def answer_alike(self, alike: AlikeRequests) -> AlikeInProgress:
        """From the last to the first, some of them at once, each as it would be answered by itself."""
        for place in reversed(range(len(alike.rows))):
            whole, row = alike.whole(place), alike.rows[place]
            if whole.request is not None:
                assert [bytes(one) for one in whole.request.inputs[0].elements] == [row], whole.body
            else:
                assert whole.body == row
            self.together += 1
            reply = partial(self.answer, whole, partial(alike.reply, place))
            if place % 4:
                self._replies.append(reply)
            else:
                reply()
        asyncio.get_running_loop().call_soon(self._reply_late)
        return Nothing()

    def _reply_late(self) -> None:
        replies, self._replies = self._replies, []
        for reply in replies:
            reply()

    def admit(self, head: Any, address: str) -> Any:
        self.targets.clear()  # there will be many
        return super().admit(head, address)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        read = _digest(scope["path"], dict(reversed(scope["headers"])).items(), body)
        headers = [(b"content-length", b"0"), (b"x-read", read)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@dataclass
class _Client:
    """One stream in its pieces, on its way to both fronts."""

    stream: bytes
    pieces: list[bytes]
    mine: socket.socket
    connection: Any
    transport: Transport
    vanishes_after: int = -1  # pieces; −1 = it stays
    written: bytes = b""

    def feed(self, number: int) -> None:
        """The piece of that number to both, or the end."""
        if number == self.vanishes_after:
            self.mine.close()
            self.connection.connection_lost(None)
        if number >= len(self.pieces) or self.vanished:
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.mine.sendall(self.pieces[number])
        if not self.transport.closed:
            self.connection.data_received(self.pieces[number])

    @property
    def vanished(self) -> bool:
        return self.mine.fileno() < 0

    def receive(self) -> int:
        """What the native front has said by now, in bytes."""
        before = len(self.written)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.mine.recv(1 << 16):
                self.written += data
        return len(self.written) - before


@dataclass
class _ByH11:
    """Reads streams message by message. A head that it has read before, to the byte, is not read again."""

    heads: int = 0
    _known: dict[bytes, tuple[bytes, list[tuple[bytes, bytes]], int] | None] = field(default_factory=dict)

    def read(self, stream: bytes, most: int) -> list[bytes]:
        """Digests of the first messages."""
        found: list[bytes] = []
        at = 0
        while len(found) < most:
            end = stream.find(b"\r\n\r\n", at) + 4
            raw = stream[at:end]
            if len(self._known) > _MOST_HEADS:
                self._known.clear()
            if raw not in self._known:
                self.heads += 1
                self._known[raw] = self._sized(raw)
            known = self._known[raw]
            if known is None:
                message, rest = self._whole(stream[at:])
                if message is None:
                    break
                found.append(message)
                at = len(stream) - rest
                continue
            target, lines, length = known
            if len(stream) < end + length:
                break
            found.append(_of_lines(target, lines, stream[end : end + length]))
            at = end + length
        return found

    @staticmethod
    def _sized(raw: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], int] | None:
        """A head whose body has a length; None for all others, which are read with their bodies."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(raw)
        with contextlib.suppress(h11.RemoteProtocolError):
            request = connection.next_event()
            if not isinstance(request, h11.Request) or connection.trailing_data != (b"", False):
                return None
            lines = [(bytes(name), bytes(value)) for name, value in request.headers]
            named = dict(lines)
            if b"transfer-encoding" not in named:
                return bytes(request.target), lines, int(named.get(b"content-length", b"0"))
        return None

    @staticmethod
    def _whole(stream: bytes) -> tuple[bytes | None, int]:
        """The first message, and how many bytes stand behind it."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(stream)
        request, body = None, b""
        with contextlib.suppress(h11.RemoteProtocolError):
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage) and request is not None:
                    lines = [(bytes(name), bytes(value)) for name, value in request.headers]
                    message = _of_lines(bytes(request.target), lines, body)
                    return message, len(connection.trailing_data[0])
                else:
                    break
        return None, 0


class Waves:
    """Both fronts, and what all waves together have shown. On one event loop; `close` ends it."""

    def __init__(self) -> None:
        from server.http.native.connections import NativeConnections

        self.seen = Seen()
        self._native_echo, self._echo = _Echo(), _Echo()
        self.native: NativeConnections = NativeConnections(self._native_echo)
        self._python = Connections(self._echo)
        self._h11 = _ByH11()
        self._pool: tuple[int, list[bytes]] = (-1, [])

    async def run(self, seed: int) -> None:
        """One wave. Raises AssertionError where two have understood it in two ways."""
        clients = self._clients(seed)
        number, sending = 0, clients
        while sending:
            for client in sending:
                client.feed(number)
            await self._turn(1)
            number += 1
            sending = [client for client in sending if number <= len(client.pieces)]
        quiet = 0
        while quiet < 2:
            before = sum(len(client.transport.written) for client in clients)
            await self._turn(_QUIET_TURNS)
            said = sum(client.receive() for client in clients if not client.vanished)
            said += sum(len(client.transport.written) for client in clients) - before
            quiet = 0 if said else quiet + 1
        for client in clients:
            if client.vanished:
                self.seen.vanished += 1
            else:
                self._compare(seed, client)
                client.mine.close()
                client.connection.connection_lost(None)
        await self._turn(3)
        counts = self.native.counts()
        assert (counts["connections"], counts["held_bytes"], self.native.held_bytes) == (0, 0, 0), seed
        assert self._python.held_bytes == 0, seed
        self.seen.waves += 1
        self.seen.in_c = counts["requests"]
        self.seen.shaped = self._native_echo.shaped
        self.seen.together = self._native_echo.together
        self.seen.h11_heads = self._h11.heads

    async def close(self) -> None:
        """End both fronts."""
        self.native.shutdown()
        assert not self.native.open
        await asyncio.sleep(0)

    async def _turn(self, times: int) -> None:
        for _ in range(times):
            self.native._turn(time.monotonic())
            await asyncio.sleep(0)

    def _compare(self, seed: int, client: _Client) -> None:
        stream = client.stream
        assert client.written == client.transport.written, (seed, client.pieces)
        read = _READ.findall(client.written)
        if b"upgrade" not in stream.lower():  # llhttp stops there; it is never granted here
            theirs = [_of_lines(target, lines, body) for _, target, lines, body in by_httptools(stream)]
            assert theirs[: len(read)] == read, (seed, client.pieces)
            assert self._h11.read(stream, len(read)) == read, (seed, client.pieces)
        self.seen.read += len(read)
        self.seen.replied += client.written.count(b"HTTP/1.1 ")

    def _clients(self, seed: int) -> list[_Client]:
        random_ = random.Random(seed)
        pool = self._requests(seed // _WAVES_OF_A_POOL)
        clients = []
        for place in range(_CLIENTS):
            length = random_.choice(_LENGTHS)
            stream = b"".join(random_.choices(pool, k=length))
            if seed % _ALIKE_WAVES == 0 and place < _ALIKE_CLIENTS:
                stream = b"".join(_alike(random_) for _ in range(length)) + random_.choice(pool)
            if random_.random() < 0.4:
                stream = mutated(random_, stream)
            cuts = sorted(random_.randrange(len(stream) + 1) for _ in range(random_.choice(_CUTS)))
            edges = zip([0, *cuts], [*cuts, len(stream)], strict=True)
            pieces = [stream[first:end] for first, end in edges if first < end]
            mine, theirs = socket.socketpair()
            mine.setblocking(False)
            self.native.adopt(theirs)
            connection, transport = self._python.new(), Transport()
            connection.connection_made(transport)  # type: ignore[arg-type]
            vanishes_after = random_.randint(0, len(pieces)) if random_.random() < 0.06 else -1
            clients.append(_Client(stream, pieces, mine, connection, transport, vanishes_after))
        return clients

    def _requests(self, number: int) -> list[bytes]:
        if self._pool[0] != number:
            self._pool = number, _pool(random.Random(f"pool {number}"))
        return self._pool[1]


def _pool(random_: random.Random) -> list[bytes]:
    """Requests that are whole. Half of them are mutated, and whole nevertheless."""
    pool: list[bytes] = []
    while len(pool) < _POOL:
        one = requests(random_) if random_.random() < 0.04 else _ordinary(random_)
        if random_.random() < 0.5:
            one = mutated(random_, one)
            read, refused = ours(one)
            if refused or not read:
                continue
        pool.append(one)
    return pool


def _ordinary(random_: random.Random) -> bytes:
    """A request for rows, like the others but for its length, and now and then a line more."""
    body = bytes(random_.choices(b"abc\r\n0", k=random_.choice([1, 5, 9, 10, 40, 300])))
    lines = random_.choice([[], [], [b"Accept: */*"], [b"content-type: x"], [b"X-Empty:", b"A:  b "]])
    if random_.random() < 0.4:
        body, json_size = _rows(random_)
        lines = [*lines, b"Inference-Header-Content-Length: %d" % json_size]
    if random_.random() < 0.05:
        lines = [*lines, b"traceparent: %032x" % random_.getrandbits(128)]
    name = random_.choice(
        [b"Content-Length: ", b"Content-Length: ", b"content-length:", b"CONTENT-LENGTH:  "]
    )
    head = [b"Host: localhost", *lines, name + b"%d" % len(body)]
    if random_.random() < 0.3:
        random_.shuffle(head)
    return b"\r\n".join([b"POST %b HTTP/1.1" % random_.choice(_PATHS), *head, b"", body])


def _alike(random_: random.Random) -> bytes:
    """One of two requests, but for its row: raw, and with JSON."""
    row = bytes(random_.choices(b"abc\r\n0", k=random_.choice([1, 5, 9])))
    json_part = b""
    if random_.random() < 0.5:
        request = InferRequest([Tensor.of_bytes("text", [row])], parameters={"timeout": 10**6})
        row, headers = encode_request(request)
        json_part = row[: int(headers[HEADER_LENGTH])]
    lines = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d" % (len(json_part), len(row))
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n%b" % (_PATHS[0], lines, row)


def _rows(random_: random.Random) -> tuple[bytes, int]:
    """The body of a request for rows, and how much of it is JSON; some of it is wrong."""
    rows = [b"r" * random_.choice([0, 3, 90]) for _ in range(random_.choice([1, 1, 2]))]
    times: list[Mapping[str, Any]] = [
        {},
        {"timeout": random_.randrange(10**6)},
        {"ml_udf_deadline_ms": 2500},
    ]
    more: list[Mapping[str, Any]] = [{}, {"priority": 1}, {"x": '"timeout": 5'}, {"timeout": 1.5}]
    request = InferRequest([Tensor.of_bytes("text", rows)], id=random_.choice(["", "", "7"]))
    request.parameters = {**random_.choice(times), **random_.choice(more)}
    body, headers = encode_request(request)
    size = int(headers[HEADER_LENGTH])
    json_part = body[:size]
    if random_.random() < 0.2:
        at = random_.randrange(size)
        wrong = random_.choice([b"0", b'"', b"}", b",", b" ", b'"timeout":5,'])
        json_part = json_part[:at] + wrong + json_part[at:]
    return json_part + body[size:], len(json_part)
