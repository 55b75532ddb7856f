"""`python -m tests.benchmarks.pool_worker FD`: a worker that computes nothing, for the wire alone."""

from __future__ import annotations

import os
import socket
import sys

from gpu_worker.parent import die_with_parent
from gpu_worker.wire.frames import receive
from gpu_worker.wire.protocol import Answer, Infer, Message, Ping, Pong, encode
from tests.answers import classified

__all__ = ["reply_to"]


def reply_to(message: Message) -> Message:
    if isinstance(message, Infer):
        rows = len(message.rows)
        return Answer(message.id, [classified("m", ["pizza"] * rows, [1.0] * rows)], [])
    assert isinstance(message, Ping)
    return Pong(message.id, "cpu", "echo", os.getpid())


if __name__ == "__main__":
    die_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    while (asked := receive(connection)) is not None:
        connection.sendall(encode(reply_to(asked)))
