"""Clipper §4.3.1: the cap from a quantile regression."""

from __future__ import annotations

from random import Random

import pytest

from server.scheduling.policies.quantile import Quantile, quantile_line
from server.scheduling.policy import BatchOutcome, Dispatch
from tests.unit.scheduling.views import NOW_S, affine, decide, view


def test_the_line_of_exact_points_is_that_line() -> None:
    assert quantile_line([(1, 3.0), (4, 9.0), (9, 19.0)], 0.99) == pytest.approx((1.0, 2.0))


def test_the_99th_percentile_line_lies_over_nearly_all_points() -> None:
    random = Random(7)
    points = [(rows, affine(rows) * random.uniform(1, 1.3)) for rows in range(1, 41)]
    fixed_s, per_row_s = quantile_line(points, 0.99)
    assert all(took_s <= fixed_s + per_row_s * rows + 1e-12 for rows, took_s in points)
    assert fixed_s + per_row_s * 40 < affine(40) * 1.4


def test_points_of_one_size_make_no_line() -> None:
    with pytest.raises(ValueError, match="two different batch sizes"):
        quantile_line([(8, 1.0), (8, 2.0)], 0.99)


def test_the_cap_becomes_the_largest_batch_whose_p99_meets_the_objective() -> None:
    policy, slo_s = Quantile(), 0.012  # 5 ms + 0.25 ms · 28 = 12 ms
    state = policy.initial({})
    for rows in (1, 2, 4, 8, 16, 20, 24, 26):
        state = policy.observe(state, BatchOutcome(NOW_S, rows, ("m",), affine(rows), slo_s))
    assert decide("quantile", view([0.0] * 60), state) == Dispatch(("m",), 28)


def test_until_there_is_a_line_full_batches_double_the_cap_and_slow_ones_do_not() -> None:
    policy = Quantile()
    state = policy.observe(policy.initial({}), BatchOutcome(NOW_S, 1, ("m",), 0.01, 0.05))
    assert state["cap"] == 2
    assert policy.observe(state, BatchOutcome(NOW_S, 2, ("m",), 0.06, 0.05))["cap"] == 2


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_once_found_the_cap_stays_and_batches_stay_within_the_objective(noise: float) -> None:
    """All batches are of nearly one size then, and tell no slope."""
    policy, random = Quantile(), Random(11)
    state = policy.initial({})
    slo_s = affine(100)  # the true cap
    caps, over = [], 0
    for turn in range(400):
        rows = state["cap"]
        took_s = affine(rows) * random.uniform(1 - noise, 1.0)
        state = policy.observe(state, BatchOutcome(NOW_S, rows, ("m",), took_s, slo_s))
        if turn >= 50:
            caps.append(state["cap"])
            over += took_s > slo_s
    assert min(caps) >= 90
    assert max(caps) <= 108
    assert over / len(caps) < 0.02 or noise


def test_a_settled_cap_follows_a_machine_that_becomes_slower() -> None:
    policy = Quantile()
    state = policy.initial({})
    for turn in range(200):
        rows, slower = state["cap"], 0.006 if turn >= 100 else 0.0
        state = policy.observe(state, BatchOutcome(NOW_S, rows, ("m",), affine(rows) + slower, affine(100)))
    assert 70 <= state["cap"] <= 76
