"""Promises of the look ahead: rows that cannot be answered in time are counted, and money is."""

from __future__ import annotations

import heapq
import itertools
import math

import numpy
import pytest

from server.capacity.forecasting import RateForecast
from server.capacity.outlook import Serving, cost_of, late_ahead, rates_ahead, tail_share

STEADY = rates_ahead(RateForecast(100.0, 0.0, 100.0))


def test_enough_copies_make_nothing_late():
    assert late_ahead([Serving(500.0, 0.01, 1.0)], STEADY, 0, 0.5) == pytest.approx(0.0, abs=1e-3)


def test_what_flows_in_above_what_flows_out_is_late():
    late = late_ahead([Serving(60.0, 0.01, 1.0)], STEADY, 0, 0.5)
    assert late == pytest.approx(30 * 40 - 60 * 0.49, rel=0.05)


def test_without_a_copy_all_rows_are_late():
    assert late_ahead([], STEADY, 0, 0.5) == pytest.approx(30 * 100, rel=0.05)


def test_a_copy_counts_from_when_it_is_ready_and_costs_from_now():
    old = Serving(60.0, 0.01, 1.0, until_s=6.0)
    new = Serving(500.0, 0.01, 5.0, from_s=6.0)
    assert late_ahead([old, new], STEADY, 0, 0.5) == pytest.approx(6 * 40, rel=0.2)
    assert cost_of([old, new]) == pytest.approx((6 * 1.0 + 30 * 5.0, 5.0))


def test_rows_that_find_every_copys_worker_in_anothers_pass_are_late():
    """So few that chance makes none of them wait for each other."""
    few = rates_ahead(RateForecast(2.0, 0.0, 2.0))
    one = Serving(100.0, 0.01, 1.0, blocked=0.3)
    assert late_ahead([one], few, 0, 0.5) == pytest.approx(30 * 2 * 0.3, rel=0.05)
    assert late_ahead([one, one], few, 0, 0.5) == pytest.approx(30 * 2 * 0.3**2, rel=0.05)
    free = Serving(100.0, 0.01, 1.0)
    assert late_ahead([one, free], few, 0, 0.5) == pytest.approx(0.0, abs=1e-3)


def test_rows_that_may_wait_for_half_a_pass_are_late_for_the_pass_before_them():
    few = rates_ahead(RateForecast(1.0, 0.0, 1.0))
    slow = Serving(10.0, 0.1, 1.0)
    assert late_ahead([slow], few, 0, 0.15) >= 30 * 1 * 0.1 * 0.5 * 0.9
    assert late_ahead([slow], few, 0, 0.25) < late_ahead([slow], few, 0, 0.15) / 3


def test_rows_that_wait_already_are_seen():
    few = [Serving(110.0, 0.01, 1.0)]
    assert late_ahead(few, STEADY, 500, 0.5) > late_ahead(few, STEADY, 0, 0.5) + 300


@pytest.mark.parametrize("waiting", [0, 30, 400])
@pytest.mark.parametrize("changes_s", [(), (3.0,), (0.2, 12.5), (7.0, 29.9), (31.0,)])
def test_steps_taken_together_say_the_same_as_one_after_the_other(changes_s: tuple[float, ...], waiting: int):
    times_s = (0.0, *changes_s, math.inf)
    serving = [
        Serving(60.0 + 35 * number, 0.01 * (1 + number), 1.0, since_s, until_s)
        for number, (since_s, until_s) in enumerate(itertools.pairwise(times_s))
    ]
    together = late_ahead(serving, STEADY, waiting, 0.5)
    nearly = tuple(
        (weight, tuple(rate * (1 + 1e-12 * place) for place, rate in enumerate(rates)))
        for weight, rates in STEADY
    )  # no two steps are alike
    assert together == pytest.approx(late_ahead(serving, nearly, waiting, 0.5), rel=1e-6, abs=1e-6)


def test_where_it_is_too_much_already_the_rest_is_left_out():
    few = [Serving(60.0, 0.01, 1.0)]
    assert 100 < late_ahead(few, STEADY, 0, 0.5, most_late=100) < late_ahead(few, STEADY, 0, 0.5)


def test_the_tail_grows_with_utilization_and_falls_with_patience_and_copies():
    assert tail_share(0.3, 1, 3.0) < tail_share(0.6, 1, 3.0) < tail_share(0.9, 1, 3.0) <= 0.15
    assert tail_share(0.6, 1, 6.0) < tail_share(0.6, 1, 3.0)
    assert tail_share(0.6, 4, 3.0) < tail_share(0.6, 1, 3.0)


@pytest.mark.parametrize(("utilization", "copies", "wait"), [(0.5, 1, 3.0), (0.7, 1, 4.0), (0.8, 2, 4.0)])
def test_the_tail_is_near_a_queue_that_refuses(utilization: float, copies: int, wait: float):
    """Beside a simulated M/D/c queue, which refuses whoever would wait longer; services take 1/c each."""
    rng = numpy.random.default_rng(3)
    arrivals = itertools.accumulate(rng.exponential(1 / utilization, 100_000))
    free = [0.0] * copies
    refused = 0
    for at in arrivals:
        begins = max(at, free[0])
        if begins - at > wait:
            refused += 1
        else:
            heapq.heapreplace(free, begins + copies)
    assert tail_share(utilization, copies, wait) == pytest.approx(refused / 100_000, rel=0.6)
