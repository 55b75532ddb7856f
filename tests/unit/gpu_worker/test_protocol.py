"""Every message survives the wire; nothing else is taken for one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.wire.protocol import (
    PREFIX_BYTES,
    Answer,
    AskStep,
    Cancel,
    Column,
    Done,
    Failed,
    FilePiece,
    FrameError,
    GivePiece,
    Infer,
    Load,
    Loaded,
    MemberAnswer,
    Message,
    PieceTaken,
    Ping,
    Pong,
    RowError,
    Unload,
    WantPiece,
    decode,
    encode,
    frame_length,
)
from tests.answers import SCORED, classified

MESSAGES: list[Message] = [
    Load(1, "food@1", "/models/food/1"),
    Unload(2, "food@1"),
    Infer(3, ["a", "b"], "image", [b"", b"\x00\xff", b"x" * 1000], outputs=SCORED),
    Infer(
        11,
        ["a", "b"],
        "text",
        [b"x"],
        steps=[AskStep(0, [], [], [1]), AskStep(2, [0.0, 1.5], [0.5], [0, -1])],
    ),
    Cancel(4, 3),
    WantPiece(-1, 1, "model.safetensors", 1 << 40, 1 << 18, "backbone/2"),
    FilePiece(-1, [b"\x00" * 70_000], 1 << 40),
    FilePiece(-2, [b""], 0, "no load of it is under way"),
    FilePiece(-3, [b""], 5, sha256="0" * 64),
    GivePiece(-4, [b"\x00" * 70_000], 1, "a.safetensors", 1 << 40, 1 << 41, "0" * 64),
    PieceTaken(-4, "the disk is full", "no_space"),
    Ping(5),
    Answer(
        6,
        [
            classified("a", ["laksa", ""], [0.5, 0.0], bytes(range(8))),
            classified("b", ["é", "x"], [1, 1]),
        ],
        [RowError(1, "input_not_found", "there is no file “x”")],
        0.25,
        0.5,
        0.75,
        1.0,
        [[0.25, 0.25], [0.25, 0.125]],
        [3, 2],
    ),
    Loaded(7, 1 << 40, 1.5),
    Done(8),
    Pong(9, "cuda:0", "a device", 1 << 37, ["food@1"]),
    Failed(10, "internal", "why"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    frame = encode(message)
    assert frame_length(frame[:PREFIX_BYTES]) == len(frame)
    assert decode(frame) == decode(bytearray(frame)) == message


@given(st.lists(st.binary(max_size=50), max_size=30), st.text(), st.lists(st.text()))
def test_rows_of_any_bytes_survive(rows: list[bytes], model: str, outputs: list[str]) -> None:
    message = Infer(1, [model], "image", rows, outputs)
    assert decode(encode(message)) == message


def test_rows_come_out_as_bytes_that_outlive_the_frame() -> None:
    frame = bytearray(encode(Infer(1, ["m"], "image", [b"abc"])))
    message = decode(frame)
    frame[:] = bytes(len(frame))
    assert isinstance(message, Infer)
    assert message.rows == [b"abc"]
    assert type(message.rows[0]) is bytes


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_rows_that_do_not_fill_their_frame_are_refused(cut: int) -> None:
    frame = encode(Infer(1, ["m"], "image", [b"x" * 200]))[:-cut]
    with pytest.raises(FrameError):
        decode(struct.pack("<I", len(frame)) + frame[4:])


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"0",
        b"null",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b'{"kind":"strike"}',
        b'{"kind":"ping"}',
        b'{"kind":"ping","id":1,"x":2}',
        b"\xff",
    ],
)
def test_headers_of_no_message_are_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode(struct.pack("<II", PREFIX_BYTES + len(header), len(header)) + header)


def test_a_count_of_rows_beyond_the_frame_is_refused() -> None:
    header = json.dumps({"kind": "infer", "id": 1, "models": ["m"], "form": "text", "rows": 1 << 30}).encode()
    with pytest.raises(FrameError):
        decode(struct.pack("<II", PREFIX_BYTES + len(header), len(header)) + header)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_frame_errors(data: bytes) -> None:
    frame = struct.pack("<I", len(data) + 4) + data
    try:
        decode(frame)
    except FrameError:
        return


def labelled(texts: list[str], content: str = "") -> Answer:
    return Answer(1, [MemberAnswer("m", [Column("label", "BYTES", (), texts, content)])], [])


@given(
    st.lists(st.sampled_from(["laksa", "", "é", "\ud800", "a\nb"]), max_size=40)
    | st.lists(st.text(max_size=3), max_size=40)
)
def test_texts_that_repeat_come_out_as_they_went_in(texts: list[str]) -> None:
    assert decode(encode(labelled(texts))) == labelled(texts)
