"""The map of residents is true, and no worker idle, whatever stalls, dies or is given up in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpu_worker.wire.protocol import Failed, Load, Unload
from server.catalog.functions import ModelVersion
from server.errors import Overloaded, WorkerLost
from server.placement.policies.greedy_dual import LfuDa
from server.placement.policies.value import ValueOfResidency
from server.placement.policy import Capacity, PlacementPolicy
from server.placement.residency import Residency
from server.workers.pool import Worker
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import text_model
from tests.unit.server.test_residency import A, B, C, Listener
from tests.waiting import until

PATIENCE_S = 0.2


class House:
    """A residency that is patient for 0.2 s with workers that hold two models."""

    def __init__(self, *workers: FakeWorker, models: int = 2, **fields: Any) -> None:
        self.listener = Listener()
        self.residency = Residency(
            self.listener,
            fields.pop("capacity", lambda worker: Capacity(max_models=models)),
            lambda *_: None,
            patience_s=PATIENCE_S,
            **fields,
        )
        for worker in workers:
            self.residency.worker_up(worker)

    def agrees(self, *workers: FakeWorker) -> bool:
        """Whether what is believed and announced is what the workers hold."""
        truth = {worker.name: sorted(worker.resident) for worker in workers}
        told = {name: sorted(keys) for name, keys in self.listener.resident.items()}
        return self.residency.resident() == told == truth


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_load_that_its_caller_gave_up_is_noted_with_what_left_for_it() -> None:
    async def scenario() -> None:
        worker = FakeWorker(cancels=False)
        house = House(worker, models=1)
        await house.residency.load((A,))
        worker.stalled = {Load}
        deploying = asyncio.ensure_future(house.residency.load((B,)))
        await settle()
        deploying.cancel()
        await settle()
        worker.stalled = set()
        worker.go_on()
        await settle()
        assert worker.resident == ["b/1"]
        assert house.agrees(worker)

    run(scenario)


def test_nothing_more_is_begun_for_a_caller_who_gave_up() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load}, cancels=False)
        house = House(worker)
        deploying = asyncio.ensure_future(house.residency.load((A, B)))
        await settle()
        deploying.cancel()
        await settle()
        worker.stalled = set()
        worker.go_on()
        await settle()
        assert worker.loads == ["a/1"]
        assert house.agrees(worker)
        await house.residency.load((C,))
        assert house.agrees(worker)

    run(scenario)


@pytest.mark.parametrize("kind", [Load, Unload])
def test_a_worker_that_stalls_is_killed_and_another_takes_over(kind: type[Load] | type[Unload]) -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first, models=1)
        await house.residency.load((A,))
        first.stalled = {kind}
        house.listener.waiting = [(B,)]
        house.residency.want((B,))
        await settle()
        house.residency.worker_up(second)
        await until(lambda: first.killed)
        house.residency.worker_down(first)
        await until(lambda: house.residency.is_resident((B,)))
        assert "over 0.2 s" in first.killed[0]
        assert "b/1" in second.resident
        assert house.agrees(second)
        assert house.listener.failed == []

    run(scenario)


def test_a_load_on_which_every_worker_stalls_fails_and_says_so() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        with pytest.raises(WorkerLost, match="loading a/1 took over"):
            await house.residency.load((A,))

    run(scenario)


def test_what_only_a_lost_worker_held_is_loaded_on_the_one_that_is_left() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first)
        await house.residency.load((A,))
        house.residency.worker_up(second)
        await settle()
        house.listener.waiting = [(A,)]
        house.residency.worker_down(first)
        await settle()
        assert second.resident == ["a/1"]

    run(scenario)


def test_rows_that_came_before_any_worker_hear_that_their_model_fits_on_none() -> None:
    async def scenario() -> None:
        house = House(capacity=lambda worker: Capacity(capacity_bytes=100))
        house.residency.know([text_model("a", resident_bytes=500)])
        house.listener.waiting = [(A,)]
        house.residency.worker_up(FakeWorker())
        await settle()
        ((group, error),) = house.listener.failed
        assert group == (A,)
        assert "do not fit" in error.message

    run(scenario)


def test_rows_that_came_before_any_worker_hear_that_workers_die_of_their_model() -> None:
    async def scenario() -> None:
        house = House()
        house.listener.waiting = [(A,)]
        lives = 0
        while not house.listener.failed and lives < 10:
            lives += 1
            worker = FakeWorker(stalled={Load})
            house.residency.worker_up(worker)
            await settle()
            house.residency.worker_down(worker)
            for message, on_reply in worker.held:
                on_reply(Failed(message.id, "worker_lost", "its socket closed"))
            await settle()
        ((group, error),) = house.listener.failed
        assert group == (A,)
        assert isinstance(error, WorkerLost)

    run(scenario)


@pytest.mark.parametrize("policy", [ValueOfResidency, LfuDa])
def test_what_rows_wanted_that_are_gone_is_loaded_for_those_that_come_next(
    policy: type[PlacementPolicy],
) -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker, models=1, policy=policy())
        await house.residency.load((A,))
        house.residency.want((B,))
        await settle()
        assert worker.resident == ["a/1"], "nobody waits for it"
        house.listener.waiting = [(B,)]
        house.residency.want((B,))
        await settle()
        assert worker.resident == ["b/1"]

    run(scenario)


def test_a_model_is_spread_though_rows_wanted_another_and_are_gone() -> None:
    async def scenario() -> None:
        house = House(FakeWorker(), models=1, policy=ValueOfResidency())
        await house.residency.load((A,))
        house.residency.want((B,))
        await asyncio.wait_for(house.residency.spread((C,)), 5)
        assert not house.residency.is_resident((C,)), "there is no room"

    run(scenario)


def test_what_only_a_doubtful_worker_holds_is_loaded_elsewhere() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first, second)
        await house.residency.load((A,))
        holder, other = (first, second) if first.resident else (second, first)
        house.residency.want((A,), without=frozenset({other.name}))
        await settle()
        assert other.resident == []
        house.residency.want((A,), without=frozenset({holder.name}))
        await settle()
        assert other.resident == ["a/1"]
        house.residency.want((B,), without=frozenset({"w0", "w1"}))
        await settle()
        assert not house.residency.is_resident((B,)), "there is nobody to count on"

    run(scenario)


def test_a_worker_that_dies_while_it_loads_is_never_announced_again() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        house.residency.want((A,))
        await settle()
        house.residency.worker_down(worker)
        worker.go_on()  # its last word was under way
        await settle()
        assert house.listener.resident == {}
        assert house.residency.resident() == {}
        assert not house.residency.is_resident((A,))

    run(scenario)


def test_a_worker_that_dies_under_the_first_rows_of_a_model_is_not_announced() -> None:
    async def scenario() -> None:
        worker = FakeWorker()

        async def profile(_: Worker, model: ModelVersion, waited: Callable[[], bool]) -> None:
            house.residency.worker_down(worker)

        house = House(worker, profile=profile)
        house.residency.want((A,))
        await settle()
        assert worker.resident == ["a/1"]
        assert house.listener.resident == {}
        assert house.residency.resident() == {}

    run(scenario)


def test_a_load_that_fails_after_others_left_for_it_leaves_the_map_true() -> None:
    async def scenario() -> None:
        worker = FakeWorker(unloadable={"b/1": "overloaded"})
        house = House(worker, models=1)
        await house.residency.load((A,))
        house.residency.want((B,))
        await settle()
        assert worker.resident == []
        assert house.agrees(worker)

    run(scenario)


def test_members_that_a_worker_refuses_again_and_again_do_not_count_as_loaded() -> None:
    class Growing(FakeWorker):
        def size(self, model: str) -> int:
            return 10 + len(self.loads)

    async def scenario() -> None:
        worker = Growing(capacity_bytes=1)
        house = House(worker)
        with pytest.raises(Overloaded, match="workers do not keep a/1, b/1 together"):
            await house.residency.load((A, B))
        assert len(worker.loads) <= 5
        assert house.agrees(worker)

    run(scenario)


def test_a_model_that_is_larger_than_was_known_gets_its_room_in_the_end() -> None:
    async def scenario() -> None:
        # b is refused, since c is in the way; once its size is known, c leaves for it.
        worker = FakeWorker(sizes={"a/1": 40, "b/1": 40, "c/1": 40}, capacity_bytes=100)
        house = House(worker, capacity=lambda worker: Capacity(capacity_bytes=100))
        await house.residency.load((C,))
        await house.residency.load((A, B))
        assert sorted(worker.resident) == ["a/1", "b/1"]
        assert worker.unloads == ["c/1"]
        assert house.agrees(worker)

    run(scenario)


def test_unloading_goes_on_past_a_worker_that_is_gone() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first, second)
        await house.residency.load((A,))
        await house.residency.spread((A,))
        first.stalled = {Unload}
        await house.residency.unload(["a/1"])
        assert first.killed
        assert second.resident == []

    run(scenario)


def test_a_closed_residency_begins_nothing() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await house.residency.close()
        house.residency.want((text_model("late"),))
        await settle()
        assert worker.loads == []

    run(scenario)


def test_a_load_waits_for_a_worker_and_not_for_ever() -> None:
    async def scenario() -> None:
        house = House()
        with pytest.raises(Overloaded, match="no worker is up"):
            await house.residency.load((A,))

    run(scenario)
