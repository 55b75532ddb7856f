"""What the native front does not read itself: the server's own `Connection` over a socket of the front's.

    unknown bytes → HandedConnection → between two requests: the front's again

On its way it teaches the front the heads of rows that were admitted, so that their likes stay there. Knows
HTTP/1.1 as `Connection` does, and no sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from server.http.application import Admitted
from server.http.connection import Connection, Connections
from server.http.native._front import Front
from server.http.request_head import Head

__all__ = ["HandedConnection", "HandedTransport", "Teacher"]

_MOST_BUFFERED = 64 << 10  # of a reply, before its writer is asked to wait


class Teacher(Protocol):
    """Who is told of heads, and takes connections back."""

    def learn(self, id_: int, head: Head, admitted: Admitted, before: bytes, after: bytes) -> None:
        """A head of rows was admitted; `before` and `after` stand around the digits of its body's length."""

    def take_back(self, id_: int) -> bool:
        """Nothing is under way, and nothing is left to read. False = it goes on here."""


class HandedTransport(asyncio.Transport):
    """asyncio's side of a socket of the front's; every write leaves at the end of the turn."""

    def __init__(self, front: Front, id_: int, flush_soon: Callable[[], None]) -> None:
        super().__init__()
        self._front = front
        self._id = id_
        self._flush_soon = flush_soon
        self._closing = False
        self._paused = False
        self.protocol: HandedConnection | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # asyncio's own
        """The client's address is all there is."""
        address, port = self._front.peer(self._id) if name == "peername" else (b"", 0)
        return (address.decode(), port) if address else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; where much waits already, at once."""
        if self._closing:
            return
        size = self._front.write(self._id, bytes(data))
        self._flush_soon()
        if size > _MOST_BUFFERED:
            self._front.flush()
            if self._front.buffered(self._id) > _MOST_BUFFERED and not self._paused:
                self._paused = True
                assert self.protocol is not None
                self.protocol.pause_writing()

    def writable(self) -> None:
        """The client has read most of what was written."""
        if self._paused:
            self._paused = False
            assert self.protocol is not None
            self.protocol.resume_writing()

    def let_go(self) -> None:
        """The socket is nobody's any more, or the front's again."""
        self._closing = True

    def close(self) -> None:
        """End it once all is sent."""
        if not self._closing:
            self._closing = True
            self._front.close_one(self._id)
            self._flush_soon()

    def abort(self) -> None:
        """End it now; replies of this very turn are sent before, as asyncio's own would have been."""
        self._closing = True
        self._front.flush()
        self._front.abort(self._id)

    def is_closing(self) -> bool:
        """Whether its end was asked for."""
        return self._closing

    def can_write_eof(self) -> bool:
        """It can be closed on one side alone."""
        return True

    def write_eof(self) -> None:
        """Nothing more is written."""
        self._front.end_output(self._id)
        self._flush_soon()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet."""
        return self._front.buffered(self._id)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._front.read_on(self._id, False)

    def resume_reading(self) -> None:
        """Read again."""
        self._front.read_on(self._id, True)


class HandedConnection(Connection):
    """A connection for as long as Python reads it."""

    def __init__(self, connections: Connections, teacher: Teacher, id_: int, *, closes: bool) -> None:
        super().__init__(connections)
        self._teacher = teacher
        self._id = id_
        self._closing = closes  # after the first request
        self._is_back = False

    def body_began(self, began_s: float) -> None:
        """The body that is under way began to come before it was handed over."""
        if self._pace is not None:
            self._pace.began_s = began_s

    def connection_lost(self, exc: Exception | None) -> None:
        """See `Connection`."""
        self._is_back = True
        super().connection_lost(exc)

    def _know(self, raw: bytes, head: Head, admitted: Admitted) -> int | None:
        length = super()._know(raw, head, admitted)
        if admitted.whole and self._around is not None:
            self._teacher.learn(self._id, head, admitted, *self._around)
        return length

    def _go_on(self) -> None:
        super()._go_on()
        self._give_back()

    def _next(self) -> None:
        super()._next()
        self._give_back()

    def _give_back(self) -> None:
        is_idle = self.is_between_requests and not self._closing
        if is_idle and not self._is_back and not self._transport.is_closing():
            self._is_back = self._teacher.take_back(self._id)
