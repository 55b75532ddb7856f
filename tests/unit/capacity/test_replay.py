"""Promises of a recorded timeline: it is decided again as it was, by the policy that decided it."""

from __future__ import annotations

import pytest

from server.capacity.policies.by_name import POLICIES, policy_named
from server.capacity.policy import Action, Copy, Decision, Fleet, Policy, Replicate, State, checked
from server.capacity.replay import differences, line_of, read_lines
from tests.benchmarks.capacity_fleet import FleetSimulation
from tests.benchmarks.capacity_loads import ONE_FUNCTION, scene_of_one
from tests.benchmarks.capacity_recorded import scene_of_record
from tests.unit.capacity.fleets import fleet


class Recording:
    """Keeps what its policy saw and said."""

    every_s = 0.5

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name
        self.lines: list[str] = []

    def decide(self, fleet: Fleet, state: State) -> Decision:
        decision = self._policy.decide(fleet, state)
        self.lines.append(line_of(fleet, checked(fleet, decision.actions)[0]))
        return decision


@pytest.mark.parametrize("name", POLICIES)
def test_a_timeline_is_decided_again_as_it_was(name: str):
    load = next(load for load in ONE_FUNCTION if load.name == "fluctuating")
    recording = Recording(policy_named(name))
    outcome = FleetSimulation(scene_of_one(load, 3, name), recording).run()
    recorded = list(read_lines(recording.lines))
    assert len(recorded) == len(recording.lines)
    assert sum(len(actions) for _, actions in recorded) >= len(outcome.actions)
    assert differences(policy_named(name), recorded) == []


def test_another_rule_is_found_out():
    there = fleet(Copy("f/cpu", "cpu-0"))
    said: tuple[Action, ...] = (Replicate("f/cpu", "cpu-1"),)
    (difference,) = differences(policy_named("static"), [(there, said)])
    assert (difference.now_s, difference.was, difference.now) == (100.0, said, ())


@pytest.mark.parametrize("wrong", ["{}", "[]", "nonsense", '{"fleet": {}, "actions": []}'])
def test_what_is_no_record_is_refused_with_its_line(wrong: str):
    right = line_of(fleet(), ())
    with pytest.raises(ValueError, match="line 3 is no recorded decision"):
        list(read_lines([right, "", wrong]))


def test_a_record_is_a_load_for_the_simulator():
    """A step, recorded under one policy, comes to the same rows under another."""
    load = next(load for load in ONE_FUNCTION if load.name == "step")
    recording = Recording(policy_named("static"))
    outcome = FleetSimulation(scene_of_one(load, 3, "static"), recording).run()
    scene = scene_of_record([seen for seen, _ in read_lines(recording.lines)])
    rows = scene.arrivals["resnet50"]
    assert rows == sorted(rows)
    assert len(rows) == pytest.approx(outcome.rows, rel=0.01)
    assert sum(at_s < 60 for at_s in rows) == pytest.approx(60 * 50, rel=0.1)
    assert FleetSimulation(scene, policy_named("static")).run().late == 0


def test_a_load_needs_two_records():
    with pytest.raises(ValueError, match="at least two records, not 1"):
        scene_of_record([fleet()])
