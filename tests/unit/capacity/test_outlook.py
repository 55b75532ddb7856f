"""Promises of the look ahead: rows that cannot be answered in time are counted, and money is."""

from __future__ import annotations

import heapq
import itertools

import numpy
import pytest

from server.capacity.forecasting import RateForecast
from server.capacity.outlook import Serving, cost_of, look_ahead, rates_ahead, tail_share

STEADY = rates_ahead(RateForecast(100.0, 0.0, 100.0))


def test_enough_copies_make_nothing_late():
    seen = look_ahead([Serving(500.0, 0.01, 1.0)], STEADY, 0, 0.5)
    assert seen.late == pytest.approx(0.0, abs=1e-3)
    assert (seen.cost, seen.price_per_s, seen.rows_per_s) == (30.0, 1.0, 500.0)


def test_what_flows_in_above_what_flows_out_is_late():
    seen = look_ahead([Serving(60.0, 0.01, 1.0)], STEADY, 0, 0.5)
    assert seen.late == pytest.approx(30 * 40 - 60 * 0.49, rel=0.05)


def test_without_a_copy_all_rows_are_late():
    assert look_ahead([], STEADY, 0, 0.5).late == pytest.approx(30 * 100, rel=0.05)


def test_a_copy_counts_from_when_it_is_ready_and_costs_from_now():
    old = Serving(60.0, 0.01, 1.0, until_s=6.0)
    new = Serving(500.0, 0.01, 5.0, from_s=6.0)
    seen = look_ahead([old, new], STEADY, 0, 0.5)
    assert seen.late == pytest.approx(6 * 40, rel=0.2)
    assert seen.cost == pytest.approx(6 * 1.0 + 30 * 5.0)
    assert seen.price_per_s == 5.0
    assert cost_of([old, new]) == (seen.cost, seen.price_per_s)


def test_rows_that_wait_already_are_seen():
    few = [Serving(110.0, 0.01, 1.0)]
    assert look_ahead(few, STEADY, 500, 0.5).late > look_ahead(few, STEADY, 0, 0.5).late + 300


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
