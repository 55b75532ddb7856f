"""`python fake_worker_process.py FD BEHAVIOUR`: a worker process with the vices that supervision must bear.

good: answers Ping, its pid for its device's bytes, and Infer · silent: never answers
stubborn: ignores SIGTERM and its socket's end · babble: sends bytes that are no frame
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from gpu_worker.parent import die_with_parent
from gpu_worker.wire.protocol import (
    PREFIX_BYTES,
    Answer,
    Infer,
    Message,
    Ping,
    Pong,
    decode,
    encode,
    frame_length,
)
from tests.answers import classified


def main(fd: int, behaviour: str) -> None:
    die_with_parent()
    connection = socket.socket(fileno=fd)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stream = connection.makefile("rb")
    while prefix := stream.read(PREFIX_BYTES):
        message = decode(prefix + stream.read(frame_length(prefix) - PREFIX_BYTES))
        if behaviour == "silent":
            continue
        reply = _reply(message)
        if behaviour == "babble" and isinstance(message, Infer):
            connection.sendall(b"\xff" * 64)
        elif reply is not None:
            connection.sendall(encode(reply))
    while behaviour == "stubborn":
        time.sleep(1)


def _reply(message: Message) -> Message | None:
    if isinstance(message, Ping):
        return Pong(message.id, "cpu", "fake", os.getpid(), [])
    if isinstance(message, Infer):
        labels = [row.decode() for row in message.rows]
        return Answer(message.id, [classified("m", labels, [1.0] * len(labels))], [])
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
