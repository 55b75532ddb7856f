"""One contract, every policy: what the core and its shells rely on."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduling.core import FunctionSpec, Idle, MemberSpec, RunBatch, Scheduler, Submission, WorkerView
from server.scheduling.policies.by_name import POLICIES, policy_named
from server.scheduling.policy import BatchOutcome, Dispatch, Refuse, Wait
from server.scheduling.simulation.arrivals import bursty
from server.scheduling.simulation.simulator import FunctionLoad, Workload, simulate
from tests.unit.scheduling.views import NOW_S, affine, view

every_policy = pytest.mark.parametrize("policy", sorted(POLICIES))

outcomes = st.builds(
    BatchOutcome,
    now_s=st.just(NOW_S),
    rows=st.integers(1, 64),
    members=st.just(("m",)),
    latency_s=st.floats(0.0001, 1.0),
    slo_s=st.just(0.05),
    overdue_rows=st.integers(0, 64),
    predicted_s=st.floats(0.0001, 1.0),
)
ages_s = st.lists(st.floats(0.0, 0.2), min_size=1, max_size=150)


@every_policy
@given(ages_s=ages_s, learned=st.lists(outcomes, max_size=30), rows_each=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_an_answer_is_within_the_queue_and_the_largest_batch(
    policy: str, ages_s: list[float], learned: list[BatchOutcome], rows_each: int
) -> None:
    rule = policy_named(policy)
    state = rule.initial({})
    for outcome in learned:
        state = rule.observe(state, outcome)
    seen = view(ages_s, rows_each=rows_each)
    _, decision = rule.decide(state, seen)
    match decision:
        case Dispatch():
            assert decision.members == ("m",)
            assert 1 <= decision.rows <= seen.max_batch
            assert 0 <= decision.skip <= seen.queued_rows - decision.rows
        case Refuse():
            assert 1 <= decision.rows <= seen.queued_rows
            assert decision.predicted_finish_s > NOW_S
        case Wait():
            assert decision.until_s > NOW_S


@every_policy
@given(ages_s=ages_s, learned=st.lists(outcomes, max_size=12))
@settings(max_examples=30, deadline=None)
def test_deciding_is_pure_and_its_state_is_plain_json(
    policy: str, ages_s: list[float], learned: list[BatchOutcome]
) -> None:
    rule, again = policy_named(policy), policy_named(policy)
    state = rule.initial({})
    for outcome in learned:
        before = json.dumps(state)
        after = rule.observe(state, outcome)
        assert json.dumps(state) == before, "observe changed the state it was given"
        state = after
    kept = json.dumps(state)
    answer = rule.decide(state, view(ages_s))
    assert json.dumps(state) == kept, "decide changed the state it was given"
    assert again.decide(json.loads(kept), view(ages_s)) == answer


@every_policy
def test_all_rows_of_a_burst_are_answered_or_refused(policy: str) -> None:
    arrivals = bursty(Random(3), 1500, 1.0, period_s=0.2)
    for refuses in (True, False):
        load = FunctionLoad("f", arrivals, 0.05, 64, affine, policy=policy, refuses=refuses)
        result = simulate(Workload((load,))).total
        assert result.offered == len(arrivals) == result.good + result.late + result.refused
        assert refuses or result.refused == 0, "without deadlines nothing may be refused"


@every_policy
def test_a_row_that_is_alone_is_answered_within_its_goal(policy: str) -> None:
    load = FunctionLoad("f", [0.0, 1.0, 2.0], 0.05, 64, affine, policy=policy)
    assert simulate(Workload((load,))).total.good == 3


@every_policy
def test_a_bad_option_is_named(policy: str) -> None:
    bad_options: dict[str, dict[str, Any]] = {
        "goodput": {"tolerance": -1},
        "greedy": {"backoff": 2},
        "aimd": {"delay_ms": "two"},
        "quantile": {"quantile": 3},
        "ewma": {"alpha": True},
        "ewma-code": {"quantum_ms": 0},
        "window": {"target": -3},
        "clockwork": {"runs": None},
    }
    options = bad_options[policy]
    with pytest.raises(ValueError, match=next(iter(options))):
        policy_named(policy).initial(options)


@every_policy
def test_it_can_be_chosen_while_rows_wait(policy: str) -> None:
    def spec(name: str) -> FunctionSpec:
        return FunctionSpec("f", 0.05, 4, (1, 2, 4), (MemberSpec("m", 0.9, affine),), policy=name)

    core = Scheduler()
    core.configure(0.0, spec("window"))
    core.submit(0.0, Submission(1, "f", 3, 30))
    core.configure(0.0, spec(policy))
    core.set_worker(0.0, WorkerView("w", True, frozenset({"m"}), 1))
    now_s, ran = 0.0, 0
    while ran < 3:
        action = core.next_action(now_s)
        if isinstance(action, RunBatch):
            ran += action.rows
            now_s += affine(action.rows)
            core.finished(now_s, action.batch_id)
        else:
            assert isinstance(action, Idle)
            now_s = action.until_s
            assert now_s < 0.06


class Lifo:
    """A user's own policy: the youngest row first, alone."""

    name = "lifo"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        return {}

    def decide(self, state: dict[str, Any], view: Any) -> tuple[dict[str, Any], Dispatch]:
        return state, Dispatch(("m",), 1, view.queued_rows - 1)

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        return state


def test_a_policy_of_the_user_is_found_by_its_import_path() -> None:
    policy = policy_named("tests.unit.scheduling.test_every_policy:Lifo")
    assert policy.decide({}, view([0.0] * 5)) == ({}, Dispatch(("m",), 1, 4))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("fastest", "known: goodput"),
        ("no_such_module:Policy", "cannot be imported"),
        ("tests.unit.scheduling.views:NoSuchName", "cannot be imported"),
        ("tests.unit.scheduling.views:affine", "lacks initial, decide, observe"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_the_reason(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        policy_named(name)
