"""Promises of every capacity policy, whichever it is."""

from __future__ import annotations

import pytest

from server.capacity.policies.by_name import POLICIES, policy_named
from server.capacity.policy import Copy
from tests.unit.capacity.fleets import fleet


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
