"""Threads of two trades: each keeps to its own while it has work, and helps out when it has none."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpu_worker.pipeline.crew import Crew, Trade
from gpu_worker.threads import Threads


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(2, "crew")
    yield threads
    threads.close()


def test_each_thread_keeps_to_its_trade_while_both_have_work(threads: Threads) -> None:
    crew, done = Crew(threads), threading.Semaphore(0)
    seen: dict[int, list[Trade]] = {}
    together = threading.Barrier(2)  # both threads take one task each time

    def work(trade: Trade) -> None:
        seen.setdefault(threading.get_ident(), []).append(trade)
        together.wait(10)
        done.release()

    trades: tuple[Trade, Trade] = ("model", "decode")
    gate = threading.Barrier(3)
    for trade in trades:  # hold both threads until everything is queued
        crew.submit(trade, 0, gate.wait, 10)
    for _ in range(20):
        for trade in trades:
            crew.submit(trade, 0, work, trade)
    gate.wait(10)
    for _ in range(40):
        assert done.acquire(timeout=10)
    assert sorted(tuple(set(trades)) for trades in seen.values()) == [("decode",), ("model",)]


@pytest.mark.parametrize("trade", ["model", "decode"])
def test_both_threads_work_at_the_only_trade_that_has_work(threads: Threads, trade: Trade) -> None:
    crew, together = Crew(threads), threading.Barrier(3)
    crew.submit(trade, 0, together.wait, 10)
    crew.submit(trade, 0, together.wait, 10)
    together.wait(10)  # only two threads at once get past it


def test_one_thread_does_the_work_of_both() -> None:
    one = Threads(1, "crew")
    crew, seen = Crew(one), list[str]()
    gate = threading.Event()
    crew.submit("decode", 0, gate.wait, 10)
    for number in range(3):
        crew.submit("decode", 0, seen.append, f"decode {number}")
        crew.submit("model", 0, seen.append, f"model {number}")
    gate.set()
    one.submit(lambda: None).result(10)
    one.close()
    assert seen == [*(f"model {n}" for n in range(3)), *(f"decode {n}" for n in range(3))]


def test_the_earlier_turn_goes_first_whenever_its_tasks_come() -> None:
    one = Threads(1, "crew")
    crew, seen = Crew(one), list[str]()
    gate = threading.Event()
    crew.submit("model", 0, gate.wait, 10)
    for number in range(2):
        crew.submit("model", 2, seen.append, f"later {number}")
    for number in range(2):
        crew.submit("model", 1, seen.append, f"earlier {number}")
    gate.set()
    one.submit(lambda: None).result(10)
    one.close()
    assert seen == ["earlier 0", "earlier 1", "later 0", "later 1"]


def test_a_task_goes_on_in_its_own_thread_where_nothing_else_waits(threads: Threads) -> None:
    crew, ran = Crew(threads), list[int]()
    done = threading.Event()

    def decode() -> None:
        ran.append(threading.get_ident())
        crew.go_on("model", 0, model)

    def model() -> None:
        ran.append(threading.get_ident())
        done.set()

    crew.submit("decode", 0, decode)
    assert done.wait(10)
    assert ran[0] == ran[1]


def test_what_waits_in_an_earlier_turn_goes_before_a_task_that_goes_on() -> None:
    one = Threads(1, "crew")
    crew, seen = Crew(one), list[str]()
    gate = threading.Event()

    def decode() -> None:
        gate.wait(10)
        crew.go_on("model", 2, seen.append, "later")

    crew.submit("decode", 2, decode)
    crew.submit("model", 1, seen.append, "earlier")
    gate.set()
    one.submit(lambda: None).result(10)
    one.submit(lambda: None).result(10)
    one.close()
    assert seen == ["earlier", "later"]
