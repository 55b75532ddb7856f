"""One worker's end of the wire: frames out, frames in, replies matched to requests by id.

Knows bytes and ids; not who is asked nor why, and no process.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import cast

from gpu_worker.wire.protocol import (
    PREFIX_BYTES,
    Cancel,
    Failed,
    FrameError,
    GivePiece,
    Infer,
    Message,
    WantPiece,
    decode,
    encode,
    encode_parts,
    frame_length,
)
from gpu_worker.wire.shared_rows import SharedRows
from server.workers.pool import OnReply

__all__ = ["Channel", "called"]


OnWanted = Callable[[WantPiece | GivePiece, Callable[[Message], None]], None]

# That the kernel takes of frames at once, as far as net.core.wmem_max allows: a batch of photos, so that it
# does not leave in pieces, between which both sides wait for each other.
_SEND_BYTES = 1 << 20
_WHOLE_BYTES = 1 << 16  # a frame up to here is written as one piece, and received beside others


class Channel(asyncio.BufferedProtocol):
    """A stream socket that speaks the worker protocol. `on_lost` is called once, before replies fail.

    on_wanted: called with what the worker asks for or gives by itself, and with what tells it; None = it may
    not. shared: memory that the worker sees, which is closed when it is lost; None = there is none.
    """

    def __init__(
        self,
        on_lost: Callable[[str], None],
        on_wanted: OnWanted | None = None,
        shared: SharedRows | None = None,
    ) -> None:
        self._on_lost = on_lost
        self._on_wanted = on_wanted
        self._shared = shared
        self._places: dict[int, int] = {}  # by message, where its rows lie
        self._transport: asyncio.Transport | None = None
        self._received = memoryview(bytearray(_WHOLE_BYTES))  # frames, and the beginning of one
        self._frame: bytearray | None = None  # a larger one that is coming in, which is received in place
        self._room: memoryview | None = None  # its own
        self._here = 0  # bytes of it, or of what was received
        self._pending: dict[int, OnReply] = {}
        self._ids = itertools.count(1)
        self._lost: str | None = None

    def send(self, message: Message, on_reply: OnReply) -> int:
        """Send a message under a fresh id. What it holds in memory is bounded by who sends, not here."""
        message.id = self.next_id()
        if self._transport is None or self._lost is not None:
            self._refuse(message, on_reply, "worker_lost", self._lost or "the worker is not connected")
            return message.id
        place = None
        if self._shared is not None and isinstance(message, Infer):
            place = self._shared.put(message.rows)
        try:
            parts = encode_parts(message, place)
        except FrameError as exc:
            if self._shared is not None and place is not None:
                self._shared.free(place)
            self._refuse(message, on_reply, "bad_option", str(exc))
            return message.id
        self._pending[message.id] = on_reply
        if place is not None:
            self._places[message.id] = place
        self._write(self._transport, parts)
        return message.id

    def next_id(self) -> int:
        """One that no message has yet."""
        return next(self._ids)

    def tell(self, message: Message) -> None:
        """Send a message as it is, which has no reply; nothing where the worker is gone."""
        if self._transport is not None and self._lost is None:
            self._write(self._transport, encode_parts(message))

    async def call(self, message: Message) -> Message:
        """Send and await the reply."""
        return await called(self.send, message)

    def cancel(self, message_id: int) -> None:
        """Ask to forget `message_id`; nothing if it was answered already."""
        if message_id in self._pending and self._transport is not None and self._lost is None:
            self._transport.write(encode(Cancel(next(self._ids), message_id)))

    def close(self) -> None:
        """Hang up: a worker ends when its socket closes."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once, whatever has not been sent; the worker counts as lost from the next turn on."""
        if self._transport is not None:
            self._transport.abort()

    # ── asyncio.BufferedProtocol ──────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where what comes next is to be put."""
        return (self._received if self._room is None else self._room)[self._here :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes more are here: cut them into frames."""
        self._here += nbytes
        try:
            if self._frame is None:
                self._cut()
            elif self._here == len(self._frame):
                frame, self._frame, self._room, self._here = self._frame, None, None, 0
                self._deliver(decode(frame))
        except FrameError as exc:
            self._here = 0
            self._fail(f"the worker broke the protocol: {exc}")
            self.close()

    def _write(self, transport: asyncio.Transport, parts: list[bytes | bytearray]) -> None:
        if sum(map(len, parts)) > _WHOLE_BYTES:
            transport.writelines(parts)  # the rows from where they lie
        else:
            transport.write(b"".join(parts))

    def _cut(self) -> None:
        """Deliver what is whole; a frame that is larger than the room for all of them gets its own."""
        at, here = 0, self._here
        while here - at >= PREFIX_BYTES:
            length = frame_length(bytes(self._received[at : at + PREFIX_BYTES]))
            if length > here - at:
                if length > _WHOLE_BYTES:
                    self._frame = bytearray(length)
                    self._room = memoryview(self._frame)
                    self._room[: here - at] = self._received[at:here]
                    self._here = here - at
                    return
                break
            frame = bytes(self._received[at : at + length])
            at += length
            self._deliver(decode(frame))
        self._received[: here - at] = bytes(self._received[at:here])
        self._here = here - at

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker has gone, or hung up."""
        self._fail(f"its socket closed: {exc}" if exc else "its socket closed")

    def _refuse(self, message: Message, on_reply: OnReply, code: str, reason: str) -> None:
        # Not from inside `send`: its caller has not yet noted the id.
        asyncio.get_running_loop().call_soon(on_reply, Failed(message.id, code, reason))

    def _deliver(self, message: Message) -> None:
        if isinstance(message, WantPiece | GivePiece):
            if self._on_wanted is None:
                raise FrameError("it asks for a file, and sees those of this server")
            self._on_wanted(message, self.tell)
            return
        place = self._places.pop(message.id, None)
        if place is not None and self._shared is not None:
            self._shared.free(place)
        on_reply = self._pending.pop(message.id, None)
        if on_reply is not None:
            on_reply(message)

    def _fail(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._shared is not None:
            self._shared.close()
        self._on_lost(reason)
        pending, self._pending = self._pending, {}
        for message_id, on_reply in pending.items():
            on_reply(Failed(message_id, "worker_lost", reason))


async def called(send: Callable[[Message, OnReply], int], message: Message) -> Message:
    """The reply to a message that is sent so."""
    reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def arrived(message: Message) -> None:
        if not reply.done():  # its awaiter may have been cancelled
            reply.set_result(message)

    send(message, arrived)
    return await reply
