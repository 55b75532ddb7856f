"""One worker's end of the wire: frames out, frames in, replies matched to requests by id.

Knows bytes and ids; not who is asked nor why, and no process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

from gpu_worker.wire.protocol import (
    PREFIX_BYTES,
    Cancel,
    Failed,
    FrameError,
    Message,
    decode,
    encode,
    frame_length,
)
from server.workers.pool import OnReply

__all__ = ["Channel"]


class Channel(asyncio.Protocol):
    """A stream socket that speaks the worker protocol. `on_lost` is called once, before replies fail."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._awaited = -1  # bytes of the frame that is coming in; -1 = its prefix is not here yet
        self._pending: dict[int, OnReply] = {}
        self._ids = itertools.count(1)
        self._lost: str | None = None

    def send(self, message: Message, on_reply: OnReply) -> int:
        """Send a message under a fresh id. What it holds in memory is bounded by who sends, not here."""
        message.id = next(self._ids)
        if self._transport is None or self._lost is not None:
            self._refuse(message, on_reply, "worker_lost", self._lost or "the worker is not connected")
            return message.id
        try:
            frame = encode(message)
        except FrameError as exc:
            self._refuse(message, on_reply, "bad_option", str(exc))
            return message.id
        self._pending[message.id] = on_reply
        self._transport.write(frame)
        return message.id

    async def call(self, message: Message) -> Message:
        """Send and await the reply."""
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def arrived(message: Message) -> None:
            if not reply.done():  # its awaiter may have been cancelled
                reply.set_result(message)

        self.send(message, arrived)
        return await reply

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

    # ── asyncio.Protocol ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        """Cut the stream into frames."""
        self._received += data
        try:
            while True:
                if self._awaited < 0:
                    if len(self._received) < PREFIX_BYTES:
                        return
                    self._awaited = frame_length(bytes(self._received[:PREFIX_BYTES]))
                if len(self._received) < self._awaited:
                    return
                frame = bytes(memoryview(self._received)[: self._awaited])
                del self._received[: self._awaited]
                self._awaited = -1
                self._deliver(decode(frame))
        except FrameError as exc:
            self._fail(f"the worker broke the protocol: {exc}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker has gone, or hung up."""
        self._fail(f"its socket closed: {exc}" if exc else "its socket closed")

    def _refuse(self, message: Message, on_reply: OnReply, code: str, reason: str) -> None:
        # Not from inside `send`: its caller has not yet noted the id.
        asyncio.get_running_loop().call_soon(on_reply, Failed(message.id, code, reason))

    def _deliver(self, message: Message) -> None:
        on_reply = self._pending.pop(message.id, None)
        if on_reply is not None:
            on_reply(message)

    def _fail(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._on_lost(reason)
        pending, self._pending = self._pending, {}
        for message_id, on_reply in pending.items():
            on_reply(Failed(message_id, "worker_lost", reason))
