"""The simulator: the same seed, the same bytes; arrivals as the papers give them; known queues."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import pairwise
from random import Random

import pytest

from server.scheduling.arbitration import MostInTime, least_recently_served
from server.scheduling.simulation.arrivals import bursty, poisson, recorded, sine, sine_rate
from server.scheduling.simulation.simulator import (
    ClosedLoop,
    FunctionLoad,
    FunctionResult,
    MemberLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from tests.unit.scheduling.views import affine


def busy_load(seed: int, policy: str = "goodput") -> Workload:
    functions = tuple(
        FunctionLoad(name, bursty(Random(f"{seed} {name}"), 400, 2.0), 0.05, 64, affine, policy=policy)
        for name in ("a", "b", "c")
    )
    return Workload(
        functions,
        (SimulatedDevice("d0", places=2), SimulatedDevice("d1", places=2)),
        0.01,
        0.05,
        seed,
        MostInTime(),
    )


@pytest.mark.parametrize("policy", ["goodput", "clockwork"])
def test_the_same_seed_gives_the_same_bytes(policy: str) -> None:
    def digest(seed: int) -> str:
        result = simulate(busy_load(seed, policy))
        text = json.dumps([result.to_json(), result.total.latencies_s, result.total.overdue_at_s])
        return hashlib.sha256(text.encode()).hexdigest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_every_row_is_accounted_for() -> None:
    result = simulate(busy_load(3))
    for one in result.functions.values():
        assert one.offered == one.good + one.late + one.refused == len(one.latencies_s) + one.refused
    assert result.busy_s <= 2 * result.duration_s


def test_a_deterministic_queue_has_the_latencies_one_can_count() -> None:
    # rows at 0 and 1 ms, 5.25 ms each: the second starts when the first is done
    load = FunctionLoad("f", [0.0, 0.001], 0.05, 1, affine)
    result = simulate(Workload((load,))).total
    assert result.latencies_s == pytest.approx([0.00525, 0.0095])
    assert result.good == 2


def test_rows_that_wait_together_run_together() -> None:
    load = FunctionLoad("f", [0.0, 0.001, 0.002, 0.003], 0.05, 64, affine)
    result = simulate(Workload((load,))).total
    assert result.batches == 2
    assert max(result.latencies_s) == pytest.approx(0.00525 - 0.001 + affine(3))


def test_a_model_that_is_not_resident_costs_its_swap_and_the_least_recently_used_one_leaves() -> None:
    functions = tuple(FunctionLoad(name, [at_s], 0.5, 1, affine) for name, at_s in (("a", 0.0), ("b", 0.1)))
    result = simulate(Workload(functions, (SimulatedDevice(places=1),), swap_s=0.05))
    assert result.swaps == 1
    assert result.functions["a"].latencies_s == pytest.approx([affine(1)])
    assert result.functions["b"].latencies_s == pytest.approx([0.05 + affine(1)])


def test_a_wrong_prediction_is_not_the_truth() -> None:
    load = FunctionLoad("f", [0.0], 0.05, 1, affine, predicted_s=lambda rows: 0.5 * affine(rows))
    assert simulate(Workload((load,))).total.latencies_s == pytest.approx([affine(1)])


def test_two_devices_answer_twice_as_much() -> None:
    arrivals = poisson(Random(1), 5000, 1.0)
    one, two = (
        simulate(
            Workload(
                (FunctionLoad("f", arrivals, 0.05, 64, affine),),
                tuple(SimulatedDevice(f"d{i}") for i in range(devices)),
            )
        ).total.good
        for devices in (1, 2)
    )
    assert one == pytest.approx(3047, rel=0.05)
    assert two > 1.55 * one


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    times = poisson(Random(5), 1000, 20.0)
    assert len(times) == pytest.approx(20_000, rel=0.03)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert spread == pytest.approx(mean, rel=0.05)
    assert times == sorted(times)


def test_bursty_arrivals_have_the_rate_on_the_average_and_burst_over_it() -> None:
    times = bursty(Random(5), 1000, 100.0, burst=2.5, share=0.3, period_s=0.25)
    assert len(times) == pytest.approx(100_000, rel=0.05)
    counts = [0] * 5000
    for time_s in times:
        counts[int(time_s / 0.02)] += 1
    assert sum(count > 40 for count in counts) / len(counts) == pytest.approx(0.27, abs=0.06)
    with pytest.raises(ValueError, match="cannot take"):
        bursty(Random(1), 10, 1.0, burst=4.0, share=0.3)


def test_rafikis_sine_exceeds_the_extreme_rate_for_a_fifth_of_its_period_and_peaks_at_1_1_of_it() -> None:
    period_s, extreme = 280.0, 272.0
    rates = [sine_rate(extreme, period_s * step / 10_000, period_s) for step in range(10_000)]
    assert max(rates) == pytest.approx(1.1 * extreme, rel=1e-6)
    assert sum(rate > extreme for rate in rates) / len(rates) == pytest.approx(0.2, abs=1e-3)
    times = sine(Random(1), extreme, period_s, period_s, 0.1)
    assert len(times) == pytest.approx(sum(rates) / len(rates) * period_s, rel=0.02)
    assert times == sorted(times)


def test_a_recorded_trace_is_read_line_by_line() -> None:
    assert recorded(["# seconds", "0.5", "", "0.25  # early"]) == [0.25, 0.5]
    with pytest.raises(ValueError, match=r"line 2 .*'soon'"):
        recorded(["1.0", "soon"])
    with pytest.raises(ValueError, match="line 1"):
        recorded(["-1"])


@pytest.mark.parametrize("extreme", [272.0, 228.0])
def test_rafikis_single_model_ours_loses_at_most_a_tenth_of_what_greedy_loses(extreme: float) -> None:
    def c(rows: int) -> float:  # sizes outside B are padded to the next of B
        return {16: 0.07, 32: 0.07 + 0.16 / 3, 48: 0.07 + 0.32 / 3, 64: 0.23}[
            min(b for b in (16, 32, 48, 64) if b >= rows)
        ]

    tau_s = 0.56
    arrivals = sine(Random(1), extreme, 500 * tau_s, 500 * tau_s, 0.1)

    def overdue(policy: str, refuses: bool, batch_sizes: tuple[int, ...]) -> int:
        load = FunctionLoad(
            "f", arrivals, tau_s, 64, c, batch_sizes=batch_sizes, refuses=refuses, policy=policy
        )
        result = simulate(Workload((load,), arbitration=least_recently_served)).total
        return result.offered - result.good

    greedy = overdue("greedy", False, (16, 32, 48, 64))
    ours = overdue("goodput", True, (16, 32, 48, 64))
    assert greedy > 100
    assert ours <= greedy / 10


APART = (
    SimulatedDevice("d0", places=2, resident=("a", "b")),
    SimulatedDevice("d1", places=1, resident=("c",)),
)


def three_members(*devices: SimulatedDevice, rate: float = 1.0, **fields: float) -> FunctionResult:
    """A function of members that take 10, 20 and 30 ms a batch, and share 5 ms, on devices that hold some."""
    function = FunctionLoad(
        "f",
        poisson(Random("three"), rate, 60.0),
        0.2,
        8,
        lambda rows: 0.005,
        members=(
            MemberLoad("a", lambda rows: 0.010),
            MemberLoad("b", lambda rows: 0.020),
            MemberLoad("c", lambda rows: 0.030),
        ),
    )
    return simulate(Workload((function,), devices, seed=1, **fields)).functions["f"]  # type: ignore[arg-type]


def test_members_on_one_device_run_one_after_the_other_and_share_what_they_share() -> None:
    result = three_members(SimulatedDevice())
    assert result.good == result.offered
    assert result.quantile_s(0.1) == pytest.approx(0.065)
    assert result.batches == len(result.latencies_s)


def test_members_on_two_devices_run_side_by_side_and_the_last_one_answers() -> None:
    result = three_members(*APART)
    assert result.good == result.offered
    assert result.quantile_s(0.1) == pytest.approx(0.035)  # a and b on one, c on the other
    assert result.batches == 2 * len(result.latencies_s)


def test_members_that_no_device_can_hold_together_are_placed_apart() -> None:
    devices = SimulatedDevice("d0", places=2), SimulatedDevice("d1", places=2)
    result = three_members(*devices, swap_s=0.05)
    assert result.good >= result.offered - 3, "all but those that came while models were loaded"
    assert result.quantile_s(0.5) == pytest.approx(0.035, rel=0.1)


def test_more_devices_answer_more_rows_of_an_ensemble() -> None:
    one = three_members(SimulatedDevice(), rate=200.0)
    two = three_members(*APART, rate=200.0)
    assert one.goodput < 0.75
    assert two.goodput > 0.95


def test_a_device_that_holds_less_than_all_members_never_answers() -> None:
    result = three_members(SimulatedDevice(places=2))
    assert result.good == 0


def closed(clients: int, rows: int, **fields: object) -> SimulationResult:
    """Two models that are asked for in turn, one row at a time, on a device that holds one of them."""
    functions = tuple(FunctionLoad(name, (), 3600.0, 8, affine, refuses=False) for name in ("a", "b"))
    loop = ClosedLoop(clients, ["a", "b"] * (rows // 2))
    workload = Workload(functions, (SimulatedDevice(places=1),), swap_s=0.05, closed_loop=loop, **fields)  # type: ignore[arg-type]
    return simulate(workload)


def test_a_client_of_a_closed_loop_waits_for_each_answer() -> None:
    result = closed(1, 4)
    assert result.total.latencies_s == pytest.approx([affine(1), *[0.05 + affine(1)] * 3])
    assert result.duration_s == pytest.approx(sum(result.total.latencies_s))


def test_every_row_of_a_closed_loop_is_asked_for_once() -> None:
    for clients in (1, 3, 16):
        result = closed(clients, 40)
        assert {name: one.good for name, one in result.functions.items()} == {"a": 20, "b": 20}


def test_a_device_that_loads_may_compute_nothing_meanwhile() -> None:
    functions = (FunctionLoad("a", [0.0, 0.02], 0.5, 1, affine), FunctionLoad("b", [0.01], 0.5, 1, affine))
    device = SimulatedDevice(places=2, resident=("a",))
    beside, blocked = (
        simulate(Workload(functions, (device,), swap_s=0.1, loads_block=blocks)) for blocks in (False, True)
    )
    assert beside.functions["a"].latencies_s == pytest.approx([affine(1), affine(1)])
    assert blocked.functions["a"].latencies_s[1] > 0.08 + affine(1)
    assert beside.functions["b"].latencies_s == pytest.approx([0.1 + affine(1)])
