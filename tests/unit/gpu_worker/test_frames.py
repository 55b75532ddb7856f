"""Messages of any size come whole, one after the other, and what was read stays as it was."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from gpu_worker.wire.frames import Reader
from gpu_worker.wire.protocol import FrameError, Infer, encode

_LARGE = 5 << 20  # more than memory is kept for


def _sent(*frames: bytes) -> tuple[socket.socket, threading.Thread]:
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for frame in frames:
                theirs.sendall(frame)

    thread = threading.Thread(target=send)
    thread.start()
    return ours, thread


def test_messages_keep_their_rows_though_their_memory_is_used_again() -> None:
    chance = random.Random(0)
    sizes = [0, 1, 70_000, 3, _LARGE, 300_000, 15_000, 2, _LARGE, 100]
    asked = [
        Infer(place, ["net/1"], "image", [chance.randbytes(size), b"x"]) for place, size in enumerate(sizes)
    ]
    connection, thread = _sent(*(encode(one) for one in asked))
    with connection:
        reader = Reader(connection)
        read = [reader.receive() for _ in asked]
        assert reader.receive() is None
    thread.join()
    assert read == asked


@pytest.mark.parametrize("cut", [3, 40])
def test_a_stream_that_ends_within_a_message_has_ended(cut: int) -> None:
    whole = encode(Infer(1, ["net/1"], "image", [b"row" * 10]))
    connection, thread = _sent(whole, whole[:cut])
    with connection:
        reader = Reader(connection)
        assert isinstance(reader.receive(), Infer)
        assert reader.receive() is None
    thread.join()


def test_what_is_no_message_is_told_and_not_what_was_there_before() -> None:
    whole = encode(Infer(1, ["net/1"], "image", [b"row" * 10]))
    connection, thread = _sent(whole, whole[:8] + bytes(len(whole) - 8))
    with connection:
        reader = Reader(connection)
        reader.receive()
        with pytest.raises(FrameError):
            reader.receive()
    thread.join()
