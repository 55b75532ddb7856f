"""A reply that is larger than a frame is told as a failure, and the replies behind it still come."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_worker.engine import Engine
from gpu_worker.loop import Loop
from gpu_worker.settings import Settings
from gpu_worker.train.trainer import Trainer
from gpu_worker.wire import protocol
from gpu_worker.wire.frames import receive
from gpu_worker.wire.protocol import (
    Answer,
    Done,
    Evaluated,
    Failed,
    Infer,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    Pong,
    encode,
    reply_frame,
)
from tests.answers import SCORED

SMALL = 2000


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", SMALL)


@pytest.fixture
def line(small_frames: None, engines: Callable[..., Engine]) -> Iterator[socket.socket]:
    """The server's end of a loop in this process."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    loop = Loop(theirs, engines())
    running = threading.Thread(target=loop.run)
    running.start()
    yield ours
    ours.close()
    running.join(30)
    assert not running.is_alive()


def test_an_answer_that_is_too_large_fails_and_the_worker_goes_on(line: socket.socket, hashing: Path) -> None:
    def ask(message: Message) -> Message | None:
        line.sendall(encode(message))
        return receive(line)

    assert isinstance(ask(Load(1, "h", str(hashing))), Loaded)
    refused = ask(Infer(2, ["h"], "text", [b"x"] * 200, outputs=SCORED))
    assert isinstance(refused, Failed)
    assert (refused.id, refused.code) == (2, "bad_option")
    assert f"limit of {SMALL}" in refused.message
    assert isinstance(ask(Infer(3, ["h"], "text", [b"x"])), Answer)


@pytest.mark.parametrize(
    "reply",
    [
        Evaluated(7, [b"\0" * 40] * 100, [0] * 100, 0.1),
        Inspected(7, ["a" * 64] * 100, []),
        Pong(7, "cpu", "x", 1, ["k" * 100] * 100),
        Failed(7, "internal", "x" * 3000),
        Answer(7, [], [protocol.RowError(0, "internal", "m" * 3000)]),
    ],
    ids=lambda reply: reply.kind,
)
def test_no_kind_of_reply_is_lost_for_its_size(reply: Message, small_frames: None) -> None:
    told = protocol.decode(reply_frame(reply))
    assert isinstance(told, Failed)
    assert told.id == 7


def test_a_reply_with_a_value_that_cannot_be_sent_is_told_too() -> None:
    told = protocol.decode(reply_frame(Loaded(7, object(), 1.0)))  # type: ignore[arg-type]  # that is the point
    assert isinstance(told, Failed)
    assert (told.id, told.code) == (7, "internal")
    assert protocol.decode(reply_frame(Done(7))) == Done(7)


def test_a_training_message_that_grows_too_large_fails_alone(small_frames: None) -> None:
    replies: list[Message] = []
    trainer = Trainer(Settings(), "cpu", replies.append)
    try:
        trainer.send(Inspect(5, [b"x" * 3000]))
    finally:
        trainer.close()
    assert [(reply.id, getattr(reply, "code", None)) for reply in replies] == [(5, "bad_option")]
