"""Promises of INFaaS's rules, as its section 5 and 6 have them."""

from __future__ import annotations

from dataclasses import replace

from server.capacity.policies.infaas import Infaas
from server.capacity.policy import Copy, Downgrade, Drop, Replicate, Upgrade, Warm
from tests.unit.capacity.driving import Driven
from tests.unit.capacity.fleets import CPU, GB, VARIANTS, WORKERS, fleet

CPU_0 = Copy("f/cpu", "cpu-0")


def driven(*copies: Copy, keep_warm: bool = False) -> Driven:
    return Driven(Infaas(keep_warm=keep_warm), fleet(*copies))


def test_within_five_percent_of_what_a_copy_gives_another_one_comes():
    """A copy on a CPU gives 10 rows/s."""
    assert driven(CPU_0).run([9.4] * 10).done == []
    assert driven(CPU_0).run([9.6] * 10).kinds == ["replicate"]


def test_copies_on_cpus_come_before_a_dearer_upgrade():
    assert driven(CPU_0).run([15.0] * 4).done == [(2.0, Replicate("f/cpu", "cpu-1"))]


def test_of_a_cpus_copies_there_are_two_at_most_and_then_an_upgrade():
    three = {**WORKERS, "cpu-2": replace(WORKERS["cpu-0"], name="cpu-2")}
    there = fleet(CPU_0, Copy("f/cpu", "cpu-1"), workers=three)
    upgraded = Driven(Infaas(), there).run([25.0] * 4).done
    assert upgraded == [(2.0, Upgrade("f/gpu-1", "gpu-0", (("f/cpu", "cpu-0"), ("f/cpu", "cpu-1"))))]
    more = Driven(Infaas(most_cpu_copies=3), there).run([25.0] * 4).done
    assert more == [(2.0, Replicate("f/cpu", "cpu-2"))]


def test_copies_that_take_over_one_and_a_half_times_as_long_to_load_are_not_made():
    slow = {**VARIANTS, "f/cpu": replace(CPU, load_s=9.1)}
    assert Driven(Infaas(), fleet(CPU_0, variants=slow)).run([15.0] * 4).kinds == ["upgrade"]


def test_where_cpus_do_not_suffice_it_is_upgraded_to_the_cheapest_that_does():
    upgraded = driven(CPU_0).run([100.0] * 4).done
    assert upgraded == [(2.0, Upgrade("f/gpu-1", "gpu-0", (("f/cpu", "cpu-0"),)))]
    larger = driven(CPU_0).run([400.0] * 4).done
    assert larger == [(2.0, Upgrade("f/gpu-8", "gpu-0", (("f/cpu", "cpu-0"),)))]


def test_a_gpu_is_upgraded_to_larger_batches_before_it_is_copied():
    copied = driven(Copy("f/gpu-1", "gpu-0")).run([300.0] * 4 + [1000.0] * 4)
    assert [action for _, action in copied.done] == [
        Upgrade("f/gpu-8", "gpu-0", (("f/gpu-1", "gpu-0"),)),
        Replicate("f/gpu-8", "gpu-1"),
    ]


def test_without_upgrades_there_are_copies_alone():
    rules = Driven(Infaas("replicate", upgrades=False), fleet(Copy("f/gpu-1", "gpu-0")))
    assert [action for _, action in rules.run([300.0] * 4).done] == [Replicate("f/gpu-1", "gpu-1")]


def test_a_cpu_copy_leaves_after_ten_decisions_that_could_do_without():
    both = driven(CPU_0, Copy("f/cpu", "cpu-1")).run([2.0] * 30)
    assert both.done == [(20.0, Drop("f/cpu", "cpu-1"))]


def test_a_gpu_is_downgraded_after_twenty():
    done = driven(Copy("f/gpu-1", "gpu-0")).run([2.0] * 60).about_copies
    assert done == [(40.0, Downgrade("f/cpu", "cpu-1", (("f/gpu-1", "gpu-0"),)))]


def test_one_busy_decision_in_between_begins_the_count_anew():
    rates = [2.0] * 18 + [12.0] * 2 + [2.0] * 18
    assert driven(CPU_0, Copy("f/cpu", "cpu-1")).run(rates).about_copies == []


def test_it_decides_every_two_seconds_however_often_it_is_asked():
    assert [at_s for at_s, _ in driven(CPU_0).run([0.0] + [15.0] * 5, every_s=0.25).done] == [4.0]


def test_a_worker_comes_when_all_of_its_kind_are_busy_for_over_four_fifths():
    assert "worker_up" not in driven(CPU_0).run([5.0] * 6, busy=0.8).kinds
    assert "worker_up" in driven(CPU_0).run([5.0] * 6, busy=0.81).kinds


def test_a_worker_that_holds_nothing_leaves_and_the_least_stay():
    left = driven(CPU_0).run([5.0] * 60)
    assert sorted(left.fleet.workers) == ["cpu-0"]
    assert left.kinds == ["worker_down"] * 3


def test_the_next_upgrade_waits_in_host_memory_where_that_is_wanted():
    warm = driven(CPU_0, keep_warm=True).run([2.0] * 4)
    assert [action for _, action in warm.done] == [Warm("f/gpu-1", "gpu-0")]


def test_a_gpu_without_room_is_not_chosen():
    small = {**WORKERS, "gpu-0": replace(WORKERS["gpu-0"], memory_bytes=GB // 2)}
    rules = Driven(Infaas(), fleet(CPU_0, workers=small)).run([100.0] * 4)
    assert rules.done == [(2.0, Upgrade("f/gpu-1", "gpu-1", (("f/cpu", "cpu-0"),)))]
