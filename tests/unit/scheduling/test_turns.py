"""Whose turn it is: by weight, without credit for the time away, and nothing kept of who has gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.scheduling.turns import Turns


def turns_of(weights: dict[str, float]) -> Turns:
    turns = Turns()
    for tenant, weight in weights.items():
        turns.came(0.0, tenant, weight)
        turns.waits(tenant, 1)
    return turns


def served(turns: Turns, tenants: list[str], batch_s: float) -> str:
    """Who is next, and runs so long."""
    tenant = min(tenants, key=lambda each: (turns.begins_s(each), each))
    turns.charge({tenant: 1}, batch_s)
    return tenant


WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2)
BATCHES = st.lists(st.floats(0.001, 0.1), min_size=1, max_size=200)


@given(WEIGHTS, BATCHES)
def test_those_who_wait_differ_by_a_batch_each_in_what_they_had_by_their_weights(
    weights: dict[str, float], batches_s: list[float]
) -> None:
    turns, had_s = turns_of(weights), dict.fromkeys(weights, 0.0)
    for batch_s in batches_s:
        had_s[served(turns, list(weights), batch_s)] += batch_s
    for one in weights:
        for other in weights:
            apart_s = had_s[one] / weights[one] - had_s[other] / weights[other]
            assert apart_s <= max(batches_s) / weights[one] + 1e-9


def test_twice_the_weight_is_twice_the_time() -> None:
    turns, had = turns_of({"a": 2.0, "b": 1.0}), {"a": 0, "b": 0}
    for _ in range(300):
        had[served(turns, ["a", "b"], 0.01)] += 1
    assert had == {"a": 200, "b": 100}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=100))
def test_nobody_who_waits_is_passed_over_for_longer_than_a_batch_of_each_other(asked: list[str]) -> None:
    turns = turns_of(dict.fromkeys("abc", 1.0))
    for tenant in asked:  # each runs as often as it likes while the others are away
        turns.charge({tenant: 1}, 0.01)
    turns.came(0.0, "d")
    first_three = [served(turns, list("abcd"), 0.01) for _ in range(4)]
    assert "d" in first_three


def test_who_comes_back_has_no_credit_for_the_time_away() -> None:
    turns = turns_of({"a": 1.0, "b": 1.0})
    for _ in range(1000):
        turns.charge({"a": 1}, 0.01)
    assert [served(turns, ["a", "b"], 0.01) for _ in range(6)].count("b") <= 4


def test_who_comes_back_has_its_debt_still() -> None:
    turns = turns_of({"a": 1.0, "b": 1.0})
    turns.charge({"a": 1}, 1.0)
    turns.waits("a", -1)
    turns.came(0.1, "a")
    assert [served(turns, ["a", "b"], 0.1) for _ in range(10)] == ["b"] * 10


def test_rows_of_several_in_one_batch_are_charged_to_each_by_their_number() -> None:
    turns = turns_of({"a": 1.0, "b": 1.0})
    turns.charge({"a": 3, "b": 1}, 0.4)
    assert [turns.begins_s("a"), turns.begins_s("b")] == pytest.approx([0.3, 0.1])


def test_a_million_tenants_that_came_once_are_forgotten() -> None:
    turns = Turns()
    for number in range(20_000):
        turns.came(number / 1000, f"tenant {number}")
    assert len(turns) <= 5_002
    for number in range(6_000):
        turns.came(30 + number / 1000, "the last one")
    assert len(turns) == 1
    assert not turns.is_shared


def test_who_has_rows_waiting_is_not_forgotten() -> None:
    turns = turns_of({"a": 1.0})
    turns.charge({"a": 1}, 5.0)
    for number in range(100):
        turns.came(10.0 + number, "b")
    assert turns.begins_s("a") == 5.0
