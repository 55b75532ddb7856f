"""Between functions: whose batch runs next."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduling.arbitration import MostInTime, ReadyBatch, earliest_start, least_recently_served
from server.scheduling.lanes import Lane
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import Dispatch
from server.scheduling.worker_state import WorkerState
from tests.unit.scheduling.cores import spec, worker

NOW_S = 10.0
WORKER = WorkerState(worker())


def candidate(
    name: str, rows: int, takes_s: float, due_in_s: float, *, served_s: float = NOW_S, priority: int = 0
) -> ReadyBatch:
    lane = Lane(0.0, (name, (f"{name}-m",), ""), spec(name), GuardedPolicy(spec(name)))
    lane.served_s = served_s
    return ReadyBatch(lane, WORKER, Dispatch((f"{name}-m",), rows), takes_s, NOW_S + due_in_s, priority)


def chosen(candidates: Sequence[ReadyBatch], floor: float = 0.0) -> str:
    return MostInTime(floor)(NOW_S, candidates).lane.key[0]


def test_when_all_can_be_met_the_earliest_goal_goes_first() -> None:
    late, soon = candidate("late", 60, 0.01, 0.05), candidate("soon", 1, 0.01, 0.02)
    assert chosen([late, soon]) == "soon"


def test_when_one_must_be_given_up_it_is_the_one_that_answers_least_per_second() -> None:
    few, many = candidate("few", 2, 0.01, 0.011), candidate("many", 50, 0.01, 0.015)
    assert chosen([few, many]) == "many"
    assert chosen([few, candidate("other", 1, 0.01, 0.015)]) == "few"


def test_what_is_given_up_gives_its_time_to_those_behind_it() -> None:
    given_up, soon = candidate("given up", 1, 0.02, 0.02), candidate("soon", 60, 0.02, 0.03)
    assert chosen([given_up, soon, candidate("late", 100, 0.02, 0.045)]) == "soon"


def test_a_batch_that_is_lost_already_takes_nobodys_place() -> None:
    lost, other = candidate("lost", 64, 0.02, 0.01), candidate("other", 1, 0.005, 0.03)
    assert chosen([lost, other]) == "other"


def test_of_two_that_cannot_both_be_in_time_the_one_of_more_rows_a_second_goes_first() -> None:
    quick, long = candidate("quick", 8, 0.01, 0.045), candidate("long", 10, 0.04, 0.045)
    assert chosen([quick, long]) == chosen([long, quick]) == "quick"


def test_the_time_goes_where_most_answers_become_right() -> None:
    sure, many = candidate("sure", 8, 0.01, 0.045), candidate("many", 10, 0.01, 0.011)
    assert chosen([sure, replace(many, takes_s=0.04, due_s=NOW_S + 0.045)]) == "sure"
    better, more = (
        replace(sure, takes_s=0.03, right=7.9),
        replace(many, takes_s=0.03, due_s=sure.due_s, right=5.0),
    )
    assert chosen([better, more]) == chosen([more, better]) == "sure", "more rows, and fewer of them right"
    assert chosen([replace(better, right=1.0), more]) == "many"


def test_higher_priority_goes_first_whatever_it_costs() -> None:
    urgent = candidate("urgent", 1, 0.05, 0.06, priority=1)
    assert chosen([candidate("many", 64, 0.02, 0.03), urgent]) == "urgent"


def test_a_function_that_was_starved_for_long_enough_goes_before_everything() -> None:
    # two candidates, 10 ms a batch, floor 5 %: after 10 ms · 2 / 0.05 = 0.4 s
    many = candidate("many", 64, 0.025, 0.03)
    patient = candidate("patient", 1, 0.01, 0.011, served_s=NOW_S - 0.39)
    starved = candidate("starved", 1, 0.01, 0.011, served_s=NOW_S - 0.41)
    assert chosen([many, patient], floor=0.05) == "many"
    assert chosen([many, starved], floor=0.05) == "starved"


def test_the_least_recently_served_takes_turns_and_the_earliest_start_is_clockworks() -> None:
    old = candidate("old", 1, 0.01, 0.05, served_s=1.0)
    tight = candidate("tight", 1, 0.04, 0.06, served_s=2.0)
    assert least_recently_served(NOW_S, [tight, old]) is old
    assert earliest_start(NOW_S, [old, tight]) is tight


batches = st.lists(
    st.tuples(st.integers(1, 64), st.integers(1, 30), st.integers(1, 100)), min_size=1, max_size=6
)


@given(batches)
@settings(max_examples=200, deadline=None)
def test_whenever_all_batches_can_be_met_in_some_order_none_is_lost(
    drawn: list[tuple[int, int, int]],
) -> None:
    """Following the rule step by step loses nothing that any order could save."""
    jobs = [candidate(str(i), rows, ms / 1000, due / 1000) for i, (rows, ms, due) in enumerate(drawn)]

    def met(order: Sequence[ReadyBatch]) -> bool:
        end_s = NOW_S
        for job in order:
            end_s += job.takes_s
            if end_s > job.due_s:
                return False
        return True

    if not any(met(order) for order in itertools.permutations(jobs)):
        return
    now_s, left = NOW_S, list(jobs)
    while left:
        first = MostInTime(0.0)(now_s, left)
        left.remove(first)
        now_s += first.takes_s
        assert now_s <= first.due_s + 1e-9


@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_a_lone_candidate_runs(floor: float) -> None:
    only = candidate("only", 1, 1.0, -5.0)
    assert MostInTime(floor)(NOW_S, [only]) is only


def test_a_large_batch_that_is_lost_already_does_not_push_out_one_that_can_be_met() -> None:
    soon, lost = candidate("soon", 1, 0.005, 0.008), candidate("lost", 64, 0.02, 0.01)
    assert chosen([soon, lost]) == "soon"
    assert chosen([lost, soon]) == "soon"


def test_a_batch_that_just_meets_its_goal_can_be_met() -> None:
    exact, later = candidate("exact", 1, 0.0078125, 0.0078125), candidate("later", 1, 0.0078125, 1.0)
    assert chosen([later, exact]) == "exact"


def test_a_batch_that_two_workers_may_run_takes_half_as_long_of_the_line() -> None:
    first, second = candidate("first", 1, 0.02, 0.03), candidate("second", 64, 0.02, 0.035)
    assert chosen([first, second]) == "second"  # both on one worker: 40 ms, and the fewer rows give way
    shared = [replace(first, workers=2), replace(second, workers=2)]
    assert chosen(shared) == "first"  # 20 ms of each of two: both can be met
