"""Clipper §4.3: additive increase, multiplicative decrease, and the delay."""

from __future__ import annotations

from typing import Any

import pytest

from server.scheduling.policies.aimd import Aimd
from server.scheduling.policy import BatchOutcome, Dispatch
from tests.unit.scheduling.views import NOW_S, SLO_S, decide, view, waits_until_s


def after(rows: int, latency_s: float, state: dict[str, Any]) -> dict[str, Any]:
    return Aimd().observe(state, BatchOutcome(NOW_S, rows, ("m",), latency_s, SLO_S))


def test_a_new_function_runs_row_by_row() -> None:
    assert decide("aimd", view([0.0] * 5)) == Dispatch(("m",), 1)


def test_full_batches_within_the_objective_raise_the_cap_by_a_fixed_amount() -> None:
    state = after(1, 0.01, Aimd().initial({"increase": 2}))
    assert state["cap"] == 3
    assert decide("aimd", view([0.0] * 5), state) == Dispatch(("m",), 3)


def test_a_batch_that_was_not_full_says_nothing_of_a_larger_one() -> None:
    state = {**Aimd().initial({}), "cap": 8.0}
    assert after(5, 0.01, state)["cap"] == 8


def test_a_batch_over_the_objective_lowers_the_cap_by_a_tenth() -> None:
    state = {**Aimd().initial({}), "cap": 40.0}
    assert after(40, SLO_S * 1.01, state)["cap"] == pytest.approx(36)


def test_the_cap_never_falls_below_one_row_nor_runs_more_than_max_batch() -> None:
    state = Aimd().initial({})
    for _ in range(50):
        state = after(1, 1.0, state)
    assert decide("aimd", view([0.0] * 5), state) == Dispatch(("m",), 1)
    assert decide("aimd", view([0.0] * 99), {**state, "cap": 500.0}) == Dispatch(("m",), 64)


def test_with_a_delay_a_batch_that_is_not_full_waits_for_more_from_its_first_row_on() -> None:
    state = {**Aimd().initial({"delay_ms": 2}), "cap": 8.0}
    assert waits_until_s(decide("aimd", view([0.0015, 0.0]), state)) == pytest.approx(NOW_S + 0.0005)
    assert decide("aimd", view([0.0020001, 0.0]), state) == Dispatch(("m",), 2)
    assert decide("aimd", view([0.0] * 8), state) == Dispatch(("m",), 8)
