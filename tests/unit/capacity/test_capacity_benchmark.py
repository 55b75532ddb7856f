"""Promises of the simulated fleet that bench-capacity takes its figures from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.capacity.policies.by_name import POLICIES
from server.capacity.policies.static import Static
from server.capacity.policy import Decision, Downgrade, Fleet, Replicate, State, Upgrade, WorkerDown, WorkerUp
from tests.benchmarks.capacity import Job, run
from tests.benchmarks.capacity_fleet import FleetSimulation, Scene
from tests.benchmarks.capacity_loads import FIGURE_12, GPU_PRICE, ONE_FUNCTION, scene_of_one
from tests.benchmarks.capacity_oracle import Oracle

STEP = next(load for load in ONE_FUNCTION if load.name == "step")


class Scripted:
    """Does what it is told, each at its second."""

    name = "scripted"
    every_s = 0.5

    def __init__(self, *script: tuple[float, object]) -> None:
        self._script = script

    def decide(self, fleet: Fleet, state: State) -> Decision:
        done = state.get("done", 0)
        due = [action for at_s, action in self._script[done:] if at_s <= fleet.now_s]
        return Decision(tuple(due), {"done": done + len(due)})  # type: ignore[arg-type]


def scene(arrivals: list[float], first: str = "gpu-1", until_s: float = 30.0) -> Scene:
    whole = scene_of_one(replace(STEP, first=first), 1, "forecast")
    return replace(whole, arrivals={"resnet50": arrivals}, until_s=until_s)


def test_rows_that_come_one_by_one_are_all_in_time():
    outcome = FleetSimulation(scene([0.1 * number for number in range(100)]), Static()).run()
    assert (outcome.rows, outcome.late) == (100, 0)


def test_rows_that_cannot_be_answered_in_time_are_late_and_no_others():
    """A copy on a CPU answers four of them within the goal of half a second."""
    assert FleetSimulation(scene([1.0] * 10, "cpu"), Static()).run().late == 6
    assert FleetSimulation(scene([1.0] * 4, "cpu"), Static()).run().late == 0


def test_slower_service_answers_fewer():
    assert FleetSimulation(scene([1.0] * 10, "cpu"), Static(), slower=1.2).run().late == 7


def test_what_a_copy_costs_is_charged_by_the_second():
    outcome = FleetSimulation(scene([]), Static()).run()
    gigabytes = scene([]).variants["resnet50/gpu-1"].size_bytes / 1e9
    assert outcome.cost == pytest.approx(30 * GPU_PRICE * gigabytes)


def test_an_upgrade_makes_before_it_breaks_and_pays_for_both_meanwhile():
    busy = [0.01 * number for number in range(2900)]
    upgrade = Upgrade("resnet50/gpu-8", "cuda-0", (("resnet50/gpu-1", "cuda-0"),))
    outcome = FleetSimulation(scene(busy), Scripted((5.0, upgrade))).run()
    assert outcome.late == 0
    before, after = (scene([]).variants[f"resnet50/{name}"] for name in ("gpu-1", "gpu-8"))
    leaves_s = 5.0 + after.load_s
    bytes_s = leaves_s * before.size_bytes + 25.0 * after.size_bytes
    assert outcome.cost == pytest.approx(GPU_PRICE * bytes_s / 1e9)


def test_what_stays_in_host_memory_is_there_again_in_less_than_a_second():
    rows = [number / 100 for number in range(3000)]
    down = Downgrade("resnet50/cpu", "cpu-0", (("resnet50/gpu-1", "cuda-0"),), keep_warm=True)
    again = Replicate("resnet50/gpu-1", "cuda-0")
    warm = FleetSimulation(scene(rows), Scripted((5.0, down), (15.0, again))).run()
    cold = FleetSimulation(scene(rows), Scripted((5.0, replace(down, keep_warm=False)), (15.0, again))).run()
    assert warm.late + 400 < cold.late


def test_a_worker_that_comes_takes_copies_when_it_has_joined_and_one_that_goes_takes_none():
    whole = scene([0.5 * number for number in range(120)], "cpu", 60.0)
    fewer = replace(
        whole,
        workers=[one for one in whole.workers if one.device == "cpu"],
        devices={**whole.devices, "cuda": replace(whole.devices["cuda"], least=0)},
    )
    script = Scripted((1.0, WorkerUp("cuda")), (10.0, Replicate("resnet50/gpu-1", "cuda-0")))
    outcome = FleetSimulation(fewer, script).run()
    assert [action["kind"] for _, action in outcome.actions] == ["worker_up"]
    assert "cannot be on cuda-0" in outcome.refused[0]
    down = FleetSimulation(
        replace(fewer, devices={**fewer.devices, "cpu": replace(fewer.devices["cpu"], least=1)}),
        Scripted((1.0, WorkerDown("cpu-1"))),
    ).run()
    assert down.worker_s["cpu"] == pytest.approx(3 * 1.0 + 2 * 59.0)


def test_actions_that_turn_round_are_counted():
    up = Replicate("resnet50/cpu", "cpu-0")
    script = Scripted((1.0, up), (10.0, Downgrade("resnet50/cpu", "cpu-1", (("resnet50/gpu-1", "cuda-0"),))))
    assert FleetSimulation(scene([0.1]), script).run().reversals == 1


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_is_the_same_each_time_and_asks_for_nothing_that_may_not_be_done(name: str):
    job = Job(FIGURE_12, name, 7, rows=1_500, seconds=12)
    once, again = run(job), run(job)
    assert {**once, "decide_ms": []} == {**again, "decide_ms": []}
    assert once["refused"] == 0
    assert once["rows"] > 1_000


def test_the_oracle_is_cheaper_than_the_peak_and_late_less_often_than_a_small_variant():
    whole = scene_of_one(STEP, 3, "oracle")
    oracle = FleetSimulation(whole, Oracle(whole)).run()
    static = FleetSimulation(scene_of_one(STEP, 3, "static"), Static()).run()
    assert oracle.cost < static.cost
    assert oracle.late_share < 0.002
