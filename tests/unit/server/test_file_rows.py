"""Rows that name files, read here for a worker that does not see them: the same answers, the same errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.wire.protocol import (
    Answer,
    BatchPart,
    Cancel,
    Crop,
    Cropped,
    Failed,
    Infer,
    Message,
    RowError,
    decode,
    encode,
)
from server.supervision import Tasks
from server.workers.channel import Channel
from server.workers.file_rows import FileRows, SentRows
from tests.answers import classified, confidences_of, labels_of
from tests.unit.server.test_channel import Line
from tests.waiting import until


class Far:
    """A worker at the other end of a line, which answers a row with what it holds."""

    def __init__(self, reply: Callable[[Message], Message | None]) -> None:
        self.got: list[Message] = []
        self._reply = reply
        self.lost: list[str] = []
        self.channel = Channel(self.lost.append)
        far = self

        class Answering(Line):
            def write(self, data: Any) -> None:
                far.got.append(decode(data))
                asyncio.get_running_loop().call_soon(far.answer, far.got[-1])

            def writelines(self, list_of_data: Any) -> None:
                self.write(b"".join(list_of_data))

        self.channel.connection_made(Answering())

    def answer(self, message: Message) -> None:
        reply = self._reply(message)
        data = b"" if reply is None else encode(reply)
        while data:
            room = self.channel.get_buffer(-1)
            part = data[: len(room)]
            room[: len(part)] = part
            self.channel.buffer_updated(len(part))
            data = data[len(part) :]


def as_held(message: Message) -> Message | None:
    if not isinstance(message, Infer):
        return None
    rows = [row.decode() for row in message.rows]
    errors = [RowError(n, "input_invalid", "no picture") for n, row in enumerate(rows) if row in ("", "bad")]
    answer = Answer(message.id, [classified("m", rows, [float(len(row)) for row in rows])], errors)
    answer.work_s, answer.members_s, answer.answered = 0.5, [[0.25, 0.125]], [1] * len(rows)
    return answer


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text(f"file {number}")
    (folder / "bad.txt").write_text("bad")
    (folder / "empty.txt").write_text("")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def asked(
    message: Infer | Crop, album: Path, reply: Callable[[Message], Message | None] = as_held, **bounds: int
) -> tuple[Message, list[Message]]:
    """The reply to a message of paths, and what the worker got."""

    async def scenario() -> tuple[Message, list[Message]]:
        far, heard = Far(reply), list[Message]()
        files = FileRows([str(album)], bounds.get("max_bytes", 1000), part_bytes=bounds.get("part", 1 << 20))
        sent = SentRows(far.channel, files, Tasks())
        number = sent.send(message, heard.append)
        await until(lambda: heard)
        await asyncio.sleep(0)
        files.close()
        (only,) = heard
        assert only.id == number
        return only, far.got

    return asyncio.run(scenario())


def code_of(reply: Message) -> str:
    return reply.code if isinstance(reply, Failed) else reply.kind


def paths(album: Path, *names: str) -> list[bytes]:
    return [str(album / name).encode() for name in names]


def test_a_batch_goes_as_what_its_files_hold(album: Path) -> None:
    reply, got = asked(
        Infer(0, ["m"], "path", paths(album, "3.txt", "1.txt"), media_roots=[str(album)]), album
    )
    (sent,) = got
    assert isinstance(sent, Infer)
    assert (sent.form, sent.rows, sent.media_roots) == ("image", [b"file 3", b"file 1"], None)
    assert isinstance(reply, Answer)
    assert labels_of(reply.members[0]) == ["file 3", "file 1"]
    assert reply.errors == []


def test_parts_of_several_models_stay_theirs_however_their_files_are_cut(album: Path) -> None:
    rows = paths(album, "0.txt", "1.txt", "2.txt", "3.txt", "4.txt")
    message = Infer(0, ["a", "b", "c"], "path", rows, parts=[BatchPart(1), BatchPart(3), BatchPart(1)])

    def each(sent: Message) -> Answer:
        assert isinstance(sent, Infer)
        left = [row.decode() for row in sent.rows]
        members = []
        for model, part in zip(sent.models, sent.parts, strict=True):
            own, left = left[: part.rows], left[part.rows :]
            members.append(classified(model, own, [1.0] * len(own)))
        return Answer(sent.id, members, [])

    reply, got = asked(message, album, each, part=12)  # two files
    told = [[part.rows for part in sent.parts] for sent in got if isinstance(sent, Infer)]
    assert told == [[1, 1, 0], [0, 2, 0], [0, 0, 1]]
    assert isinstance(reply, Answer)
    found = [labels_of(member) for member in reply.members]
    assert found == [["file 0"], ["file 1", "file 2", "file 3"], ["file 4"]]


def test_rows_at_fault_have_the_errors_that_reading_them_there_would_give(album: Path) -> None:
    rows = [*paths(album, "0.txt", "none.txt", "../secret.txt", "bad.txt", "empty.txt"), b"", b"9.txt"]
    reply, _ = asked(Infer(0, ["m"], "path", rows), album)
    assert isinstance(reply, Answer)
    assert [(error.index, error.code) for error in reply.errors] == [
        (1, "input_not_found"),
        (2, "input_forbidden"),
        (3, "input_invalid"),
        (4, "input_invalid"),
        (5, "input_invalid"),
    ]
    assert [error.message for error in reply.errors][-3:] == ["no picture", "no picture", "the path is empty"]
    assert labels_of(reply.members[0])[-1] == "file 9", "a relative path, below the roots"


def test_files_over_the_limit_and_below_narrower_folders(album: Path) -> None:
    rows = paths(album, "0.txt", "1.txt")
    reply, _ = asked(Infer(0, ["m"], "path", rows), album, max_bytes=3)
    assert isinstance(reply, Answer)
    assert {error.code for error in reply.errors} == {"input_too_large"}
    reply, _ = asked(Infer(0, ["m"], "path", rows, narrowed=[(1, ["/nowhere"])]), album)
    assert isinstance(reply, Answer)
    assert [(error.index, error.code) for error in reply.errors] == [(1, "input_forbidden")]


def test_a_large_batch_goes_in_parts_and_has_one_answer(album: Path) -> None:
    names = ["0.txt", "bad.txt", "2.txt", "none.txt", "4.txt", "5.txt", "6.txt"]
    reply, got = asked(Infer(0, ["m"], "path", paths(album, *names)), album, part=12)
    assert [len(sent.rows) for sent in got if isinstance(sent, Infer)] == [3, 3, 1]
    assert isinstance(reply, Answer)
    assert labels_of(reply.members[0]) == ["file 0", "bad", "file 2", "", "file 4", "file 5", "file 6"]
    assert list(confidences_of(reply.members[0])) == [6.0, 3.0, 6.0, 0.0, 6.0, 6.0, 6.0]
    assert [(error.index, error.code) for error in reply.errors] == [
        (1, "input_invalid"),
        (3, "input_not_found"),
    ]
    assert (reply.work_s, reply.members_s, reply.answered) == (1.5, [[0.75, 0.375]], [1] * 7)


BOXES = [[[1.0, 0, 2, 2]], [[2.0, 0, 2, 2], [3.0, 0, 2, 2]], [[4.0, 0, 2, 2]], [[5.0, 0, 2, 2]]]


def cutter(piece_bytes: int, later: int | None = None) -> Callable[[Message], Message | None]:
    """A worker that cuts pieces of so many bytes; the row `later` of a request it puts off."""

    def cropped(message: Message) -> Message | None:
        if not isinstance(message, Crop):
            return None
        taken = [[] if row == later else boxes for row, boxes in enumerate(message.boxes)]
        crops = [
            (row[-1:] + b"%d" % box[0]).ljust(piece_bytes)
            for row, boxes in zip(message.rows, taken, strict=True)
            for box in boxes
        ]
        put_off = [] if later is None or later >= len(message.rows) else [later]
        return Cropped(message.id, crops, [len(boxes) for boxes in taken], [], 0.5, put_off)

    return cropped


def test_pieces_of_pictures_likewise(album: Path) -> None:
    rows = paths(album, "0.txt", "1.txt", "none.txt", "3.txt")
    reply, got = asked(Crop(0, rows, "path", BOXES), album, cutter(2), part=11)
    assert len(got) == 2
    assert isinstance(reply, Cropped)
    assert (reply.counts, reply.later) == ([1, 2, 1, 1], [])
    assert [crop.strip() for crop in reply.crops] == [b"01", b"12", b"13", b"4", b"35"]
    assert [(error["index"], error["code"]) for error in reply.errors] == [(2, "input_not_found")]


@pytest.mark.parametrize(
    ("part", "later", "counts", "left"),
    [
        (6, None, [1, 2, 0, 0], [2, 3]),  # the second part of one row each fills the reply
        (7, 1, [1, 0, 0, 0], [1, 2, 3]),  # the worker itself puts a row of two off
    ],
)
def test_pictures_are_put_off_once_the_pieces_of_others_fill_a_reply(
    album: Path, part: int, later: int | None, counts: list[int], left: list[int]
) -> None:
    rows = paths(album, "0.txt", "1.txt", "2.txt", "3.txt")
    reply, _ = asked(Crop(0, rows, "path", BOXES), album, cutter(3, later), part=part)
    assert isinstance(reply, Cropped)
    assert (reply.counts, reply.later) == (counts, left)
    assert len(reply.crops) == sum(counts)


def test_a_batch_that_fails_fails_as_one(album: Path) -> None:
    def fails(message: Message) -> Message | None:
        return Failed(message.id, "unknown_function", "it is not resident", missing=["m"])

    reply, got = asked(Infer(0, ["m"], "path", paths(album, "0.txt", "1.txt")), album, fails, part=1)
    assert len(got) == 1
    assert isinstance(reply, Failed)
    assert (reply.code, reply.missing) == ("unknown_function", ["m"])


def test_one_that_is_cancelled_is_over_whether_it_is_read_or_under_way(album: Path) -> None:
    def cancelled(message: Message) -> Message | None:
        return Failed(message.target, "cancelled", "taken back") if isinstance(message, Cancel) else None

    async def scenario() -> None:
        far = Far(cancelled)
        files = FileRows([str(album)], 1000)
        sent, heard = SentRows(far.channel, files, Tasks()), list[Message]()
        first = sent.send(Infer(0, ["m"], "path", paths(album, "0.txt")), heard.append)
        assert sent.cancel(first), "as its files are read"
        await until(lambda: heard)
        assert far.got == []
        second = sent.send(Infer(0, ["m"], "path", paths(album, "0.txt")), heard.append)
        await until(lambda: far.got)
        assert sent.cancel(second)
        await until(lambda: len(heard) == 2)
        assert [(reply.id, code_of(reply)) for reply in heard] == [
            (first, "cancelled"),
            (second, "cancelled"),
        ]
        assert not sent.cancel(second), "it is over"
        files.close()

    asyncio.run(scenario())


def test_a_worker_that_is_lost_loses_them(album: Path) -> None:
    async def scenario() -> None:
        far, heard = Far(lambda message: None), list[Message]()
        files = FileRows([str(album)], 1000)
        sent = SentRows(far.channel, files, Tasks())
        sent.send(Infer(0, ["m"], "path", paths(album, "0.txt")), heard.append)
        await until(lambda: far.got)
        far.channel.connection_lost(None)
        sent.send(Infer(0, ["m"], "path", paths(album, "1.txt")), heard.append)
        await until(lambda: len(heard) == 2)
        assert {code_of(reply) for reply in heard} == {"worker_lost"}
        files.close()

    asyncio.run(scenario())
