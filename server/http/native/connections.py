"""All connections of a listener whose sockets are the native front's, and how their requests are answered.

    Front.turn → a request whose head is known → Application.answer → Front.reply
               → bytes that are not            → HandedConnection (handed.py), which teaches the head

A known head is one that `Connection` has parsed and the application has admitted: its likes differ in the
digits of their length alone. Whether it is still admitted is asked of every request. On one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ml_udf.oip import HEADER_LENGTH, InferRequest, RequestTemplate, WireError
from server.http.application import (
    Admitted,
    AlikeInProgress,
    AlikeRequests,
    Application,
    Filled,
    RequestInProgress,
    WholeRequest,
)
from server.http.asgi_exchange import STATUS_LINES
from server.http.connection import TOO_MANY, Connection, ConnectionLimits, Connections
from server.http.native._front import (
    BYTES,
    ENDED,
    LOST,
    REFUSED,
    REQUEST,
    SHAPED,
    UNSHAPED,
    WRITABLE,
    Front,
)
from server.http.native.busyness import Busyness
from server.http.native.gate import Gate
from server.http.native.handed import HandedConnection, HandedTransport
from server.http.request_head import Head

if TYPE_CHECKING:
    from server.http.native._front import Counts

__all__ = ["NativeConnections"]

log = logging.getLogger("ml_udf.server")

_HEADS = 1024  # that are known at a time
_ORDINARY_BYTES = 1 << 20  # a larger body goes the other way
_REPLY_HEADS = 256  # kept ready
_MOST_SHUT_S = 0.05  # what a door that is shut knows of tokens and of the queue is as old at most
_MANY = 16  # that a turn brings
_LEAST_REST_S = 0.001  # timers know no less
_MISSING: Any = object()
_Told = tuple[int, int, Any, Any]  # what `Front.turn` tells


@dataclass(frozen=True, slots=True)
class _Known:
    """A head that was admitted.

    before, after: what stands around the digits of its length · json_size: of the JSON that bodies begin
    with, before binary data; 0 = it is read with the body
    """

    admitted: Admitted
    headers: Mapping[bytes, bytes]
    before: bytes
    after: bytes
    json_size: int
    is_raw: bool  # bodies are one row's bytes, without JSON


@dataclass(slots=True)
class _ReplyHeads:
    """Beginnings of replies, written once a second: the date is in them."""

    lines: object = None
    ready: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def of(
        self, status: int, headers: Mapping[str, str], closes: bool, lines: Iterable[tuple[bytes, bytes]]
    ) -> bytes:
        """Everything of a reply's head but the length of its body, which comes last."""
        if lines is not self.lines or len(self.ready) > _REPLY_HEADS:
            self.lines, self.ready = lines, {}
        key = (status, closes, *headers.items())
        found = self.ready.get(key)
        if found is None:
            parts = [STATUS_LINES[status]]
            for name, value in lines:
                parts += (name, b": ", value, b"\r\n")
            parts += [f"{name.lower()}: {text}\r\n".encode("latin-1") for name, text in headers.items()]
            if closes:
                parts.append(b"connection: close\r\n")
            found = self.ready[key] = b"".join(parts)
        return found


class _Alike(AlikeRequests):
    """Requests that came in one turn with the same head and, where they have any, the same JSON."""

    __slots__ = ("_bodies", "_connections", "_first", "_now_s", "_numbers", "_shape", "ids", "known", "told")

    def __init__(
        self, connections: NativeConnections, known: _Known, shape: RequestTemplate | None, now_s: float
    ) -> None:
        self.known = known
        self.told: list[_Told] = []
        self.ids: list[int] = []
        self._bodies: list[bytes] = []
        self._rows: list[bytes] = []
        self._numbers: list[tuple[int, ...]] = []
        self._first: WholeRequest | None = None
        self._connections = connections
        self._shape = shape
        self._now_s = now_s

    def add(self, told: _Told, id_: int, body: bytes, row: bytes, numbers: tuple[int, ...]) -> None:
        """One more. numbers: of its JSON."""
        self.told.append(told)
        self.ids.append(id_)
        self._bodies.append(body)
        self._rows.append(row)
        self._numbers.append(numbers)

    @property
    def first(self) -> WholeRequest:
        """See `AlikeRequests`."""
        if self._first is None:
            self._first = self.whole(0)
        return self._first

    @property
    def rows(self) -> Sequence[bytes]:
        """See `AlikeRequests`."""
        return self._rows

    def whole(self, place: int) -> WholeRequest:
        """See `AlikeRequests`."""
        known, body, numbers, shape = self.known, self._bodies[place], self._numbers[place], self._shape
        read = None if shape is None else _filled(shape, known, body, numbers)
        return self._connections._whole(known, body, self._now_s, read, shape, numbers)

    def reply(self, place: int, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """See `AlikeRequests`."""
        self._connections._reply(self.ids[place], status, body, headers)

    def reply_filled(self, places: Sequence[int], filled: Sequence[Filled | None]) -> None:
        """See `AlikeRequests`."""
        self._connections._reply_filled(map(self.ids.__getitem__, places), filled)


@dataclass(frozen=True, slots=True)
class _InGroup:
    """One of requests that are under way together."""

    inside: AlikeInProgress
    place: int

    def leave(self) -> None:
        """See `RequestInProgress`."""
        self.inside.leave(self.place)


def _json_size(headers: Mapping[bytes, bytes]) -> int:
    said = headers.get(HEADER_LENGTH.lower().encode(), b"")
    return int(said) if said.isdigit() and len(said) < 6 and b"content-encoding" not in headers else 0


def _filled(
    template: RequestTemplate, known: _Known, body: bytes, numbers: Sequence[int]
) -> InferRequest | None:
    """The request, or None: whoever reads it again says what is wrong with it."""
    try:
        return template.fill(body, known.json_size, numbers)
    except WireError:
        return None


class NativeConnections(Connections):
    """As `Connections`; clients come by `accept`. It stands among its own open ones until it is shut down."""

    def __init__(
        self,
        application: Application,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  # immutable
        *,
        default_headers: Callable[[], Iterable[tuple[bytes, bytes]]] = tuple,
        open_ones: set[Any] | None = None,
        tasks: set[asyncio.Task[None]] | None = None,
    ) -> None:
        self._handed_bytes = 0
        self._front = Front(
            held_bytes=limits.held_bytes,
            ordinary_bytes=_ORDINARY_BYTES,
            heads=_HEADS,
            head_s=limits.head_s,
            idle_s=limits.idle_s,
            slow_s=limits.slow_s,
            least_bytes_per_s=limits.least_bytes_per_s,
        )
        super().__init__(
            application, limits, default_headers=default_headers, open_ones=open_ones, tasks=tasks
        )
        self._waiting: dict[int, RequestInProgress | None] = {}
        self._handed: dict[int, tuple[HandedConnection, HandedTransport]] = {}
        self._reply_heads = _ReplyHeads()
        self._is_flushing = False
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._rest: asyncio.TimerHandle | None = None
        self._brings_many = False  # the last turn
        self._busyness = Busyness(time.monotonic(), time.thread_time())
        self._gate = Gate(self._front.fileno())
        self._loop.add_reader(self._gate.fileno(), self._readable)
        self.open.add(self)
        self.look_soon()

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that are not whole, whoever reads them."""
        return self._front.counts()["held_bytes"] + self._handed_bytes

    @held_bytes.setter
    def held_bytes(self, held_bytes: int) -> None:
        self._handed_bytes = held_bytes - self._front.counts()["held_bytes"]
        self._front.hold_elsewhere(self._handed_bytes)

    def counts(self) -> Counts:
        """How many connections there are, and how many requests went which way."""
        return self._front.counts()

    def accept(self, listening: socket.socket, most: int) -> int:
        """Clients that have come there, so many at the most: how many did. Raises OSError."""
        limit, reply = self.limits.connections, b""
        if self._front.counts()["connections"] + most > limit:
            refusal = self.application.refusal(503, TOO_MANY)
            reply = self._whole_reply(refusal.status, refusal.body, refusal.headers, closes=True)
        return self._front.accept(listening.fileno(), most, limit, reply)

    def adopt(self, client: socket.socket) -> None:
        """One that has connected, whatever the limit; its socket is the front's from here on."""
        address, port = "", 0
        if client.family in (socket.AF_INET, socket.AF_INET6):
            address, port = client.getpeername()[:2]
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setblocking(False)
        self._front.adopt(client.fileno(), address.encode(), port)
        client.detach()

    def add(self, connection: Connection) -> bool:
        """See `Connections`: the sockets are counted, not who reads them."""
        self.open.add(connection)
        return self._front.counts()["connections"] <= self.limits.connections

    def occupancy(self) -> tuple[int, int]:
        """See `Connections`: whoever reads them."""
        return self._front.counts()["connections"], self.held_bytes

    def look(self, now_s: float) -> None:
        """End what takes too long; those that are handed over are looked at by themselves."""
        for kind, id_, first, second in self._front.look(now_s):
            if kind == BYTES:
                self._bytes(id_, first, second)
            else:
                log.warning("reply not read client=%s bytes=%d", first.decode(), second)

    def shutdown(self) -> None:
        """No more requests; those under way are answered."""
        if self._rest is not None:
            self._rest.cancel()
            self._read_again(time.monotonic())
        self._is_closing = True
        self._front.shutdown()
        for connection, _ in list(self._handed.values()):
            connection.shutdown()
        self._end_if_empty()

    # ── handed.Teacher ──────────────────────────────────────────────────────────────────────────────

    def learn(self, id_: int, head: Head, admitted: Admitted, before: bytes, after: bytes) -> None:
        """See `handed.Teacher`."""
        if not head.keep_alive or head.http_1_0 or head.method != "POST" or b"expect" in head.headers:
            return
        is_raw = head.headers.get(HEADER_LENGTH.lower().encode()) == b"0"
        is_raw = is_raw and b"content-encoding" not in head.headers
        known = _Known(admitted, head.headers, before, after, _json_size(head.headers), is_raw)
        raw = b"%b1%b" % (before, after)
        place = self._front.learn(id_, raw, known, admitted.limit_bytes, known.json_size)
        if place is not None and place != (len(before), len(before) + 1):
            self._front.forget(known)  # two readings of one head: such are read by Python each time

    def take_back(self, id_: int) -> bool:
        """See `handed.Teacher`."""
        if not self._front.take_back(id_):
            return False
        connection, transport = self._handed.pop(id_)
        transport.let_go()
        self.open.discard(connection)
        return True

    # ── what the front tells ────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        """Something has come: it is read at once, or a little later with more, where it would wait anyway or
        this thread has better things to do.

        Not where each turn brings many as it is, answered or refused: then this thread is what all wait for.
        """
        now_s = time.monotonic()
        if self._busyness.is_due(now_s):
            self._busyness.look(now_s, time.thread_time())
        reads_at_once = self._is_closing or self._brings_many
        rest_s = 0.0 if reads_at_once else self.application.rest_s(is_busy=self._busyness.is_busy)
        if rest_s < _LEAST_REST_S:
            self._turn(now_s)
            return
        self._gate.shut()
        self._rest = self._loop.call_later(rest_s, self._read_again, now_s)

    def _read_again(self, since_s: float) -> None:
        """Since then whatever is read now may have waited: its deadline counts from there."""
        self._rest = None
        self._gate.open()
        self._turn(since_s)

    def _turn(self, now_s: float) -> None:
        told = self._front.turn()
        self._brings_many = len(told) > _MANY or any(one[0] == REFUSED for one in told)
        for kind, id_, first, second in told if len(told) == 1 else self._ask_alike(told, now_s):
            try:
                if kind == SHAPED:
                    template, body, numbers = second
                    read = _filled(template, first, body, numbers)
                    self._asked(id_, first, body, now_s, read, template, numbers)
                elif kind == REFUSED:
                    first(second)
                elif kind in (REQUEST, UNSHAPED):
                    self._asked(id_, first, second, now_s)
                    if kind == UNSHAPED:
                        self._learn_shape(second[: first.json_size])
                elif kind == BYTES:
                    self._bytes(id_, first, second)
                elif kind == ENDED:
                    self._end(id_)
                elif kind == WRITABLE:
                    self._writable(id_)
                elif kind == LOST:
                    self._lost(id_)
            except Exception as error:
                self._give_up(error, [id_])
        if self._is_closing:
            self._end_if_empty()

    def _ask_alike(self, told: Iterable[_Told], now_s: float) -> Iterable[_Told]:
        """Ask requests that are alike together: what else there was."""
        groups: dict[tuple[int, ...], _Alike] = {}
        others: list[_Told] = []
        for one in told:
            kind, id_, known, second = one
            shape: RequestTemplate | None = None
            body, row, numbers = second, None, ()
            if kind == REQUEST and known.is_raw:
                key: tuple[int, ...] = (id(known),)
                row = body
            elif kind == SHAPED:
                shape, body, numbers = second
                row = shape.row(body, known.json_size, numbers)
                key = (id(known), id(shape), *shape.beside_size(numbers))
            if row is None:
                others.append(one)
                continue
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Alike(self, known, shape, now_s)
            group.add(one, id_, body, row, numbers)
        for group in groups.values():
            others += self._ask_together(group)
        return others

    def _ask_together(self, group: _Alike) -> Sequence[_Told]:
        """Have requests answered together: those that are to be asked by themselves."""
        if len(group.ids) == 1 or not self.application.still_admits(group.known.admitted):
            return group.told
        waiting = self._waiting
        for id_ in group.ids:
            waiting[id_] = None
        try:
            inside = self.application.answer_alike(group)
        except Exception as error:
            self._give_up(error, group.ids)
            return ()
        for place, id_ in enumerate(group.ids):
            if id_ in waiting:
                waiting[id_] = _InGroup(inside, place)
        return ()

    def _give_up(self, error: Exception, ids: Iterable[int]) -> None:
        self._loop.call_exception_handler(
            {"message": "a request could not be taken from the native front", "exception": error}
        )
        for id_ in ids:
            self._front.abort(id_)

    def _asked(
        self,
        id_: int,
        known: _Known,
        body: bytes,
        now_s: float,
        read: InferRequest | None = None,
        alike: object = None,
        numbers: tuple[int, ...] = (),
    ) -> None:
        if not self.application.still_admits(known.admitted):
            self._front.forget(known)
            raw = b"%b%d%b%b" % (known.before, len(body), known.after, body)
            ahead = self._front.hand_over(id_)
            if ahead is not None:
                self._hand(id_).data_received(raw + ahead)
            return
        self._waiting[id_] = None
        request = self._whole(known, body, now_s, read, alike, numbers)
        waiting = self.application.answer(request, partial(self._reply, id_))
        if id_ in self._waiting:
            self._waiting[id_] = waiting

    def _whole(
        self,
        known: _Known,
        body: bytes,
        now_s: float,
        read: InferRequest | None,
        alike: object,
        numbers: tuple[int, ...],
    ) -> WholeRequest:
        shut = None
        if alike is not None or known.is_raw:
            shut = partial(self._shut, known, alike, numbers)
        admitted = known.admitted
        return WholeRequest(admitted.path, known.headers, body, now_s, admitted.caller, read, alike, shut)

    def _learn_shape(self, json: bytes) -> None:
        """Know such JSON from now on, or know that it is to be read each time."""
        shape = None if b'"id"' in json else self._front.shape_of(json)
        if shape is None:  # a request's own id is another each time
            return
        pieces, places = shape
        template = None
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            template = RequestTemplate(pieces, [RequestTemplate.NUMBERS[place] for place in places])
        self._front.learn_shape(json, template)

    def _reply(self, id_: int, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        if self._waiting.pop(id_, _MISSING) is _MISSING:
            return  # its client has gone
        head = self._reply_heads.of(status, headers, self._is_closing, self.default_headers())
        self._front.reply(id_, head, body, self._is_closing)
        self._flush_soon()

    def _reply_filled(self, ids: Iterable[int], filled: Iterable[Filled | None]) -> None:
        before: Mapping[str, str] | None = None
        head, lines, closes = b"", self.default_headers(), self._is_closing
        for id_, one in zip(ids, filled, strict=True):
            if one is None or self._waiting.pop(id_, _MISSING) is _MISSING:
                continue
            body, headers = one
            if headers is not before:
                before, head = headers, self._reply_heads.of(200, headers, closes, lines)
            self._front.reply(id_, head, body, closes)
        self._flush_soon()

    def _shut(
        self,
        known: _Known,
        shape: object,
        numbers: tuple[int, ...],
        for_s: float,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        count: Callable[[int], None],
    ) -> None:
        """See `application.Shut`."""
        if self._is_closing or self not in self.open:
            return
        reply = self._whole_reply(status, body, headers, closes=False)
        until_s = time.monotonic() + min(for_s, _MOST_SHUT_S)
        self._front.shut(known, shape, numbers, until_s, reply, count)

    def _whole_reply(self, status: int, body: bytes, headers: Mapping[str, str], *, closes: bool) -> bytes:
        """What C sends without Python."""
        head = self._reply_heads.of(status, headers, closes, self.default_headers())
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)

    def _bytes(self, id_: int, data: bytes, began_s: float) -> None:
        handed = self._handed.get(id_)
        connection = self._hand(id_) if handed is None else handed[0]
        connection.data_received(data)
        if began_s:
            connection.body_began(began_s)

    def _hand(self, id_: int) -> HandedConnection:
        transport = HandedTransport(self._front, id_, self._flush_soon)
        connection = transport.protocol = HandedConnection(self, self, id_, closes=self._is_closing)
        self._handed[id_] = connection, transport
        connection.connection_made(transport)
        return connection

    def _end(self, id_: int) -> None:
        handed = self._handed.get(id_)
        if handed is not None:
            handed[1].close()

    def _writable(self, id_: int) -> None:
        handed = self._handed.get(id_)
        if handed is not None:
            handed[1].writable()

    def _lost(self, id_: int) -> None:
        handed = self._handed.pop(id_, None)
        if handed is not None:
            connection, transport = handed
            transport.let_go()
            connection.connection_lost(None)
        waiting = self._waiting.pop(id_, None)
        if waiting is not None:
            waiting.leave()

    # ── the end of a turn, and of everything ────────────────────────────────────────────────────────

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self in self.open:
            self._front.flush()

    def _end_if_empty(self) -> None:
        if self in self.open and not self._front.counts()["connections"]:
            self.open.discard(self)
            self._loop.remove_reader(self._gate.fileno())
            if self._rest is not None:
                self._rest.cancel()
            self._gate.close()
            self._front.close()
