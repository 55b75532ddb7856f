"""A worker's frames as they come in, in pieces of any size, and as they go out."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gpu_worker.wire import protocol
from gpu_worker.wire.protocol import (
    Answer,
    Column,
    Done,
    Failed,
    FilePiece,
    Infer,
    MemberAnswer,
    Message,
    Ping,
    Unload,
    WantPiece,
    decode,
    encode,
)
from gpu_worker.wire.shared_rows import SharedRows, seen
from server.workers.channel import Channel


class Line(asyncio.Transport):
    """What was written, by write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.parts: list[list[bytes]] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.parts.append(list(list_of_data))
        self.written.append(b"".join(self.parts[-1]))

    def close(self) -> None:
        self.is_closed = True


class Port:
    """A channel, the line that it writes to, and what was heard."""

    def __init__(self, shared: SharedRows | None = None) -> None:
        self.lost: list[str] = []
        self.heard: list[Message] = []
        self.line = Line()
        self.channel = Channel(self.lost.append, shared=shared)
        self.channel.connection_made(self.line)

    def ask(self, message: Message) -> int:
        return self.channel.send(message, self.heard.append)

    def receive(self, data: bytes, most: int) -> None:
        while data:
            room = self.channel.get_buffer(-1)[:most]
            assert len(room) > 0, "a receiver without room would be taken for the end of the stream"
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.channel.buffer_updated(count)
            data = data[count:]


def with_port(scene: Callable[[Port], None], shared: SharedRows | None = None) -> None:
    async def body() -> None:
        scene(Port(shared))
        await asyncio.sleep(0)

    asyncio.run(body())


def answer(of: int, rows: int) -> Answer:
    labels = Column("label", "BYTES", (), ["laksa", "pizza"] * (rows // 2) + ["é"] * (rows % 2))
    vectors = Column("embedding", "FP32", (64,), struct.pack(f"<{64 * rows}f", *range(64 * rows)))
    return Answer(of, [MemberAnswer("m", [labels, vectors])], [])


@pytest.mark.parametrize("most", [1, 7, 8, 1000, 1 << 15, 1 << 20])
def test_replies_are_heard_whole_however_they_come(most: int) -> None:
    def scene(port: Port) -> None:
        sizes = (1, 3, 0, 8, 100, 255, 256, 257, 600) if most > 7 else (1, 3, 0, 8)
        sent = [answer(port.ask(Ping(0)), rows) for rows in sizes]
        port.receive(b"".join(map(encode, sent)), most)
        assert port.heard == sent
        assert port.lost == []

    with_port(scene)


def test_a_frame_of_just_the_room_that_there_is_and_one_byte_more() -> None:
    def scene(port: Port) -> None:
        for extra in (-1, 0, 1):
            reply = Failed(port.ask(Ping(0)), "internal", "")
            reply.message = "x" * ((1 << 16) + extra - len(encode(reply)))
            port.receive(encode(reply) + encode(Done(port.ask(Ping(0)))), 1 << 20)
        assert [type(each) for each in port.heard] == [Failed, Done] * 3

    with_port(scene)


@pytest.mark.parametrize("data", [struct.pack("<II", 4, 0), struct.pack("<II", 9, 1) + b"?", b"\xff" * 8])
def test_bytes_that_are_no_frame_end_it_and_fail_who_waits(data: bytes) -> None:
    def scene(port: Port) -> None:
        port.ask(Ping(0))
        port.receive(encode(answer(99, 3)) + data, 1 << 20)
        (failed,) = port.heard
        assert isinstance(failed, Failed)
        assert failed.code == "worker_lost"
        assert "broke the protocol" in port.lost[0]
        assert port.line.is_closed
        assert len(port.channel.get_buffer(-1)) > 0

    with_port(scene)


def test_rows_of_a_large_batch_are_written_from_where_they_lie() -> None:
    def scene(port: Port) -> None:
        rows = [bytes([number]) * 40_000 for number in range(4)]
        port.ask(Infer(0, ["m"], "image", rows))
        (parts,) = port.line.parts
        assert all(any(part is row for part in parts) for row in rows)
        sent = decode(port.line.written[0])
        assert isinstance(sent, Infer)
        assert sent.rows == rows

    with_port(scene)


def test_photos_lie_in_shared_memory_until_their_reply() -> None:
    shared = SharedRows()
    memory = seen(os.dup(shared.fd))

    def scene(port: Port) -> None:
        rows = [bytes([number]) * 40_000 for number in range(4)]
        asked = [port.ask(Infer(0, ["m"], "image", rows)) for _ in range(3)]
        assert len(b"".join(port.line.written)) < 1_000
        assert shared.taken_bytes == 3 * 160_000
        port.receive(encode(Failed(asked[1], "cancelled", "")), 1 << 16)
        assert shared.taken_bytes == 2 * 160_000
        port.receive(encode(answer(asked[0], 4)), 1 << 16)
        port.receive(encode(answer(asked[0], 4)), 1 << 16)  # which nobody waits for any more
        assert shared.taken_bytes == 160_000
        for frame in port.line.written:
            sent = decode(frame, memory)
            assert isinstance(sent, Infer)
            assert sent.rows == rows
        port.channel.connection_lost(None)
        assert shared.put(rows) is None
        assert [type(each) for each in port.heard] == [Failed, Answer, Failed]

    with_port(scene, shared)


def test_rows_without_room_in_shared_memory_and_texts_go_by_the_socket() -> None:
    shared = SharedRows(100_000)

    def scene(port: Port) -> None:
        rows = [bytes(60_000)]
        for _ in range(2):
            port.ask(Infer(0, ["m"], "image", rows))
        port.ask(Infer(0, ["m"], "text", [b"laksa"] * 5_000))
        assert shared.taken_bytes == 60_000
        assert [len(frame) > 25_000 for frame in port.line.written] == [False, True, True]
        port.channel.connection_lost(None)

    with_port(scene, shared)


def test_a_message_that_cannot_be_sent_leaves_nothing_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 50)
    shared = SharedRows()

    def scene(port: Port) -> None:
        port.ask(Infer(0, ["m"], "image", [bytes(60_000)]))
        assert shared.taken_bytes == 0

    with_port(scene, shared)
    shared.close()


def test_a_small_message_is_one_write() -> None:
    def scene(port: Port) -> None:
        port.ask(Infer(0, ["m"], "text", [b"a"] * 500))
        port.ask(Unload(0, "m"))
        assert port.line.parts == []
        assert [decode(each).kind for each in port.line.written] == ["infer", "unload"]

    with_port(scene)


def test_a_worker_that_may_ask_for_files_is_told_them() -> None:
    async def scenario() -> None:
        lost: list[str] = []
        channel = Channel(lost.append, lambda want, tell: tell(FilePiece(want.id, [b"x" * 100_000], 100_000)))
        line = Line()
        channel.connection_made(line)
        asked = encode(WantPiece(-1, 1, "w", 0, 100_000))
        channel.get_buffer(-1)[: len(asked)] = asked
        channel.buffer_updated(len(asked))
        assert decode(line.written[0]) == FilePiece(-1, [b"x" * 100_000], 100_000)
        channel.connection_lost(None)
        channel.tell(FilePiece(-2, [b""], 0))
        assert len(line.written) == 1

    asyncio.run(scenario())


def test_one_that_may_not_breaks_the_protocol() -> None:
    def scene(port: Port) -> None:
        port.receive(encode(WantPiece(-1, 1, "w", 0, 1)), 1 << 16)
        assert "sees those of this server" in port.lost[0]
        assert port.line.is_closed

    with_port(scene)
