"""Promises of every capacity policy, whichever it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.capacity.policies.by_name import POLICIES, policy_named
from server.capacity.policy import Copy
from tests.unit.capacity.driving import Driven
from tests.unit.capacity.fleets import VARIANTS, WORKERS, fleet

PLACES = [
    (one.name, worker.name)
    for one in VARIANTS.values()
    for worker in WORKERS.values()
    if one.device == worker.device
]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_found_by_its_name(name: str):
    policy = policy_named(name)
    assert policy.name == name
    assert policy.every_s > 0


def test_an_unknown_name_is_refused_with_those_known():
    with pytest.raises(ValueError, match=r"no capacity policy 'none'; known: static, .*"):
        policy_named("none")


@pytest.mark.parametrize("name", POLICIES)
def test_without_rows_nothing_is_bought(name: str):
    """A function that is served already, and nothing comes: never a copy or a worker more."""
    decision = policy_named(name).decide(fleet(Copy("f/cpu", "cpu-0")), {})
    assert not {action.kind for action in decision.actions} & {"replicate", "upgrade", "worker_up"}


@pytest.mark.parametrize("name", POLICIES)
@given(
    places=st.sets(st.sampled_from(PLACES), min_size=1),
    rates=st.lists(st.sampled_from((0.0, 3.0, 20.0, 60.0, 200.0, 700.0)), min_size=2, max_size=6),
    each_s=st.integers(1, 8),
    late=st.sampled_from((0.0, 0.1)),
)
def test_whatever_stands_where_and_comes_it_decides_what_may_be_done(
    name: str, places: set[tuple[str, str]], rates: list[float], each_s: int, late: float
):
    """A policy that fails begins anew and has forgotten what it saw."""
    there = fleet(*(Copy(variant, worker) for variant, worker in sorted(places)))
    run = Driven(policy_named(name), there).run([one for one in rates for _ in range(each_s)], late=late)
    assert any(one.state == "ready" for one in run.fleet.copies), "nobody is left without a copy"
