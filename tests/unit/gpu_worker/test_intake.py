"""The decode stage: every row in its place at every size, faults under their index, bugs never as pixels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline import intake as intake_module
from gpu_worker.pipeline.buffers import Buffers
from gpu_worker.pipeline.decode import Pixels, decode_picture
from gpu_worker.pipeline.decoding_queue import DecodingQueue
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.media import MediaRoots
from gpu_worker.pipeline.piece import Decoding, Piece
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.unit.gpu_worker.pictures import noise

ROWS = 21  # several slices, the last one short
FRAMES = (Frame(16, 24), Frame(8, 8))
Decoded = Callable[..., Piece]


@pytest.fixture
def threads() -> Iterator[Threads]:
    running = Threads(3, "test")
    yield running
    running.close()


@pytest.fixture(params=["here", "spread", "spread, shared"])
def decoded(request: pytest.FixtureRequest, threads: Threads, media: Path) -> Decoded:
    """A piece after decoding, in the caller's thread or over several; of rows or views of them."""

    def run(
        rows: list[bytes],
        form: str,
        frames: tuple[Frame, ...],
        *,
        start: int = 0,
        unwanted: Callable[[], bool] = lambda: False,
        **settings: int,
    ) -> Piece:
        stage = Intake(Settings(media_roots=(str(media),), **settings), threads, pinned=False)  # type: ignore[arg-type]
        piece = Piece(start, [memoryview(row) for row in rows] if "shared" in request.param else rows)
        if request.param == "here":
            stage.decode_here(piece, form, frames, unwanted)
            return piece
        over = threading.Event()
        calls: list[None] = []

        def then() -> None:
            calls.append(None)
            over.set()

        stage.decode(piece, form, frames, unwanted, then)
        assert over.wait(30)
        assert len(calls) == 1
        return piece

    return run


@pytest.fixture
def images() -> list[bytes]:
    return [noise(seed) for seed in range(ROWS)]


def assert_decoded(piece: Piece, images: list[bytes], but: frozenset[int] = frozenset()) -> None:
    assert set(piece.pixels) == set(FRAMES)
    for frame, buffer in piece.pixels.items():
        for index, image in enumerate(images):
            if index not in but:
                expected = decode_picture(image, frame, max_pixels=1 << 20)
                np.testing.assert_array_equal(buffer[index], expected, f"row {index}")


def test_every_image_is_in_its_row_at_every_size(decoded: Decoded, images: list[bytes]) -> None:
    piece = decoded(images, "image", FRAMES)
    assert piece.faults == []
    assert piece.bug is None
    assert piece.decoded_s > 0
    assert_decoded(piece, images)


def test_paths_are_read_like_the_bytes_they_name(
    decoded: Decoded, images: list[bytes], paths: list[bytes]
) -> None:
    assert_decoded(decoded(paths[:ROWS], "path", FRAMES), images)


def test_a_fault_is_told_of_its_row_in_the_batch_and_spoils_no_other(
    decoded: Decoded, images: list[bytes]
) -> None:
    bad = {0: b"", 9: b"no image", ROWS - 1: b"x" * 5000}
    rows = [bad.get(index, image) for index, image in enumerate(images)]
    piece = decoded(rows, "image", FRAMES, start=100, max_input_bytes=4900)
    assert piece.bug is None
    assert sorted((fault.index, fault.code) for fault in piece.faults) == [
        (100, "input_undecodable"),
        (109, "input_undecodable"),
        (100 + ROWS - 1, "input_too_large"),
    ]
    assert_decoded(piece, images, frozenset(bad))


@pytest.mark.parametrize("broken", [0, 10, ROWS - 1])
def test_a_bug_in_decoding_is_kept_whatever_slice_it_struck(
    decoded: Decoded, images: list[bytes], monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    def break_on_one(data: bytes, frame: Frame, *, max_pixels: int) -> Pixels:
        if data == images[broken]:
            raise ZeroDivisionError("a bug")
        return decode_picture(data, frame, max_pixels=max_pixels)

    monkeypatch.setattr(intake_module, "decode_picture", break_on_one)
    assert isinstance(decoded(images, "image", FRAMES).bug, ZeroDivisionError)


def test_no_memory_for_the_buffers_is_told_like_a_bug(
    decoded: Decoded, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> Pixels:
        raise MemoryError

    monkeypatch.setattr(Buffers, "take", no_memory)
    assert isinstance(decoded(images, "image", FRAMES).bug, MemoryError)


def test_tensors_are_checked_and_laid_into_their_rows(decoded: Decoded) -> None:
    size = (4, 5)
    values = np.random.default_rng(1).normal(size=(ROWS, 3, *size)).astype("<f4")
    rows = [row.tobytes() for row in values]
    rows[3] = rows[3][:-4]
    rows[12] = np.full((3, *size), np.nan, "<f4").tobytes()
    piece = decoded(rows, "tensor", (Frame(*size),))
    assert sorted((fault.index, fault.code) for fault in piece.faults) == [
        (3, "input_invalid"),
        (12, "input_invalid"),
    ]
    good = [index for index in range(ROWS) if index not in (3, 12)]
    np.testing.assert_array_equal(piece.tensors[Frame(*size)][good], values[good])


def test_rows_that_no_network_takes_as_pixels_are_looked_over(decoded: Decoded) -> None:
    piece = decoded([b"fine", b"\xff", b"x" * 50], "text", (), max_input_bytes=49)
    assert [(fault.index, fault.code) for fault in piece.faults] == [
        (1, "input_invalid"),
        (2, "input_too_large"),
    ]
    empty = decoded([b"", b"p"], "path", ())
    assert [(fault.index, fault.code) for fault in empty.faults] == [(0, "input_invalid")]


def test_rows_that_nobody_wants_any_more_are_not_decoded(
    decoded: Decoded, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def note(data: bytes, frame: Frame, *, max_pixels: int) -> Pixels:
        seen.append(data)
        return np.zeros((frame.height, frame.width, 3), np.uint8)

    monkeypatch.setattr(intake_module, "decode_picture", note)
    piece = decoded(images, "image", FRAMES, unwanted=lambda: len(seen) >= 2)
    assert piece.bug is None
    assert 2 <= len(seen) <= 8


@pytest.mark.parametrize(("rows", "slices"), [(1, [1]), (4, [2, 2]), (5, [2, 2, 1]), (30, [8, 8, 8, 6])])
def test_rows_are_spread_evenly_over_the_threads_in_slices_of_eight_at_most(
    rows: int, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, seen = Threads(3, "test"), list[int]()

    def put(_: DecodingQueue, tasks: Iterable[partial[None]]) -> None:
        seen.extend(len(task.args[0]) for task in tasks)

    monkeypatch.setattr(DecodingQueue, "put", put)
    Intake(Settings(), threads, pinned=False).decode(
        Piece(0, [b""] * rows), "image", FRAMES, lambda: False, lambda: None
    )
    threads.close()
    assert seen == slices


def test_a_function_reads_paths_below_its_own_folders_alone(
    threads: Threads, media: Path, paths: list[bytes], tmp_path: Path
) -> None:
    stage = Intake(Settings(media_roots=(str(media),)), threads, pinned=False)
    piece = Piece(0, paths[:1])
    stage.decode_here(piece, "path", FRAMES, lambda: False, MediaRoots((str(tmp_path / "elsewhere"),)))
    assert [fault.index for fault in piece.faults] == [0]


def test_decoding_counts_for_a_network_unless_it_was_for_another_size_alone() -> None:
    decoding = Decoding()
    assert decoding.part_for(Frame(8, 8)) == 1.0
    for frame, took_s in ((Frame(8, 8), 1.0), (Frame(16, 24), 2.0), (Frame(8, 8), 1.0)):
        decoding.note(frame, took_s)
    decoding.all_s = 5.0  # a second for all of them
    parts = [decoding.part_for(frame) for frame in (Frame(8, 8), Frame(16, 24), None)]
    assert parts == pytest.approx([3 / 5, 3 / 5, 1 / 5])


def test_what_slices_took_adds_up_from_nothing() -> None:
    piece, batch = Piece(0, [b"", b""]), Decoding()
    piece.expect(2)
    piece.took(Frame(8, 8), 0.25)
    assert [piece.slice_done([], None, took_s) for took_s in (0.5, 0.25)] == [False, True]
    for _ in range(2):
        batch.add(piece.decoding)
    assert (piece.decoding.all_s, batch.all_s) == (0.75, 1.5)
    assert batch.part_for(Frame(16, 24)) == pytest.approx(2 / 3)


def test_what_each_size_took_is_noted_where_there_are_several(decoded: Decoded, images: list[bytes]) -> None:
    began_s = time.monotonic()
    several, one = decoded(images, "image", FRAMES), decoded(images, "image", FRAMES[:1])
    most_s = 3 * (time.monotonic() - began_s)  # of three threads
    assert set(several.decoding.by_frame_s) == set(FRAMES)
    assert 0 < sum(several.decoding.by_frame_s.values()) <= several.decoding.all_s <= most_s
    assert one.decoding.by_frame_s == {}


def test_a_given_back_buffer_is_used_again(threads: Threads, images: list[bytes]) -> None:
    stage = Intake(Settings(), threads, pinned=False)
    first, second = Piece(0, images), Piece(0, images[:4])
    stage.decode_here(first, "image", FRAMES[:1], lambda: False)
    buffer = first.pixels[FRAMES[0]]
    stage.release(first)
    stage.decode_here(second, "image", FRAMES[:1], lambda: False)
    assert second.pixels[FRAMES[0]] is buffer
    assert first.pixels == {}


def test_halves_of_a_character_are_two_rows_at_fault_and_texts_beside_them_are_well(decoded: Decoded) -> None:
    rows = [b"well", b"\xe2\x82", b"\xac", "€".encode(), b"", b"x" * 99]
    piece = decoded(rows, "text", (), start=3, max_input_bytes=98)
    told = {fault.index: fault.message for fault in piece.faults}
    assert told.keys() == {4, 5, 8}
    assert told[4] == r"the text b'\xe2\x82' is not UTF-8"
    assert "the value has 99 bytes" in told[8]
    assert decoded(rows[3:5], "text", ()).faults == []
