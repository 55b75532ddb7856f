"""A device that has no memory for a pass gets some: a model leaves it, and the rows are asked for again."""

from __future__ import annotations

import asyncio

from server.placement.core import Placement
from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policy import Capacity
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import text_model
from tests.waiting import until


async def beside(house: House, worker: FakeWorker, *names: str) -> None:
    """These models are on the worker too."""
    for name in names:
        await house.residency.load((text_model(name),))
    await settle()


def test_what_was_used_longest_ago_leaves_and_the_rows_are_answered() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker, slo_ms=60_000.0)
        await settle()
        await beside(house, worker, "old", "young")
        house.residency.touch(["old/1"])
        house.residency.touch(["young/1"])
        pending = house.ask("x")
        await settle()
        worker.fail("overloaded", "no memory left for a single row", wanted_bytes=1)
        await settle()
        assert worker.unloads == ["old/1"]
        assert "old/1" not in house.residency.resident()[worker.name]
        await until(lambda: worker.batches)
        worker.answer()
        await settle()
        assert house.labels(pending) == ["x"]

    asyncio.run(scenario())


def test_a_worker_that_refuses_more_batches_for_now_loses_no_model() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        await beside(house, worker, "old")
        house.ask("x")
        await settle()
        worker.fail("overloaded", "64 batches wait already")
        await settle()
        assert worker.unloads == []

    asyncio.run(scenario())


def placement() -> Placement:
    core = Placement(LeastRecentlyUsed(), apart=True, workers=1)
    core.worker_up("w", Capacity(capacity_bytes=100), "cuda")
    for turn, key in enumerate("abc"):
        core.loaded(0.0, "w", key, 30, 0.1)
        core.used(0.0, [key], float(turn))
    return core


def test_the_worker_holds_no_more_than_what_is_left() -> None:
    core = placement()
    assert core.crowded(0.0, "w", ["a"]) == "b"
    assert core.state(0.0, {}).workers["w"].capacity == Capacity(capacity_bytes=60)


def capacity_at(core: Placement, now_s: float) -> int:
    core.steps(now_s, {})
    return core.state(now_s, {}).workers["w"].capacity.capacity_bytes


def test_it_is_looked_at_again_when_it_may_hold_as_much_as_before() -> None:
    core = placement()
    core.crowded(5.0, "w", ["a"])
    assert core.steps(5.0, {})[1] == 65.0
    assert core.steps(65.0, {})[1] == float("inf")


def test_after_a_while_it_may_hold_as_much_as_before_and_each_time_that_takes_longer() -> None:
    core = placement()
    core.crowded(0.0, "w", ["a"])
    core.evicted("w", "b")
    core.crowded(1.0, "w", ["a"])  # still too much
    assert core.state(1.0, {}).workers["w"].capacity == Capacity(capacity_bytes=30)
    assert (capacity_at(core, 120.9), capacity_at(core, 121.0)) == (30, 100)
    core.evicted("w", "c")
    core.loaded(122.0, "w", "b", 30, 0.1)
    core.crowded(122.0, "w", ["a"])
    assert (capacity_at(core, 361.9), capacity_at(core, 362.0)) == (30, 100)


def test_a_worker_that_came_up_anew_is_as_large_as_it_says() -> None:
    core = placement()
    core.crowded(0.0, "w", ["a"])
    core.worker_down("w")
    core.worker_up("w", Capacity(capacity_bytes=80), "cuda")
    assert capacity_at(core, 60.0) == 80


def test_nothing_leaves_for_a_model_that_is_alone_or_while_something_leaves_already() -> None:
    core = placement()
    assert core.crowded(0.0, "w", ["a", "b", "c"]) == ""
    core.want(0.0, ("d",))
    core.know("d", 30)
    steps, _ = core.steps(0.0, {})
    assert steps[0].evict
    assert core.crowded(0.0, "w", ["c"]) == ""


def test_nothing_leaves_for_a_pass_of_models_that_have_left_themselves() -> None:
    core = placement()
    core.evicted("w", "c")
    core.evicted("w", "b")
    assert core.crowded(0.0, "w", ["c"]) == ""
    assert core.state(0.0, {}).workers["w"].capacity == Capacity(capacity_bytes=100)
