"""Several endpoints as one `Transport`: a request that one cannot take goes to the next, within its time.

A request goes on where nothing was done by the one before: the connection is refused, TLS fails, the server
says that it is shutting down, a proxy that nothing stands behind it. Where the connection broke after the
request had left, only one that may arrive twice goes on. So no row is lost, and none is answered twice in
what the caller sees: the first reply is the one that counts. Which one is next: `ml_udf.client.endpoints`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

from ml_udf.client.endpoints import Standing
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse, Transport
from ml_udf.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    MlUdfError,
    Overloaded,
    ServerUnreachable,
    TlsFailed,
)

__all__ = ["FailoverTransport"]

_DRAINING = "ml-udf-draining"
_LOOK_S = 1.0  # that an endpoint has to show that it is back
_RETRY_AFTER_S = 1.0


class FailoverTransport:
    """`transports` are those of `endpoints`, in their order. clock: seconds, never going back."""

    def __init__(
        self,
        endpoints: Sequence[str],
        transports: Sequence[Transport],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._transports = tuple(transports)
        self._clock = clock
        self._standing = Standing(len(self._endpoints))
        self._lock = threading.Lock()  # of the standing
        self._looking = threading.Lock()

    @property
    def answering(self) -> str:
        """The endpoint that is asked first: who answered last, if any has."""
        with self._lock:
            return self._endpoints[self._standing.good]

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        """See `Transport.send`. Where none takes it, the error names every one that was tried, and why."""
        end_s = self._clock() + timeout_s
        self._look_back(end_s, abort)
        with self._lock:
            order = self._standing.order(self._clock())
        faults: list[tuple[str, MlUdfError]] = []
        for place in order:
            left_s = end_s - self._clock()
            if left_s <= 0 and faults:
                break
            try:
                response = self._transports[place].send(request, timeout_s=left_s, abort=abort)
            except (ServerUnreachable, TlsFailed) as error:  # nothing was sent
                fault: MlUdfError = error
            except ConnectionLost as error:
                fault = error
                if not request.repeatable:
                    self._failed(place)
                    raise
            except DeadlineExceeded:
                self._failed(place)  # it may hang: the next request asks another first
                raise
            else:
                away = _turned_away(response)
                if away is None:
                    with self._lock:
                        self._standing.answered(place)
                    return response
                fault = away
            self._failed(place)
            faults.append((self._endpoints[place], fault))
            if abort:
                raise Cancelled("the call was cancelled") from fault
        raise _all_of(faults) from faults[-1][1]

    def close(self) -> None:
        """Let go of all connections."""
        for transport in self._transports:
            transport.close()

    def _failed(self, place: int) -> None:
        with self._lock:
            self._standing.failed(place, self._clock())

    def _look_back(self, end_s: float, abort: Abort) -> None:
        """Ask a preferred endpoint that has rested whether it is ready; one request at a time does so."""
        with self._lock:
            place = self._standing.due(self._clock())
        if place is None or not self._looking.acquire(blocking=False):
            return
        try:
            asked = HttpRequest("GET", "/v2/health/ready")
            timeout_s = min(_LOOK_S, end_s - self._clock())
            try:
                is_back = self._transports[place].send(asked, timeout_s=timeout_s, abort=abort).status == 200
            except Cancelled:
                raise
            except MlUdfError:
                is_back = False
            with self._lock:
                if is_back:
                    self._standing.answered(place)
                else:
                    self._standing.failed(place, self._clock())
        finally:
            self._looking.release()


def _turned_away(response: HttpResponse) -> MlUdfError | None:
    """Why a server did not take a request that another may; None for every other answer.

    A full queue is no reason: the server has said when to come back. A proxy's 502 or 503 is no reply of the
    protocol's.
    """
    if response.status not in (502, 503):
        return None
    if _DRAINING in response.headers:
        return Overloaded("the server is shutting down")
    try:
        told = json.loads(response.body)
    except ValueError:
        told = None
    if isinstance(told, dict) and isinstance(told.get("error"), str):
        return None
    return ServerUnreachable(f"HTTP status {response.status}, without an error of the protocol")


def _all_of(faults: Sequence[tuple[str, MlUdfError]]) -> MlUdfError:
    """One error that names all that were tried; the kind is that of what is likeliest to pass."""
    told = "; ".join(
        fault.message if endpoint in fault.message else f"{endpoint}: {fault.message}"
        for endpoint, fault in faults
    )
    message = f"none of {len(faults)} endpoints took the request: {told}"
    for kind in (Overloaded, ConnectionLost, ServerUnreachable):
        if any(isinstance(fault, kind) for _, fault in faults):
            error = kind(message)
            if isinstance(error, Overloaded):
                error.retry_after_s = _RETRY_AFTER_S
            return error
    return TlsFailed(message, hint=faults[0][1].hint)
