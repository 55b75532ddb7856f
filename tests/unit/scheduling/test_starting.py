"""Simulated devices begin with a packing, and lose fewer rows than such that are filled by recency."""

from __future__ import annotations

from random import Random

from server.scheduling.simulation.simulator import FunctionLoad, SimulatedDevice, Workload, simulate
from server.scheduling.simulation.starting import packed_at_start


def batch_s(rows: int) -> float:
    return 0.005 + 0.0005 * rows


def cell(seed: int, *, models: int = 12, places: int = 6, ends_s: float = 3.0) -> Workload:
    """Two devices; popularity by Zipf's law, in an order that recency does not know; loads of 90 ms."""
    random = Random(seed)
    shares = [1 / rank for rank in range(1, models + 1)]
    random.shuffle(shares)
    rows_per_s = 0.7 * 2 * 32 / batch_s(32)
    functions = []
    for number, share in enumerate(shares):
        arrivals_s = [0.0]
        while arrivals_s[-1] < ends_s:
            arrivals_s.append(arrivals_s[-1] + random.expovariate(rows_per_s * share / sum(shares)))
        functions.append(FunctionLoad(f"f{number}", arrivals_s[1:], 0.1, 64, batch_s))
    devices = (SimulatedDevice("d0", places), SimulatedDevice("d1", places))
    return Workload(tuple(functions), devices, swap_s=0.09, seed=seed)


def test_what_is_resident_fits_and_everything_is_somewhere_where_it_can() -> None:
    load = packed_at_start(cell(0))
    held = [set(device.resident or ()) for device in load.devices]
    assert [len(keys) for keys in held] == [6, 6]
    assert held[0] | held[1] == {function.name for function in load.functions}


def test_rates_that_are_remembered_may_be_others_than_those_that_come() -> None:
    load = cell(0, models=4, places=1)
    remembered = {"f2": 50.0, "f3": 40.0}
    held = {key for device in packed_at_start(load, remembered).devices for key in device.resident or ()}
    assert held == {"f2", "f3"}


def test_a_packing_beats_filling_by_recency() -> None:
    for seed in range(2):
        load = cell(seed, ends_s=1.0)
        assert simulate(packed_at_start(load)).total.goodput > simulate(load).total.goodput + 0.02
