"""Bulk rows of a function with plans: asked of one member after the other, as fillers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest

from server.ensemble.cascade import cascade_of, economical
from server.ensemble.evidence import NOTHING
from server.ensemble.plan import Plan, fit_plans
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.policies.geared import Value
from server.ensemble.selection import ENOUGH, Choice
from server.scheduling.core import (
    AnswerKnown,
    BatchTimes,
    Idle,
    MemberTime,
    RunBatch,
    Scheduler,
    Slice,
    WorkerView,
)
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of
from tests.unit.scheduling.test_pooled_functions import ENSEMBLE, NAMES, asked, core, pooled, sent


def drained(
    scheduler: Scheduler, random: Random, now_s: float = 0.0
) -> tuple[list[RunBatch], dict[int, tuple[str, ...]]]:
    """Run until there is nothing to do: the batches, and by row of request 1 who answered it."""
    batches: list[RunBatch] = []
    answered: dict[int, tuple[str, ...]] = {}
    while not isinstance(action := scheduler.next_action(now_s), Idle):
        if isinstance(action, AnswerKnown):
            for part, members in action.parts:
                for row in range(part.offset, part.offset + part.rows):
                    assert row not in answered, "no row is answered twice"
                    answered[row] = members
        else:
            assert isinstance(action, RunBatch)
            batches.append(action)
            now_s += 0.01
            sure = [random.choice([0.2, 0.6, 0.99]) for _ in range(action.rows)]
            scheduler.finished(now_s, action.batch_id, sure=sure if action.choices else ())
    return batches, answered


def core_of(ask: Mapping[int, Sequence[int]]) -> Scheduler:
    """One whose plan asks, from evidence of those members (a bit mask), the first of these when unsure."""
    evidence = ENSEMBLE.evidence
    choices = [ENOUGH] * evidence.states
    choices[NOTHING] = Choice(tuple(ask[0]))
    for subset in evidence.subsets:
        choices[evidence.states_of(subset).start] = Choice(tuple(ask[subset])) if subset in ask else ENOUGH
    costs_s = np.full((evidence.states, 1), 1e-3)
    return core(Value(ENSEMBLE, [Plan(tuple(choices), costs_s, 0.9)]))


def test_bulk_rows_are_asked_of_one_member_and_the_unsure_ones_of_another():
    scheduler = core_of({0: [1], 0b010: [2]})
    scheduler.submit(0.0, asked(1, 8, row_class="bulk"))
    first = sent(scheduler)
    assert (first.members, first.rows, first.choices) == (("m1",), 8, NAMES)
    scheduler.finished(0.01, first.batch_id, sure=[1.0] * 4 + [0.0] * 4)
    told = scheduler.next_action(0.01)
    assert told == AnswerKnown("e", ((Slice(1, 0, 4), ("m1",)),))
    second = sent(scheduler, 0.01)
    assert (second.members, second.rows, second.choices) == (("m2",), 4, NAMES)
    assert second.slices == (Slice(1, 4, 4),)
    scheduler.finished(0.02, second.batch_id, sure=[0.5] * 4)
    told = scheduler.next_action(0.02)
    assert told == AnswerKnown("e", ((Slice(1, 4, 4), ("m1", "m2")),))
    assert isinstance(scheduler.next_action(0.02), Idle)


@pytest.mark.parametrize("seed", range(8))
def test_every_bulk_row_is_answered_once_by_members_that_were_asked(seed: int):
    scheduler = core("value", a="012") if seed % 2 else core("value", a="01", b="12")
    scheduler.submit(0.0, asked(1, 50, row_class="bulk"))
    batches, answered = drained(scheduler, Random(seed))
    assert sorted(answered) == list(range(50))
    asked_of: dict[int, set[str]] = {row: set() for row in range(50)}
    for batch in batches:
        for part in batch.slices:
            for row in range(part.offset, part.offset + part.rows):
                assert not asked_of[row] & set(batch.members), "nobody is asked twice"
                asked_of[row] |= set(batch.members)
    assert {row: set(members) for row, members in answered.items()} == asked_of
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_a_batch_that_is_not_full_waits_for_those_that_are():
    scheduler = core_of({0: [1], 0b010: [2]})
    scheduler.submit(0.0, asked(1, 32, row_class="bulk"))
    first = sent(scheduler)
    scheduler.finished(0.01, first.batch_id, sure=[1.0] * 6 + [0.0] * 2)
    told = scheduler.next_action(0.01)
    assert isinstance(told, AnswerKnown)
    second = sent(scheduler, 0.01)
    assert (second.members, second.rows) == (first.members, 8)


def test_rows_of_a_client_that_has_gone_are_asked_of_nobody_else():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk"))
    scheduler.submit(0.0, asked(2, 4, row_class="bulk"))
    first = sent(scheduler)
    assert {part.request_id for part in first.slices} == {1, 2}
    scheduler.cancel(0.005, 1)
    scheduler.finished(0.01, first.batch_id, sure=[0.1] * 8)
    seen = Counter[int]()
    now_s = 0.01
    while not isinstance(action := scheduler.next_action(now_s), Idle):
        seen.update(part.request_id for part in action.slices)
        if isinstance(action, RunBatch):
            now_s += 0.01
            scheduler.finished(now_s, action.batch_id, sure=[0.1] * action.rows)
    assert set(seen) == {2}
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_rows_of_a_batch_that_failed_are_the_shell_s():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk"))
    first = sent(scheduler)
    scheduler.finished(0.01, first.batch_id, failed=True)
    assert isinstance(scheduler.next_action(0.01), Idle)
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_rows_under_way_are_answered_when_their_function_goes():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk"))
    first = sent(scheduler)
    scheduler.remove(0.005, "e")
    scheduler.finished(0.01, first.batch_id, sure=[0.1] * 4)
    told = scheduler.next_action(0.01)
    assert isinstance(told, AnswerKnown)
    assert sum(part.rows for part, _ in told.parts) == 4


def test_members_that_nobody_holds_are_not_waited_for():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk"))
    first = sent(scheduler)
    scheduler.set_worker(0.005, WorkerView("w", True, frozenset(first.members)))
    scheduler.finished(0.01, first.batch_id, sure=[0.1] * 4)
    told = scheduler.next_action(0.01)
    assert isinstance(told, AnswerKnown)
    assert {members for _, members in told.parts} == {first.members}


def test_a_plan_that_changes_while_rows_are_under_way_loses_none():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 30, row_class="bulk"))
    first = sent(scheduler)
    scheduler.follow(0.005, "e", "", ENSEMBLE, selection_policy("all", ENSEMBLE))
    scheduler.finished(0.01, first.batch_id, sure=[0.1] * first.rows)
    _, answered = drained(scheduler, Random(1), 0.01)
    assert sorted(answered) == list(range(30))
    scheduler.submit(1.0, asked(2, 4, row_class="bulk"))
    assert sent(scheduler, 1.0).members == NAMES, "rows that come now go to all"


def test_members_that_are_named_answer_and_nobody_else():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk", members=("m0",)))
    batch = sent(scheduler)
    assert (batch.members, batch.choices) == (("m0",), ())


def test_interactive_rows_go_first():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 50, row_class="bulk"))
    scheduler.submit(0.0, asked(2, 1))
    assert {part.request_id for part in sent(scheduler).slices} == {2}


def test_the_plan_of_bulk_rows_is_the_cheapest_that_is_hardly_less_accurate():
    ensemble = ensemble_of(outcomes_of(*drawn([0.7, 0.8, 0.85, 0.9])), [0.1, 0.2, 0.4, 0.8])
    plans = fit_plans(ensemble)
    chosen = plans[economical(plans)]
    best = max(plan.accuracy for plan in plans)
    assert chosen.accuracy >= best - 0.001
    takes_s = chosen.remaining_s[NOTHING].sum()
    cheaper = [plan for plan in plans if plan.remaining_s[NOTHING].sum() < takes_s]
    assert all(plan.accuracy < best - 0.001 for plan in cheaper)


def test_where_all_at_once_is_as_cheap_there_is_no_cascade():
    policy = selection_policy("value", ENSEMBLE)
    shared = [cascade_of(ENSEMBLE, policy, shared_s) for shared_s in (0.0, 1.0)]
    assert shared[0] is not None
    assert not shared[0].first.beside
    assert shared[1] is None or shared[1].first.beside
    assert cascade_of(ENSEMBLE, selection_policy("all", ENSEMBLE), 0.0) is None


@pytest.mark.parametrize("shared_s", [0.0, 0.02, 0.05, 0.1])
def test_whatever_is_shared_bulk_rows_are_right_as_often_as_by_the_richest_plan(shared_s: float):
    told, labels = drawn([0.7, 0.9])
    twice = outcomes_of(told[[0, 1, 1]], labels)
    ensemble = ensemble_of(twice, [0.1, 0.1, 0.1])
    policy = selection_policy("value", ensemble)
    found = cascade_of(ensemble, policy, shared_s)
    assert isinstance(policy, Value)
    assert found is None or found.accuracy >= max(plan.accuracy for plan in policy.plans) - 0.0011


def test_what_members_share_is_learned_from_batches_of_one():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 8, row_class="bulk"))
    batch = sent(scheduler)
    assert len(batch.members) == 1
    shared_s = 8 * max(member.cost_s for member in ENSEMBLE.members)
    worked = BatchTimes(2 * shared_s, 2 * shared_s, (MemberTime(0.0, shared_s),))
    scheduler.finished(0.01, batch.batch_id, worked=worked, sure=[0.99] * 8)
    drained(scheduler, Random(1), 0.01)
    scheduler.submit(2.0, asked(2, 8, row_class="bulk"))
    action = sent(scheduler, 2.0)
    assert action.choices == (), "together, since a row is decoded once then"


def test_rows_that_ask_for_more_accuracy_than_the_plan_has_go_to_all_members():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk", min_accuracy=0.9999))
    assert sent(scheduler).members == NAMES
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 4, row_class="bulk", min_accuracy=0.5))
    assert len(sent(scheduler).members) == 1


def planned_core() -> Scheduler:
    """One whose bulk rows are asked by a plan within each batch: a third of what a row costs is shared."""
    scheduler = core("value")
    scheduler.submit(0.0, asked(100, 8, row_class="bulk"))
    batch = sent(scheduler)
    shared_s = 8 * min(member.cost_s for member in ENSEMBLE.members) / 3
    worked = BatchTimes(2 * shared_s, 2 * shared_s, (MemberTime(shared_s, shared_s),))
    scheduler.finished(0.01, batch.batch_id, worked=worked, sure=[0.99] * 8)
    drained(scheduler, Random(1), 0.01)
    return scheduler


def test_where_members_share_some_work_a_worker_of_all_follows_the_plan_within_a_batch():
    scheduler = planned_core()
    scheduler.submit(2.0, asked(1, 6, row_class="bulk"))
    batch = sent(scheduler, 2.0)
    assert (batch.members, batch.rows, batch.choices) == (NAMES, 6, ())
    assert batch.plan is not None
    policy = selection_policy("value", ENSEMBLE)
    assert isinstance(policy, Value)
    plan = policy.plans[economical(policy.plans)]
    assert batch.plan.accuracy == plan.accuracy
    assert [choice.ask for choice in batch.plan.choices] == [choice.ask for choice in plan.choices]
    scheduler.finished(2.01, batch.batch_id)
    assert isinstance(scheduler.next_action(2.01), Idle), "the shell has answered them"
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_rows_of_such_a_batch_that_others_are_to_answer_have_no_plan():
    scheduler = planned_core()
    scheduler.submit(2.0, asked(1, 4, row_class="bulk", members=NAMES))
    named = sent(scheduler, 2.0)
    assert (named.members, named.plan) == (NAMES, None)
    scheduler.finished(2.01, named.batch_id)
    scheduler.submit(3.0, asked(2, 4, row_class="bulk", min_accuracy=0.9999))
    exact = sent(scheduler, 3.0)
    assert (exact.members, exact.plan) == (NAMES, None)


def test_where_no_worker_holds_all_members_nobody_follows_a_plan_within_a_batch():
    scheduler = planned_core()
    scheduler.submit(2.0, asked(1, 4, row_class="bulk"))
    scheduler.set_worker(2.0, WorkerView("w", True, frozenset(NAMES[:2])))
    scheduler.set_worker(2.0, WorkerView("v", True, frozenset(NAMES[2:])))
    apart = sent(scheduler, 2.0)
    batches = (apart, *apart.beside)
    assert all(batch.plan is None for batch in batches), "all members answer"
    assert {member for batch in batches for member in batch.members} == set(NAMES)
    for batch in batches:
        scheduler.finished(2.01, batch.batch_id)
    scheduler.submit(3.0, asked(2, 4, row_class="bulk"))
    assert sent(scheduler, 3.0).plan is None


def test_each_member_s_latency_is_taught_by_the_rows_that_it_was_asked_of():
    spec_of = pooled()
    scheduler = Scheduler()
    scheduler.configure(0.0, spec_of)
    for number in range(40):
        now_s = float(number)
        scheduler.set_worker(now_s, WorkerView("w", True, frozenset(NAMES)))
        scheduler.submit(now_s, asked(number, 8, row_class="bulk"))
        batch = sent(scheduler, now_s)
        # 1 ms to decode a row, 1 ms of each member's own: of all eight, of two, of none.
        times = (MemberTime(0.008, 0.008, 8), MemberTime(0.002, 0.008, 2), MemberTime(0.0, 0.008, 0))
        scheduler.finished(now_s + 0.018, batch.batch_id, worked=BatchTimes(0.018, 0.018, times))
    first, second, third = (member.latency for member in spec_of.members)
    before = [member.latency for member in pooled().members]
    assert first(8) == pytest.approx(0.016, rel=0.05)
    assert second(2) == pytest.approx(0.004, rel=0.05)
    assert third(8) == before[2](8), "it was not asked"


@pytest.mark.parametrize("is_slower", [False, True])
def test_a_plan_that_takes_longer_than_all_members_is_given_up(is_slower: bool):
    scheduler = planned_core()
    shared_s = 8 * min(member.cost_s for member in ENSEMBLE.members) / 3
    all_s = 8 * sum(member.cost_s for member in ENSEMBLE.members) - 2 * shared_s
    plan_s = (1.2 if is_slower else 0.8) * all_s
    ways: list[bool] = []
    for number in range(12):
        now_s = 2.0 + number
        members = NAMES if number < 4 else None
        scheduler.submit(now_s, asked(number, 8, row_class="bulk", members=members))
        batch = sent(scheduler, now_s)
        ways.append(batch.plan is not None)
        took_s = all_s if batch.plan is None else plan_s
        costs_s = [8 * member.cost_s - shared_s for member in ENSEMBLE.members]
        scale = (took_s - shared_s) / sum(costs_s)
        rows = None if batch.plan is None else 7
        times = tuple(MemberTime(scale * cost_s, shared_s, rows) for cost_s in costs_s)
        scheduler.finished(now_s + took_s, batch.batch_id, worked=BatchTimes(took_s, took_s, times))
    assert not any(ways[:4])
    assert ways[4], "it is tried"
    assert ways[-1] is not is_slower
