"""Replies on their way out: whole frames, whatever the reader does, and no thread is held up by it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from gpu_worker.wire.frames import receive
from gpu_worker.wire.protocol import Answer, Column, Done, MemberAnswer
from gpu_worker.wire.replies import Replies

PATIENCE_S = 90.0


class Line:
    """Replies over a socket pair, with their thread; the ids of those that were sent."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.sent: list[int] = []
        self.replies = Replies(self._writer, self.sent.append)
        self._thread = threading.Thread(target=self.replies.run)
        self._thread.start()

    def end(self) -> None:
        """Waits for what is under way, then closes."""
        self.replies.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._writer.close()
        self.reader.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.end()


def large(number: int) -> Answer:
    column = Column("scores", "FP32", (1,), bytes([number]) * (4 << 20))
    return Answer(number, [MemberAnswer("m", [column])], [])


def test_a_reply_that_the_socket_takes_is_written_before_put_returns(line: Line) -> None:
    line.replies.put(Done(7))
    assert line.sent == [7]
    assert receive(line.reader) == Done(7)


def test_a_reader_that_does_not_read_holds_up_nobody_and_gets_every_frame_whole(line: Line) -> None:
    for number in range(1, 5):
        line.replies.put(large(number))  # returns although nobody reads
    line.replies.put(Done(5))
    assert line.sent == []
    got = [receive(line.reader) for _ in range(5)]
    assert [message.id for message in got if message] == [1, 2, 3, 4, 5]
    for number, message in enumerate(got[:4], 1):
        assert isinstance(message, Answer)
        assert message.members[0].columns[0].data == bytes([number]) * (4 << 20)
    line.replies.put(Done(6))
    assert receive(line.reader) == Done(6)


def test_many_threads_mix_no_frames(line: Line) -> None:
    def bring(first: int) -> None:
        for number in range(first, first + 50):
            line.replies.put(large(number % 200) if number % 10 == 0 else Done(number))

    threads = [threading.Thread(target=bring, args=(first,)) for first in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    got = [receive(line.reader) for _ in range(200)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(message.id for message in got if message) == list(range(200))


def test_what_is_dropped_counts_as_sent(line: Line) -> None:
    line.replies.put(large(1))
    line.replies.put(Done(2))
    line.replies.drop()
    line.reader.close()
    line.replies.put(Done(3))
    line.replies.close()
    line.end()
    assert sorted(line.sent) == [1, 2, 3]


def test_a_reader_that_is_gone_harms_nobody(line: Line) -> None:
    line.replies.put(large(1))
    line.reader.close()
    line.replies.put(Done(2))
    line.end()
    assert sorted(line.sent) == [1, 2]
