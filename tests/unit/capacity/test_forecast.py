"""Promises of `forecast`: what it does, when, and what it never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.capacity.policies.forecast import Forecast
from server.capacity.policy import Copy, DeviceKind, FunctionLoad, Worker
from tests.unit.capacity.driving import Driven
from tests.unit.capacity.fleets import CPU, DEVICES, GB, GPU_1, GPU_8, WORKERS, fleet

CPU_0 = Copy("f/cpu", "cpu-0")
GPU_0 = Copy("f/gpu-1", "gpu-0")
# Two machines alike, each of which may have the one model; the second one costs something.
ALIKE = {"cpu": DeviceKind("cpu", 1, 2, join_s=3.0, price_per_hour=3.6)}


def driven(*copies: Copy, keep_warm: bool = False) -> Driven:
    return Driven(Forecast(keep_warm=keep_warm), fleet(*copies))


def test_a_load_that_one_copy_serves_changes_nothing():
    assert driven(CPU_0).run([3.0] * 60).done == []


def test_a_jump_is_answered_within_a_second_and_not_at_the_next_round():
    done = driven(CPU_0).run([3.0] * 9 + [200.0] * 3).done
    assert done[0][0] <= 10.0
    assert done[0][1].kind == "upgrade"


def test_what_it_makes_ready_serves_the_load():
    for rate in (30.0, 200.0, 700.0):
        run = driven(CPU_0).run([3.0] * 9 + [rate] * 30)
        given = sum(run.fleet.variants[one.variant].rows_per_s for one in run.fleet.copies)
        assert given > rate


def test_a_saving_is_done_after_it_was_seen_five_times():
    done = driven(GPU_0).run([3.0] * 40).done
    assert done[0][1].kind == "downgrade"
    assert 8.0 <= done[0][0] <= 14.0


def test_a_peak_keeps_what_it_took_for_a_while():
    """Without the peak the GPU would leave after ten seconds."""
    there = fleet(GPU_0, variants={one.name: one for one in (CPU, GPU_1)})
    run = Driven(Forecast(), there).run([200.0] * 20 + [3.0] * 20)
    assert run.done == []


def test_it_never_leaves_a_function_without_a_copy():
    run = driven(CPU_0, GPU_0).run([0.0] * 200)
    assert any(one.state == "ready" for one in run.fleet.copies)


def test_while_something_loads_there_are_only_additions():
    loading = Copy("f/gpu-1", "gpu-0", "loading", 106.0)
    run = driven(CPU_0, Copy("f/cpu", "cpu-1"), loading).run([1.0] * 30)
    assert not set(run.kinds) & {"drop", "downgrade", "upgrade"}


def test_nothing_flaps_on_a_load_that_only_chance_moves():
    rates = [3.0, 5.0, 2.0, 4.0, 3.0, 6.0, 1.0, 4.0] * 20
    assert driven(CPU_0).run(rates).done == []


def test_where_room_for_a_jump_is_cheap_it_is_had_before_one_comes():
    """At 200 rows/s the copy suffices, and a fifth more buys three times as many; at 20 it has them."""
    assert [one.kind for _, one in driven(GPU_0).run([200.0] * 40).about_copies] == ["upgrade"]
    only_larger = {one.name: one for one in (GPU_1, GPU_8)}
    assert Driven(Forecast(), fleet(GPU_0, variants=only_larger)).run([20.0] * 40).about_copies == []


def test_functions_take_turns_and_each_is_decided_every_two_seconds():
    names = [f"f{number}" for number in range(8)]
    variants = {
        f"{name}/cpu": replace(CPU, name=f"{name}/cpu", function=name, size_bytes=GB // 100) for name in names
    }
    there = fleet(
        *(Copy(f"{name}/cpu", "cpu-0") for name in names),
        functions=tuple(FunctionLoad(name, 0.5, 0) for name in names),
        variants=variants,
    )
    run = Driven(Forecast(), there).run([1.0] * 20, together=True)
    decided_s = [one["decided_s"] for one in run.state["functions"].values()]
    assert sorted(set(decided_s)) == [118.5, 119.0, 119.5, 120.0]
    assert all(decided_s.count(at_s) == 2 for at_s in decided_s)


def test_a_few_late_rows_are_not_worth_a_copy():
    """At half of what a copy gives chance makes some rows in 30 s late; at nine tenths many."""
    assert driven(CPU_0).run([5.0] * 60).done == []
    assert driven(CPU_0).run([9.0] * 60).kinds == ["replicate"]


def test_late_rows_raise_their_price_and_time_lowers_it():
    run = driven(CPU_0).run([5.0] * 60, late=0.4)
    risen = run.state["functions"]["f"]["price"]
    assert risen > 1.5
    assert run.run([5.0] * 700).state["functions"]["f"]["price"] < risen


def test_of_late_rows_that_are_over_the_price_rises_no_further():
    run = driven(CPU_0).run([5.0] * 60, late=0.4)
    risen = run.state["functions"]["f"]["price"]
    after_a_minute = run.run([5.0] * 60).state["functions"]["f"]["price"]
    assert 1.0 < after_a_minute < risen  # though of the last five minutes' rows many were late


def test_copies_that_a_larger_one_makes_needless_leave_together():
    devices = {**DEVICES, "cpu": replace(DEVICES["cpu"], price_per_gb_s=1.6)}  # one alone saves too little
    variants = {one.name: one for one in (CPU, GPU_1)}  # no larger one that would take a jump
    there = fleet(GPU_0, CPU_0, Copy("f/cpu", "cpu-1"), devices=devices, variants=variants)
    run = Driven(Forecast(), there).run([60.0] * 30)
    assert [(at_s, one.kind) for at_s, one in run.done] == [(run.done[0][0], "drop")] * 2
    assert [one.variant for one in run.fleet.copies] == ["f/gpu-1"]


def test_after_a_peak_a_variant_waits_in_host_memory():
    run = driven(GPU_0, keep_warm=True).run([200.0] * 20 + [3.0] * 40)
    assert [one.state for one in run.fleet.copies if one.variant != "f/cpu"] == ["warm"]
    assert any(one.variant == "f/cpu" and one.state == "ready" for one in run.fleet.copies)


def test_host_memory_is_given_back_when_the_peak_is_long_ago():
    run = driven(GPU_0, keep_warm=True).run([200.0] * 20 + [3.0] * 240)
    assert all(one.state != "warm" for one in run.fleet.copies)


def alike(*copies: Copy, workers: int) -> Driven:
    there = {name: WORKERS[name] for name in ("cpu-0", "cpu-1")[:workers]}
    return Driven(Forecast(), fleet(*copies, workers=there, devices=ALIKE, variants={"f/cpu": CPU}))


def test_a_worker_comes_when_those_there_do_not_suffice_and_goes_when_they_do():
    run = alike(CPU_0, workers=1).run([3.0] * 10 + [15.0] * 20)
    assert run.kinds == ["worker_up", "replicate"]
    assert len(run.fleet.workers) == 2
    run.run([2.0] * 300)
    assert len(run.fleet.workers) == 1
    assert run.fleet.copies


def test_there_are_never_more_workers_than_the_most_nor_fewer_than_the_least():
    crowded = alike(CPU_0, workers=1).run([500.0] * 60)
    assert len(crowded.fleet.workers) == 2
    assert len(alike(CPU_0, workers=1).run([0.0] * 60).fleet.workers) == 1


def test_a_worker_that_somebody_needs_is_not_ended():
    blocked = {"cpu-0": Worker("cpu-0", "cpu"), "cpu-1": Worker("cpu-1", "cpu", blocked=True)}
    run = Driven(
        Forecast(),
        fleet(CPU_0, Copy("f/cpu", "cpu-1"), workers=blocked, devices=ALIKE, variants={"f/cpu": CPU}),
    ).run([0.0] * 300)
    assert "cpu-1" in run.fleet.workers


def test_where_one_is_needed_another_one_is_ended():
    there = {f"cpu-{number}": Worker(f"cpu-{number}", "cpu", blocked=number == 0) for number in range(3)}
    copies = [Copy("f/cpu", name) for name in there]
    devices = {"cpu": replace(ALIKE["cpu"], most=3)}
    run = Driven(Forecast(), fleet(*copies, workers=there, devices=devices, variants={"f/cpu": CPU})).run(
        [0.0] * 300
    )
    assert list(run.fleet.workers) == ["cpu-0"]


def test_workers_have_a_price_where_nobody_gave_one():
    """Else the most would always be there."""
    free = {"cpu": DeviceKind("cpu", 1, 2)}
    run = Driven(
        Forecast(),
        fleet(
            CPU_0,
            Copy("f/cpu", "cpu-1"),
            workers={name: WORKERS[name] for name in ("cpu-0", "cpu-1")},
            devices=free,
            variants={"f/cpu": CPU},
        ),
    ).run([1.0] * 300)
    assert len(run.fleet.workers) == 1


@pytest.mark.parametrize("goal_s", [0.05, 0.5, float("inf")])
def test_a_load_that_grows_without_bound_is_followed_whatever_the_goal(goal_s: float):
    whole = fleet(CPU_0, functions=(FunctionLoad("f", goal_s, 0),))
    run = Driven(Forecast(), whole).run([60.0] * 60)
    assert sum(run.fleet.variants[one.variant].rows_per_s for one in run.fleet.copies) > 60


def test_a_function_that_is_new_and_holds_nothing_gets_a_copy_when_rows_come():
    assert driven().run([0.0] * 20).done == []
    assert driven().run([0.0] * 5 + [3.0] * 10).kinds[0] == "replicate"


def test_a_neighbour_takes_its_share_of_a_device():
    """Two functions on one GPU: what is enough for one alone is not enough for both."""
    other = {
        f"g/{name.partition('/')[2]}": replace(one, name=f"g/{name.partition('/')[2]}", function="g")
        for name, one in fleet().variants.items()
    }
    functions = (FunctionLoad("f", 0.5, 0), FunctionLoad("g", 0.5, 0))
    crowded = fleet(
        GPU_0,
        Copy("g/gpu-1", "gpu-0"),
        functions=functions,
        variants={**fleet().variants, **other},
        devices={"cuda": DEVICES["cuda"]},
        workers={"gpu-0": WORKERS["gpu-0"], "gpu-1": Worker("gpu-1", "cuda", memory_bytes=16 * GB)},
    )
    assert Driven(Forecast(), crowded).run([190.0] * 20).done == []
    run = Driven(Forecast(), crowded).run([190.0] * 20, together=True)
    assert {one.worker for one in run.fleet.copies} == {"gpu-0", "gpu-1"} or any(
        one.variant.endswith("gpu-8") for one in run.fleet.copies
    )


def crowded_cpus(on: str) -> Driven:
    """`f`, and on the worker `on` a function of passes of 400 ms; only CPUs, and `f` may hardly wait."""
    slow = replace(CPU, name="g/cpu", function="g", profile=((1, 0.4),))
    workers = {name: Worker(name, "cpu") for name in ("cpu-0", "cpu-1", "cpu-2")}
    kind = replace(DEVICES["cpu"], least=3, most=3)
    copies = (CPU_0, Copy("g/cpu", on))
    goal_s = 1.3 * CPU.batch_s(1)
    return Driven(
        Forecast(),
        fleet(
            *copies,
            functions=(FunctionLoad("f", goal_s, 0), FunctionLoad("g", 2.0, 0)),
            variants={CPU.name: CPU, slow.name: slow},
            devices={"cpu": kind},
            workers=workers,
        ),
    )


@pytest.mark.parametrize("rows_per_s", [1.5, 2.2])
def test_a_function_with_a_short_goal_gets_copies_where_no_long_passes_are(rows_per_s: float):
    run = crowded_cpus("cpu-0").run([rows_per_s] * 40, together=True)
    of = {
        name: {one.worker for one in run.fleet.copies if one.variant == name} for name in ("f/cpu", "g/cpu")
    }
    assert of["f/cpu"] - of["g/cpu"], run.done


def test_long_passes_are_not_put_in_the_way_of_a_short_goal():
    run = crowded_cpus("cpu-1").run([2.6] * 40, together=True)
    assert {one.worker for one in run.fleet.copies if one.variant == "g/cpu"} == {"cpu-1", "cpu-2"}, run.done
