"""Every selection policy keeps its contract; each does what its paper says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from server.ensemble.gearing import Gears
from server.ensemble.plan import fit_plans
from server.ensemble.policies.bandits import Exp3, Exp4
from server.ensemble.policies.base import combines, learns
from server.ensemble.policies.by_name import (
    SELECTION_POLICIES,
    check_selection_policy,
    selection_policy,
)
from server.ensemble.policies.fixed import Static
from server.ensemble.policies.geared import Value
from server.ensemble.policies.guarded import SelectionFault
from server.ensemble.selection import Ensemble, LoadView, RowEvidence, resumed
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of

ENSEMBLE = ensemble_of(outcomes_of(*drawn([0.6, 0.7, 0.9])), [1.0, 2.0, 6.0])
TOLD = {0: [0.2, 0.8], 1: [0.6, 0.4], 2: [0.3, 0.7]}


def load(waiting: float = 0.0, rate: float = 0.0, slack_s: float = 1.0) -> LoadView:
    counts = np.zeros(ENSEMBLE.evidence.states)
    counts[0] = waiting
    return LoadView(0.0, 1.0, rate, counts, [0.0], [1.0], slack_s)


@pytest.mark.parametrize("name", SELECTION_POLICIES)
def test_every_policy_answers_a_row_after_finitely_many_members(name):
    policy = selection_policy(name, ENSEMBLE)
    state = policy.steer(policy.init(), load())
    row = RowEvidence(draw=0.5)
    for _ in ENSEMBLE.members:
        choice = policy.select(state, row)
        if choice.is_enough:
            break
        member = choice.ask[0]
        assert not row.subset >> member & 1
        row.subset |= 1 << member
        row.state = ENSEMBLE.evidence.state_of(row.subset, 0.5)
    assert row.subset
    assert policy.select(state, row).is_enough


@pytest.mark.parametrize("name", SELECTION_POLICIES)
def test_every_state_is_plain_values(name):
    policy = selection_policy(name, ENSEMBLE)
    state = policy.observe(policy.steer(policy.init(), load(100, 100)), "", TOLD, 1)
    again = json.loads(json.dumps(state))
    assert again == state
    row = RowEvidence(draw=0.3)
    assert policy.select(again, row) is policy.select(state, row)


@pytest.mark.parametrize("name", SELECTION_POLICIES)
def test_every_policy_combines_what_it_has_and_refuses_nothing(name):
    policy = selection_policy(name, ENSEMBLE)
    assert policy.combine(policy.init(), {0: [0.2, 0.8]}).label == 1
    assert 0 <= policy.combine(policy.init(), TOLD).confidence <= 1
    with pytest.raises(ValueError, match="no member"):
        policy.combine(policy.init(), {})


def test_an_unknown_policy_is_refused_with_those_known():
    with pytest.raises(ValueError, match="value, gear"):
        selection_policy("no-such", ENSEMBLE)


def test_a_users_own_policy_is_made_for_the_ensemble():
    policy = selection_policy("tests.unit.ensemble.own_policies:the_first_two", ENSEMBLE)
    assert policy.select(policy.init(), RowEvidence()).ask == (0, 1)
    with pytest.raises(ValueError, match="lacks"):
        check_selection_policy("tests.unit.ensemble.own_policies:nothing_at_all", ENSEMBLE)


@pytest.mark.parametrize("name", ["nothing_at_all", "cannot_be_made", "nowhere"])
def test_one_that_cannot_be_made_is_put_aside_for_value_at_once(name):
    faults: list[SelectionFault] = []
    policy = selection_policy(f"tests.unit.ensemble.own_policies:{name}", ENSEMBLE, faults.append)
    assert policy.name == "value"
    assert [each.method for each in faults] == ["make"]


def test_a_class_is_made_of_the_ensemble():
    policy = check_selection_policy("server.ensemble.policies.bandits:Exp3", ENSEMBLE)
    assert policy.name == "exp3"


def test_a_policy_says_whether_it_learns_and_combines_by_itself():
    made = {name: selection_policy(name, ENSEMBLE) for name in SELECTION_POLICIES}
    assert {"exp3", "exp4"} <= {name for name, policy in made.items() if learns(policy)}
    assert "exp4" in {name for name, policy in made.items() if combines(policy)}
    assert not combines(made["value"])
    assert not learns(made["value"])
    own = selection_policy("server.ensemble.policies.bandits:Exp4", ENSEMBLE)
    assert learns(own)
    assert combines(own)


@pytest.mark.parametrize("fault", ["in_init", "in_combine", "in_observe", "in_steer", "in_select"])
def test_a_policy_that_faults_is_put_aside_for_value_and_told_of_once(fault):
    faults: list[SelectionFault] = []
    policy = selection_policy(f"tests.unit.ensemble.own_policies:{fault}", ENSEMBLE, faults.append)
    value = Value(ENSEMBLE)
    state = policy.init()
    for _ in range(2):
        state = policy.steer(state, load())
        policy.select(state, RowEvidence())
        assert policy.combine(state, TOLD) == value.combine({}, TOLD)
        state = policy.observe(state, "", TOLD, 1)
    assert [each.method for each in faults] == [fault.removeprefix("in_")]
    assert policy.select(state, RowEvidence()).ask == value.select(value.init(), RowEvidence()).ask


def test_best_asks_the_most_accurate_and_all_asks_all():
    best, everyone = selection_policy("best", ENSEMBLE), selection_policy("all", ENSEMBLE)
    assert best.select({}, RowEvidence()).ask == (2,)
    assert everyone.select({}, RowEvidence()).ask == (0, 1, 2)


def test_all_waits_for_members_under_way_and_asks_only_the_others():
    everyone = selection_policy("all", ENSEMBLE)
    assert everyone.select({}, RowEvidence(subset=0b001, under_way=0b010)).ask == (2,)
    waiting = everyone.select({}, RowEvidence(subset=0b001, under_way=0b110))
    assert not waiting.ask
    assert not waiting.is_enough


def test_a_static_subset_must_be_one():
    for subset in (0, 0b1000):
        with pytest.raises(ValueError, match="no subset"):
            Static(ENSEMBLE, subset)


def test_a_heavier_load_is_poorer_at_once_and_a_lighter_one_richer_step_by_step():
    policy = Value(ENSEMBLE)
    poorest = len(policy.plans) - 1
    assert poorest > 1
    state = policy.steer(policy.init(), load(waiting=1e6))
    assert state == {"gear": poorest}
    gears = []
    for _ in range(poorest + 2):
        state = policy.steer(state, load())
        gears.append(state["gear"])
    assert gears == [*range(poorest - 1, -1, -1), 0, 0]


def test_a_load_between_nine_tenths_and_all_leaves_the_gear():
    gears = Gears(fit_plans(ENSEMBLE))
    rows = next(rows for rows in range(1, 100_000) if 0.9 < float(gears.loads(load(waiting=rows))[0]) < 1)
    assert gears.shift(1, load(waiting=rows)) == 1
    assert gears.shift(0, load(waiting=rows)) == 0


def test_slackfit_takes_a_cheaper_subset_where_less_time_is_left():
    policy = selection_policy("slackfit", ENSEMBLE)
    ample = policy.steer(policy.init(), load(slack_s=10.0))["subset"]
    scarce = policy.steer(policy.init(), load(slack_s=1e-6))["subset"]
    cost = [sum(ENSEMBLE.members[m].cost_s for m in range(3) if s >> m & 1) for s in (ample, scarce)]
    assert cost[0] > cost[1]


def test_async_gives_a_row_one_member_and_members_take_turns():
    policy = selection_policy("async", ENSEMBLE)
    state, seen = policy.init(), set()
    for _ in range(3):
        state = policy.steer(state, load())
        seen |= set(policy.select(state, RowEvidence()).ask)
    assert seen == {0, 1, 2}
    assert policy.select(state, RowEvidence(subset=0b1)).is_enough


def slower(times: float, **fields: Any) -> Ensemble:
    members = (replace(each, per_row_s=times * each.per_row_s, **fields) for each in ENSEMBLE.members)
    return replace(ENSEMBLE, members=tuple(members))


@pytest.mark.parametrize("name", ["value", "gear"])
@pytest.mark.parametrize("times", [0.8, 1.3])
def test_a_policy_made_anew_for_other_costs_keeps_its_gear_as_near_as_can_be(name, times):
    before: Any = selection_policy(name, ENSEMBLE)
    after: Any = selection_policy(name, slower(times))
    for gear, plan in enumerate(before.plans):
        left = resumed(after, {"gear": gear}, before)["gear"]
        off = [abs(np.log(each.uses_s / plan.uses_s)) for each in after.plans]
        assert off[left] == min(off)
    again = selection_policy(name, ENSEMBLE)
    assert [resumed(again, {"gear": gear}, before)["gear"] for gear in range(len(before.plans))] == [
        *range(len(before.plans))
    ], "nothing changes where nothing has moved"


@pytest.mark.parametrize("name", SELECTION_POLICIES)
@pytest.mark.parametrize("other", SELECTION_POLICIES)
def test_a_policy_goes_on_where_itself_left_off_and_begins_where_another_did(name, other):
    before, after = selection_policy(other, ENSEMBLE), selection_policy(name, slower(1.2))
    left = before.observe(before.steer(before.init(), load(100, 100)), "", TOLD, 1)
    state = resumed(after, left, before)
    if name != other:
        assert state == after.init()
    elif "log_weights" in left:
        assert state == left, "what was learned stays"
    assert after.select(after.steer(state, load()), RowEvidence(draw=0.5)).ask


def test_a_policy_of_a_users_own_keeps_its_state_and_one_put_aside_stays_so():
    faults: list[SelectionFault] = []
    made = [
        selection_policy(f"tests.unit.ensemble.own_policies:{name}", ENSEMBLE, faults.append)
        for name in ("the_first_two", "the_first_two", "in_select", "in_select")
    ]
    assert resumed(made[1], {"own": {"x": 1}}, made[0]) == {"own": {"x": 1}}
    state = made[2].init()
    made[2].select(state, RowEvidence())
    state = resumed(made[3], state, made[2])
    assert made[3].select(state, RowEvidence()).ask
    assert len(faults) == 1, "it was not tried again"


@pytest.mark.parametrize("name", ["value", "gear", "slackfit", "async"])
@pytest.mark.parametrize("devices", [(0, 0, 0), (0, 1, 0)])
def test_a_member_that_no_device_holds_is_not_asked(name, devices):
    members = [
        replace(each, device=device, is_held=number != 2)
        for number, (each, device) in enumerate(zip(ENSEMBLE.members, devices, strict=True))
    ]
    of = replace(ENSEMBLE, members=tuple(members))
    policy = selection_policy(name, of)
    crowd = np.zeros(of.evidence.states)
    crowd[0] = 1e6
    for waiting in (crowd * 0, crowd):
        view = LoadView(0.0, 1.0, 0.0, waiting, [0.0] * of.devices, [1.0] * of.devices, 1.0)
        state = policy.steer(policy.init(), view)
        for subset in (0, 1, 2):
            row = RowEvidence(subset, state=of.evidence.state_of(subset, 0.5), draw=0.5)
            assert 2 not in policy.select(state, row).ask
        assert policy.select(state, RowEvidence()).ask
    nobody = replace(of, members=tuple(replace(each, is_held=False) for each in members))
    policy = selection_policy(name, nobody)
    assert policy.select(policy.init(), RowEvidence()).ask


def test_exp3_moves_its_rows_to_the_member_that_is_right():
    policy, state = Exp3(ENSEMBLE), Exp3(ENSEMBLE).init()
    random = np.random.default_rng(0)
    for _ in range(400):
        (member,) = policy.select(state, RowEvidence(draw=float(random.random()))).ask
        told = [0.1, 0.9] if member == 2 else [0.9, 0.1]
        state = policy.observe(state, "", {member: told}, 1)
    draws = [policy.select(state, RowEvidence(draw=float(random.random()))).ask[0] for _ in range(200)]
    assert draws.count(2) > 190


def test_exp4_outvotes_a_member_that_fails_and_keeps_the_others():
    policy, state = Exp4(ENSEMBLE), Exp4(ENSEMBLE).init()
    told = {0: [0.99, 0.01], 1: [0.4, 0.6], 2: [0.4, 0.6]}
    assert policy.combine(state, told).label == 0
    for _ in range(50):
        state = policy.observe(state, "", told, 1)
    assert policy.combine(state, told).label == 1
    assert state["log_weights"][1] == state["log_weights"][2] == 0.0
