"""Pixels kept for who comes next: only when pictures come again, within the bytes, never another's."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline import intake as intake_module
from gpu_worker.pipeline.decode import Pixels, decode_picture, upright_size
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.media import MediaRoots
from gpu_worker.pipeline.piece import Piece
from gpu_worker.pipeline.recent_rows import Made, RecentRows, RowName, name_of
from gpu_worker.pipeline.work_time import COMMON, WorkClock
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.unit.gpu_worker.pictures import noise

FRAME, OTHER = Frame(16, 24), Frame(8, 8)
MIB = 1 << 20


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def row(number: int) -> RowName:
    return name_of(b"picture %d" % number)


def made(number: int, nbytes: int = 100) -> Made:
    return Made(np.full(nbytes, number % 256, np.uint8), 0.001)


def ask(kept: RecentRows, numbers: range, nbytes: int = 100) -> int:
    """As a function does of rows: how many were there."""
    there = 0
    for number in numbers:
        found = kept.find(row(number), 0)
        if found is None:
            kept.keep(row(number), 0, made(number, nbytes))
        else:
            assert (found.numbers == number % 256).all()
            there += 1
    return there


def test_pictures_that_do_not_come_again_are_not_kept() -> None:
    kept = RecentRows(MIB)
    assert ask(kept, range(5_000)) == 0
    assert kept.nbytes == 0


def test_rows_that_come_again_keep_nothing_that_is_made_for_others() -> None:
    kept = RecentRows(MIB)
    assert [ask(kept, range(100)) for _ in range(3)] == [0, 0, 100]
    before = kept.nbytes
    for number in range(200, 300):
        assert kept.find(row(number), 1) is None
        kept.keep(row(number), 1, made(number))
    assert kept.nbytes == before


def test_the_second_function_of_a_query_finds_all_pages_but_the_first() -> None:
    kept = RecentRows(MIB)
    there = [ask(kept, range(page * 500, page * 500 + 500)) for page in range(4) for _ in range(2)]
    assert there[2:] == [0, 500] * 3


def test_of_pages_larger_than_what_is_kept_a_part_is_found_and_not_nothing() -> None:
    clock = Clock()
    kept = RecentRows(MIB, clock)
    there = []
    for page in range(8):
        for _ in range(2):
            there.append(ask(kept, range(page * 1000, page * 1000 + 1000), nbytes=2000))
            clock.now_s += 1.0
            assert kept.nbytes <= MIB
    assert sum(there[4:]) > 0.35 * 6 * 1000  # 437 of 1000 fit in


def test_what_nobody_asks_again_gives_way_after_a_while() -> None:
    clock = Clock()
    kept = RecentRows(MIB, clock)
    ask(kept, range(10))
    ask(kept, range(10))  # from now on pictures are kept
    ask(kept, range(1000, 2000), nbytes=2000)  # and nobody comes back for these
    clock.now_s += 6
    assert ask(kept, range(3000, 3400), nbytes=2000) == 0
    assert ask(kept, range(3000, 3400), nbytes=2000) == 400


def test_a_minute_without_a_picture_that_comes_again_frees_the_memory() -> None:
    clock = Clock()
    kept = RecentRows(MIB, clock)
    assert [ask(kept, range(100)) for _ in range(3)] == [0, 0, 100]
    assert kept.nbytes > 0
    clock.now_s += 61
    assert ask(kept, range(7000, 7001)) == 0
    assert kept.nbytes == 0


def test_pictures_alike_in_length_and_end_are_told_apart() -> None:
    kept = RecentRows(MIB)
    ends_alike = [name_of(start + b"=" * 100) for start in (b"one", b"two")]
    for each in ends_alike * 2:
        kept.find(each, 0)
    kept.keep(ends_alike[0], 0, made(1))
    assert kept.find(ends_alike[1], 0) is None
    assert kept.find(ends_alike[0], 1) is None  # another frame
    assert kept.find(ends_alike[0], 0) is not None


def test_a_picture_larger_than_all_that_may_be_kept_is_not_kept() -> None:
    kept = RecentRows(1000)
    for _ in range(3):
        assert ask(kept, range(1), nbytes=2000) == 0
    assert kept.nbytes == 0


def test_many_threads_at_once_find_what_is_theirs_and_keep_within_the_bytes() -> None:
    kept = RecentRows(100_000)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                ask(kept, range(400))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert 0 < kept.nbytes <= 100_000


def test_a_batch_whose_pictures_were_there_took_what_it_would_have_taken() -> None:
    clock = Clock()
    timer = WorkClock(clock).timer()
    with timer:
        timer.spared(0.5)
        clock.now_s += 0.25
    assert timer.parts_s[COMMON] == pytest.approx(0.75)


Asked = Callable[..., Piece]


@pytest.fixture(params=["here", "spread"])
def asked(request: pytest.FixtureRequest, media: Path) -> Iterator[Asked]:
    """Pieces of one intake, which keeps pictures."""
    threads = Threads(2, "test")
    stage = Intake(Settings(media_roots=(str(media),), recent_bytes=MIB), threads, pinned=False)

    def run(
        rows: list[bytes],
        form: str,
        *frames: Frame,
        with_shapes: bool = False,
        within: MediaRoots | None = None,
    ) -> Piece:
        piece = Piece(0, rows, with_shapes=with_shapes)
        if request.param == "here":
            stage.decode_here(piece, form, frames, lambda: False, within)
            return piece
        over = threading.Event()
        stage.decode(piece, form, frames, lambda: False, over.set, within)
        assert over.wait(30)
        return piece

    yield run
    threads.close()


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """Of every picture that is decoded, its frame."""
    frames: list[Frame] = []

    def counted(data: bytes, frame: Frame, *, max_pixels: int) -> Pixels:
        frames.append(frame)
        return decode_picture(data, frame, max_pixels=max_pixels)

    monkeypatch.setattr(intake_module, "decode_picture", counted)
    return frames


@pytest.fixture
def photos(tmp_path: Path, media: Path) -> Iterator[list[Path]]:
    """Photos that a test may change, old enough to be known again."""
    folder = media / tmp_path.name
    folder.mkdir()
    photos = [folder / f"{number}.jpg" for number in range(6)]
    for number, photo in enumerate(photos):
        photo.write_bytes(noise(100 + number))
    grow_old()
    yield photos
    shutil.rmtree(folder)


def grow_old() -> None:
    time.sleep(0.15)  # until a file that was just made has a stamp


def named(photos: list[Path]) -> list[bytes]:
    return [os.fsencode(photo) for photo in photos]


def assert_of(piece: Piece, files: list[bytes], frame: Frame = FRAME) -> None:
    assert piece.bug is None
    assert piece.faults == []
    for index, data in enumerate(files):
        expected = decode_picture(data, frame, max_pixels=1 << 20)
        np.testing.assert_array_equal(piece.pixels[frame][index], expected)


@pytest.mark.parametrize("form", ["path", "image"])
def test_the_third_model_that_is_asked_of_pictures_decodes_none(
    asked: Asked, decodes: list[Frame], photos: list[Path], form: str
) -> None:
    files = [photo.read_bytes() for photo in photos]
    rows = named(photos) if form == "path" else files
    for spared, decoded_so_far in ((0, 6), (0, 12), (6, 12), (6, 12)):
        piece = asked(rows, form, FRAME)
        assert_of(piece, files)
        assert (len(piece.spared), len(decodes)) == (spared, decoded_so_far)
    assert piece.timer.parts_s[COMMON] > 0


def test_of_several_sizes_only_those_are_decoded_that_are_not_there(
    asked: Asked, decodes: list[Frame], photos: list[Path]
) -> None:
    files = [photo.read_bytes() for photo in photos]
    for _ in range(2):
        asked(named(photos), "path", FRAME)
    del decodes[:]
    for _ in range(2):
        piece = asked(named(photos), "path", FRAME, OTHER)
        assert_of(piece, files)
        assert_of(piece, files, OTHER)
        assert len(piece.spared) == 0
    assert decodes == [OTHER] * 12
    assert len(asked(named(photos), "path", OTHER, FRAME).spared) == 6


def test_a_photo_that_was_changed_is_decoded_anew_also_with_its_time_set_back(
    asked: Asked, photos: list[Path]
) -> None:
    for _ in range(3):
        asked(named(photos), "path", FRAME)
    before, other = photos[2].stat(), photos[3].read_bytes()
    photos[2].write_bytes(other.ljust(before.st_size, b"\0")[: max(before.st_size, len(other))])
    os.utime(photos[2], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_of(asked(named(photos), "path", FRAME), [photo.read_bytes() for photo in photos])
    os.replace(photos[5], photos[4])
    assert_of(asked(named(photos[:5]), "path", FRAME), [photo.read_bytes() for photo in photos[:5]])


def test_a_photo_that_was_written_a_moment_ago_is_not_known_again(asked: Asked, photos: list[Path]) -> None:
    for number in range(3):
        photos[0].write_bytes(noise(200 + number))
        piece = asked(named(photos[:1]) * 2, "path", FRAME)
        assert_of(piece, [photos[0].read_bytes()] * 2)
        assert len(piece.spared) == 0


def test_who_may_not_read_a_photo_is_refused_it_though_it_was_decoded_for_others(
    asked: Asked, photos: list[Path]
) -> None:
    for _ in range(3):
        asked(named(photos), "path", FRAME)
    (elsewhere := photos[0].parent / "elsewhere").mkdir()
    piece = asked(named(photos), "path", FRAME, within=MediaRoots([str(elsewhere)]))
    assert [fault.code for fault in piece.faults] == ["input_forbidden"] * 6
    photos[1].unlink()
    piece = asked(named(photos), "path", FRAME)
    assert [(fault.index, fault.code) for fault in piece.faults] == [(1, "input_not_found")]


def test_who_needs_the_shapes_of_pictures_has_them(asked: Asked, photos: list[Path]) -> None:
    for _ in range(3):
        asked(named(photos), "path", FRAME)
    for spared in (0, 6):
        piece = asked(named(photos), "path", FRAME, with_shapes=True)
        assert piece.shapes is not None
        assert [tuple(shape) for shape in piece.shapes] == [
            upright_size(each.read_bytes()) for each in photos
        ]
        assert len(piece.spared) == spared


def test_a_row_at_fault_is_at_fault_each_time(asked: Asked, photos: list[Path]) -> None:
    photos[3].write_bytes(b"no photo")
    grow_old()
    for _ in range(4):
        assert [fault.index for fault in asked(named(photos), "path", FRAME).faults] == [3]
