"""l̂ of one worker: a slow one is seen as slow, its kind learns nothing of it, and who is alike stays so."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from random import Random

import pytest

from server.scheduling.latency_model import LatencyModel, LatencyOnWorker
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    FunctionResult,
    SimulatedDevice,
    Workload,
    simulate,
)

PROFILE_S = {1: 0.005, 32: 0.013}
SIZES = (1, 4, 8, 16, 32)


def true_s(rows: int) -> float:
    return LatencyModel(PROFILE_S).typical_s(rows)


def ran(kind: LatencyModel, paces: Sequence[float], batches: int = 60, noise: float = 0.1) -> list[float]:
    """Workers of these paces run so many batches each; what l̂ says of 8 rows, over what they take there."""
    random = Random(7)
    workers = [kind.of_worker(str(number)) for number in range(len(paces))]
    for _ in range(batches):
        for worker, pace in zip(workers, paces, strict=True):
            rows = random.choice(SIZES)
            worker.observe(rows, true_s(rows) * pace * math.exp(random.gauss(0.0, noise)))
    return [worker(8) / (true_s(8) * pace) for worker, pace in zip(workers, paces, strict=True)]


@pytest.mark.parametrize("paces", [(1.0, 3.0), (1.0, 1.0, 3.0), (3.0, 3.0, 1.0), (1.0, 6.0, 2.0, 1.0)])
def test_each_worker_is_predicted_by_its_own_pace(paces: Sequence[float]) -> None:
    assert all(0.9 < said < 1.4 for said in ran(LatencyModel(PROFILE_S), paces))


def test_a_slow_worker_does_not_spoil_what_is_known_of_those_that_are_alike() -> None:
    kind = LatencyModel(PROFILE_S)
    ran(kind, (1.0, 1.0, 5.0))
    assert kind(8) == pytest.approx(1.1 * true_s(8), rel=0.15)


def test_workers_that_are_alike_are_predicted_as_if_there_was_one_to_the_last_digit() -> None:
    kind, one = LatencyModel(PROFILE_S), LatencyModel(PROFILE_S)
    random, workers = Random(3), [kind.of_worker("a"), kind.of_worker("b")]
    for number in range(200):
        rows = random.choice(SIZES)
        took_s = true_s(rows) * math.exp(random.gauss(0.0, 0.05))
        workers[number % 2].observe(rows, took_s)
        one.observe(rows, took_s)
        assert [workers[0](each) for each in SIZES] == [one(each) for each in SIZES]
    assert [workers[1](each) for each in SIZES] == [one(each) for each in SIZES]


def test_a_worker_alone_has_no_pace_of_its_own_and_all_that_slow_down_are_followed() -> None:
    alone = LatencyModel(PROFILE_S)
    assert ran(alone, (2.0,)) == [alone(8) / (2.0 * true_s(8))]
    both = LatencyModel(PROFILE_S)
    ran(both, (1.0, 1.0))
    assert all(0.9 < said < 1.5 for said in ran(both, (4.0, 4.0)))


def test_a_worker_that_recovers_is_like_the_others_again() -> None:
    kind = LatencyModel(PROFILE_S)
    ran(kind, (1.0, 4.0))
    assert kind.of_worker("1")(8) > 3 * kind.of_worker("0")(8)
    assert all(0.85 < said < 1.4 for said in ran(kind, (1.0, 1.0)))


def test_one_slow_batch_is_no_slow_worker() -> None:
    kind = LatencyModel(PROFILE_S)
    ran(kind, (1.0, 1.0))
    slow = kind.of_worker("1")
    for _ in range(3):
        slow.observe(8, 10 * true_s(8))
    assert slow(8) == kind(8)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_drifts_while_one_worker_does_most_of_it_and_then_the_other(seed: int) -> None:
    random = Random(seed)
    kind = LatencyModel(PROFILE_S)
    workers = [kind.of_worker("a"), kind.of_worker("b")]
    paces = (1.0, 2.0)
    for number in range(12_000):
        busy = number // 1500 % 2
        which = busy if random.random() < 0.98 else 1 - busy
        rows = random.choice((1, 1, 1, 2, 4, 8))
        # Now and then something else has the core: the mean is far above the median.
        took_s = true_s(rows) * paces[which] * math.exp(random.gauss(0.0, 0.25))
        workers[which].observe(rows, took_s * random.choice([1.0] * 12 + [6.0, 10.0]))
        if number % 50 == 0:
            said = [worker(8) / (true_s(8) * pace) for worker, pace in zip(workers, paces, strict=True)]
            assert all(1 / 12 < each < 12 for each in said), (number, said)


def test_one_of_the_workers_goes_on_teaching_the_kind() -> None:
    kind = LatencyModel(PROFILE_S)
    ran(kind, (1.0, 4.0, 9.0))
    assert not all(pace.is_apart for pace in kind._paces._workers.values())
    before_s = kind(8)
    ran(kind, (3.0, 12.0, 27.0))
    assert kind(8) > 2 * before_s


def test_paces_are_no_part_of_what_is_kept() -> None:
    kind = LatencyModel(PROFILE_S)
    ran(kind, (1.0, 4.0))
    again = LatencyModel.from_json(json.loads(json.dumps(kind.to_json())))
    assert again.of_worker("1")(8) == again(8) == kind(8)


def test_a_profile_that_begins_anew_forgets_who_was_slow() -> None:
    kind = LatencyModel(PROFILE_S)
    ran(kind, (1.0, 4.0))
    slow = kind.of_worker("1")
    kind.start(PROFILE_S)
    assert slow(8) == kind(8)


def test_workers_that_came_and_went_are_not_kept_for_ever() -> None:
    kind = LatencyModel(PROFILE_S)
    workers = [kind.of_worker(f"w{number}") for number in range(1000)]
    assert isinstance(workers[0], LatencyOnWorker)
    assert len(kind._paces._workers) <= 256


def simulated(pace: float, latency: LatencyModel | None, slo_s: float = 0.25) -> FunctionResult:
    """A heavy model at half of what two devices of one kind do, of which one is slower."""
    rate = 0.5 * 257 * (1 + 1 / pace)
    load = FunctionLoad(
        *("f", poisson(Random(1), rate, 12.0), slo_s, 32),
        lambda rows: 0.0035 + 0.0035 * rows,
        predicted_s=latency,
    )
    devices = (
        SimulatedDevice("a", in_flight_limit=2, kind="cpu"),
        SimulatedDevice("b", in_flight_limit=2, kind="cpu", pace=pace),
    )
    return simulate(Workload((load,), devices, jitter=0.1, seed=1)).functions["f"]


@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_with_a_slow_device_of_the_same_kind_callers_wait_hardly_longer_than_if_its_pace_was_known(
    pace: float,
) -> None:
    learned = simulated(pace, LatencyModel({1: 0.001, 64: 0.016}, measured=False))
    known = simulated(pace, None)
    assert learned.goodput > 0.995
    assert learned.quantile_s(0.99) < 1.3 * known.quantile_s(0.99)
