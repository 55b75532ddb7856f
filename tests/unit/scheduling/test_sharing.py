"""How much of a worker each pool may count on."""

from __future__ import annotations

import pytest

from server.scheduling.sharing import Need, Pace, shares_of


def test_a_pool_alone_has_its_worker_for_its_own() -> None:
    assert shares_of([("a", Need(0.3, ["w"], True))]) == {"a": {"w": 1.0}}
    assert shares_of([("a", Need(0.0, ["w"], True)), ("b", Need(0.5, ["w"], True))])["a"] == {"w": 1.0}


def test_pools_divide_a_worker_by_what_each_needs() -> None:
    shares = shares_of([("a", Need(0.3, ["w"], True)), ("b", Need(0.1, ["w"], True))])
    assert shares == {"a": {"w": pytest.approx(0.75)}, "b": {"w": pytest.approx(0.25)}}


def test_what_has_no_choice_takes_its_time_first() -> None:
    assert shares_of([("a", Need(0.1, ["w"], True)), ("f", Need(0.4, ["w"], False))]) == {
        "a": {"w": pytest.approx(0.6)}
    }


def test_where_others_need_all_of_it_a_pool_still_has_its_part() -> None:
    shares = shares_of([("a", Need(0.5, ["w"], True)), ("f", Need(2.0, ["w"], False))])
    assert shares["a"]["w"] == pytest.approx(0.2)


def test_a_function_on_several_workers_needs_a_part_of_each() -> None:
    shares = shares_of([("a", Need(0.2, ["v", "w"], True)), ("f", Need(0.4, ["w"], False))])
    assert shares["a"] == {"v": 1.0, "w": pytest.approx(0.6)}


def test_a_function_without_workers_needs_none() -> None:
    assert shares_of([("a", Need(0.2, [], True)), ("f", Need(0.4, ["w"], False))]) == {}


def test_the_pace_follows_what_comes_within_a_few_goals() -> None:
    pace = Pace()
    assert pace.rate(5.0, 0.1) == 0.0
    for at in range(1000):
        pace.came(at / 500, 2, 0.1)
    assert pace.rate(2.0, 0.1) == pytest.approx(1000, rel=0.05)
    assert pace.rate(2.5, 0.1) < 10
