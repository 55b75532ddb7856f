"""Rafiki's Algorithm 3, line by line."""

from __future__ import annotations

import pytest

from server.scheduling.policy import Dispatch, Wait
from tests.unit.scheduling.views import NOW_S, decide, view, waits_until_s

B = (16, 32, 48, 64)
TAU_S = 0.56


def c(rows: int) -> float:
    """The paper's c(16) = 0.07 s and c(64) = 0.23 s, linear between."""
    return 0.07 + (0.23 - 0.07) * (rows - 16) / 48


def test_a_queue_of_max_b_or_more_runs_max_b_and_leaves_the_rest() -> None:
    assert decide("greedy", view([0.0] * 70, slo_s=TAU_S, sizes=B, latency_s=c)) == Dispatch(("m",), 64)


def test_a_shorter_queue_waits_until_its_oldest_is_about_to_be_overdue() -> None:
    seen = view([0.10] + [0.0] * 39, slo_s=TAU_S, sizes=B, latency_s=c)
    # b = 32: c(32) + w(q0) + δ reaches τ when w(q0) = τ − 0.1τ − c(32)
    due_s = NOW_S - 0.10 + TAU_S - 0.1 * TAU_S - c(32)
    assert waits_until_s(decide("greedy", seen)) == pytest.approx(due_s)


def test_when_it_is_due_the_largest_size_that_is_filled_runs_and_the_rest_stays() -> None:
    seen = view([0.45] + [0.0] * 39, slo_s=TAU_S, sizes=B, latency_s=c)
    assert decide("greedy", seen) == Dispatch(("m",), 32)


def test_fewer_rows_than_the_smallest_size_wait_for_more_even_if_overdue() -> None:
    assert decide("greedy", view([9.0] * 15, slo_s=TAU_S, sizes=B, latency_s=c)) == Wait()


def test_with_1_in_b_a_lone_row_runs_when_it_is_due() -> None:
    assert decide("greedy", view([0.041])) == Dispatch(("m",), 1)
