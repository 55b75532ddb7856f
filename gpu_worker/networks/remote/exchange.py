"""One HTTP request to an endpoint and its reply: bounded in time and size, given up from another thread.

    Call.run → connect → send → head → body → Reply
         ↑ give_up: the socket is shut down, and whoever waits in it wakes

Redirects are not followed, replies are not decompressed, no proxy of the environment is asked: what is sent
goes to the host of the URL and nowhere else. Knows no model and no JSON.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

from gpu_worker.model_files.endpoints import NO_KEY, Endpoint, EndpointKey

__all__ = ["Call", "Connections", "EndpointFailed", "Reply"]

_CONNECT_S: Final = 5.0
_PIECE_BYTES: Final = 64 << 10
_SHOWN_CHARS: Final = 300
_AGAIN: Final = frozenset((408, 425, 429, 500, 502, 503, 504))


class EndpointFailed(Exception):
    """An endpoint gave no answer that can be used.

    unavailable: it cannot be asked at all now; else it is this request. again: the request may be repeated.
    retry_after_s: not before so long, where the endpoint says so.
    """

    def __init__(
        self, message: str, *, unavailable: bool = True, again: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.unavailable = unavailable
        self.again = again
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of status 200."""

    body: bytes
    headers: Mapping[str, str]


class Connections:
    """Open connections to one endpoint, kept between requests. Thread-safe.

    key: sent with each request; it stands in no message.
    """

    def __init__(self, endpoint: Endpoint, key: EndpointKey = NO_KEY, *, max_reply_bytes: int) -> None:
        self.endpoint = endpoint
        self.max_reply_bytes = max_reply_bytes
        self._key = key
        self._context = ssl.create_default_context() if endpoint.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def take(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        host, port = self.endpoint.host, self.endpoint.port
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=_CONNECT_S), False
        return http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=self._context), False

    def give(self, connection: http.client.HTTPConnection) -> None:
        """Takes back one whose reply was read to its end."""
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Hangs up where nothing is under way."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def headers(self) -> dict[str, str]:
        """That every request has."""
        said = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "ml_udf"}
        return said | self._key.headers

    def without_key(self, text: str) -> str:
        """A text of which the endpoint's words may be a part: it may send back what it was sent."""
        return text.replace(self._key.word, "…") if self._key.word else text

    def hidden(self, text: str) -> str:
        """A text of the endpoint's, fit for a message: short, printable, without the key."""
        text = self.without_key(text)
        shown = "".join(each if each.isprintable() else " " for each in text[: 4 * _SHOWN_CHARS])
        shown = " ".join(shown.split())
        return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


class Call:
    """One request. `run` in one thread; `give_up` in any other, at any time."""

    def __init__(
        self,
        connections: Connections,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._connections = connections
        self._method, self._path, self._body = method, connections.endpoint.target(path), body
        self._headers = connections.headers() | dict(headers or {})
        self._socket: socket.socket | None = None  # while it is open; the connection may have let go of it
        self._given_up = ""  # why
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it goes."""
        return self._connections.endpoint.origin + self._path

    def give_up(self, reason: str) -> None:
        """`run` raises soon; an endpoint that still works on it sees the connection close."""
        with self._lock:
            self._given_up = self._given_up or reason
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def run(self, ends_s: float) -> Reply:
        """The reply, by `ends_s` of `time.monotonic`. Raises `EndpointFailed`."""
        while True:
            connection, is_used = self._connections.take()
            try:
                return self._run_on(connection, ends_s)
            except (http.client.HTTPException, OSError) as exc:
                connection.close()
                # The endpoint may close a connection that lay idle just when a request begins.
                if (
                    is_used
                    and not self._given_up
                    and isinstance(exc, ConnectionError | http.client.BadStatusLine)
                ):
                    continue
                raise self._failure(exc, ends_s) from exc
            except BaseException:
                connection.close()
                raise

    def _run_on(self, connection: http.client.HTTPConnection, ends_s: float) -> Reply:
        try:
            if connection.sock is None:
                connection.timeout = min(_CONNECT_S, self._left_s(ends_s))
                connection.connect()
            self._wait_on(connection.sock, ends_s)
            connection.request(self._method, self._path, self._body, self._headers)
            response = connection.getresponse()
            body = self._read(response, ends_s)
            response.close()  # one of a known length does not notice its end; the connection stays
        finally:
            with self._lock:
                self._socket = None
        if response.status != 200:
            connection.close()
            raise self._refused(response, body)
        if response.getheader("Content-Encoding", "identity") != "identity":
            connection.close()
            raise EndpointFailed(f"{self.url} sent a compressed reply unasked", unavailable=False)
        if response.will_close:
            connection.close()
        else:
            self._connections.give(connection)
        return Reply(body, {name.lower(): value for name, value in response.getheaders()})

    def _left_s(self, ends_s: float) -> float:
        """Seconds that are left. Raises `TimeoutError`, which says nothing, where there are none."""
        left_s = ends_s - time.monotonic()
        if left_s <= 0 or self._given_up:
            raise TimeoutError
        return left_s

    def _wait_on(self, sock: socket.socket, ends_s: float) -> None:
        """From now on `give_up` finds the socket, which waits no longer than there is time."""
        with self._lock:
            sock.settimeout(self._left_s(ends_s))
            self._socket = sock

    def _read(self, response: http.client.HTTPResponse, ends_s: float) -> bytes:
        most = self._connections.max_reply_bytes
        told = response.length
        if told is not None and told > most and response.status == 200:
            raise self._too_large(most)
        body = bytearray()
        while piece := response.read1(_PIECE_BYTES):
            body += piece
            if response.status != 200 and len(body) > _PIECE_BYTES:
                break
            if len(body) > most:
                raise self._too_large(most)
            assert self._socket is not None, "the reply comes through it"
            self._wait_on(self._socket, ends_s)
        if response.status == 200 and told is not None and len(body) < told:
            raise http.client.IncompleteRead(b"", told - len(body))
        return bytes(body)

    def _too_large(self, most: int) -> EndpointFailed:
        return EndpointFailed(
            f"the reply of {self.url} is over {most} bytes (remote.max_reply_bytes of the model)",
            unavailable=False,
        )

    def _refused(self, response: http.client.HTTPResponse, body: bytes) -> EndpointFailed:
        status, said = response.status, self._connections.hidden(body.decode("utf-8", "replace"))
        what = f"{self.url} answered {status}" + (f": {said}" if said else "")
        if 300 <= status < 400:
            return EndpointFailed(f"{what}; redirects are not followed: register the URL that it names")
        if status in (401, 403):
            return EndpointFailed(
                f"{what}; the key is missing or wrong: ml-udf serve --allow-remote URL=KEYFILE names its file"
            )
        if status == 404:
            return EndpointFailed(f"{what}; check the URL and the model's name there")
        after_s = _retry_after_s(response.getheader("Retry-After"))
        if status == 429 or status >= 500:
            hint = "; it is too busy" if status in (429, 503) else "; its own log says why"
            return EndpointFailed(what + hint, again=status in _AGAIN, retry_after_s=after_s)
        return EndpointFailed(what, unavailable=False, again=status in _AGAIN)

    def _failure(self, exc: Exception, ends_s: float) -> EndpointFailed:
        if self._given_up:
            return EndpointFailed(f"{self.url}: {self._given_up}")
        if isinstance(exc, TimeoutError):
            late = time.monotonic() >= ends_s - 0.001
            what = "sent no whole reply in time" if late else f"took no connection within {_CONNECT_S:g} s"
            return EndpointFailed(f"{self.url} {what} (remote.timeout_ms of the model)", again=not late)
        if isinstance(exc, ssl.SSLError):
            return EndpointFailed(f"{self.url}: TLS failed: {exc.reason or exc}")
        if isinstance(exc, ConnectionRefusedError):
            return EndpointFailed(
                f"{self.url} refused the connection: is the server there running?", again=True
            )
        if isinstance(exc, socket.gaierror):
            return EndpointFailed(
                f"the host {self._connections.endpoint.host!r} is not known: {exc.strerror}"
            )
        if isinstance(exc, OSError):
            return EndpointFailed(f"{self.url} cannot be reached: {exc.strerror or exc}", again=True)
        return EndpointFailed(
            f"{self.url} broke off or does not speak HTTP: {type(exc).__name__}", again=True
        )


def _retry_after_s(value: str | None) -> float:
    """Seconds, or an HTTP date (RFC 9110, 10.2.3); 0 for neither."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
