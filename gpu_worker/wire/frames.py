"""Whole messages from a connected stream socket, by blocking reads. Knows nothing of what they say."""

from __future__ import annotations

import socket

from gpu_worker.wire.protocol import PREFIX_BYTES, Message, decode, frame_length

__all__ = ["receive"]


def receive(connection: socket.socket) -> Message | None:
    """The next message; None at the end of the stream. Raises `FrameError`."""
    prefix = bytearray(PREFIX_BYTES)
    if not _fill(connection, memoryview(prefix)):
        return None
    frame = bytearray(frame_length(prefix))
    frame[:PREFIX_BYTES] = prefix
    return decode(frame) if _fill(connection, memoryview(frame)[PREFIX_BYTES:]) else None


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
