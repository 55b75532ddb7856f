"""The training process dies and another follows: each message is answered once, by the one it was sent to."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.settings import Settings
from gpu_worker.train.trainer import Trainer
from gpu_worker.wire.frames import receive
from gpu_worker.wire.messages import Message
from gpu_worker.wire.protocol import Done, Failed, ForgetTrial
from tests.unit.gpu_worker.worker_process import REPOSITORY

PATIENCE_S = 90.0

CHILD = """
import socket, sys, time
from gpu_worker.wire.frames import receive
from gpu_worker.wire.protocol import Done, encode
connection = socket.socket(fileno=int(sys.argv[1]))
while (message := receive(connection)) is not None:
    time.sleep(0.3)
    connection.sendall(encode(Done(message.id)))
"""


class Training:
    """A trainer whose process takes 0.3 s to answer, and whose first reader can be held up."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.first_may_end = threading.Event()
        self.readers: list[socket.socket] = []
        self.trainer = Trainer(Settings(), "cpu", self.replies.put)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:  # passed on
        fd = next(part.partition("=")[2] for part in command if part.startswith("--fd="))
        child = _popen([sys.executable, "-c", CHILD, fd], cwd=REPOSITORY, **options)
        self.children.append(child)
        return child

    def reader(self, connection: socket.socket) -> Any:
        return SimpleNamespace(receive=lambda: self.receive(connection))

    def receive(self, connection: socket.socket) -> Message | None:
        if connection not in self.readers:
            self.readers.append(connection)
        message = receive(connection)
        if message is None and connection is self.readers[0]:
            assert self.first_may_end.wait(PATIENCE_S)
        return message

    def reply(self) -> Message:
        return self.replies.get(timeout=PATIENCE_S)


_popen = subprocess.Popen


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    made = Training()
    monkeypatch.setattr("gpu_worker.train.trainer.subprocess.Popen", made.popen)
    monkeypatch.setattr("gpu_worker.train.trainer.Reader", made.reader)
    yield made
    made.first_may_end.set()
    made.trainer.close()


def test_what_was_sent_to_a_dead_process_fails_and_what_was_sent_to_the_next_does_not(
    training: Training,
) -> None:
    training.trainer.send(ForgetTrial(1, "t"))
    assert training.reply() == Done(1)
    training.trainer.send(ForgetTrial(2, "t"))
    training.children[0].kill()
    training.children[0].wait(PATIENCE_S)
    training.trainer.send(ForgetTrial(3, "t"))
    training.first_may_end.set()  # only now is the end of the first one read
    told = {reply.id: reply for reply in (training.reply(), training.reply())}
    assert told[3] == Done(3)
    lost = told[2]
    assert isinstance(lost, Failed)
    assert lost.code == "worker_lost"
    assert training.replies.empty()


def test_a_message_that_comes_as_the_process_ends_is_answered(training: Training) -> None:
    training.first_may_end.set()
    for number in range(1, 6):
        training.trainer.send(ForgetTrial(number, "t"))
        training.children[-1].kill()
        reply = training.reply()
        assert reply.id == number
        assert isinstance(reply, Failed)
        training.trainer.send(ForgetTrial(100 + number, "t"))
        assert training.reply().id == 100 + number
