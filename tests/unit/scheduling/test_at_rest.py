"""Rows of a plan that come when there is nothing to choose: all members at once, as if there were no plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.scheduling.core import Idle, RunBatch, Scheduler, WorkerView
from tests.unit.scheduling.test_pooled_functions import (
    GOAL_S,
    NAMES,
    asked,
    core,
    pooled,
    sent,
)


def run(scheduler: Scheduler, now_s: float, took_s: float = 0.002) -> list[RunBatch]:
    """What is run until there is nothing left to do."""
    found = []
    while not isinstance(action := scheduler.next_action(now_s), Idle):
        if isinstance(action, RunBatch):
            found.append(action)
            now_s += took_s
            scheduler.finished(now_s, action.batch_id, sure=[0.4] * action.rows if action.choices else ())
    return found


def test_an_idle_worker_is_asked_for_all_members_in_one_batch():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 2))
    batch = sent(scheduler)
    assert (batch.members, batch.rows, batch.choices) == (NAMES, 2, ())
    scheduler.finished(0.002, batch.batch_id)
    assert isinstance(scheduler.next_action(0.002), Idle)
    assert scheduler.queue_depth() == {"e": (0, 0)}


def test_a_row_that_comes_while_it_is_busy_follows_the_plan():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1))
    first = sent(scheduler)
    scheduler.submit(0.0001, asked(2))
    scheduler.finished(0.002, first.batch_id)
    batches = run(scheduler, 0.002)
    assert batches
    assert all(batch.choices == NAMES and len(batch.members) == 1 for batch in batches)


@pytest.mark.parametrize(("pause_s", "whole"), [(0.5, True), (0.003, False)])
def test_rows_that_come_one_by_one_follow_the_plan_once_all_members_would_take_half_of_the_time(
    pause_s, whole
):
    scheduler, now_s = core("value"), 0.0
    together = []
    for number in range(1500):
        scheduler.submit(now_s, asked(number))
        together += [not batch.choices for batch in run(scheduler, now_s, 0.002)]
        now_s += pause_s
    assert (sum(together[-50:]) == 50) == whole
    assert any(together[-50:]) == whole


def test_what_all_members_would_take_too_long_for_follows_the_plan():
    scheduler = core("value")
    scheduler.submit(0.0, asked(1, 8, slo_s=0.008))
    assert sent(scheduler).choices == NAMES


@pytest.mark.parametrize("policy", ["best", "gear", "slackfit", "async", "exp3", "exp4"])
def test_other_policies_are_followed_always(policy):
    scheduler = core(policy)
    scheduler.submit(0.0, asked(1))
    assert sent(scheduler).choices == NAMES


def test_where_nobody_holds_all_members_the_plan_is_followed():
    scheduler = core("value", a="01", b="2")
    scheduler.submit(0.0, asked(1))
    assert sent(scheduler).choices == NAMES


def test_a_price_keeps_members_from_being_asked_for_nothing():
    scheduler = core("value")
    scheduler.submit(0.0, asked(0, 200, slo_s=10 * GOAL_S))
    run(scheduler, 0.0)
    scheduler.submit(0.6, asked(1, 200))
    assert all(batch.choices for batch in run(scheduler, 0.6))


def test_a_worker_that_is_gone_is_not_counted_on():
    scheduler = core("value")
    scheduler.set_worker(0.0, WorkerView("w", False, frozenset()))
    scheduler.submit(0.0, asked(1))
    assert isinstance(scheduler.next_action(0.0), Idle)
    scheduler.set_worker(0.01, WorkerView("w", True, frozenset(NAMES)))
    batches = run(scheduler, 0.01)
    assert batches[0].choices == NAMES
    scheduler.configure(0.02, replace(pooled(), slo_s=1.0))
    scheduler.submit(5.0, asked(2))
    assert sent(scheduler, 5.0).members == NAMES
