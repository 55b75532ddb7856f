"""A test that is marked `alone` has the machine to itself, whichever process it runs in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.side_by_side import Turns
from tests.waiting import wait_until

SOON_S = 0.2


class Runs:
    """A test in a process of its own, as the locks see it; it runs until `end`."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor, *, alone: bool) -> None:
        self._turns = Turns(folder)
        self._over = threading.Event()
        self.begun = threading.Event()
        self._done = pool.submit(self._run, alone)

    def _run(self, alone: bool) -> None:
        with self._turns.turn(alone=alone):
            self.begun.set()
            assert self._over.wait(20.0)

    def end(self) -> None:
        self._over.set()
        self._done.result(20.0)


def test_tests_run_beside_each_other_but_for_one_that_is_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        first, second = (Runs(tmp_path, pool, alone=False) for _ in range(2))
        assert first.begun.wait(20.0)
        assert second.begun.wait(20.0)
        alone = Runs(tmp_path, pool, alone=True)
        first.end()
        assert not alone.begun.wait(SOON_S), "the second still runs"
        second.end()
        assert alone.begun.wait(20.0)
        later = Runs(tmp_path, pool, alone=False)
        assert not later.begun.wait(SOON_S)
        alone.end()
        assert later.begun.wait(20.0)
        later.end()


def test_who_waits_to_be_alone_is_not_overtaken(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        running = Runs(tmp_path, pool, alone=False)
        assert running.begun.wait(20.0)
        alone = Runs(tmp_path, pool, alone=True)
        wait_until(lambda: _is_locked(tmp_path / "door.lock"))
        later = Runs(tmp_path, pool, alone=False)
        assert not later.begun.wait(SOON_S)
        running.end()
        assert alone.begun.wait(20.0)
        alone.end()
        assert later.begun.wait(20.0)
        later.end()


def test_tests_that_are_alone_one_after_the_other_wait_once(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    with ThreadPoolExecutor() as pool:
        with turns.turn(alone=True, stays=True):
            later = Runs(tmp_path, pool, alone=False)
        assert not later.begun.wait(SOON_S), "the room is kept"
        with turns.turn(alone=True):
            assert not later.begun.wait(SOON_S)
        assert later.begun.wait(20.0)
        with turns.turn(alone=False, stays=True):
            pass
        later.end()
        last = Runs(tmp_path, pool, alone=True)
        assert last.begun.wait(20.0), "only who is alone keeps it"
        last.end()


def test_a_test_that_fails_gives_its_turn_back(tmp_path: Path) -> None:
    def fail() -> None:
        with Turns(tmp_path).turn(alone=True):
            raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        fail()
    with Turns(tmp_path).turn(alone=True):
        pass


def _is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of that file."""
    return f":{path.stat().st_ino} " in Path("/proc/locks").read_text()
