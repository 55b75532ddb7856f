"""A client's connection: request after request, each by the way that its head decides.

    bytes → head → Application.admit ─┬→ refused, before a byte of the body is kept
                                      ├→ rows: the whole body, then Application.answer (no task, no ASGI)
                                      └→ everything else: an exchange of the framework's

Most requests are alike: one POST of rows, here in one piece. A head of rows that differs from the one before
it on its connection in nothing but the body's length is neither read nor decided on again.

What a client may cost before and beside its rows is bounded: bytes of a head, the time it takes, the rate
of a body and of a reply being read, idle connections, their number. Once a second all connections are looked
at; a request sets no timer. Knows HTTP/1.1; not what is asked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from server.http.application import Admitted, Application, Refused, RequestInProgress, WholeRequest
from server.http.asgi_exchange import STATUS_LINES, AsgiExchange, scope_of
from server.http.request_head import (
    MAX_HEAD_BYTES,
    ChunkedBody,
    Head,
    MalformedRequest,
    SizedBody,
    check_part,
    parse_head,
    too_long,
)

__all__ = [
    "TOO_MANY",
    "Connection",
    "ConnectionLimits",
    "Connections",
]

log = logging.getLogger("ml_udf.server")

TOO_MANY = "too many connections; try again in a second"
_AHEAD_BYTES = 1 << 16  # of later requests that are kept while one is answered
_LINGER_S = 5.0  # a refused body is read and dropped for so long: closing at once could swallow the reply
_DROPPED_BYTES = 1 << 20  # of a body that nobody wants, before the connection is closed instead
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may cost.

    connections: at a time · held_bytes: of bodies that are not whole yet, on all connections together
    head_s: for a request's head, from its first byte or the connection's beginning · idle_s: between two
    slow_s: after so long, a body must come, and a reply be read, at `least_bytes_per_s`
    """

    connections: int = 8192
    held_bytes: int = 1 << 30
    head_s: float = 10.0
    idle_s: float = 75.0
    slow_s: float = 10.0
    least_bytes_per_s: float = 1024.0


class Connections:
    """All connections of one listener, and what they share. On one event loop."""

    def __init__(
        self,
        application: Application,
        limits: ConnectionLimits = ConnectionLimits(),  # immutable
        *,
        default_headers: Callable[[], Iterable[tuple[bytes, bytes]]] = tuple,
        open_ones: set[Any] | None = None,
        tasks: set[asyncio.Task[None]] | None = None,
    ) -> None:
        self.application = application
        self.limits = limits
        self.default_headers = default_headers
        self.open: set[Any] = set() if open_ones is None else open_ones
        self.tasks: set[asyncio.Task[None]] = set() if tasks is None else tasks
        self.held_bytes = 0
        self._looking: asyncio.TimerHandle | None = None

    def new(self) -> Connection:
        """A protocol for a client that connects."""
        return Connection(self)

    def add(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        if len(self.open) >= self.limits.connections:
            return False
        self.open.add(connection)
        self.look_soon()
        return True

    def occupancy(self) -> tuple[int, int]:
        """How many clients are connected, and the bytes of their bodies that are not whole."""
        return len(self.open), self.held_bytes

    def look_soon(self) -> None:
        """Look at all of them from now on, once a second."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def start(self, exchange: AsgiExchange) -> None:
        """Run the framework's part of a request."""
        task = asyncio.get_running_loop().create_task(exchange.run(self.application))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _look(self) -> None:
        self._looking = None
        now_s = time.monotonic()
        for connection in list(self.open):
            connection.look(now_s)
        if self.open:
            self.look_soon()


@dataclass(slots=True)
class _Pace:
    """How far something has come since a time."""

    began_s: float
    done: int = 0

    def is_slow(self, now_s: float, limits: ConnectionLimits) -> bool:
        late_s = now_s - self.began_s - limits.slow_s
        return late_s > 0 and self.done < late_s * limits.least_bytes_per_s


_LENGTH = re.compile(rb"\r\ncontent-length:[ ]*([0-9]+)", re.IGNORECASE)

# What a connection is at. Plain numbers: they are looked at for every piece of data.
# DROPPING: the framework has replied without the rest of the body, which is still coming.
_HEAD, _BODY, _ANSWERING, _EXCHANGE, _DROPPING, _LEAVING = range(6)


class Connection(asyncio.Protocol):
    """One client. Whose turn it is, what came ahead of its turn, and whether somebody still waits."""

    _transport: asyncio.Transport

    def __init__(self, connections: Connections) -> None:
        self._all = connections
        self._app = connections.application
        self._client: tuple[str, int] | None = None
        self._address = ""
        self._scheme = "http"
        self._at = _HEAD
        self._since_s = 0.0
        self._held = b""  # bytes that are nobody's yet
        self._looked = 0  # how many of them cannot be wrong
        self._last: tuple[Head, Admitted] | None = None  # the head before
        self._around: tuple[bytes, bytes] | None = None  # what stood before and after its body's length
        self._any = False  # whether it has sent a whole head
        self._waiting: RequestInProgress | None = None
        self._exchange: AsgiExchange | None = None
        self._body: SizedBody | ChunkedBody | None = None  # of the request under way, while it comes
        self._parts: list[bytes] = []
        self._size = 0  # bytes of it that came
        self._reserved = 0  # of them, those that count among all that are held
        self._pace: _Pace | None = None  # of the body
        self._unread: _Pace | None = None  # of what was written
        self._unread_base = 0
        self._written = 0
        self._paused = False
        self._closing = False  # after the reply under way
        self._writable: asyncio.Event | None = None  # set while the client reads; None = it always did

    # ── asyncio.Protocol ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = transport  # type: ignore[assignment]  # a stream's
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._client, self._address = (str(peer[0]), int(peer[1])), str(peer[0])
        if transport.get_extra_info("sslcontext") is not None:
            self._scheme = "https"
        self._since_s = time.monotonic()
        if not self._all.add(self):
            self._refuse(self._app.refusal(503, TOO_MANY), None)
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Requests, or parts of them."""
        at = self._at
        if at == _HEAD:
            if self._held:
                self._held += data
            else:
                self._held = data
            self._go_on()
        elif self._body is not None:
            self._take(data)
        elif at != _LEAVING:
            self._held += data
            if len(self._held) > _AHEAD_BYTES:
                self._read_on(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; nobody waits any more."""
        self._all.open.discard(self)
        waiting, self._waiting = self._waiting, None
        exchange, self._exchange = self._exchange, None
        self._held, self._at = b"", _LEAVING
        self._drop_body()
        if self._writable is not None:
            self._writable.set()
        if waiting is not None:
            waiting.leave()
        if exchange is not None:
            exchange.disconnect()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._writable is not None:
            self._writable.set()
        if self._at == _HEAD:
            self._go_on()

    @property
    def is_between_requests(self) -> bool:
        """Whether nothing is under way and nothing that came is left to read."""
        return self._at == _HEAD and not self._held

    # ── the listener ────────────────────────────────────────────────────────────────────────────────

    def shutdown(self) -> None:
        """No more requests; the one under way is answered."""
        self._closing = True
        if self._at == _HEAD:
            self._transport.close()
        elif self._exchange is not None:
            self._exchange.keep_alive = False

    def look(self, now_s: float) -> None:
        """End what takes too long; called once in a while."""
        limits = self._all.limits
        buffered = self._transport.get_write_buffer_size()
        if buffered:
            if self._unread is None:
                self._unread, self._unread_base = _Pace(now_s), self._written - buffered
            self._unread.done = self._written - buffered - self._unread_base
            if self._unread.is_slow(now_s, limits):
                log.warning("reply not read client=%s bytes=%d", self._address, buffered)
                self._transport.abort()
            return
        self._unread = None
        if self._transport.is_closing():
            return
        waited_s = now_s - self._since_s
        if self._at == _LEAVING:
            if waited_s > _LINGER_S:
                self._transport.close()
        elif self._at == _HEAD:
            if self._held and waited_s > limits.head_s:
                self._refuse(self._app.refusal(408, f"no whole head within {limits.head_s:g} s"), None)
            elif not self._held and waited_s > (limits.idle_s if self._any else limits.head_s):
                self._transport.close()
        elif self._pace is not None and self._pace.is_slow(now_s, limits):
            if self._at == _BODY:
                self._turn_away(408, "the body comes too slowly")
            else:
                self._transport.abort()  # its reader is told that the client has gone

    # ── heads ───────────────────────────────────────────────────────────────────────────────────────

    def _go_on(self) -> None:
        """Answer what is here, one request after the other."""
        while self._held and self._at == _HEAD and (self._writable is None or self._writable.is_set()):
            if self._transport.is_closing():
                self._held = b""
                return
            held = self._held
            end = held.find(b"\r\n\r\n", max(0, self._looked - 3)) + 4
            try:
                if end < 4:
                    check_part(held, self._looked)
                    if self._any and not self._looked:
                        self._since_s = time.monotonic()
                    self._looked = len(held)
                    return
                self._looked = 0
                raw = held[:end]
                length = self._length_alone(raw)
                if length is None:
                    if end > MAX_HEAD_BYTES:
                        raise too_long()
                    head = parse_head(raw)
                    verdict = self._app.admit(head, self._address)
                    self._any = True
                    if isinstance(verdict, Refused):
                        self._refuse(verdict, head, end)
                        continue
                    length = self._know(raw, head, verdict)
            except MalformedRequest as error:
                self._refuse(self._app.refusal(error.status, error.message), None)
                return
            assert self._last is not None
            head, admitted = self._last
            if admitted.whole and length is not None and len(held) >= end + length:
                self._held = held[end + length :]
                self._answer(head, admitted, held[end : end + length])
            else:
                self._held = b""
                self._begin(head, admitted, length, held[end:])

    def _know(self, raw: bytes, head: Head, admitted: Admitted) -> int | None:
        """Remember what was decided on a head; its body's length."""
        self._last, self._around = (head, admitted), None
        length = head.length
        if admitted.whole and length:
            match = _LENGTH.search(raw)
            assert match is not None
            self._around = raw[: match.start(1)], raw[match.end(1) :]
        return length

    def _length_alone(self, raw: bytes) -> int | None:
        """The length of the body, of a head that differs from the one before in nothing else."""
        if self._around is None:
            return None
        before, after = self._around
        digits = raw[len(before) : len(raw) - len(after)]
        if not (digits.isdigit() and len(digits) < 10 and raw.startswith(before) and raw.endswith(after)):
            return None
        length = int(digits)
        assert self._last is not None
        admitted = self._last[1]
        return length if 0 < length <= admitted.limit_bytes and self._app.still_admits(admitted) else None

    def _refuse(self, refused: Refused, head: Head | None, end: int = 0) -> None:
        """Reply to a head at once. If its body is not here, or nobody knows where it ends, that is all."""
        length = None if head is None else head.length
        stays = head is not None and head.keep_alive and length is not None and not self._closing
        if stays and length is not None and len(self._held) >= end + length:
            self._held = self._held[end + length :]
        else:
            stays = False
        is_head = head is not None and head.method == "HEAD"
        self._write_reply(refused.status, b"" if is_head else refused.body, refused.headers, close=not stays)
        self._since_s = time.monotonic()
        if not stays:
            self._leave()

    def _close(self) -> None:
        """That was the last reply."""
        self._at, self._held = _LEAVING, b""
        self._transport.close()

    def _leave(self) -> None:
        """That was the last reply, in the middle of a request. What still comes of it is read and dropped for
        a while: whoever closes on unread bytes may take the reply back.
        """
        self._at, self._held = _LEAVING, b""
        self._since_s = time.monotonic()
        self._read_on(True)
        if not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    # ── bodies ──────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, head: Head, admitted: Admitted, length: int | None, data: bytes) -> None:
        """A request whose body is not whole yet, or that is the framework's."""
        self._body = ChunkedBody() if length is None else SizedBody(length)
        self._pace = _Pace(time.monotonic())
        if admitted.whole:
            self._at = _BODY
            if head.headers.get(b"expect", b"").lower() == b"100-continue" and not data:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            self._at = _EXCHANGE
            scope = scope_of(head, admitted.path, admitted.query, admitted.caller, self._client, self._scheme)
            exchange = self._exchange = AsgiExchange(self, head, scope)
            if self._closing:
                exchange.keep_alive = False
            if self._body.ended:
                exchange.complete()
                self._body = self._pace = None
            self._all.start(exchange)
        if self._body is None:
            self._held = data
            if len(data) > _AHEAD_BYTES:
                self._read_on(False)
        elif data:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """A part of the body."""
        body, exchange = self._body, self._exchange
        assert body is not None
        assert self._last is not None
        head, admitted = self._last
        if self._pace is not None:
            self._pace.done += len(data)
        try:
            for part in body.feed(data):
                self._size += len(part)
                if exchange is not None:
                    exchange.feed(part)
                elif self._at == _BODY:
                    self._parts.append(part)
        except MalformedRequest as error:
            if self._at == _BODY:
                self._turn_away(error.status, error.message)
            else:
                self._transport.abort()  # its reader is told that the client has gone
            return
        if self._at == _BODY and not self._is_held(admitted.limit_bytes):
            return
        if not body.ended:
            if self._at == _DROPPING and self._size > _DROPPED_BYTES:
                self._drop_body()
                self._leave()
            return
        self._held = body.rest
        whole = b"".join(self._parts)
        self._drop_body()
        if exchange is not None:
            self._read_on(True)  # so that its end is noticed
            exchange.complete()
        elif self._at == _DROPPING:
            self._next()
        else:
            self._answer(head, admitted, whole)
            if self._held and self._at == _HEAD:
                self._go_on()

    def _is_held(self, limit_bytes: int) -> bool:
        """Whether the part of a body that is here may be kept; if not, the request is refused."""
        if self._size > limit_bytes:
            self._turn_away(413, f"the request's body is over the limit of {limit_bytes} bytes")
            return False
        more = self._size - self._reserved
        if self._all.held_bytes + more > self._all.limits.held_bytes:
            self._turn_away(503, "too many bodies are being received; try again soon")
            return False
        self._all.held_bytes += more
        self._reserved = self._size
        return True

    def _turn_away(self, status: int, message: str) -> None:
        """Refuse a request in the middle of its body."""
        self._drop_body()
        self._refuse(self._app.refusal(status, message), None)

    def _drop_body(self) -> None:
        self._all.held_bytes -= self._reserved
        self._reserved = self._size = 0
        self._body = self._pace = None
        self._parts = []

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, head: Head, admitted: Admitted, body: bytes) -> None:
        self._at = _ANSWERING
        whole = WholeRequest(admitted.path, head.headers, body, time.monotonic(), admitted.caller)
        waiting = self._app.answer(whole, self._reply)
        if self._at == _ANSWERING:
            self._waiting = waiting

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        if self._at != _ANSWERING:
            return
        self._waiting = None
        if self._transport.is_closing():
            return
        assert self._last is not None
        close = self._closing or not self._last[0].keep_alive
        self._write_reply(status, body, headers, close=close)
        if close:
            self._close()
        else:
            self._next()

    def _write_reply(self, status: int, body: bytes, headers: Mapping[str, str], *, close: bool) -> None:
        lines = [STATUS_LINES[status]]
        for name, value in self._all.default_headers():
            lines += (name, b": ", value, b"\r\n")
        for key, text in headers.items():
            lines.append(f"{key.lower()}: {text}\r\n".encode("latin-1"))
        if close:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        lines.append(body)
        self.write(b"".join(lines))

    # ── exchanges (asgi_exchange.ClientConnection) ──────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        """See `asgi_exchange.ClientConnection`."""
        if data and not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    async def writable(self) -> None:
        """See `asgi_exchange.ClientConnection`."""
        if self._writable is not None:
            await self._writable.wait()

    def read_on(self, wanted: bool) -> None:
        """See `asgi_exchange.ClientConnection`."""
        if self._exchange is not None and self._body is not None:
            self._read_on(wanted)
            # While nobody asks for it, it is not the client who is slow.
            self._pace = _Pace(time.monotonic()) if wanted else None

    def lines(self) -> Iterable[tuple[bytes, bytes]]:
        """See `asgi_exchange.ClientConnection`."""
        return self._all.default_headers()

    def ended(self, exchange: AsgiExchange, whole: bool) -> None:
        """See `asgi_exchange.ClientConnection`."""
        if self._exchange is not exchange:
            return
        if not whole:
            self._exchange = None
            self._transport.abort()
            return
        self._exchange = None
        self._since_s = time.monotonic()
        if not exchange.keep_alive or self._closing:
            if self._body is None:
                self._close()
            else:
                self._drop_body()
                self._leave()
        elif self._body is None:
            self._next()
        else:
            self._at, self._size = _DROPPING, 0
            self._pace = _Pace(self._since_s)
            self._read_on(True)

    def _next(self) -> None:
        """A request is answered; the one after it may have come."""
        self._at = _HEAD
        self._since_s = time.monotonic()
        self._read_on(True)
        if self._held:
            # Not at once: this may be called from inside the loop of `_go_on`.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _read_on(self, wanted: bool) -> None:
        if self._paused == wanted:
            self._paused = not wanted
            if not self._transport.is_closing():
                (self._transport.resume_reading if wanted else self._transport.pause_reading)()
