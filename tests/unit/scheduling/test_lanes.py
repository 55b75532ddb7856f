"""A lane by itself: whose rows it takes, what it remembers, what it teaches."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.scheduling.lanes import Lane
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import BatchOutcome, Dispatch, Wait
from server.scheduling.terms import (
    BatchTimes,
    FunctionSpec,
    MemberSpec,
    MemberTime,
    Submission,
    WorkerView,
)
from server.scheduling.worker_state import WorkerState
from tests.unit.faulty_policies import named
from tests.unit.scheduling.views import affine


def spec(*members: MemberSpec, **fields: Any) -> FunctionSpec:
    return FunctionSpec("f", 0.05, 8, (1, 8), members or (MemberSpec("a", 0.9, affine),), **fields)


def lane(function: FunctionSpec | None = None, now_s: float = 0.0) -> Lane:
    function = function or spec()
    members = tuple(member.name for member in function.members)
    return Lane(now_s, ("f", members, ""), function, GuardedPolicy(function))


def holder(*models: str, device: str = "") -> WorkerState:
    return WorkerState(WorkerView("w", True, frozenset(models or ("a",)), device=device))


def rows(request_id: int, count: int, **fields: Any) -> Submission:
    return Submission(request_id, "f", count, 10 * count, **fields)


def taken(runs: list[Any]) -> list[tuple[int, int, str]]:
    return [(run.request_id, run.rows, run.row_class) for run in runs]


def outcome(count: int, members: tuple[str, ...], took_s: float) -> BatchOutcome:
    return BatchOutcome(0.0, count, members, took_s, 0.05)


def test_an_interactive_row_is_due_at_its_goal_or_its_deadline_a_bulk_row_at_its_deadline() -> None:
    queue = lane()
    queue.add(1.0, rows(1, 1))
    queue.add(1.0, rows(2, 1, slo_s=0.02))
    queue.add(1.0, rows(3, 1, deadline_s=1.01))
    queue.add(1.0, rows(4, 1, row_class="bulk", deadline_s=9.0))
    queue.add(1.0, rows(5, 1, row_class="bulk"))
    due_s = {run.request_id: run.due_s for run in [*queue.interactive.by_goal(), *queue.bulk.by_goal()]}
    assert due_s == pytest.approx({1: 1.05, 2: 1.02, 3: 1.01, 4: 9.0, 5: math.inf})
    assert (queue.rows, queue.filler_rows, queue.nbytes) == (5, 2, 50)


def test_it_says_when_goals_are_missed_and_when_deadlines_pass() -> None:
    queue = lane()
    queue.add(1.0, rows(1, 1, deadline_s=9.0))
    queue.add(1.0, rows(2, 2, slo_s=0.02))
    queue.add(1.0, rows(3, 4, row_class="bulk", deadline_s=5.0))
    assert queue.dues_s(64) == pytest.approx((1.02, 1.02, 1.05))
    assert queue.deadlines_s(64) == (9.0, math.inf, math.inf)
    assert queue.deadlines_s(2) == (math.inf, math.inf)


def test_half_of_the_fillers_are_late_rows_and_half_bulk_and_either_takes_the_others_places() -> None:
    queue = lane()
    queue.add(0.0, rows(1, 3))
    queue.put_aside(0.0, queue.take(3)[0])
    queue.add(0.0, rows(2, 10, row_class="bulk"))
    assert taken(queue.take_fillers(1.0, 4)) == [(1, 2, "interactive"), (2, 2, "bulk")]
    assert taken(queue.take_fillers(1.0, 5)) == [(1, 1, "interactive"), (2, 4, "bulk")]
    queue.add(0.0, rows(3, 3))
    queue.put_aside(0.0, queue.take(3)[0])
    assert taken(queue.take_fillers(1.0, 7)) == [(3, 3, "interactive"), (2, 4, "bulk")]


def test_fillers_that_begin_to_wait_have_not_waited_before() -> None:
    queue = lane()
    queue.add(5.0, rows(1, 1, row_class="bulk"))
    assert queue.filler_served_s == 5.0
    queue.add(7.0, rows(2, 1, row_class="bulk"))
    assert queue.filler_served_s == 5.0
    queue.take_fillers(9.0, 1)
    assert queue.filler_served_s == 9.0


def test_a_request_is_found_and_taken_out_of_every_queue() -> None:
    queue = lane()
    queue.add(0.0, rows(1, 2))
    queue.put_aside(0.0, queue.take(1)[0])
    queue.add(0.0, rows(1, 3, row_class="bulk", offset=2))
    queue.add(0.0, rows(2, 1))
    assert queue.holds(1)
    assert sum(run.rows for run in queue.remove(1)) == 5
    assert not queue.holds(1)
    assert taken(queue.clear()) == [(2, 1, "interactive")]
    assert queue.rows == 0


def test_a_lane_is_silent_when_nothing_of_it_ran_for_a_second() -> None:
    queue = lane(now_s=1.0)
    assert not queue.is_silent(2.0)
    assert queue.is_silent(2.1)
    queue.sent(2.1, 1, holder())
    assert not queue.is_silent(3.0)


def test_what_its_batches_typically_take_follows_them_slowly() -> None:
    queue, worker = lane(), holder()
    queue.sent(0.0, 8, worker)
    assert queue.typical_s == pytest.approx(affine(8))
    queue.sent(0.0, 1, worker)
    assert queue.typical_s == pytest.approx(0.9 * affine(8) + 0.1 * affine(1))
    before = queue.typical_s
    queue.sent(0.0, 0, worker)  # fillers alone say nothing of it
    assert queue.typical_s == before


def test_a_swap_costs_what_the_missing_members_take() -> None:
    queue = lane(
        spec(
            MemberSpec("a", 0.9, affine, lambda device: 0.1), MemberSpec("b", 0.8, affine, lambda device: 0.2)
        )
    )
    assert [queue.swap_s(holder(*models)) for models in (("a", "b"), ("a",), ("b",), ("c",))] == (
        pytest.approx([0.0, 0.2, 0.1, 0.3])
    )


def test_a_batch_takes_what_the_members_that_run_take() -> None:
    queue = lane(spec(MemberSpec("a", 0.9, affine), MemberSpec("b", 0.8, lambda rows: 0.1)))
    assert queue.predicted_s(8, "") == pytest.approx(affine(8) + 0.1)
    assert queue.predicted_s(8, "", ("a",)) == pytest.approx(affine(8))
    assert queue.predicted_s(8, "", ("b",)) == pytest.approx(0.1)
    assert queue.predicted_s(8, "", ("a", "b")) == pytest.approx(affine(8) + 0.1)


def test_only_members_that_ran_learn_what_a_batch_took() -> None:
    first, second = LatencyModel({1: 0.01}), LatencyModel({1: 0.03})
    queue = lane(spec(MemberSpec("a", 0.9, first), MemberSpec("b", 0.8, second)))
    for _ in range(30):
        learn(queue, outcome(1, ("a",), 0.1), "")
    assert first(1) == pytest.approx(0.1, rel=0.1)
    assert second(1) == pytest.approx(0.03)


def test_members_that_ran_together_share_what_a_batch_took() -> None:
    first, second = LatencyModel({1: 0.01}), LatencyModel({1: 0.03})
    queue = lane(spec(MemberSpec("a", 0.9, first), MemberSpec("b", 0.8, second)))
    for _ in range(40):
        learn(queue, outcome(1, ("a", "b"), 0.08), "")
    assert first(1) == pytest.approx(0.02, rel=0.1)
    assert second(1) == pytest.approx(0.06, rel=0.1)


def test_each_kind_of_device_is_taught_by_its_own_batches() -> None:
    latency = LatencyModel({1: 0.01})
    queue = lane(spec(MemberSpec("a", 0.9, latency)))
    assert queue.predicted_s(1, "cpu") == pytest.approx(0.01)
    for _ in range(30):
        learn(queue, outcome(1, ("a",), 0.1), "gpu")
    assert queue.predicted_s(1, "gpu") == pytest.approx(0.1, rel=0.1)
    assert queue.predicted_s(1, "cpu") == pytest.approx(0.01)


def learn(queue: Lane, ran: BatchOutcome, device: str, worked: BatchTimes | None = None) -> None:
    queue.teach(ran.rows, ran.members, ran.latency_s, device, worked)
    queue.policy.observe(ran)


def times(work_s: float, *members: tuple[float, float]) -> BatchTimes:
    return BatchTimes(work_s, work_s, tuple(MemberTime(own_s, shared_s) for own_s, shared_s in members))


def test_each_member_is_taught_what_it_would_have_taken_alone() -> None:
    first, second = LatencyModel({1: 0.01}), LatencyModel({1: 0.01})
    queue = lane(spec(MemberSpec("a", 0.9, first), MemberSpec("b", 0.8, second)))
    for _ in range(40):  # 20 ms of decoding for both, and 5 ms on the way
        worked = times(0.08, (0.01, 0.02), (0.05, 0.02))
        learn(queue, outcome(1, ("a", "b"), 0.085), "", worked)
    assert first(1) == pytest.approx(0.035, rel=0.02)
    assert second(1) == pytest.approx(0.075, rel=0.02)
    assert queue.predicted_s(1, "") == pytest.approx(0.085, rel=0.02)


@given(
    own_s=st.lists(st.floats(1e-4, 0.1), min_size=2, max_size=4),
    shared_s=st.floats(0, 0.1),
    order=st.randoms(use_true_random=False),
)
def test_what_members_take_together_is_learned_whatever_they_share_and_in_whatever_order(
    own_s: list[float], shared_s: float, order: Random
) -> None:
    names = [f"m{number}" for number in range(len(own_s))]
    members = [MemberSpec(name, 0.9, LatencyModel({1: 0.001, 8: 0.002}, measured=False)) for name in names]
    queue = lane(spec(*members))
    all_s = shared_s + sum(own_s)
    for _ in range(30):
        asked = list(zip(names, own_s, strict=True))
        order.shuffle(asked)
        worked = times(all_s, *((each_s, shared_s) for _, each_s in asked))
        learn(queue, outcome(8, tuple(name for name, _ in asked), all_s), "", worked)
    assert queue.predicted_s(8, "") == pytest.approx(all_s, rel=0.1)
    for name, each_s in zip(names, own_s, strict=True):
        assert queue.predicted_s(8, "", (name,)) == pytest.approx(each_s + shared_s, rel=0.1)


def test_of_a_batch_whose_members_are_gone_nothing_is_learned() -> None:
    function = spec()
    queue = lane(function)
    queue.reconfigure(spec(MemberSpec("b", 0.9, affine)), GuardedPolicy(function))
    learn(queue, outcome(1, ("a",), 0.1), "")


def test_the_policy_sees_what_batches_took() -> None:
    function = spec(policy="aimd")
    queue, worker = lane(function), holder()
    for _ in range(3):
        learn(queue, outcome(8, ("a",), 0.01), "")
    queue.add(0.0, rows(1, 8))
    assert queue.decide(0.0, worker, 0) == Dispatch(("a",), 4)  # its cap grew from 1 by a row each


def test_what_a_policy_kept_in_mind_for_a_batch_that_did_not_leave_is_forgotten() -> None:
    function = spec(policy="ewma")
    queue, worker = lane(function), holder()
    queue.add(0.0, rows(1, 3))
    first = queue.decide(1.0, worker, 0)
    assert isinstance(first, Dispatch)
    assert queue.decide(1.0, worker, 0) == first  # another lane got the worker: it is still released
    queue.take(first.rows)
    queue.policy.carried_out()
    queue.add(1.0, rows(2, 3))
    assert isinstance(queue.decide(1.0, worker, 0), Wait)


def test_a_wait_holds_until_its_time_or_until_rows_come_or_workers_change() -> None:
    function = spec(policy=f"{__name__}:Counting")
    queue, worker = lane(function), holder()
    Counting.asked = 0
    queue.add(0.0, rows(1, 1))
    for now_s, epoch, asked in ((0.0, 1, 1), (0.5, 1, 1), (0.5, 2, 2), (1.0, 2, 3), (1.1, 2, 3)):
        assert isinstance(queue.decide(now_s, worker, epoch), Wait)
        assert Counting.asked == asked
    queue.add(1.1, rows(2, 1))
    queue.decide(1.1, worker, 2)
    assert Counting.asked == 4


def test_a_wait_is_for_the_worker_that_was_asked_about() -> None:
    queue, other = (
        lane(spec(policy=f"{__name__}:Counting")),
        WorkerState(WorkerView("x", True, frozenset("a"))),
    )
    Counting.asked = 0
    queue.add(0.0, rows(1, 1))
    for each, asked in ((holder(), 1), (other, 2), (other, 2), (holder(), 3)):
        queue.decide(0.0, each, 1)
        assert Counting.asked == asked


def test_a_wait_for_a_time_gone_by_does_not_spin() -> None:
    function = spec(policy=f"{__name__}:Past")
    queue = lane(function)
    queue.add(0.0, rows(1, 1))
    wait = queue.decide(5.0, holder(), 0)
    assert isinstance(wait, Wait)
    assert wait.until_s == pytest.approx(5.0001, abs=1e-6)


def test_a_probe_is_the_head_of_the_queue() -> None:
    queue = lane()
    queue.add(0.0, rows(1, 3))
    queue.add(0.0, rows(2, 100))
    assert queue.probe() == Dispatch(("a",), 3)
    queue.take(3)
    assert queue.probe() == Dispatch(("a",), 8)


@pytest.mark.parametrize("policy", ["RaisesInDecide", "no_rows", "another_member"])
def test_a_policy_that_faults_is_goodput_from_then_on(policy: str) -> None:
    faults: list[str] = []
    function = spec(policy=named(policy))
    guard = GuardedPolicy(function, lambda fault: faults.append(fault.method))
    queue = Lane(0.0, ("f", ("a",), ""), function, guard)
    queue.add(0.0, rows(1, 3))
    for _ in range(3):
        decision = queue.decide(0.0, holder(), 0)
        assert isinstance(decision, Dispatch)
        assert decision.rows == 3
    assert faults == ["decide"]


class Counting:
    name = "counting"
    asked = 0

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        return {}

    def decide(self, state: dict[str, Any], view: Any) -> tuple[dict[str, Any], Wait]:
        type(self).asked += 1
        return state, Wait(math.floor(view.now_s) + 1.0)

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        return state


class Past(Counting):
    def decide(self, state: dict[str, Any], view: Any) -> tuple[dict[str, Any], Wait]:
        return state, Wait(view.now_s - 1.0)
