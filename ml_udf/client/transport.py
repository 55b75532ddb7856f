"""The one-method seam between the client and whatever answers: `send(request) → response`.

Owns HTTP/1.1 over kept-alive connections. Knows no tensors, no functions, no retries. Several endpoints
(`ml_udf.client.failover`), `local:` (`ml_udf.local`) and tests bring other implementations of `Transport`.

Every failure below the protocol leaves here as one of five errors:
    connect() refused, no route, no such host        → ServerUnreachable   nothing was sent
    a certificate not trusted, no TLS over there     → TlsFailed           nothing was read
    broken or not HTTP after the connection stood    → ConnectionLost
    no answer within `timeout_s`                     → DeadlineExceeded
    `abort` set meanwhile                            → Cancelled

A request leaves once. Only one that may arrive twice (`HttpRequest.repeatable`) is sent again, when the kept
connection that it took turns out to be broken; every other has a connection of its own, which no server has
had the time to close. A token goes in the clear to this machine alone, unless `allow_plain` says otherwise.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from ml_udf.client.tls import ClientTls, failure_of, is_alert
from ml_udf.errors import BadOption, Cancelled, ConnectionLost, DeadlineExceeded, ServerUnreachable

__all__ = ["Abort", "HttpRequest", "HttpResponse", "HttpTransport", "Transport"]

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP-shaped request; `path` is absolute, without the endpoint's own prefix."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    on_sent: Callable[[], None] | None = None  # called when it has left, before the answer is waited for
    may_repeat: bool = False  # whether it does no more by arriving twice, though it is no GET

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again where nobody knows if it arrived."""
        return self.may_repeat or self.method in ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class HttpResponse:
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

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        """Answer `request` within `timeout_s`. Raises the errors of the module docstring."""
        ...

    def close(self) -> None:
        """Let go of connections and models."""
        ...


class HttpTransport:
    """HTTP/1.1 to one endpoint. Connections are kept and shared; each carries one request at a time."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        allow_plain: bool = False,
        sslrootcert: str | None = None,
        sslcert: str | None = None,
        sslkey: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Raises `BadOption` for an endpoint that is none, or may not be used like this.

        allow_plain  whether http:// may leave this machine: all between can read token and rows
        sslrootcert  file of the authorities (PEM) that may vouch for the server; None = those of this machine
        sslcert      file of the certificate (PEM) that a server sees that wants one of its clients
        sslkey       file of its private key, readable by this user alone; None = in sslcert, too
        """
        try:
            parts = urlsplit(url)
        except ValueError:  # of brackets that hold no address
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            said = "this" if "@" in url else repr(url)  # before it there may be a password
            raise BadOption(
                f"{said} is not an endpoint",
                hint="use http://host:port, https://host:port or local:; several with commas between them",
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
        if parts.scheme == "http" and not (allow_plain or _is_loopback(parts.hostname)):
            raise BadOption(
                f"{parts.scheme}://{parts.hostname} would carry token and rows over the network in the clear",
                hint="use https:// (sslrootcert names the file of an authority of your own), or set"
                " allow_plain to true where the network is trusted",
            )
        self._connect_timeout_s = connect_timeout_s
        self._host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = _tls(parts.scheme, sslrootcert=sslrootcert, sslcert=sslcert, sslkey=sslkey)
        self._shown = f"{parts.scheme}://{parts.hostname}:{self._port}{self._prefix}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._process = os.getpid()

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        """See `Transport.send`. `timeout_s` is for all of it, connecting included."""
        end_s = time.monotonic() + timeout_s
        if self._process != os.getpid():  # a fork that shared a connection would read another's answers
            self._idle, self._process = deque(), os.getpid()
        if request.repeatable:
            with contextlib.suppress(IndexError):
                kept = self._idle.pop()
                with contextlib.suppress(ConnectionLost):
                    return self._exchange(kept, request, end_s, timeout_s, abort)
                if abort:
                    raise Cancelled("the call was cancelled")
        return self._exchange(self._connect(end_s, timeout_s), request, end_s, timeout_s, abort)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self, end_s: float, timeout_s: float) -> http.client.HTTPConnection:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise self._too_late(timeout_s)
        wait_s = min(left_s, self._connect_timeout_s)
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=wait_s, context=self._tls.context())
            if self._tls
            else http.client.HTTPConnection(self._host, self._port, timeout=wait_s)
        )
        try:
            connection.connect()
        except ssl.SSLError as exc:
            raise failure_of(self._shown, exc) from exc
        except (OSError, UnicodeError) as exc:
            raise ServerUnreachable(f"nothing answers at {self._shown}: {_reason(exc)}") from exc
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        request: HttpRequest,
        end_s: float,
        timeout_s: float,
        abort: Abort,
    ) -> HttpResponse:
        sock = connection.sock

        def wake() -> None:
            # shutdown(), not close(): it ends a recv() that waits in another thread, and the server
            # sees the client leave and drops the rows.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        done = False
        abort.listen(wake)
        try:
            raw = self._ask(connection, request, end_s)
            response = HttpResponse(raw.status, {k.lower(): v for k, v in raw.getheaders()}, raw.read())
            done = not raw.will_close
        except TimeoutError as exc:
            raise self._too_late(timeout_s) from exc
        except (OSError, http.client.HTTPException) as exc:
            if abort:
                raise Cancelled("the call was cancelled") from exc
            if isinstance(exc, ssl.SSLError) and is_alert(exc):
                raise failure_of(self._shown, exc) from exc
            raise ConnectionLost(
                f"the connection to {self._shown} broke: {_reason(exc)}",
                hint="see the server's log; is it an Open Inference Protocol server?"
                if request.repeatable
                else "it may have been done or not: look before you ask again",
            ) from exc
        finally:
            abort.forget(wake)
            if done and not abort:
                self._idle.append(connection)
            else:
                connection.close()
        return response

    def _ask(
        self, connection: http.client.HTTPConnection, request: HttpRequest, end_s: float
    ) -> http.client.HTTPResponse:
        """Send the request and read the head of the answer."""
        sock = connection.sock
        sock.settimeout(_left_s(end_s))
        connection.response_class = _reads_until(end_s)
        headers = {**request.headers, **self._headers}
        refused = False
        try:
            connection.request(request.method, self._prefix + request.path, request.body or None, headers)
        except (BrokenPipeError, ConnectionResetError):
            refused = True  # a server may answer without having read it all: no right, too large
        if request.on_sent is not None and not refused:
            request.on_sent()
        raw = connection.getresponse()
        if refused and raw.status < 400:
            raise http.client.HTTPException("it was closed while the request was being sent")
        if raw.length is None and not raw.chunked and raw.status not in (204, 304):
            raise http.client.HTTPException("the answer does not say where it ends")  # nor if it was cut
        return raw

    def _too_late(self, timeout_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._shown} gave no answer within {timeout_s:.1f} s")


class _Reader(io.RawIOBase):
    """A socket's bytes, until `end_s`: each wait has what is left, however small the pieces that come."""

    def __init__(self, sock: socket.socket, end_s: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open, as http.client expects
        self._end_s = end_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401  # any writable buffer
        self._sock.settimeout(_left_s(self._end_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Timed:
    """What `http.client.HTTPResponse` needs of a socket."""

    def __init__(self, sock: socket.socket, end_s: float) -> None:
        self._sock = sock
        self._end_s = end_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._end_s))


def _reads_until(end_s: float) -> Any:  # noqa: ANN401  # a factory in the place of http.client's class
    def response(sock: socket.socket, **how: Any) -> http.client.HTTPResponse:  # noqa: ANN401  # its options
        return http.client.HTTPResponse(_Timed(sock, end_s), **how)  # type: ignore[arg-type]  # a socket to it

    return response


def _left_s(end_s: float) -> float:
    """Seconds until `end_s`. Raises `TimeoutError` when there are none."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _is_loopback(host: str) -> bool:
    """Whether `host` is this machine, whatever a name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _tls(scheme: str, **files: str | None) -> ClientTls | None:
    if scheme == "https":
        return ClientTls(**files)
    given = [option for option, file in files.items() if file is not None]
    if given:
        raise BadOption(f"{given[0]} is for https:// endpoints alone")
    return None


def _reason(exc: Exception) -> str:
    told = http.client.BadStatusLine | http.client.UnknownProtocol
    if isinstance(exc, told) and not isinstance(exc, http.client.RemoteDisconnected):
        return "what answers does not speak HTTP"  # its text may hold what it said instead
    return (getattr(exc, "strerror", None) or str(exc) or type(exc).__name__).lower()
