"""What is tried again, how often, how long between, and when it ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ml_udf.client.retry import left_s, with_retries
from ml_udf.client.transport import Abort
from ml_udf.errors import (
    BadOption,
    ConnectionLost,
    DeadlineExceeded,
    MlUdfError,
    Overloaded,
    ServerUnreachable,
)


class Clock:
    """Time that only a pause lets pass."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def __bool__(self) -> bool:
        return False

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ml_udf.client.retry.time.monotonic", clock.monotonic)
    monkeypatch.setattr("ml_udf.client.retry.random.uniform", lambda low, high: high)
    return clock


def failing(*errors: MlUdfError):
    left = list(errors)
    tries: list[int] = []

    def do() -> int:
        tries.append(1)
        if left:
            raise left.pop(0)
        return len(tries)

    return do


def ask(do: Any, clock: Any, deadline_s: float = float("inf"), **more: Any) -> Any:
    return with_retries(do, deadline_s=deadline_s, abort=clock, **more)


def test_what_works_is_done_once(clock):
    assert ask(failing(), clock) == 1
    assert clock.pauses == []


def test_pauses_double_up_to_two_seconds(clock):
    assert ask(failing(*[Overloaded("full")] * 7), clock) == 8
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_pauses_are_jittered_by_up_to_half(clock, monkeypatch):
    monkeypatch.setattr("ml_udf.client.retry.random.uniform", lambda low, high: low)
    ask(failing(*[Overloaded("full")] * 2), clock)
    assert clock.pauses == [0.05, 0.1]


def test_a_full_server_is_come_back_to_when_it_says(clock):
    ask(failing(Overloaded("full", retry_after_s=5.0)), clock)
    assert clock.pauses == [5.0]


@pytest.mark.parametrize(
    ("error", "tries"), [(ServerUnreachable("refused"), 5), (ConnectionLost("broke"), 3)]
)
def test_a_server_that_is_gone_is_tried_so_often(clock, error, tries):
    assert ask(failing(*[error] * (tries - 1)), clock) == tries
    with pytest.raises(type(error)):
        ask(failing(*[error] * tries), clock)


def test_what_cannot_get_better_is_not_tried_again(clock):
    with pytest.raises(BadOption):
        ask(failing(BadOption("no")), clock)
    assert clock.pauses == []


def test_each_retry_is_counted(clock):
    counted: list[int] = []
    ask(failing(*[Overloaded("full")] * 3), clock, on_retry=lambda: counted.append(1))
    assert len(counted) == 3


def test_it_does_not_wait_beyond_the_deadline(clock):
    with pytest.raises(DeadlineExceeded, match="full until the deadline: full"):
        ask(failing(*[Overloaded("full")] * 9), clock, deadline_s=1000.75)
    assert clock.pauses == [0.1, 0.2, 0.4]
    assert clock.now_s < 1000.75


def test_a_pause_that_ends_at_the_deadline_is_too_long(clock):
    with pytest.raises(DeadlineExceeded):
        ask(failing(Overloaded("full")), clock, deadline_s=1000.1)


def test_at_the_deadline_a_dead_server_is_said_to_be_dead(clock):
    with pytest.raises(ServerUnreachable):
        ask(failing(*[ServerUnreachable("refused")] * 9), clock, deadline_s=1000.05)


def test_an_aborted_call_is_not_tried_again():
    abort = Abort()
    abort.set()
    counted: list[int] = []
    with pytest.raises(Overloaded):
        with_retries(
            failing(Overloaded("full")),
            deadline_s=time.monotonic() + 60,
            abort=abort,
            on_retry=lambda: counted.append(1),
        )
    assert counted == []


def test_an_abort_during_a_pause_ends_the_pause_and_nothing_is_sent_again():
    abort = Abort()
    sent: list[float] = []

    def do() -> None:
        sent.append(time.monotonic())
        raise Overloaded("full", retry_after_s=30.0)

    threading.Timer(0.1, abort.set).start()
    began_s = time.monotonic()
    with pytest.raises(MlUdfError):
        with_retries(do, deadline_s=began_s + 60, abort=abort)
    assert time.monotonic() - began_s < 10
    assert len(sent) == 1


def test_what_is_left_until_the_deadline(clock):
    assert left_s(1003.0) == 3.0
    for passed_s in (1000.0, 999.0):
        with pytest.raises(DeadlineExceeded):
            left_s(passed_s)
