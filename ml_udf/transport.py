"""The one-method seam between the client and whatever answers: `send(request) → response`.

Owns HTTP/1.1 over kept-alive connections. Knows no tensors, no functions, no retries. `local:` endpoints
(`ml_udf.local`) and tests bring other implementations of `Transport`.

Every failure below the protocol leaves here as one of four errors:
    connect() refused, no route, no such host        → ServerUnreachable   nothing was sent
    broken or not HTTP after the connection stood    → ConnectionLost
    no answer within `timeout_s`                     → DeadlineExceeded
    `abort` set meanwhile                            → Cancelled
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from ml_udf.errors import BadOption, Cancelled, ConnectionLost, DeadlineExceeded, ServerUnreachable

__all__ = ["Abort", "HttpTransport", "Request", "Response", "Transport"]

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP-shaped request; `path` is absolute, without the endpoint's own prefix."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    on_sent: Callable[[], None] | None = None  # called when it has left, before the answer is waited for


@dataclass(frozen=True, slots=True)
class Response:
    """What came back; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Abort:
    """A flag that one thread sets and others feel at once: waiting sends end with `Cancelled`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._wakers: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Abort everything that listens, now and later."""
        with self._lock:
            self._event.set()
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def sleep(self, seconds: float) -> None:
        """Sleep, or less when set meanwhile."""
        self._event.wait(seconds)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when set; at once if it already is."""
        with self._lock:
            if not self._event.is_set():
                self._wakers.append(wake)
                return
        wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        with self._lock, contextlib.suppress(ValueError):
            self._wakers.remove(wake)


class Transport(Protocol):
    """Something that answers requests; safe to call from several threads."""

    def send(self, request: Request, *, timeout_s: float, abort: Abort) -> Response:
        """Answer `request` within `timeout_s`. Raises the errors of the module docstring."""
        ...

    def close(self) -> None:
        """Let go of connections and models."""
        ...


class HttpTransport:
    """HTTP/1.1 to one endpoint. Connections are kept and shared; each carries one request at a time."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadOption(
                f"{url!r} is not an endpoint", hint="use http://host:port, https://host:port or local:"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BadOption(
                "an endpoint has no user, password, query or fragment",
                hint="give the token as its own option",
            )
        try:
            port = parts.port
        except ValueError as exc:
            raise BadOption(f"the endpoint's port is not a port: {exc}") from exc
        self._host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._shown = f"{parts.scheme}://{parts.hostname}:{self._port}{self._prefix}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._idle: deque[http.client.HTTPConnection] = deque()

    def send(self, request: Request, *, timeout_s: float, abort: Abort) -> Response:
        """See `Transport.send`. A kept connection that the server closed meanwhile is replaced once."""
        with contextlib.suppress(IndexError):
            kept = self._idle.pop()
            with contextlib.suppress(ConnectionLost):
                return self._exchange(kept, request, timeout_s, abort)
            if abort:
                raise Cancelled("the call was cancelled")
        return self._exchange(self._connect(timeout_s), request, timeout_s, abort)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        wait_s = min(timeout_s, CONNECT_TIMEOUT_S)
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=wait_s, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(self._host, self._port, timeout=wait_s)
        )
        try:
            connection.connect()
        except (OSError, UnicodeError) as exc:
            raise ServerUnreachable(
                f"nothing answers at {self._shown}: {_reason(exc)}",
                hint="start the server (ml-udf serve) or check the url; ml-udf doctor tests each link",
            ) from exc
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request, timeout_s: float, abort: Abort
    ) -> Response:
        sock = connection.sock

        def wake() -> None:
            # shutdown(), not close(): it ends a recv() that waits in another thread, and the server
            # sees the client leave and drops the rows.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        done = False
        abort.listen(wake)
        try:
            sock.settimeout(max(timeout_s, 0.001))
            headers = {**request.headers, **self._headers}
            connection.request(request.method, self._prefix + request.path, request.body or None, headers)
            if request.on_sent is not None:
                request.on_sent()
            raw = connection.getresponse()
            response = Response(raw.status, {k.lower(): v for k, v in raw.getheaders()}, raw.read())
            done = not raw.will_close
        except TimeoutError as exc:
            raise DeadlineExceeded(f"{self._shown} gave no answer within {timeout_s:.1f} s") from exc
        except (OSError, http.client.HTTPException) as exc:
            if abort:
                raise Cancelled("the call was cancelled") from exc
            raise ConnectionLost(
                f"the connection to {self._shown} broke: {_reason(exc)}",
                hint="see the server's log; is it an Open Inference Protocol server?",
            ) from exc
        finally:
            abort.forget(wake)
            if done and not abort:
                self._idle.append(connection)
            else:
                connection.close()
        return response


def _reason(exc: Exception) -> str:
    return (getattr(exc, "strerror", None) or str(exc) or type(exc).__name__).lower()
