"""Bytes that several threads read at once: all of them, in order for whoever waits, or one error."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_worker.errors import Cancelled
from gpu_worker.model_files.page_cache import cached_from
from gpu_worker.threads import Threads
from gpu_worker.tiers.arriving import Arriving, Damaged

PIECE = 2 << 20
DATA = os.urandom(4096) * (5 * PIECE // 4096) + b"a last, shorter piece"


@pytest.fixture
def threads() -> Iterator[Threads]:
    readers = Threads(2, "reading")
    yield readers
    readers.close()


def never() -> bool:
    return False


def copied(view: memoryview, start: int) -> None:
    view[:] = DATA[start : start + len(view)]


def arriving(
    threads: Threads, read: Callable[[memoryview, int], None], over: Callable[[], None], sha256: str = ""
) -> tuple[Arriving, bytearray]:
    into = bytearray(len(DATA))
    return Arriving(threads, read, memoryview(into), sha256, over), into


def test_two_read_at_once_and_nothing_counts_as_here_after_a_gap(threads: Threads) -> None:
    second_is_here, first_may_go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def read(view: memoryview, start: int) -> None:
        if start == 0:
            first_may_go_on.wait(60)
        copied(view, start)
        if start > PIECE:  # so the second piece was read, and counted, by the same thread
            second_is_here.set()

    coming, into = arriving(threads, read, lambda: ended.append(True))
    assert second_is_here.wait(60), "another thread reads on while the first piece is awaited"
    assert coming._arrived == 0
    first_may_go_on.set()
    coming.until(len(DATA), never)
    coming.give_up()
    assert bytes(into) == DATA
    threads.submit(never).result()
    threads.submit(never).result()
    assert ended == [True], "over is called once"


def test_an_error_of_one_reader_ends_both_and_is_raised_where_it_is_waited_for(threads: Threads) -> None:
    def read(view: memoryview, start: int) -> None:
        if start == PIECE:
            raise OSError(5, "the disk is broken")
        copied(view, start)

    closed = threading.Event()
    coming, _ = arriving(threads, read, closed.set)
    with pytest.raises(Damaged, match="the disk is broken"):
        coming.until(len(DATA), never)
    assert closed.wait(60)


def test_what_is_given_up_is_read_no_further_once_that_returns(threads: Threads) -> None:
    began, read_after = threading.Event(), []
    given_up = False

    def read(view: memoryview, start: int) -> None:
        if given_up:
            read_after.append(start)
        began.set()
        copied(view, start)

    coming, _ = arriving(threads, read, lambda: None)
    assert began.wait(60)
    coming.give_up()
    given_up = True
    threads.submit(never).result()
    assert read_after == []
    if coming._error is not None:  # it was not over already
        with pytest.raises(Cancelled):
            coming.until(len(DATA), never)


def test_what_is_not_trusted_is_hashed_in_order_and_refused_where_it_is_another(threads: Threads) -> None:
    coming, into = arriving(threads, copied, lambda: None, hashlib.sha256(DATA).hexdigest())
    coming.until(len(DATA), never)
    assert bytes(into) == DATA
    coming, _ = arriving(threads, copied, lambda: None, "0" * 64)
    with pytest.raises(Damaged, match="not what was written"):
        coming.until(1, never)


def test_the_page_cache_is_asked_without_filling_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        assert cached_from(descriptor, 0, 1 << 20) == 1 << 20, "what was just written is there"
        assert cached_from(descriptor, 4096, 100) == 100
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_from(descriptor, 0, 1 << 20):
            pytest.skip("this filesystem keeps its files in memory")
        assert cached_from(descriptor, 0, 1 << 20) == 0, "asking has read nothing"
        os.pread(descriptor, 1 << 20, 0)
        assert cached_from(descriptor, 0, 1 << 20) == 1 << 20


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(OSError, match="cannot be mapped"):
            cached_from(read_end, 0, 4096)
    finally:
        os.close(read_end)
        os.close(write_end)
