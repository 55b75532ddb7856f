"""As many threads decode at once as get the processor while they do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline.decoding_queue import DecodingQueue, next_width
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.piece import Piece
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.unit.gpu_worker.pictures import noise


@pytest.mark.parametrize(
    ("width", "had_processor", "was_full", "expected"),
    [
        (16, 0.09, True, 2),  # sixteen that wait for the interpreter
        (16, 0.5, True, 11),
        (16, 0.95, True, 16),  # as many cores
        (4, 0.95, True, 5),
        (4, 0.95, False, 4),  # nobody waited: more would have had nothing to do
        (4, 0.8, True, 4),
        (2, 0.1, True, 2),
    ],
)
def test_the_width_follows_the_share_of_the_processor(
    width: int, had_processor: float, was_full: bool, expected: int
) -> None:
    assert next_width(width, 16, had_processor, was_full=was_full) == expected


def test_a_single_thread_stays_one() -> None:
    assert next_width(1, 1, 0.1, was_full=True) == 1


@pytest.fixture
def threads() -> Iterator[Threads]:
    four = Threads(4, "test")
    yield four
    four.close()


def test_no_more_tasks_run_than_the_width_and_more_do_as_it_grows(threads: Threads) -> None:
    queue = DecodingQueue(threads)
    queue.took(worked_s=0.1, took_s=1.0)
    assert queue.width == 2
    inside, leave, done = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)

    def decode() -> None:
        inside.release()
        assert leave.acquire(timeout=30)
        done.release()

    queue.put([decode] * 4)
    for _ in range(2):
        assert inside.acquire(timeout=30)
    assert not inside.acquire(timeout=0.1)
    queue.took(worked_s=1.0, took_s=1.0)
    assert queue.width == 3
    assert inside.acquire(timeout=30), "the place that is new"
    for _ in range(4):
        leave.release()
    for _ in range(4):
        assert done.acquire(timeout=30)


def test_a_thread_that_has_done_a_task_takes_the_next_and_wakes_nobody(threads: Threads) -> None:
    queue = DecodingQueue(threads)
    queue.took(worked_s=0.1, took_s=1.0)
    by: list[int] = []
    both, done = threading.Barrier(2), threading.Semaphore(0)

    def decode() -> None:
        if threading.get_ident() not in by:
            both.wait(30)  # so that one of the two does not do them all
        by.append(threading.get_ident())
        done.release()

    queue.put([decode] * 2)
    queue.put([decode] * 200)
    for _ in range(202):
        assert done.acquire(timeout=30)
    assert len(set(by)) == 2


def test_tasks_are_taken_in_the_order_given_and_those_that_fail_end_no_thread(
    threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    queue = DecodingQueue(threads)
    queue.width = 1
    taken: list[int] = []
    last = threading.Event()

    def decode(number: int) -> None:
        taken.append(number)
        if number == 3:
            raise ValueError("the third")
        if number == 9:
            last.set()

    queue.put(partial(decode, number) for number in range(10))
    assert last.wait(30)
    assert taken == list(range(10))
    assert "the third" in caplog.text


def test_every_row_is_decoded_however_many_threads_may() -> None:
    threads = Threads(8, "test")
    intake = Intake(Settings(device="cpu"), threads, pinned=False)
    pictures = [noise(seed) for seed in range(100)] + [b"no picture"]
    pieces = [Piece(0, pictures) for _ in range(6)]
    left = threading.Semaphore(0)
    for piece in pieces:
        intake.decode(piece, "image", [Frame(32, 32)], lambda: False, left.release)
    for _ in pieces:
        assert left.acquire(timeout=60)
    threads.close()
    for piece in pieces:
        assert piece.bug is None
        assert [fault.index for fault in piece.faults] == [100]
        assert (piece.pixels[Frame(32, 32)][:100] == pieces[0].pixels[Frame(32, 32)][:100]).all()
