"""A pool of rows on members apart: every row is answered or refused once, by its goal, by the plan."""

from __future__ import annotations

import math
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.ensemble.gearing import accuracy_kept, held_to
from server.ensemble.policies.by_name import SELECTION_POLICIES, selection_policy
from server.ensemble.policies.fixed import Static, all_members
from server.ensemble.policies.geared import Value
from server.ensemble.policies.guarded import SelectionFault
from server.scheduling.arbitration import least_recently_served
from server.scheduling.policy import RowRun
from server.scheduling.pool import AnswerRows, GiveUpRows, MemberPool, Offer, RunOn, Sleep
from server.scheduling.simulation.arrivals import bursty, poisson
from server.scheduling.simulation.ensembles import EnsembleLoad, simulate_ensemble
from server.scheduling.simulation.simulator import FunctionLoad, Workload, simulate
from server.scheduling.terms import Slice
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of

OUTCOMES = outcomes_of(*drawn([0.6, 0.75, 0.9]))
COSTS_MS = [0.1, 0.2, 0.6]


def ensemble(devices=None):
    return ensemble_of(OUTCOMES, COSTS_MS, devices)


def latencies(of):
    return [lambda rows, member=member: member.fixed_s + rows * member.per_row_s for member in of.members]


def loaded(of, rate, seconds=1.0, seed=0, **options):
    return EnsembleLoad(
        poisson(Random(seed), rate, seconds), 0.05, latencies(of), OUTCOMES, seed=seed, **options
    )


@pytest.mark.parametrize("name", SELECTION_POLICIES)
@pytest.mark.parametrize("devices", [None, [0, 1, 2], [0, 0, 1]])
@pytest.mark.parametrize("rate", [200, 3000, 20_000])
def test_every_row_is_answered_in_time_or_refused_once(name, devices, rate):
    of = ensemble(devices)
    load = loaded(of, rate, seconds=min(1.0, 3000 / rate), jitter=0.1)
    result = simulate_ensemble(load, of, selection_policy(name, of))
    assert result.offered == result.good + result.wrong + result.refused
    assert result.late == 0
    assert len(result.answered_at) == result.answered


@pytest.mark.parametrize("fault", ["steer", "select", "asks", "leaves"])
def test_a_policy_of_a_users_own_that_faults_loses_no_row(fault):
    of = ensemble()
    name = fault if fault in ("asks", "leaves") else f"in_{fault}"
    faults: list[SelectionFault] = []
    policy = selection_policy(f"tests.unit.ensemble.own_policies:{name}", of, faults.append)
    result = simulate_ensemble(loaded(of, 1000), of, policy)
    assert result.offered == result.good + result.wrong
    assert len(faults) == 1


def test_the_same_load_and_seed_give_the_same_result():
    of = ensemble()
    first, second = (
        simulate_ensemble(loaded(of, 2500, jitter=0.1), of, selection_policy("value", of)) for _ in range(2)
    )
    assert first == second


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([0.3, 0.9, 1.3]), st.integers(0, 100), st.booleans())
def test_one_member_is_scheduled_to_the_last_digit_as_by_goodput(load, seed, bursts):
    told, labels = drawn([0.8])
    of = ensemble_of(outcomes_of(told, labels), [0.25])
    (latency_s,) = latencies(of)
    rate = load * 64 / latency_s(64)
    arrivals_s = (bursty if bursts else poisson)(Random(seed), rate, 1000 / rate)
    with patch("server.scheduling.core.admit", lambda *_: None):  # a pool's own simulation has no door
        alone = simulate(
            Workload((FunctionLoad("f", arrivals_s, 0.05, 64, latency_s),), arbitration=least_recently_served)
        ).total
    mine = simulate_ensemble(
        EnsembleLoad(arrivals_s, 0.05, [latency_s], outcomes_of(told, labels)),
        of,
        selection_policy("value", of),
    )
    assert (mine.answered, mine.refused, mine.batches) == (alone.good, alone.refused, alone.batches)
    assert sorted(latency for _, latency, _ in mine.answered_at) == sorted(alone.latencies_s)


def pool_of(policy, of, **options):
    pool = MemberPool(of, policy, latencies(of), slo_s=0.05, max_batch=8, **options)
    for device in range(of.devices):
        held = [number for number, member in enumerate(of.members) if member.device == device]
        pool.set_worker(0.0, f"w{device}", held)
    return pool


def submit(pool, number, due_s=0.05, rows=1, **fields):
    run = RowRun(number, rows, 0.0, **{"deadline_s": due_s, "due_s": due_s} | fields)
    pool.submit(0.0, run)
    return run


def rows_of(action):
    """(request, row), in the order of the batch or of what is said."""
    parts = action.slices if isinstance(action, RunOn) else [part for part, _ in action.parts]
    return [(part.request_id, part.offset + row) for part in parts for row in range(part.rows)]


def answer(number, subset, first=0, rows=1):
    return AnswerRows(((Slice(number, first, rows), subset),))


def offered(pool, now_s=0.0, worker="w0"):
    offer = pool.offer(now_s, worker)
    assert isinstance(offer, Offer)
    return offer


def test_at_its_goal_a_row_is_answered_from_what_is_known_and_the_late_member_is_dropped():
    of = ensemble()
    pool = pool_of(selection_policy("all", of), of)
    submit(pool, 7)
    first = pool.next_action(0.0)
    assert isinstance(first, RunOn)
    pool.finished(0.01, first.batch_id, [0.5])
    second = pool.next_action(0.01)
    assert isinstance(second, RunOn)
    assert second.member != first.member
    assert pool.next_action(0.01) == Sleep(0.05)
    assert pool.next_action(0.05) == answer(7, 1 << first.member)
    assert pool.rows == 0
    pool.finished(0.06, second.batch_id, [0.9])
    assert isinstance(pool.next_action(0.06), Sleep)


def test_a_row_that_nobody_answered_by_its_goal_is_refused():
    of = ensemble()
    pool = pool_of(Static(of, 0b100), of)
    run = submit(pool, 1)
    assert isinstance(pool.next_action(0.0), RunOn)
    assert pool.next_action(0.05) == GiveUpRows((run,))


def test_a_fresh_row_too_late_for_its_member_goes_to_the_cheapest_that_can_answer_it():
    of = ensemble()
    pool = pool_of(selection_policy("gear", of), of)
    submit(pool, 1, 0.002)  # only the first member takes less
    action = pool.next_action(0.0)
    assert isinstance(action, RunOn)
    assert action.member == 0


def test_members_on_several_devices_run_beside_one_another_where_all_are_asked():
    of = ensemble([0, 1, 2])
    pool = pool_of(selection_policy("all", of), of)
    submit(pool, 1)
    actions = [pool.next_action(0.0) for _ in range(4)]
    assert {action.member for action in actions[:3] if isinstance(action, RunOn)} == {0, 1, 2}
    assert isinstance(actions[3], Sleep)


def test_two_workers_that_hold_the_same_members_share_the_rows():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    pool.set_worker(0.0, "other", range(3))
    for number in range(12):
        submit(pool, number)
    first, second = pool.next_action(0.0), pool.next_action(0.0)
    assert isinstance(first, RunOn)
    assert isinstance(second, RunOn)
    assert {first.worker, second.worker} == {"w0", "other"}
    assert sorted(rows_of(first) + rows_of(second)) == [(number, 0) for number in range(12)]


def test_the_rows_of_a_lost_worker_are_answered_by_another():
    of = ensemble()
    pool = pool_of(selection_policy("best", of), of)
    submit(pool, 1)
    lost = pool.next_action(0.0)
    assert isinstance(lost, RunOn)
    pool.set_worker(0.001, "other", range(3))
    pool.set_worker(0.002, lost.worker, ())
    again = pool.next_action(0.002)
    assert isinstance(again, RunOn)
    assert (again.worker, rows_of(again)) == ("other", [(1, 0)])
    pool.finished(0.003, lost.batch_id, [0.9])
    pool.finished(0.004, again.batch_id, [0.9])
    assert pool.next_action(0.004) == answer(1, 0b100)


def test_a_row_does_not_wait_for_members_that_nobody_holds_any_more():
    of = ensemble([0, 1, 2])
    pool = pool_of(selection_policy("all", of), of)
    submit(pool, 1)
    actions = [pool.next_action(0.0) for _ in range(3)]
    for action in actions:
        assert isinstance(action, RunOn)
        if action.member:
            pool.set_worker(0.001, action.worker, ())
    (kept,) = (action for action in actions if isinstance(action, RunOn) and not action.member)
    pool.finished(0.002, kept.batch_id, [0.9])
    assert pool.next_action(0.002) == answer(1, 0b001)


def test_an_offer_changes_nothing_until_it_is_sent():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    for number in range(5):
        submit(pool, number)
    first, second = pool.offer(0.0, "w0"), pool.offer(0.0, "w0")
    assert isinstance(first, Offer)
    assert isinstance(second, Offer)
    assert (first.member, first.parts) == (second.member, second.parts)
    assert 0 < first.gain <= 5
    assert rows_of(pool.send(0.0, "w0", second)) == [(number, 0) for number in range(5)]
    assert pool.rows == 5


def test_a_row_with_a_deadline_past_its_goal_is_answered_by_what_comes_first():
    of = ensemble()
    pool = pool_of(selection_policy("all", of), of)
    submit(pool, 1, deadline_s=1.0)
    sent = pool.send(0.0, "w0", offered(pool))
    assert pool.tell(0.06) is None
    assert pool.rows == 1
    pool.finished(0.07, sent.batch_id, [0.1])
    assert pool.tell(0.07) == answer(1, 1 << sent.member)


def test_a_batch_that_failed_takes_its_rows_with_it_and_the_others_stay():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    for number in range(10):
        submit(pool, number)
    sent = pool.send(0.0, "w0", offered(pool), batch_id=77)
    assert sent.batch_id == 77
    assert [run.request_id for run in pool.drop(0.001, 77)] == [number for number, _ in rows_of(sent)]
    assert pool.rows == 10 - sent.rows > 0
    pool.finished(0.002, 77, [0.9])
    again = pool.send(0.002, "w0", offered(pool, 0.002))
    assert set(rows_of(again)).isdisjoint(rows_of(sent))


def test_a_worker_that_others_keep_busy_is_offered_what_it_can_still_do_in_time():
    of = ensemble()
    pool = MemberPool(of, selection_policy("value", of), latencies(of), slo_s=0.05, max_batch=8)
    free_s = 0.048
    pool.set_worker(0.0, "w", range(3), lambda now_s: free_s)
    run = submit(pool, 1)
    offer = offered(pool, worker="w")
    assert offer.member == 0, "only the first takes less than the 2 ms that are left"
    free_s = 0.0
    assert offered(pool, worker="w").member != 0
    free_s = 0.0499
    assert pool.offer(0.0, "w") == float("inf")
    assert pool.tell(0.0) == GiveUpRows((run,))


def test_higher_priority_goes_first():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    for number, priority in enumerate([0] * 8 + [1]):
        submit(pool, number, priority=priority)
    assert offered(pool).parts[0][0].request.run.request_id == 8


def test_other_plans_are_followed_while_rows_wait():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    submit(pool, 1)
    assert offered(pool).member != 0
    pool.follow(of, Static(of, 0b001))
    assert offered(pool).member == 0
    with pytest.raises(ValueError, match="are others"):
        pool.follow(ensemble_of(outcomes_of(*drawn([0.6, 0.9])), [1.0, 2.0]), Static(of, 0b001))


def test_rows_that_wait_are_decided_anew_by_evidence_that_was_counted_anew():
    of = ensemble()
    pool = pool_of(Static(of, 0b111), of)
    for number in range(4):
        submit(pool, number)
    other = ensemble_of(outcomes_of(*drawn([0.9, 0.6, 0.7], rows=100)), COSTS_MS)
    assert other.evidence.states != of.evidence.states
    answered, now_s = 0, 0.0
    for turn in range(40):
        now_s += 0.0001
        action = pool.next_action(now_s)
        if turn == 3:
            pool.follow(other, Static(other, 0b011))
        if isinstance(action, RunOn):
            pool.finished(now_s, action.batch_id, [0.9] * action.rows)
        elif isinstance(action, AnswerRows):
            answered += sum(part.rows for part, _ in action.parts)
    assert (answered, pool.rows) == (4, 0)


def test_a_cancelled_row_is_neither_answered_nor_refused():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    for number in (1, 2):
        submit(pool, number)
    pool.cancel(1)
    sent = pool.next_action(0.0)
    assert isinstance(sent, RunOn)
    assert rows_of(sent) == [(2, 0)]
    pool.cancel(2)
    pool.finished(0.01, sent.batch_id, [0.9])
    assert pool.next_action(1.0) == Sleep(float("inf"))


def test_of_rows_that_came_together_one_leaves_and_the_others_go_on():
    of = ensemble()
    pool = pool_of(selection_policy("value", of), of)
    pool.submit(0.0, RowRun(1, 5, 0.0, 0.05, due_s=0.05))
    assert pool.cancel_part(Slice(1, 1, 1)) == [RowRun(1, 1, 0.0, 0.05, due_s=0.05, offset=1)]
    assert pool.cancel_part(Slice(1, 1, 1)) == []
    sent = pool.next_action(0.0)
    assert isinstance(sent, RunOn)
    assert rows_of(sent) == [(1, 0), (1, 2), (1, 3), (1, 4)]
    pool.cancel_part(Slice(1, 3, 2))
    pool.cancel_part(Slice(2, 0, 5))
    assert pool.rows == 2
    now_s = 0.0
    while isinstance(sent, RunOn):
        now_s += 0.001
        pool.finished(now_s, sent.batch_id, [0.9999] * sent.rows)
        sent = pool.next_action(now_s)
        assert rows_of(sent) == [(1, 0), (1, 2)]
    assert isinstance(sent, AnswerRows)
    assert (pool.rows, pool.nbytes) == (0, 0)


def test_more_load_costs_accuracy_before_it_costs_rows():
    of = ensemble()
    idle, strained = (
        simulate_ensemble(loaded(of, rate, seconds=1500 / rate), of, selection_policy("value", of))
        for rate in (300, 5000)
    )
    assert idle.refused == strained.refused == 0
    assert strained.asked / strained.answered < idle.asked / idle.answered
    assert strained.goodput > 0.6


def answered_by(pool, *requests, seconds=20.0):
    """Run all batches as predicted: request → the subset that answered each of its rows; the poorest gear."""
    found: dict[int, list[int]] = {request: [] for request in requests}
    now_s, poorest = 0.0, 0
    while now_s < seconds:
        action = pool.next_action(now_s)
        poorest = max(poorest, pool.followed.gear)
        if isinstance(action, RunOn):
            now_s += action.predicted_s
            told = OUTCOMES.confidence[1 << action.member]
            sure = [told[row % OUTCOMES.rows] for _, row in rows_of(action)]
            pool.finished(now_s, action.batch_id, sure)
        elif isinstance(action, AnswerRows):
            for part, subset in action.parts:
                found[part.request_id] += [subset] * part.rows
        elif isinstance(action, GiveUpRows):
            pass
        elif action.until_s == math.inf:
            break
        else:
            now_s = max(now_s, action.until_s)
    return found, poorest


def test_rows_that_ask_for_an_accuracy_follow_no_poorer_plan_whatever_the_load():
    of = ensemble()
    policy = Value(of)
    best = policy.plans[0].accuracy
    asked = {}
    for least in (None, policy.plans[-1].accuracy, best):
        pool = pool_of(policy, of)
        submit(pool, 1, due_s=5.0, rows=20_000)
        submit(pool, 2, due_s=5.0, rows=50, min_accuracy=least, priority=1)
        found, poorest = answered_by(pool, 1, 2)
        assert poorest > 0, "the load is such that all others follow a poorer plan"
        assert len(found[2]) == 50
        asked[least] = sum(subset.bit_count() for subset in found[2]) / 50
    assert asked[best] > asked[None] + 0.2
    assert asked[policy.plans[-1].accuracy] == asked[None], "the poorest plan is right that often"


@pytest.mark.security
def test_a_caller_who_names_an_accuracy_of_its_own_for_each_row_costs_no_more_than_there_are_plans():
    of = ensemble()
    policy = Value(of)
    pool = pool_of(policy, of)
    for number in range(500):
        submit(pool, number, due_s=5.0, min_accuracy=number / 500)
    assert len(list(pool._waiting)) <= len(policy.plans) + 1
    assert len(pool._choices) <= len(policy.plans) + 1


@pytest.mark.parametrize("make", [Value, all_members])
def test_an_accuracy_and_that_of_the_poorest_plan_that_has_it_hold_rows_to_the_same_plan(make):
    policy = make(ensemble())
    own = [plan.accuracy for plan in getattr(policy, "plans", ())]
    for least in (-1.0, 0.0, *own, *(each - 1e-9 for each in own), *(each + 1e-9 for each in own), 2.0):
        for gear in range(max(1, len(own))):
            state = {"gear": gear}
            kept = accuracy_kept(policy, least)
            assert held_to(policy, state, kept) == held_to(policy, state, least)


def test_rows_that_ask_for_an_accuracy_go_to_no_member_that_their_plan_does_not_ask():
    of = ensemble()
    policy = Value(of)
    first = policy.plans[0].choices[0].ask
    pool = pool_of(policy, of)
    late_s = of.members[first[0]].fixed_s * 0.9  # too late for whom the plan asks first
    cheapest = min(range(3), key=lambda member: of.members[member].cost_s)
    assert cheapest not in first
    submit(pool, 1, due_s=late_s, min_accuracy=policy.plans[0].accuracy)
    assert isinstance(pool.next_action(0.0), GiveUpRows), "all will answer it late, and no poorer ones now"
    submit(pool, 2, due_s=late_s)
    assert pool.next_action(0.0).member == cheapest


def test_rows_cut_short_are_counted_with_the_members_that_were_at_them():
    of = ensemble([0, 1, 2])
    pool = pool_of(all_members(of), of)
    submit(pool, 1, rows=3)
    sent = [action for _ in range(3) if isinstance(action := pool.next_action(0.0), RunOn)]
    assert len(sent) == 3
    pool.finished(0.01, sent[0].batch_id, [0.5] * 3)
    assert pool.take_cut_short() == (0, 0)
    assert isinstance(pool.next_action(0.06), AnswerRows)
    assert pool.take_cut_short() == (3, 6)
    assert pool.take_cut_short() == (0, 0)
