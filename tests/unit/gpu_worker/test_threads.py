"""Threads start together under the caller's signal mask and take tasks in order."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.engine import Engine
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.unit.gpu_worker.worker_process import REPOSITORY
from tests.waiting import wait_until


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(3, "test")
    yield threads
    threads.close()


def test_none_runs_before_the_first_use_and_all_run_after_it(threads: Threads) -> None:
    before = threading.active_count()
    threads.submit(lambda: None).result()
    assert threading.active_count() == before + 3


def test_a_setup_runs_once_in_every_thread_before_its_next_task(threads: Threads) -> None:
    setups: list[tuple[int, int]] = []
    together = threading.Barrier(3)

    def task() -> None:
        together.wait(10)
        assert (threading.get_ident(), 1) in setups

    for number in range(3):
        threads.set_up(lambda number=number: setups.append((threading.get_ident(), number)))  # type: ignore[misc]
    for _ in range(2):
        for future in [threads.submit(task) for _ in range(3)]:
            future.result(10)
    assert len(setups) == len(set(setups)) == 9


def assert_comes(event: threading.Event) -> None:
    assert event.wait(30)


def test_a_setup_waits_for_no_other_thread(threads: Threads) -> None:
    busy = threading.Event()
    ran = threading.Event()
    long = threads.submit(lambda: assert_comes(busy))
    threads.set_up(ran.set)
    threads.submit(lambda: None).result(10)
    assert ran.is_set()
    assert not long.done()
    busy.set()


def test_what_a_task_raises_comes_out_of_its_future_and_harms_no_other(threads: Threads) -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        threads.submit(fail).result()
    threads.submit(lambda: None).result()


def test_what_nobody_waits_for_is_logged_when_it_fails_and_harms_no_other(
    threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KeyError("x")

    for _ in range(4):  # more than there are threads
        threads.put(fail)
    threads.submit(lambda: None).result(10)
    wait_until(lambda: len(caplog.records) == 4)
    assert all(record.exc_info for record in caplog.records)


def test_a_task_that_would_end_its_thread_ends_alone(
    threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):  # more than there are threads
        threads.put(sys.exit, 1)
    threads.submit(lambda: None).result(10)
    wait_until(lambda: len(caplog.records) == 4)


def test_closed_threads_take_nothing_more_and_none_is_left(threads: Threads) -> None:
    before = threading.active_count()
    gate = threading.Event()
    for _ in range(3):
        threads.put(gate.wait, 10)
    dropped = threads.submit(lambda: None)
    threading.Timer(0.05, gate.set).start()
    threads.close()
    wait_until(lambda: threading.active_count() == before)
    assert not dropped.done(), "what waited was dropped"
    with pytest.raises(RuntimeError, match="closed"):
        threads.put(lambda: None)
    threads.close()


def test_threads_that_nobody_closed_end_with_the_interpreter() -> None:
    program = "from gpu_worker.threads import Threads; t = Threads(2, 't'); t.submit(print, 'ran').result()"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=REPOSITORY,
    )
    assert (ended.stdout, ended.stderr) == ("ran\n", "")


def test_threads_that_nobody_refers_to_end() -> None:
    before = threading.active_count()
    Threads(2, "t").submit(lambda: None).result(10)
    wait_until(lambda: threading.active_count() == before)


def test_one_thread_takes_tasks_in_order() -> None:
    one, seen = Threads(1, "one"), list[int]()
    for number in range(100):
        one.submit(seen.append, number)
    one.submit(lambda: None).result()
    one.close()
    assert seen == list(range(100))


def test_an_engine_started_under_blocked_signals_takes_none_of_them(hashing: Path) -> None:
    """Inside a database backend every signal must reach the main thread."""
    main = threading.get_native_id()
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        engine = Engine(Settings(device="cpu", threads=2))
        engine.load("h", str(hashing))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    try:
        engine.infer(["h"], "text", [b"a"])
        started = [task for task in Path("/proc/self/task").iterdir() if task.name not in before]
        assert len(started) == 2 + 1 + 4  # passes, one row after the other, and four on a load's way
        assert str(main) not in {task.name for task in started}
        wanted = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
        for task in started:
            status = (task / "status").read_text()
            blocked = int(
                next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), 16
            )
            assert blocked & wanted == wanted
    finally:
        engine.close()
