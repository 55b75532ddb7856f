"""One request and its reply as the framework has them: ASGI's `receive` and `send` over a connection.

Knows ASGI and the form of a reply in HTTP/1.1; not sockets, and not what is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

from server.access.caller import Caller
from server.http.request_head import Head

__all__ = ["STATUS_LINES", "TOLD", "AsgiExchange", "ClientConnection", "path_of", "scope_of"]

log = logging.getLogger("ml_udf.server")

STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
STATUS_LINES[499] = b"HTTP/1.1 499 Client Closed Request\r\n"
TOLD = "ml_udf.told"  # of a scope: the log has what was raised in it
_HELD_BYTES = 1 << 16  # of a body that the application has not asked for
_BODILESS = frozenset((204, 304))

_Message = MutableMapping[str, Any]
Application = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


class ClientConnection(Protocol):
    """The connection, as an exchange needs it."""

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens where nobody is left."""

    async def writable(self) -> None:
        """Wait until the client has read enough of what was written before."""

    def read_on(self, wanted: bool) -> None:
        """Whether more of the body may come now."""

    def lines(self) -> Iterable[tuple[bytes, bytes]]:
        """The headers of every reply."""

    def ended(self, exchange: AsgiExchange, whole: bool) -> None:
        """The application is done; `whole`: its reply is complete."""


class AsgiExchange:
    """A request under way in the application."""

    def __init__(self, connection: ClientConnection, head: Head, scope: _Message) -> None:
        self._connection = connection
        self._head = head
        self._scope = scope
        self._body = bytearray()
        self._complete = False  # the request's body
        self._gone = False
        self._event = asyncio.Event()
        self._continue = head.headers.get(b"expect", b"").lower() == b"100-continue"
        self._started = False
        self._finished = False  # the reply
        self._left: int | None = None  # bytes of the reply that are announced and not sent; None = chunked
        self.keep_alive = head.keep_alive

    # ── the connection's side ───────────────────────────────────────────────────────────────────────

    def feed(self, part: bytes) -> None:
        """A part of the body came."""
        if self._finished:
            return
        self._body += part
        if len(self._body) > _HELD_BYTES:
            self._connection.read_on(False)
        self._event.set()

    def complete(self) -> None:
        """The body is here to its end."""
        self._complete = True
        self._event.set()

    def disconnect(self) -> None:
        """The client has gone."""
        self._gone = True
        self._event.set()

    async def run(self, application: Application) -> None:
        """Let the application answer; whatever it raises becomes a reply, or the end of the connection."""
        try:
            await application(self._scope, self._receive, self._send)
        except Exception:
            if not self._gone:
                if not self._scope.get(TOLD):
                    log.exception("request failed method=%s path=%s", self._head.method, self._scope["path"])
                if not self._started:
                    await self._failed()
        finally:
            self._connection.ended(self, self._finished)

    # ── the application's side ──────────────────────────────────────────────────────────────────────

    async def _receive(self) -> _Message:
        if self._continue and not self._gone and not self._started:
            self._continue = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._gone and not self._finished:
            if not self._body and not self._event.is_set():
                self._connection.read_on(True)
            await self._event.wait()
            self._event.clear()
        if self._gone or self._finished:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        if not self._complete:
            self._connection.read_on(True)
        return {"type": "http.request", "body": body, "more_body": not self._complete}

    async def _send(self, message: _Message) -> None:
        await self._connection.writable()
        if self._gone or self._finished:
            return
        if message["type"] == "http.response.start":
            self._start(message)
        else:
            self._part(message.get("body", b""), bool(message.get("more_body", False)))

    def _start(self, message: _Message) -> None:
        status: int = message["status"]
        self._started = True
        out = [STATUS_LINES[status]]
        length: int | None = None
        for name, value in (*self._connection.lines(), *message.get("headers", ())):
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            if name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            if b"\n" in value or b"\r" in value:
                raise ValueError(f"the header {name!r} of a reply holds a line end")
            out += (name, b": ", value, b"\r\n")
        if self._head.method == "HEAD" or status in _BODILESS:
            length = 0
        elif length is None:
            if self._head.http_1_0:
                self.keep_alive = False
            else:
                out.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            out.append(b"connection: close\r\n")
        out.append(b"\r\n")
        self._left = length
        self._connection.write(b"".join(out))

    def _part(self, body: bytes, more: bool) -> None:
        if self._head.method == "HEAD":
            body = b""
        if self._left is not None:
            if len(body) > self._left:
                raise ValueError("a reply is longer than it announced")
            self._left -= len(body)
            if body:
                self._connection.write(body)
        elif self._head.http_1_0:
            self._connection.write(body)
        elif body or not more:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._connection.write(chunk if more else chunk + b"0\r\n\r\n")
        if not more and not self._left:
            self._finished = True
            self._event.set()

    async def _failed(self) -> None:
        body = b'{"error": "internal: the server failed inside; its log holds the cause"}'
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({"type": "http.response.start", "status": 500, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def path_of(target: bytes) -> tuple[str, bytes]:
    """The path of a request's target, percent-decoded, and the query."""
    path, _, query = target.partition(b"?")
    text = path.decode("ascii")
    return unquote(text) if "%" in text else text, query


def scope_of(
    head: Head, path: str, query: bytes, caller: Caller, client: tuple[str, int] | None, scheme: str
) -> _Message:
    """ASGI's scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if head.http_1_0 else "1.1",
        "server": None,
        "client": client,
        "scheme": scheme,
        "method": head.method,
        "root_path": "",
        "path": path,
        "raw_path": head.target.partition(b"?")[0],
        "query_string": query,
        "headers": head.lines,
        "state": {},
        "ml_udf.caller": caller,
    }
