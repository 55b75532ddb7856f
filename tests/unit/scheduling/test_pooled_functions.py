"""Functions whose rows need not go to all members: among others, on workers that others share."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from server.ensemble.policies.by_name import selection_policy
from server.ensemble.policies.fixed import Static
from server.ensemble.selection import Ensemble, SelectionPolicy
from server.scheduling.core import (
    AnswerKnown,
    FunctionSpec,
    Idle,
    MemberSpec,
    RefuseRows,
    RunBatch,
    Scheduler,
    Submission,
    WorkerView,
)
from server.scheduling.latency_model import LatencyModel
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of
from tests.unit.scheduling.cores import rows, spec

OUTCOMES = outcomes_of(*drawn([0.6, 0.75, 0.9]))
ENSEMBLE = ensemble_of(OUTCOMES, [0.1, 0.2, 0.6])
NAMES = ("m0", "m1", "m2")
GOAL_S = 0.05


def pooled(name: str = "e", **fields: Any) -> FunctionSpec:
    members = tuple(
        MemberSpec(
            each.name, each.accuracy, LatencyModel({n: each.fixed_s + n * each.per_row_s for n in (1, 8)})
        )
        for each in ENSEMBLE.members
    )
    return FunctionSpec(name, GOAL_S, 8, (1, 2, 4, 8), members, "goodput", pooled=True, **fields)


def core(policy: str | SelectionPolicy = "value", ensemble: Ensemble = ENSEMBLE, **held: str) -> Scheduler:
    """A scheduler of the ensemble, on workers that hold these members: `w="012"`."""
    scheduler = Scheduler()
    scheduler.configure(0.0, pooled())
    made = selection_policy(policy, ensemble) if isinstance(policy, str) else policy
    scheduler.follow(0.0, "e", "", ensemble, made)
    for name, members in (held or {"w": "012"}).items():
        scheduler.set_worker(0.0, WorkerView(name, True, frozenset(f"m{each}" for each in members)))
    return scheduler


def asked(request_id: int, count: int = 1, **fields: Any) -> Submission:
    return Submission(request_id, "e", count, 10 * count, **fields)


def sent(scheduler: Scheduler, now_s: float = 0.0) -> RunBatch:
    action = scheduler.next_action(now_s)
    assert isinstance(action, RunBatch)
    return action


def test_a_row_goes_to_one_member_and_is_answered_when_that_is_enough():
    scheduler = core("best")
    scheduler.submit(0.0, asked(1, 3))
    batch = sent(scheduler)
    assert (batch.members, batch.rows, batch.choices) == (("m2",), 3, NAMES)
    assert [(part.request_id, part.offset, part.rows) for part in batch.slices] == [(1, 0, 3)]
    assert scheduler.queue_depth() == {"e": (3, 30)}
    scheduler.finished(0.01, batch.batch_id, sure=[0.9] * 3)
    answered = scheduler.next_action(0.01)
    assert answered == AnswerKnown("e", ((batch.slices[0], ("m2",)),))
    assert isinstance(scheduler.next_action(0.01), Idle)
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_rows_that_are_sure_enough_are_answered_and_the_others_go_on():
    scheduler = core("all")
    scheduler.submit(0.0, asked(1, 2))
    first = sent(scheduler)
    scheduler.follow(0.001, "e", "", ENSEMBLE, selection_policy("value", ENSEMBLE))
    scheduler.finished(0.005, first.batch_id, sure=[1.0, 0.2])
    told, more = scheduler.next_action(0.005), scheduler.next_action(0.005)
    if isinstance(told, AnswerKnown):
        ((part, members),) = told.parts
        assert (part.offset, part.rows, members) == (0, 1, first.members)
        assert isinstance(more, RunBatch)
        told = more
    assert isinstance(told, RunBatch)
    assert told.members != first.members
    assert (told.slices[-1].offset, told.slices[-1].rows) in {(1, 1), (0, 2)}


def test_at_its_goal_a_row_is_answered_from_what_is_known():
    scheduler = core("all")
    scheduler.submit(0.0, asked(1))
    first = sent(scheduler)
    scheduler.finished(0.01, first.batch_id, sure=[0.5])
    late = [sent(scheduler, 0.01)]
    while not isinstance(action := scheduler.next_action(0.01), Idle):
        assert isinstance(action, RunBatch)
        late.append(action)
    assert action.until_s <= GOAL_S
    told = scheduler.next_action(GOAL_S)
    assert told == AnswerKnown("e", ((first.slices[0], first.members),), cut_rows=1, late_members=2)
    for batch in late:
        scheduler.finished(0.06, batch.batch_id, sure=[0.5])
    assert isinstance(scheduler.next_action(0.06), Idle)


def test_a_late_batch_still_teaches():
    scheduler = core("best")
    spec_of = pooled()
    latency = spec_of.members[2].latency
    scheduler.configure(0.0, spec_of)
    before_s = latency(1)
    for number in range(20):
        now_s = 2.0 * number
        scheduler.submit(now_s, asked(number, deadline_s=now_s + GOAL_S))
        batch = sent(scheduler, now_s)
        assert isinstance(scheduler.next_action(now_s + GOAL_S), RefuseRows)
        scheduler.finished(now_s + 0.06, batch.batch_id, sure=[0.9])
    assert latency(1) > 2 * before_s


def test_a_row_that_missed_its_goal_and_not_its_deadline_is_answered_by_one_member():
    scheduler = core("best", w="01")
    scheduler.submit(0.0, asked(1, 2))
    assert isinstance(scheduler.next_action(0.0), Idle), "nobody holds the best member"
    idle = scheduler.next_action(GOAL_S)
    assert isinstance(idle, Idle)
    assert scheduler.queue_depth() == {"e": (2, 20)}
    scheduler.set_worker(1.0, WorkerView("w", True, frozenset(NAMES)))
    batch = sent(scheduler, 1.0)
    assert (batch.members, batch.rows, batch.choices) == (("m2",), 2, ())


def test_a_row_under_way_at_its_goal_is_waited_for_until_its_deadline():
    scheduler = core("best")
    scheduler.submit(0.0, asked(1))
    batch = sent(scheduler)
    assert isinstance(scheduler.next_action(GOAL_S), Idle)
    scheduler.finished(0.2, batch.batch_id, sure=[0.3])
    assert scheduler.next_action(0.2) == AnswerKnown("e", ((batch.slices[0], ("m2",)),))


def test_a_deadline_that_is_the_goal_refuses_the_row_then():
    scheduler = core("best")
    scheduler.submit(0.0, asked(1, deadline_s=0.03))
    sent(scheduler)
    told = scheduler.next_action(0.03)
    assert isinstance(told, RefuseRows)
    assert [(part.request_id, part.rows) for part in told.slices] == [(1, 1)]
    assert isinstance(scheduler.next_action(0.03), Idle)


def test_bulk_rows_and_rows_for_members_of_their_own_wait_as_ever():
    scheduler = core("best")
    scheduler.submit(0.0, asked(1, row_class="bulk"))
    bulk = sent(scheduler)
    assert (bulk.members, bulk.choices) == (NAMES, ())
    scheduler.finished(0.1, bulk.batch_id)
    scheduler.submit(0.1, asked(2, members=("m0", "m1")))
    own = sent(scheduler, 0.1)
    assert (own.members, own.choices) == (("m0", "m1"), ())


def test_without_a_plan_rows_go_to_all_members_and_those_that_wait_still_do():
    scheduler = Scheduler()
    scheduler.configure(0.0, pooled())
    scheduler.submit(0.0, asked(1))
    scheduler.follow(0.0, "e", "", ENSEMBLE, Static(ENSEMBLE, 0b001))
    scheduler.set_worker(0.0, WorkerView("w", True, frozenset(NAMES)))
    scheduler.submit(0.0, asked(2))
    batches = [sent(scheduler), sent(scheduler, 0.05)]
    assert sorted((batch.members, batch.slices[0].request_id) for batch in batches) == [
        (("m0",), 2),
        (NAMES, 1),
    ]


@pytest.mark.parametrize("ends", ["gone", "due", "lost"])
def test_thousands_of_rows_that_end_at_once_hold_nobody_up(ends):
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 20_000, slo_s=1.0, deadline_s=1.0))
    assert isinstance(scheduler.next_action(0.0), RunBatch)
    began_s = time.process_time()
    if ends == "gone":
        assert scheduler.cancel(0.1, 1) == 20_000
    else:
        told = scheduler.next_action(1.0 if ends == "due" else 0.9999)
        assert ends == "lost" or isinstance(told, RefuseRows)
    assert time.process_time() - began_s < 1.0


def test_a_client_that_has_gone_takes_its_rows_along():
    scheduler = core("all")
    scheduler.submit(0.0, asked(1, 3))
    batch = sent(scheduler)
    assert scheduler.cancel(0.001, 1) == 3
    scheduler.finished(0.005, batch.batch_id, sure=[0.1] * 3)
    assert isinstance(scheduler.next_action(1.0), Idle)
    assert scheduler.queue_depth() == {"e": (0, 0)}


@pytest.mark.parametrize("how", ["failed", "cancelled", "lost"])
def test_rows_of_a_batch_that_failed_are_forgotten_for_the_shell_to_submit_again(how):
    scheduler = core("best")
    scheduler.submit(0.0, asked(1, 10))
    batch = sent(scheduler)
    if how == "lost":
        scheduler.set_worker(0.001, WorkerView("w", False, frozenset()))
        scheduler.set_worker(0.002, WorkerView("w2", True, frozenset(NAMES)))
    else:
        scheduler.finished(0.001, batch.batch_id, failed=how == "failed", cancelled=how == "cancelled")
    assert scheduler.queue_depth() == {"e": (2, 20)}
    scheduler.submit(0.003, asked(1, 8, members=NAMES))
    ran: Counter[tuple[str, ...]] = Counter()
    for step in range(3, 30):
        while isinstance(action := scheduler.next_action(step / 1000), RunBatch):
            ran[action.members] += action.rows
            scheduler.finished(
                step / 1000, action.batch_id, sure=[0.9] * action.rows if action.choices else ()
            )
    assert ran == {("m2",): 2, NAMES: 8}


def test_a_removed_function_gives_back_what_waited():
    scheduler = core("best")
    scheduler.submit(0.0, asked(1, 10))
    batch = sent(scheduler)
    assert sum(part.rows for part in scheduler.remove(0.001, "e")) == 10
    scheduler.finished(0.01, batch.batch_id, sure=[0.9] * 8)
    assert isinstance(scheduler.next_action(1.0), Idle)


def test_only_a_pooled_function_follows_a_policy_and_only_of_its_own_members():
    scheduler = core()
    scheduler.configure(0.0, replace(pooled("other"), pooled=False))
    with pytest.raises(ValueError, match="go to all"):
        scheduler.follow(0.0, "other", "", ENSEMBLE, Static(ENSEMBLE, 1))
    scheduler.configure(0.0, replace(pooled("third"), members=pooled().members[:2]))
    with pytest.raises(ValueError, match="other members"):
        scheduler.follow(0.0, "third", "", ENSEMBLE, Static(ENSEMBLE, 1))


def test_other_functions_share_the_worker():
    scheduler = core("value")
    scheduler.configure(0.0, spec("f"))
    scheduler.set_worker(0.0, WorkerView("w", True, frozenset((*NAMES, "f-m"))))
    good: Counter[str] = Counter()
    now_s, number = 0.0, 0
    while now_s < 2.0:
        for function in ("e", "f"):
            number += 1
            scheduler.submit(now_s, rows(number, 2, function, deadline_s=now_s + GOAL_S))
        for ready_s in served(scheduler, now_s, good):
            now_s = ready_s
        now_s += 0.004
    assert min(good["e"], good["f"]) > 0.95 * number, "two functions, two rows each"


def served(scheduler: Scheduler, now_s: float, good: Counter[str]) -> list[float]:
    """Run what there is to run, one batch after the other: when each was done."""
    done: list[float] = []
    while not isinstance(action := scheduler.next_action(now_s), Idle):
        if isinstance(action, AnswerKnown):
            good["e"] += sum(part.rows for part, _ in action.parts)
        elif isinstance(action, RunBatch):
            now_s += 0.002
            done.append(now_s)
            scheduler.finished(now_s, action.batch_id, sure=[0.9] * action.rows if action.choices else ())
            if not action.choices:
                good[action.function] += action.rows
    return done


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["value", "gear", "slackfit", "async", "all", "best"])
def test_every_row_is_answered_or_refused_once_whatever_happens(policy, seed):
    draw = Random(seed)
    holds = ["012", "01", "2", "12"]
    scheduler = core(policy, a=draw.choice(holds), b="012")
    open_rows: Counter[tuple[int, int]] = Counter()
    flying: list[tuple[float, RunBatch]] = []
    submitted_again: set[tuple[int, int]] = set()
    now_s, number = 0.0, 0

    def settle(slices, where=open_rows):
        for part in slices:
            for row in range(part.offset, part.offset + part.rows):
                key = part.request_id, row
                if key in submitted_again and not where[key]:
                    continue  # what was known of it was on its way as its batch failed: the shell drops this
                where[key] -= 1
                assert where[key] >= 0, "it was answered before"

    def again(batch):
        for part in batch.slices:
            for row in range(part.offset, part.offset + part.rows):
                key = (part.request_id, row)
                if open_rows[key] > 0 and not (batch.choices and key in submitted_again):
                    submitted_again.add(key)
                    scheduler.submit(now_s, asked(part.request_id, 1, members=NAMES, offset=row))

    for step in range(400):
        now_s += draw.expovariate(1 / 0.002)
        if step < 300 and draw.random() < 0.6:
            number += 1
            count = draw.choice([1, 1, 3, 20])
            deadline_s = draw.choice([now_s + 0.03, now_s + 0.2, float("inf")])
            fields = {"deadline_s": deadline_s, "priority": draw.choice([0, 0, 1])}
            if scheduler.submit(now_s, asked(number, count, **fields)) is None:
                open_rows.update((number, row) for row in range(count))
        if step < 300 and draw.random() < 0.03:
            for name in "ab":
                if draw.random() < 0.5:
                    lost = [batch for _, batch in flying if batch.worker == name]
                    flying = [pair for pair in flying if pair[1].worker != name]
                    scheduler.set_worker(now_s, WorkerView(name, False, frozenset()))
                    for batch in lost:
                        again(batch)
                held = draw.choice(holds) if name == "a" else "012"
                scheduler.set_worker(now_s, WorkerView(name, True, frozenset(f"m{m}" for m in held)))
        for pair in sorted(flying, key=lambda pair: pair[0]):
            if pair[0] <= now_s or step > 350:
                flying.remove(pair)
                batch = pair[1]
                if draw.random() < 0.05:
                    scheduler.finished(now_s, batch.batch_id, failed=True)
                    again(batch)
                    continue
                sure = [draw.random() for _ in range(batch.rows)] if batch.choices else ()
                scheduler.finished(now_s, batch.batch_id, sure=sure)
                if not batch.choices:
                    settle(batch.slices)
        for _ in range(1000):
            action = scheduler.next_action(now_s)
            if isinstance(action, Idle):
                break
            if isinstance(action, RunBatch):
                assert not action.beside, "one worker holds all"
                flying.append((now_s + draw.uniform(0.001, 0.03), action))
            elif isinstance(action, RefuseRows):
                settle(action.slices)
            else:
                settle(part for part, _ in action.parts)
        else:
            pytest.fail("it does not come to rest")
    now_s += 10
    for _ in range(300):
        while not isinstance(action := scheduler.next_action(now_s), Idle):
            if isinstance(action, RunBatch):
                scheduler.finished(now_s, action.batch_id, sure=[1.0] * action.rows if action.choices else ())
                if not action.choices:
                    settle(action.slices)
            elif isinstance(action, RefuseRows):
                settle(action.slices)
            else:
                settle(part for part, _ in action.parts)
        for pair in flying:
            scheduler.finished(now_s, pair[1].batch_id, sure=[1.0] * pair[1].rows if pair[1].choices else ())
            if not pair[1].choices:
                settle(pair[1].slices)
        flying.clear()
        now_s += 0.05
    assert +open_rows == Counter()
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_a_worker_that_holds_a_broken_member_alone_is_offered_nothing():
    broken = tuple(replace(each, is_broken=each.name == "m2") for each in ENSEMBLE.members)
    ensemble = replace(ENSEMBLE, members=broken)
    scheduler = core(Static(ensemble, 0b011), ensemble, w="2")
    scheduler.submit(0.0, asked(1))
    assert isinstance(scheduler.next_action(0.0), Idle)
    scheduler.set_worker(0.01, WorkerView("w", True, frozenset(NAMES)))
    assert sent(scheduler, 0.01).members[0] in ("m0", "m1")
