"""The queue model behind `make bench-parity`: every question is answered, and by whom it says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.benchmarks.parity_serving import Fleet, Outcome, hedged, members, parity, plain

WAYS: dict[str, Callable[[Fleet], Outcome]] = {
    "plain": plain,
    "hedged": lambda fleet: hedged(fleet, 0.03),
    "parity": lambda fleet: parity(fleet, 2, 0.03),
    "members": lambda fleet: members(fleet, 0.03),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def fleet(load: float, *, slow: float = 10.0, jitter: float = 0.1) -> Fleet:
    return Fleet(12, 0.02, load * 12 / 0.02, 1_000, seed=3, slow=slow, jitter=jitter)


@every_way
def test_every_question_is_answered_no_sooner_than_a_model_can(way: Callable[[Fleet], Outcome]):
    outcome = way(fleet(0.2))
    assert not any(math.isnan(took_s) for took_s in outcome.took_s)
    assert min(outcome.took_s) >= 0.5 * 0.02


@every_way
def test_where_nobody_is_slow_nothing_is_answered_by_less(way: Callable[[Fleet], Outcome]):
    outcome = way(fleet(0.05, slow=1.0, jitter=0.0))
    assert outcome.percentile_ms(0.5) == pytest.approx(20)
    assert outcome.degraded_share < 0.01


@every_way
def test_the_same_seed_has_the_same_outcome(way: Callable[[Fleet], Outcome]):
    assert way(fleet(0.3)) == way(fleet(0.3))


def test_who_waits_for_a_slow_worker_is_helped_by_each_way_but_the_plain_one():
    tails = {name: way(fleet(0.2)).percentile_ms(0.995) for name, way in WAYS.items()}
    assert tails.pop("plain") > 150
    assert max(tails.values()) < 80


def test_hedged_answers_are_the_models_own():
    assert hedged(fleet(0.3), 0.03).degraded_share == 0
