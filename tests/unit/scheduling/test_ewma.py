"""Rafiqi §3.2-3.3, and the rule of its code."""

from __future__ import annotations

from server.scheduling.policies.ewma import Ewma
from server.scheduling.policy import Dispatch, Wait
from tests.unit.scheduling.views import decide, view

Q = 0.005


def test_a_lone_row_is_released_at_the_next_tick_of_the_daemon() -> None:
    policy = Ewma()
    between, tick = 100.0012, 100.005
    state, decision = policy.decide(policy.initial({}), view([0.0], now_s=between))
    assert isinstance(decision, Wait)
    assert abs(decision.until_s - tick) < 1e-9
    assert policy.decide(state, view([tick - between], now_s=tick))[1] == Dispatch(("m",), 1)


def test_a_load_over_the_threshold_raises_it_by_the_average() -> None:
    policy, now_s = Ewma(), 20000 * Q
    state = {**policy.initial({}), "threshold": 4.0, "quanta": 19999}
    state, decision = policy.decide(state, view([0.001] * 12, now_s=now_s))
    assert state["threshold"] == 0.5 * 4 + 0.5 * 12
    assert decision == Dispatch(("m",), 12)


def test_a_load_under_the_threshold_halves_it_and_the_rows_wait() -> None:
    policy, now_s = Ewma(), 20000 * Q
    state = {**policy.initial({}), "threshold": 32.0, "quanta": 19999}
    state, decision = policy.decide(state, view([0.001] * 12, now_s=now_s))
    assert state["threshold"] == 16.0
    assert isinstance(decision, Wait)


def test_from_its_cap_the_threshold_falls_to_one_row_within_eight_quanta() -> None:
    policy, tick = Ewma(), 20000
    state = {**policy.initial({}), "threshold": 128.0, "quanta": tick - 1}
    for later in range(8):
        now_s = (tick + later) * Q
        state, decision = policy.decide(state, view([0.02 + later * Q], now_s=now_s))
    assert decision == Dispatch(("m",), 1)


def test_more_than_max_batch_leaves_the_rest() -> None:
    assert decide("ewma", view([0.001] * 100, now_s=100.0)) == Dispatch(("m",), 64)


def test_the_code_waits_a_quantum_without_arrivals_so_a_steady_stream_starves() -> None:
    steady = [0.001 * step for step in range(200)]  # 1,000 rows/s, the last one just now
    for _ in range(3):
        assert isinstance(decide("ewma-code", view(steady)), Wait)
    assert decide("ewma-code", view([age_s + 0.0051 for age_s in steady])) == Dispatch(("m",), 64)
