"""Promises of the contract: what a fleet says about itself, and which actions may be done."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from server.capacity.policy import (
    ACTIONS,
    Action,
    Copy,
    Downgrade,
    Drop,
    Fleet,
    FunctionLoad,
    Replicate,
    Upgrade,
    Variant,
    Warm,
    Worker,
    WorkerDown,
    WorkerUp,
    action_from_json,
    action_to_json,
    checked,
)
from tests.unit.capacity.fleets import CPU, GPU_1, GPU_8, VARIANTS, WORKERS, fleet

HERE = Copy("f/cpu", "cpu-0")
ONE_OF_EACH = (
    Replicate("f/cpu", "cpu-1", reason="more rows"),
    Warm("f/gpu-8", "gpu-0"),
    Upgrade("f/gpu-1", "gpu-0", (("f/cpu", "cpu-0"), ("f/cpu", "cpu-1")), keep_warm=True),
    Downgrade("f/cpu", "cpu-0", (("f/gpu-1", "gpu-0"),)),
    Drop("f/cpu", "cpu-1"),
    WorkerUp("cpu"),
    WorkerDown("cpu-1"),
)


def test_a_batch_takes_what_was_measured_and_lines_between():
    one = Variant("v", "f", "cpu", ((1, 0.1), (5, 0.3)), 1, 1.0)
    assert [one.batch_s(rows) for rows in (1, 3, 5)] == pytest.approx([0.1, 0.2, 0.3])
    assert one.rows_per_s == pytest.approx(5 / 0.3)


def test_the_largest_batch_within_a_goal():
    assert [GPU_8.largest_within(goal_s) for goal_s in (0.003, 0.004, 0.0069, 0.01, 9.0)] == [0, 1, 4, 8, 8]


def test_a_fleet_is_the_same_after_json():
    whole = fleet(HERE, Copy("f/gpu-1", "gpu-0", "loading", 106.0))
    endless = replace(whole, functions=(FunctionLoad("f", math.inf, 3, 1, 2, 0.9),))
    for one in (whole, endless):
        assert Fleet.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("action", ONE_OF_EACH, ids=lambda action: action.kind)
def test_an_action_is_the_same_after_json(action):
    again = action_from_json(json.loads(json.dumps(action_to_json(action))))
    assert (again, again.reason) == (action, action.reason)


def test_every_action_has_been_tried():
    assert {action.kind for action in ONE_OF_EACH} == set(ACTIONS)


def test_the_price_counts_copies_by_their_bytes_and_workers_by_the_hour():
    whole = fleet(HERE, Copy("f/gpu-1", "gpu-0", "loading"))
    assert whole.price_per_s() == pytest.approx(0.1 + 7.97)
    hourly = {**whole.devices, "cuda": replace(whole.devices["cuda"], price_per_hour=36.0)}
    assert replace(whole, devices=hourly).price_per_s() == pytest.approx(0.1 + 7.97 + 2 * 0.01)


def test_a_warm_copy_costs_host_memory_and_no_room_on_the_device():
    warm = fleet(Copy("f/gpu-1", "gpu-0", "warm"))
    dear = {**warm.devices, "cuda": replace(warm.devices["cuda"], warm_price_per_gb_s=1.0)}
    assert replace(warm, devices=dear).price_per_s() == pytest.approx(1.0)
    assert warm.free_bytes(warm.workers["gpu-0"]) == 16e9


def test_choices_are_accurate_and_quick_enough_the_cheapest_first():
    whole = fleet()
    load = whole.functions[0]
    assert [one.name for one in whole.choices(load)] == ["f/cpu", "f/gpu-1", "f/gpu-8"]
    assert [one.name for one in whole.choices(replace(load, goal_s=0.05))] == ["f/gpu-1", "f/gpu-8"]
    rough = {**VARIANTS, "f/cpu": replace(CPU, accuracy=0.8), "f/gpu-1": replace(GPU_1, accuracy=0.9)}
    wished = replace(load, min_accuracy=0.85)
    assert [one.name for one in replace(whole, variants=rough).choices(wished)] == ["f/gpu-1", "f/gpu-8"]


def test_where_nothing_is_quick_enough_the_quickest_is_chosen():
    assert [one.name for one in fleet().choices(FunctionLoad("f", 0.001, 0))] == ["f/gpu-1"]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (Replicate("f/cpu", "cpu-0"), "on cpu-0 already"),
        (Replicate("f/cpu", "gpu-0"), "f/cpu cannot be on gpu-0"),
        (Replicate("f/cpu", "cpu-9"), "f/cpu cannot be on cpu-9"),
        (Replicate("f/none", "cpu-1"), "f/none cannot be on cpu-1"),
        (Warm("f/cpu", "cpu-0"), "on cpu-0 already"),
        (Upgrade("f/gpu-1", "gpu-0", (("f/cpu", "cpu-1"),)), "no copy of f/cpu is on cpu-1"),
        (Drop("f/cpu", "cpu-0"), "it is the last copy of f that is ready"),
        (Drop("f/cpu", "cpu-1"), "no copy of f/cpu is on cpu-1"),
        (WorkerUp("mps"), "no device kind 'mps'"),
        (WorkerUp("cuda"), "2 workers of cuda are the most"),
        (WorkerDown("cpu-9"), "no worker 'cpu-9'"),
    ],
    ids=str,
)
def test_what_may_not_be_done_is_refused_and_says_why(action, said):
    allowed, refused = checked(fleet(HERE), [action])
    assert allowed == ()
    assert said in refused[0]
    assert refused[0].startswith(f"{action.kind}: ")


def test_what_may_be_done_stays_as_it_is():
    actions = (
        Replicate("f/cpu", "cpu-1"),
        Warm("f/gpu-8", "gpu-1"),
        Upgrade("f/gpu-1", "gpu-0", (("f/cpu", "cpu-0"),)),
        WorkerUp("cpu"),
        WorkerDown("gpu-1"),
    )
    assert checked(fleet(HERE), actions) == (actions, ())


def test_actions_count_one_after_the_other():
    both = fleet(HERE, Copy("f/cpu", "cpu-1"))
    allowed, refused = checked(both, [Drop("f/cpu", "cpu-0"), Drop("f/cpu", "cpu-1")])
    assert allowed == (Drop("f/cpu", "cpu-0"),)
    assert "last copy" in refused[0]
    up: list[Action] = [WorkerUp("cpu"), WorkerUp("cpu")]
    assert checked(both, up)[0] == (WorkerUp("cpu"),)
    down: list[Action] = [WorkerDown("cpu-0"), WorkerDown("cpu-1")]
    assert checked(both, down)[0] == (WorkerDown("cpu-0"),)


def test_a_copy_that_only_loads_does_not_let_the_last_ready_one_go():
    loading = fleet(HERE, Copy("f/gpu-1", "gpu-0", "loading", 106.0))
    assert checked(loading, [Drop("f/cpu", "cpu-0")])[0] == ()
    assert checked(loading, [Drop("f/gpu-1", "gpu-0")])[0] == (Drop("f/gpu-1", "gpu-0"),)


def test_a_worker_that_comes_or_goes_or_is_needed_is_left_alone():
    workers = {
        **WORKERS,
        "gpu-0": Worker("gpu-0", "cuda", "joining", 16 * 10**9),
        "gpu-1": Worker("gpu-1", "cuda", "leaving", 16 * 10**9),
        "cpu-1": Worker("cpu-1", "cpu", blocked=True),
    }
    actions: list[Action] = [
        Replicate("f/gpu-1", "gpu-0"),
        Replicate("f/gpu-1", "gpu-1"),
        WorkerDown("cpu-1"),
    ]
    allowed, refused = checked(fleet(HERE, workers=workers), actions)
    assert allowed == ()
    assert [fault.partition(": ")[2] for fault in refused] == [
        "gpu-0 is not ready",
        "gpu-1 is not ready",
        "cpu-1 is needed by somebody else",
    ]


def test_a_device_without_room_takes_no_copy_more():
    full = {**WORKERS, "gpu-0": Worker("gpu-0", "cuda", memory_bytes=10**9)}
    taken = fleet(Copy("f/gpu-1", "gpu-0"), workers=full)
    assert "gpu-0 has no room for f/gpu-8" in checked(taken, [Replicate("f/gpu-8", "gpu-0")])[1][0]
