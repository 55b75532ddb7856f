"""Whole messages from a connected stream socket, by blocking reads. Knows nothing of what they say."""

from __future__ import annotations

import socket

from gpu_worker.wire.protocol import PREFIX_BYTES, Message, decode, frame_length

__all__ = ["Reader", "receive"]

_KEPT_BYTES = 4 << 20  # of memory for frames; a larger one gets its own


class Reader:
    """Reads one connection. Frames are received in the same memory one after the other, but for large ones:
    new memory for each would have to be cleared and mapped, which takes as long as a batch of photos does to
    be received. shared: the memory that rows may lie in (`shared_rows.py`).
    """

    def __init__(self, connection: socket.socket, shared: memoryview | None = None) -> None:
        self._connection = connection
        self._shared = shared
        self._room = bytearray()

    def receive(self) -> Message | None:
        """The next message; None at the end of the stream. Raises `FrameError`."""
        prefix = bytearray(PREFIX_BYTES)
        if not _fill(self._connection, memoryview(prefix)):
            return None
        length = frame_length(prefix)
        if length > _KEPT_BYTES:
            frame = memoryview(bytearray(length))
        else:
            if length > len(self._room):
                self._room = bytearray(min(2 * length, _KEPT_BYTES))
            frame = memoryview(self._room)[:length]
        frame[:PREFIX_BYTES] = prefix
        if not _fill(self._connection, frame[PREFIX_BYTES:]):
            return None
        return decode(frame, self._shared)


def receive(connection: socket.socket) -> Message | None:
    """One message, as `Reader.receive`; for who has few to expect."""
    return Reader(connection).receive()


def _fill(connection: socket.socket, room: memoryview) -> bool:
    """Fills `room`; False when the stream ended before."""
    while room:
        try:
            count = connection.recv_into(room)
        except OSError:  # the other side was killed
            return False
        if count == 0:
            return False
        room = room[count:]
    return True
