"""What every eviction rule promises, whatever it keeps."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from server.cache.rule import MakeRule
from server.cache.rules.by_name import RULES
from tests.benchmarks.cache_belady import belady
from tests.benchmarks.cache_traces import replayed, trace_of, zipf
from tests.unit.cache.small_store import SmallStore, key_of

every_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES.keys())


steps = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True), st.integers(1, 60)),
    max_size=300,
)


@every_rule
@given(steps=steps, capacity=st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_a_rule_lets_go_of_each_that_is_held_once_and_of_nothing_else(make: MakeRule, steps, capacity: int):
    store = SmallStore(make, capacity)
    for numbers, nbytes in steps:
        known = [number for number in numbers if number in store]
        for number in known:
            assert store.ask(number)
        store.ask_new([number for number in numbers if number not in known], nbytes)
    held = set(store.held)
    assert store.empty() == held


@every_rule
def test_after_everything_has_left_a_rule_begins_anew(make: MakeRule):
    store = SmallStore(make, 100)
    for number in range(200):
        store.ask(number % 30, 10)
    store.empty()
    for number in range(200):
        store.ask(number % 30, 10)
    assert len(store.held) == 10


@every_rule
def test_with_no_bytes_nothing_is_kept(make: MakeRule):
    store = SmallStore(make, 0)
    store.ask(1)
    assert not store.held


@every_rule
def test_what_is_asked_for_all_the_time_stays_while_thousands_pass(make: MakeRule):
    store = SmallStore(make, 500)
    for _ in range(30):
        store.ask(0, 10)
    hits = 0
    for number in range(1, 3_000):
        store.ask(number, 10)
        hits += store.ask(0, 10)
    assert hits > 2_950


@every_rule
def test_a_rule_does_the_same_each_time(make: MakeRule):
    trace = trace_of(zipf(0.8, default_rng(1), 5_000, 1_000), 1, mixed=True)
    assert len({replayed(make, 60_000, trace) for _ in range(2)}) == 1


@every_rule
def test_no_rule_has_more_hits_than_belady(make: MakeRule):
    trace = trace_of(zipf(0.8, default_rng(1), 5_000, 1_000), 1, mixed=False)
    for capacity in (5_000, 50_000, 200_000):
        best = replayed(belady(trace.keys), capacity, trace)
        assert 0 < replayed(make, capacity, trace) <= best


def test_belady_finds_the_most_hits_that_any_choice_has():
    """Against every choice there is, for short requests of few inputs."""
    random = Random(7)
    for _ in range(60):
        asked = [random.randrange(5) for _ in range(9)]
        store = SmallStore(belady([key_of(number) for number in asked]), 2)
        assert sum(store.ask(number) for number in asked) == _most_hits(tuple(asked), frozenset(), 2)


def _most_hits(asked: tuple[int, ...], kept: frozenset[int], room: int) -> int:
    if not asked:
        return 0
    first, rest = asked[0], asked[1:]
    if first in kept:
        return 1 + _most_hits(rest, kept, room)
    choices = {kept, kept | {first}} if len(kept) < room else {kept, *(kept - {x} | {first} for x in kept)}
    return max(_most_hits(rest, choice, room) for choice in choices)
