"""Pixels kept for who comes next: only when pictures come again, within the bytes, never another's."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.memory import Region
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline import intake as intake_module
from gpu_worker.pipeline import recent_rows
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
    """Goes on by a microsecond with each look."""

    now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


def row(number: int) -> RowName:
    return name_of(b"picture %d" % number)


def numbers_of(number: int, nbytes: int = 100) -> np.ndarray:
    return np.full(nbytes, number % 256, np.uint8)


def recent(clock: Clock | None = None, max_bytes: int = MIB) -> RecentRows:
    """In blocks of 32 KiB."""
    return RecentRows(max_bytes, clock or Clock(), block_bytes=1 << 15)


def ask(kept: RecentRows, numbers: range, nbytes: int = 100, kind: int = 0) -> int:
    """As a function does of rows: how many were there."""
    there = 0
    assert kept.is_worth_it(kind)
    kept.forget_unwanted()
    for number in numbers:
        into = np.empty(nbytes, np.uint8)
        if kept.find(row(number), kind, into) is None:
            kept.keep(row(number), kind, numbers_of(number, nbytes), Made(0.001))
        else:
            assert (into == number % 256).all()
            there += 1
    return there


def test_rows_that_do_not_come_again_are_not_kept() -> None:
    kept = recent()
    assert ask(kept, range(5_000)) == 0
    assert kept.nbytes == 0


def test_rows_that_come_again_keep_nothing_that_is_made_for_others() -> None:
    kept = recent()
    assert [ask(kept, range(100)) for _ in range(3)] == [0, 0, 100]
    before = kept.nbytes
    assert ask(kept, range(200, 800), kind=1) == 0
    assert kept.nbytes == before


def test_the_second_function_of_a_query_finds_all_pages_but_the_first() -> None:
    kept = recent()
    there = [ask(kept, range(page * 500, page * 500 + 500)) for page in range(40) for _ in range(2)]
    assert there[2:] == [0, 500] * 39


def test_pages_of_several_kinds_lie_beside_each_other() -> None:
    kept = recent()
    for page in range(20):
        for kind, nbytes in ((0, 100), (1, 3000), (2, 40)):
            numbers = range(page * 60, page * 60 + 60)
            assert [ask(kept, numbers, nbytes, kind) for _ in range(2)] == [0, 60 if page else 0]


def test_of_pages_larger_than_what_is_kept_a_part_is_found_and_not_nothing() -> None:
    clock = Clock()
    kept = recent(clock)
    there = []
    for page in range(8):
        for _ in range(2):
            there.append(ask(kept, range(page * 1000, page * 1000 + 1000), nbytes=2000))
            clock.now_s += 1.0
            assert kept.nbytes <= MIB
    assert sum(there[4:]) > 0.35 * 6 * 1000  # 512 of 1000 fit in


def test_what_nobody_asks_again_gives_way_after_a_while() -> None:
    clock = Clock()
    kept = recent(clock)
    ask(kept, range(10), nbytes=2000)
    ask(kept, range(10), nbytes=2000)  # from now on rows are kept
    ask(kept, range(1000, 2000), nbytes=2000)  # and nobody comes back for these
    clock.now_s += 6
    assert ask(kept, range(3000, 3400), nbytes=2000) == 0
    assert ask(kept, range(3000, 3400), nbytes=2000) == 400


def test_a_minute_without_a_row_that_comes_again_frees_the_memory() -> None:
    clock = Clock()
    kept = recent(clock)
    for turn in range(3):
        numbers = range(100 * turn, 100 * turn + 100)
        assert [ask(kept, numbers) for _ in range(3)] == [0, 0, 100]
        assert kept.nbytes > 0
        clock.now_s += 61
        assert ask(kept, range(7000 + turn, 7001 + turn)) == 0
        assert kept.nbytes == 0


def test_rows_alike_in_length_and_end_are_told_apart() -> None:
    kept = recent()
    ends_alike = [name_of(start + b"=" * 100) for start in (b"one", b"two")]
    into = np.empty(100, np.uint8)
    for each in ends_alike * 2:
        kept.find(each, 0, into)
    kept.keep(ends_alike[0], 0, numbers_of(1), Made(0.001))
    assert kept.find(ends_alike[1], 0, into) is None
    assert kept.find(ends_alike[0], 1, into) is None  # what is made of it otherwise
    assert kept.find(ends_alike[0], 0, into) is not None
    assert (into == 1).all()


def test_what_is_larger_than_there_is_room_for_is_not_kept() -> None:
    for kept in (recent(), recent(max_bytes=1000)):
        for _ in range(3):
            assert ask(kept, range(1), nbytes=20_000) == 0
        assert kept.nbytes == 0


def test_what_is_made_as_soon_as_it_is_kept_is_not_looked_for() -> None:
    kept = recent()
    assert kept.is_worth_it(0), "as long as nothing is known"
    for took_s, is_worth_it in ((5e-5, False), (0.003, True), (5e-5, False)):
        for _ in range(100):
            kept.learn(0, took_s)
        assert kept.is_worth_it(0) == is_worth_it


def test_where_the_process_may_have_no_more_memory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_nbytes: int) -> Region:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(recent_rows, "Region", none)
    kept = recent()
    assert [ask(kept, range(100)) for _ in range(3)] == [0, 0, 0]
    assert kept.nbytes == 0


def test_many_threads_at_once_find_what_is_theirs_and_keep_within_the_bytes() -> None:
    kept = recent(max_bytes=1 << 17)
    faults: list[BaseException] = []

    def work(kind: int) -> None:
        try:
            for turn in range(20):
                first = 200 * (turn // 4)
                ask(kept, range(first, first + 400), nbytes=400 + 100 * kind, kind=kind)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert 0 < kept.nbytes <= 1 << 17


def test_a_batch_whose_pictures_were_there_took_what_it_would_have_taken() -> None:
    now_s = 10.0
    timer = WorkClock(lambda: now_s).timer()
    with timer:
        timer.spared(0.5)
        now_s += 0.25
    assert timer.parts_s[COMMON] == pytest.approx(0.75)


Asked = Callable[..., Piece]


@pytest.fixture(autouse=True)
def _tiny_pictures_are_worth_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "asked" in request.fixturenames:
        monkeypatch.setattr(recent_rows, "_WORTH_S", 0.0)


@pytest.fixture(params=["here", "spread"])
def asked(request: pytest.FixtureRequest, media: Path) -> Iterator[Asked]:
    """Pieces of one intake, which keeps pictures."""
    threads = Threads(2, "test")
    stage = Intake(Settings(media_roots=(str(media),), recent_bytes=32 * MIB), threads, pinned=False)

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


def test_pictures_that_are_decoded_at_once_are_not_kept(
    asked: Asked, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_rows, "_WORTH_S", 10.0)
    files = [photo.read_bytes() for photo in photos]
    for _ in range(4):
        piece = asked(named(photos), "path", FRAME)
        assert_of(piece, files)
        assert len(piece.spared) == 0


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
