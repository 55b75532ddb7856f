"""Nexus's early drop: heads without time for their window go."""

from __future__ import annotations

from server.scheduling.policy import Dispatch, Refuse
from tests.unit.scheduling.views import NOW_S, affine, decide, view


def test_a_queue_whose_head_has_time_runs_whole() -> None:
    assert decide("window", view([0.01] * 20)) == Dispatch(("m",), 20)


def test_the_window_is_the_largest_batch_within_half_of_the_slo() -> None:
    # 5 ms + 0.25 ms · b ≤ 20 ms
    assert decide("window", view([0.0] * 70, slo_s=0.04)) == Dispatch(("m",), 60)


def test_heads_without_time_for_the_whole_window_are_dropped() -> None:
    # 40 rows take 15 ms: three heads have 10 ms left, the others 40
    seen = view([0.04] * 3 + [0.01] * 37)
    assert decide("window", seen) == Refuse(3, NOW_S + affine(64))


def test_the_window_shrinks_with_the_rows_that_are_left() -> None:
    # the last row alone has 5.5 ms left, enough for a batch of one
    assert decide("window", view([0.0445])) == Dispatch(("m",), 1)
    assert decide("window", view([0.046, 0.0445])) == Refuse(1, NOW_S + affine(64))


def test_all_rows_may_be_lost() -> None:
    assert decide("window", view([0.2] * 5)) == Refuse(5, NOW_S + affine(64))


def test_a_target_of_its_own_is_kept() -> None:
    assert decide("window", view([0.0] * 70), target=10) == Dispatch(("m",), 10)
