"""Requests under way: never more than allowed, waited for in slices, aborted when anybody raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ml_udf.client.request_pool import RequestPool
from ml_udf.client.transport import Abort
from tests.in_a_fork import said_by_fork
from tests.waiting import wait_until


class Stop(Exception):
    pass


def echo(task: int, abort: Abort) -> int:
    return task * 10


def until_aborted(task: object, abort: Abort) -> str:
    ends_s = time.monotonic() + 30
    while not abort and time.monotonic() < ends_s:
        time.sleep(0.005)
    return "aborted" if abort else "never told"


def test_every_task_is_done_and_told_with_its_result():
    assert sorted(RequestPool().run([1, 2, 3], echo, max_in_flight=2)) == [(1, 10), (2, 20), (3, 30)]


def test_no_task_is_no_result():
    assert list(RequestPool().run([], echo, max_in_flight=2)) == []


def test_tasks_are_taken_only_as_room_comes():
    taken: list[int] = []
    room = threading.Event()

    def tasks():
        for task in range(6):
            taken.append(task)
            yield task

    def wait_for_room(task: int, abort: Abort) -> int:
        assert room.wait(30)
        return task

    results = RequestPool().run(tasks(), wait_for_room, max_in_flight=2)
    threading.Timer(0.2, room.set).start()
    next(results)
    assert len(taken) == 2  # the others wait until one of the two has been told
    assert len(list(results)) == 5


def test_on_wait_is_called_while_a_task_runs():
    calls: list[float] = []

    def slow(task: int, abort: Abort) -> None:
        wait_until(lambda: len(calls) >= 3)

    list(RequestPool().run([1], slow, max_in_flight=1, on_wait=lambda: calls.append(time.monotonic())))
    assert len(calls) >= 3


def test_a_failed_task_aborts_the_others_and_its_error_comes_out():
    told: list[str] = []
    both_run = threading.Barrier(2)

    def one(task: str, abort: Abort) -> None:
        both_run.wait(10)
        if task == "fails":
            raise Stop
        told.append(until_aborted(task, abort))

    with pytest.raises(Stop):
        list(RequestPool().run(["waits", "fails"], one, max_in_flight=2))
    wait_until(lambda: told == ["aborted"])


def test_a_consumer_that_leaves_aborts_the_others():
    told: list[str] = []
    both_run = threading.Barrier(2)

    def one(task: int, abort: Abort) -> None:
        both_run.wait(10)
        if task:
            told.append(until_aborted(task, abort))

    results: Any = RequestPool().run([0, 1], one, max_in_flight=2)
    next(results)
    results.close()
    wait_until(lambda: told == ["aborted"])


def test_when_all_is_told_nothing_is_aborted():
    aborts: list[Abort] = []

    def one(task: int, abort: Abort) -> None:
        aborts.append(abort)

    list(RequestPool().run([1, 2], one, max_in_flight=1))
    assert not any(aborts)


def test_begin_returns_once_all_have_left_and_the_results_come_later():
    answered = threading.Event()

    def one(task: int, abort: Abort, left) -> int:
        left()
        assert answered.wait(30)
        return task

    underway = RequestPool().begin([1, 2, 3], one)
    assert len(underway.pending) == 3
    answered.set()
    assert sorted(underway.results()) == [(1, 1), (2, 2), (3, 3)]


def test_begin_returns_when_a_task_ends_that_never_left():
    def one(task: int, abort: Abort, left) -> int:
        raise Stop

    underway = RequestPool().begin([1], one)
    with pytest.raises(Stop):
        list(underway.results())


def test_an_interrupt_while_requests_leave_aborts_them():
    told: list[str] = []

    def one(task: int, abort: Abort, left) -> None:
        told.append(until_aborted(task, abort))

    def on_wait() -> None:
        raise Stop

    with pytest.raises(Stop):
        RequestPool().begin([1], one, on_wait=on_wait)
    wait_until(lambda: told == ["aborted"])


def test_what_is_dropped_is_aborted():
    told: list[str] = []

    def one(task: int, abort: Abort, left) -> None:
        left()
        told.append(until_aborted(task, abort))

    underway = RequestPool().begin([1], one)
    underway.drop()
    assert not underway.pending
    wait_until(lambda: told == ["aborted"])


def test_closed_it_lets_its_threads_go_and_can_be_used_again():
    others = set(threading.enumerate())
    pool = RequestPool()
    assert list(pool.run([1], echo, max_in_flight=1)) == [(1, 10)]
    mine = {thread for thread in threading.enumerate() if thread.name.startswith("ml_udf")} - others
    assert mine
    pool.close()
    pool.close()
    for thread in mine:
        thread.join(10)
    assert not any(thread.is_alive() for thread in mine)
    assert list(pool.run([2], echo, max_in_flight=1)) == [(2, 20)]
    pool.close()


def test_closing_does_not_wait_for_what_still_runs():
    runs, ends = threading.Event(), threading.Event()

    def one(task: int, abort: Abort, left: Callable[[], None]) -> None:
        left()
        runs.set()
        ends.wait(20)

    pool = RequestPool()
    pool.begin([1], one)
    assert runs.wait(10)
    began_s = time.monotonic()
    pool.close()
    assert time.monotonic() - began_s < 10
    ends.set()


def test_a_fork_has_threads_of_its_own():
    pool = RequestPool()
    assert list(pool.run([1], echo, max_in_flight=1)) == [(1, 10)]
    assert said_by_fork(lambda: str(list(pool.run([2, 3], echo, max_in_flight=1)))) == "[(2, 20), (3, 30)]"
    assert list(pool.run([4], echo, max_in_flight=1)) == [(4, 40)]
    pool.close()
