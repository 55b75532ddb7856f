"""The demo's killing of a node in the middle of a statement, without a cluster."""

from __future__ import annotations

import threading

import pytest

from examples.foodlog.cluster_demo import ask_and_kill
from examples.foodlog.report import Timed

ANSWER = Timed((("food_name", "meals"), [("laksa", 3)]), 0.1)


def test_it_kills_once_a_quarter_is_answered_and_says_after_which_time_rows_came_again() -> None:
    rows, killed, said = [10], threading.Event(), threading.Event()
    told: list[int] = []

    def ask() -> Timed:
        rows[0] = 25
        assert killed.wait(60.0)
        said.wait(60.0)
        rows[0] = 26
        return ANSWER

    def kill() -> None:
        told.append(rows[0])
        killed.set()

    def answered() -> int:
        if told:
            said.set()
        return rows[0]

    found, seen = ask_and_kill(ask, answered, (25, kill))
    assert found is ANSWER
    assert told == [25]
    assert seen.rows == 25
    assert seen.still_s >= 0.0


def test_a_statement_that_fails_fails_the_demo() -> None:
    def ask() -> Timed:
        raise ValueError("no such table")

    with pytest.raises(ValueError, match="no such table"):
        ask_and_kill(ask, lambda: 0, (25, lambda: None))
