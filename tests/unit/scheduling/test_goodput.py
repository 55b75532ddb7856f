"""The default rule: what it takes, what it skips, what it gives up, what it learns."""

from __future__ import annotations

from typing import Any

import pytest

from server.scheduling.policies.goodput import Goodput
from server.scheduling.policy import BatchOutcome, Dispatch, Refuse
from tests.unit.scheduling.views import NOW_S, affine, decide, view, waits_until_s


def taken(decision: object) -> tuple[int, int]:
    assert isinstance(decision, Dispatch)
    return decision.skip, decision.rows


@pytest.mark.parametrize(("predicted_s", "latency_s"), [(0.0, 0.1), (0.1, 0.0)])
def test_a_batch_of_which_nothing_was_predicted_or_measured_teaches_nothing(
    predicted_s: float, latency_s: float
) -> None:
    policy = Goodput()
    state = policy.initial({})
    outcome = BatchOutcome(1.0, 4, ("m",), latency_s, 0.05, predicted_s=predicted_s)
    assert policy.observe(state, outcome) == policy.initial({})


def uneven(*ratios: float) -> dict[str, Any]:
    """The state after sixteen batches that took so much of what was predicted, by turns."""
    policy = Goodput()
    state = policy.initial({})
    for turn in range(16):
        outcome = BatchOutcome(NOW_S, 8, ("m",), 0.01 * ratios[turn % len(ratios)], 0.05, predicted_s=0.01)
        state = policy.observe(state, outcome)
    return state


def test_a_batch_is_as_small_as_the_slowest_of_late_asks_where_a_larger_one_would_often_be_late() -> None:
    # 15 ms are left: 25 rows as predicted, 10 where a batch takes twice as long, as each fourth one does.
    # Rows behind the head have no more time, so that of 25 all are late each fourth time, and of 10 none.
    seen = view([0.035] * 40, latency_s=lambda rows: 0.0025 + 0.0005 * rows)
    assert taken(decide("goodput", seen, uneven(1.0))) == (0, 25)
    assert taken(decide("goodput", seen, uneven(1.0, 1.0, 1.0, 2.0))) == (0, 10)
    # One batch in sixteen is no reason.
    assert taken(decide("goodput", seen, uneven(*[1.0] * 15, 2.0))) == (0, 25)


def test_a_batch_stays_large_where_only_its_head_would_be_late() -> None:
    seen = view([0.035] + [0.0] * 24, latency_s=lambda rows: 0.0025 + 0.0005 * rows)
    assert taken(decide("goodput", seen, uneven(1.0, 1.0, 1.0, 2.0))) == (0, 25)


def test_of_a_long_queue_on_an_uneven_machine_heads_are_looked_at_evenly() -> None:
    # 6 ms are left to the first 90 of a thousand rows, 50 ms to the others.
    seen = view([0.044] * 90 + [0.0] * 910, sizes=(1, 64))
    skip, size = taken(decide("goodput", seen, uneven(1.0, 1.2)))
    assert size == 64
    assert 90 <= skip <= 90 + 1000 // 16


def test_a_lone_row_runs_at_once() -> None:
    assert taken(decide("goodput", view([0.0]))) == (0, 1)


def test_all_rows_that_fit_their_goals_run_together() -> None:
    assert taken(decide("goodput", view([0.02] * 30))) == (0, 30)


def test_more_than_max_batch_leaves_the_rest() -> None:
    assert taken(decide("goodput", view([0.0] * 100))) == (0, 64)


def test_a_head_in_a_hurry_is_skipped_for_a_batch_of_much_higher_rate() -> None:
    # the head has 6 ms: 4 rows; those behind it have 50 ms: all 40 of them
    assert taken(decide("goodput", view([0.044] + [0.0] * 40))) == (1, 40)


def test_a_head_is_kept_where_skipping_it_gains_less_than_the_tolerance() -> None:
    # one row a millisecond, whatever the batch: nothing is gained by skipping
    flat = view([0.0399] + [0.0] * 40, latency_s=lambda rows: 0.001 * rows)
    assert taken(decide("goodput", flat)) == (0, 10)


def test_the_tolerance_shrinks_with_the_strain() -> None:
    # 50 ms hold 100 rows at 2.0/ms; keeping the head costs 2 % of it, less than a tolerance of 3 %
    seen = view([0.0036] + [0.0] * 99, sizes=(1, 100), latency_s=lambda rows: 0.001 + 0.00049 * rows)
    calm, strained = Goodput().initial({"tolerance": 0.03}), Goodput().initial({"tolerance": 0.03})
    strained["strain"] = 1.0
    assert taken(decide("goodput", seen, calm))[0] == 0
    assert taken(decide("goodput", seen, strained))[0] == 1


def test_heads_that_no_batch_can_save_are_given_up_with_the_time_they_would_finish() -> None:
    assert decide("goodput", view([0.06, 0.046, 0.0])) == Refuse(2, NOW_S + affine(1))


def test_the_time_until_the_worker_is_free_and_the_swap_count() -> None:
    assert taken(decide("goodput", view([0.02] * 64, free_in_s=0.005))) == (0, 64)
    assert taken(decide("goodput", view([0.02] * 64, free_in_s=0.012))) == (0, 52)
    assert taken(decide("goodput", view([0.02] * 64, swap_s=0.012))) == (0, 52)


def test_with_a_delay_a_batch_that_is_not_full_waits_as_long_as_its_goal_allows() -> None:
    assert waits_until_s(decide("goodput", view([0.001, 0.0]), delay_ms=2)) == pytest.approx(NOW_S + 0.001)
    assert taken(decide("goodput", view([0.0021, 0.0]), delay_ms=2)) == (0, 2)
    assert taken(decide("goodput", view([0.0] * 64), delay_ms=2)) == (0, 64)
    # 50 ms less the 21 ms of the largest batch: 29 ms, whatever the delay
    assert waits_until_s(decide("goodput", view([0.010]), delay_ms=100)) == pytest.approx(NOW_S + 0.019)


def test_what_batches_take_beyond_the_profile_is_learned_but_not_from_one_outlier() -> None:
    policy = Goodput()

    def after(*ratios: float) -> dict[str, Any]:
        state = policy.initial({})
        for ratio in ratios:
            outcome = BatchOutcome(NOW_S, 8, ("m",), ratio * 0.01, 0.05, predicted_s=0.01)
            state = policy.observe(state, outcome)
        return state

    assert after(1.0, 1.0, 9.0)["correction"] == 1.0
    assert after(1.3, 1.3, 1.3)["correction"] == pytest.approx(1.3)
    assert after(*[0.7] * 16)["correction"] == pytest.approx(0.7)
    # at 1.3 times the profile, 25 ms hold 56 rows and not 64
    assert taken(decide("goodput", view([0.025] * 64), after(1.3, 1.3))) == (0, 56)


def test_the_strain_rises_with_batches_that_skip_heads_and_falls_with_those_that_do_not() -> None:
    policy = Goodput()
    skipping, all_fit = view([0.044] + [0.0] * 40), view([0.0] * 3)
    state = policy.initial({})
    for _ in range(3):
        state, decision = policy.decide(state, skipping)
        assert taken(decision)[0] == 1
    assert state["strain"] == pytest.approx(1 - 0.9**3)
    for _ in range(50):
        state, _ = policy.decide(state, all_fit)
    assert state["strain"] < 0.01


def test_a_row_that_only_a_slow_batch_would_make_late_is_tried() -> None:
    state = {**Goodput().initial({}), "correction": 1.3, "typical": 1.0}
    # 6 ms are left: a row takes 5.25 ms, or 6.8 ms in a slow batch
    assert taken(decide("goodput", view([0.044]), state)) == (0, 1)
    assert taken(decide("goodput", view([0.044, 0.044]), state)) == (0, 1)


def test_unless_told_otherwise_two_percent_of_the_rate_are_given_up_for_rows_and_nothing_waits() -> None:
    state = Goodput().initial({})
    assert (state["tolerance"], state["delay_s"]) == (0.02, 0.0)
