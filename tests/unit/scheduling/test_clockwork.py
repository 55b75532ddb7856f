"""Clockwork: sizes, lists, and batches that take what they took."""

from __future__ import annotations

from server.scheduling.policies.clockwork import Clockwork
from server.scheduling.policy import BatchOutcome, Dispatch, Refuse
from tests.unit.scheduling.views import NOW_S, affine, decide, view


def test_the_largest_size_that_the_queue_fills_runs_and_the_rest_stays() -> None:
    assert decide("clockwork", view([0.0] * 50)) == Dispatch(("m",), 32)


def test_requests_that_cannot_finish_in_a_size_leave_its_list_but_not_the_smaller_ones() -> None:
    # 32 rows take 13 ms: two heads have 10 ms left, so they are not on that list; 40 others are
    assert decide("clockwork", view([0.04] * 2 + [0.0] * 40)) == Dispatch(("m",), 32, 2)
    # with 33 rows in all, the list of 32 is not filled: 16 rows take 9 ms, and the heads are on it
    assert decide("clockwork", view([0.04] * 2 + [0.0] * 31)) == Dispatch(("m",), 16, 0)


def test_a_request_that_cannot_finish_in_the_smallest_size_is_refused() -> None:
    assert decide("clockwork", view([0.044, 0.048, 0.049])) == Refuse(2, NOW_S + affine(1))


def test_a_size_takes_the_longest_of_its_last_ten_runs() -> None:
    policy = Clockwork()
    state = policy.initial({})
    for took_s in [0.2] + [0.01] * 9:
        state = policy.observe(state, BatchOutcome(NOW_S, 32, ("m",), took_s, 0.05))
    # 32 rows would take 200 ms: no request is on that list
    assert decide("clockwork", view([0.0] * 50), state) == Dispatch(("m",), 16)
    state = policy.observe(state, BatchOutcome(NOW_S, 32, ("m",), 0.01, 0.05))
    assert decide("clockwork", view([0.0] * 50), state) == Dispatch(("m",), 32)
