"""The short way of an infer request: from the socket to the route, with neither ASGI nor a task between.

Most requests are alike: one whole HTTP/1.1 POST to an infer route, of known length. They are read here, for
less than a general parser and a task for each cost. Everything that is unusual in any way (other routes,
bodies that are chunked or compressed, `Expect`, `Upgrade`, `Origin`, odd header lines, long bodies, or heads
that come in parts) is handed on to uvicorn's own protocol, byte for byte, before any of it was acted on.

Owns one connection: whose turn it is, what came ahead of its turn, and whether somebody still waits. Knows
HTTP/1.1; not what is asked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["Reply", "Shortcut", "Waiting", "WholeRequest"]

_LONGEST = 1 << 20  # bytes of a request; longer ones need the flow control of the long way
_AHEAD = 1 << 16  # bytes of later requests that are kept while one is answered
_START = re.compile(rb"POST (/v2/models/[\w.~-]+(?:/versions/[\w.~-]+)?/infer) HTTP/1\.1\r\n")
_NAME = re.compile(rb"[a-z0-9-]+")
_ODD = frozenset((b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"origin", b"connection"))
_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """An infer request that is here to its end; names of `headers` are in lower case.

    came_s: when, on the clock of `time.monotonic`.
    """

    path: str
    headers: Mapping[bytes, bytes]
    body: bytes
    came_s: float


Reply = Callable[[int, bytes, Mapping[str, str]], None]  # status, body, headers


class Waiting(Protocol):
    """A request under way."""

    def leave(self) -> None:
        """Its client has gone."""


class Application(Protocol):
    """What `uvicorn.Config` is given as the application of a server with this protocol."""

    def answer(self, request: WholeRequest, reply: Reply) -> Waiting | None:
        """Call `reply` once: now, and return None, or later."""


class Shortcut(HttpToolsProtocol):
    """uvicorn's protocol with the short way before it. Its application is an `Application` too."""

    def __init__(self, *args: Any, **named: Any) -> None:  # noqa: ANN401 (passed on)
        super().__init__(*args, **named)
        self._held = bytearray()  # bytes that are nobody's yet
        self._wanted = 0  # how many of them make a request, once its head was read
        self._head: tuple[str, Mapping[bytes, bytes], int] | None = None  # of that request
        self._answering = False
        self._waiting: Waiting | None = None
        self._between = True  # uvicorn's parser is between two messages
        self._last = False  # the connection closes after the reply under way

    # ── asyncio.Protocol ────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        """Requests, or parts of them."""
        if not self._held and not self._answering and not self._is_ours(data):
            super().data_received(data)
            return
        self._unset_keepalive_if_required()
        self._held += data
        if self._answering:
            if len(self._held) > _AHEAD:
                self.flow.pause_reading()
        else:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; nobody waits any more."""
        waiting, self._waiting = self._waiting, None
        self._held.clear()
        super().connection_lost(exc)
        if waiting is not None:
            waiting.leave()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if not self._answering:
            self._go_on()

    # ── uvicorn ─────────────────────────────────────────────────────────────────────────────────────

    def shutdown(self) -> None:
        """No more requests; the one under way is answered."""
        if self._answering:
            self._last = True
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        """uvicorn's parser has seen the first byte of a request."""
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """uvicorn's parser has seen the last byte of a request."""
        self._between = True
        super().on_message_complete()

    # ── the short way ───────────────────────────────────────────────────────────────────────────────

    def _is_ours(self, data: bytes | bytearray) -> bool:
        """Whether a request begins here that can go the short way; then its head is noted."""
        cycle: RequestResponseCycle | None = self.cycle  # None before its first request
        if not self._between or (cycle is not None and not cycle.response_complete):
            return False
        self._head = None if self.transport.is_closing() else _head_of(data)
        return self._head is not None

    def _go_on(self) -> None:
        """Answer what is here, one request after the other; hand on what cannot go the short way."""
        while self._held and not self._answering and not self.flow.write_paused:
            if self._head is None and not self._is_ours(self._held):
                data = bytes(self._held)
                self._held.clear()
                self.flow.resume_reading()
                super().data_received(data)
                return
            assert self._head is not None
            path, headers, end = self._head
            size = end + int(headers[b"content-length"])
            if len(self._held) < size:
                return
            body = bytes(memoryview(self._held)[end:size])
            del self._held[:size]
            self._head = None
            self._answering = True
            waiting = self.app.answer(WholeRequest(path, headers, body, time.monotonic()), self._reply)
            if self._answering:
                self._waiting = waiting

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        if not self._answering:
            return
        self._answering, self._waiting = False, None
        if self.transport.is_closing():
            return
        lines = [_STATUS_LINES[status]]
        for name, value in self.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
        for key, text in headers.items():
            lines.append(f"{key.lower()}: {text}\r\n".encode("latin-1"))
        if self._last:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        lines.append(body)
        self.transport.write(b"".join(lines))
        if self._last:
            self.transport.close()
            return
        self.on_response_complete()  # counts it, reads on, and closes the connection if nothing comes
        if self._held:
            # Not at once: this may be called from inside the loop above.
            asyncio.get_running_loop().call_soon(self._go_on)


def _head_of(data: bytes | bytearray) -> tuple[str, Mapping[bytes, bytes], int] | None:
    """Path, headers and the length of the head; None if anything about it is out of the ordinary."""
    start = _START.match(data)
    if start is None:
        return None
    end = data.find(b"\r\n\r\n", start.end())
    if end < 0:
        return None
    headers: dict[bytes, bytes] = {}
    for line in bytes(data[start.end() : end]).split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name in headers or _NAME.fullmatch(name) is None:
            return None
        value = value.strip(b" \t")
        if name in _ODD and not (name == b"connection" and value.lower() == b"keep-alive"):
            return None
        headers[name] = value
    length = headers.get(b"content-length", b"")
    if not (length.isdigit() and len(length) < 8 and int(length) + end < _LONGEST and b"host" in headers):
        return None
    return start[1].decode("ascii"), headers, end + 4
