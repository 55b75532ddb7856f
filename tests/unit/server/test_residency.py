"""Models come and go on workers: loaded together, evicted in order, never lost track of."""

from __future__ import annotations

import asyncio
import logging
import time
import tracemalloc
from collections.abc import Iterable, Mapping

import pytest

from gpu_worker.wire.protocol import Message
from server.errors import BadOption, ServiceError, WorkerLost
from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policy import Capacity, PlacementDecision, PlacementState, WaitingRows
from server.placement.residency import Group, Residency
from server.workers.pool import OnReply, Worker
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import text_model
from tests.waiting import until

A, B, C = (text_model(name) for name in "abc")


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.resident: dict[str, frozenset[str]] = {}
        self.failed: list[tuple[Group, ServiceError]] = []
        self.waiting: list[Group] = []

    def resident_changed(self, worker: Worker, resident: frozenset[str]) -> None:
        self.resident[worker.name] = resident

    def load_failed(self, group: Group, error: ServiceError) -> None:
        self.failed.append((group, error))

    def worker_lost(self, worker: Worker) -> None:
        del self.resident[worker.name]

    def waited_for(self) -> Iterable[Group]:
        return self.waiting

    def demand(self) -> Mapping[Group, WaitingRows]:
        return dict.fromkeys(self.waiting, WaitingRows(1))


class House:
    """A residency with room for `models` models on each worker."""

    def __init__(self, models: int = 2) -> None:
        self.listener = Listener()
        self.measured: list[tuple[str, int]] = []
        self.groups: tuple[Group, ...] = ()
        self.residency = Residency(
            self.listener,
            lambda worker: Capacity(max_models=models),
            lambda model, size, seconds: self.measured.append((model.key, size)),
            starting=lambda: self.groups,
        )

    def starting(self, *groups: Group) -> None:
        self.groups = groups


def test_a_fresh_worker_is_filled_in_order_of_recent_use_until_full() -> None:
    async def scenario() -> None:
        house = House(models=2)
        house.residency.know([text_model("b", last_used_at=5.0), text_model("c", last_used_at=9.0)])
        house.starting((A,), (B,), (C,))
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await settle()
        assert worker.loads == ["c/1", "b/1"]
        assert house.listener.resident["w0"] == {"b/1", "c/1"}
        assert house.measured == [("c/1", 10), ("b/1", 10)]

    asyncio.run(scenario())


def test_what_rows_wait_for_is_loaded_first() -> None:
    async def scenario() -> None:
        house = House()
        house.starting((A,), (B,), (C,))
        house.listener.waiting = [(C,)]
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await settle()
        assert worker.loads[0] == "c/1"

    asyncio.run(scenario())


def test_a_wanted_model_replaces_the_least_recently_used() -> None:
    async def scenario() -> None:
        house = House(models=2)
        house.starting((A,), (B,))
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await settle()
        house.residency.touch(["a/1"])
        house.residency.want((C,))
        await settle()
        assert worker.unloads == ["b/1"]
        assert house.listener.resident["w0"] == {"a/1", "c/1"}

    asyncio.run(scenario())


def test_an_evicted_model_is_out_of_sight_before_its_worker_hears_of_it() -> None:
    async def scenario() -> None:
        house = House(models=1)
        house.starting((A,))
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await settle()
        seen: list[frozenset[str]] = []
        original = worker._carried_out

        def watched(message: object) -> object:
            seen.append(house.listener.resident["w0"])
            return original(message)  # type: ignore[arg-type]

        worker._carried_out = watched  # type: ignore[method-assign, assignment]
        house.residency.want((B,))
        await settle()
        assert seen[0] == frozenset()

    asyncio.run(scenario())


def test_the_members_of_a_group_end_up_on_one_worker() -> None:
    async def scenario() -> None:
        house = House(models=2)
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house.residency.worker_up(first)
        house.residency.worker_up(second)
        await house.residency.load((A,))
        await house.residency.load((A, B))
        await house.residency.load((C,))
        assert sorted(first.resident) == ["a/1", "b/1"]
        assert second.resident == ["c/1"]
        assert house.residency.is_resident((A, B))
        assert not house.residency.is_resident((A, C))

    asyncio.run(scenario())


def test_a_model_wanted_twice_is_loaded_once() -> None:
    async def scenario() -> None:
        house = House()
        worker = FakeWorker()
        house.residency.worker_up(worker)
        for _ in range(3):
            house.residency.want((A,))
        await settle()
        house.residency.want((A,))
        await settle()
        assert worker.loads == ["a/1"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "error"), [("bad_option", BadOption), ("internal", ServiceError), ("worker_lost", WorkerLost)]
)
def test_a_load_that_fails_is_told_with_its_reason(
    code: str, error: type[ServiceError], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        house = House()
        house.residency.worker_up(FakeWorker(unloadable={"a/1": code}))
        house.residency.want((A,))
        await settle()
        ((group, told),) = house.listener.failed
        assert group == (A,)
        assert type(told) is error
        assert "model a/1 cannot be loaded" in told.message

    asyncio.run(scenario())
    assert f"load failed worker=w0 model=a/1 code={code} reason='it cannot be loaded'" in caplog.text


def test_a_model_of_which_two_workers_died_is_not_loaded_unasked_again() -> None:
    async def scenario() -> None:
        house = House()
        house.starting((A,), (B,))
        loads = []
        for life in range(3):
            worker = FakeWorker(unloadable={"a/1": "worker_lost"} if life < 2 else {})
            house.residency.worker_up(worker)
            await settle()
            house.residency.worker_down(worker)
            loads.append(worker.loads)
        assert loads == [["a/1"], ["a/1"], ["b/1"]]

    asyncio.run(scenario())


def test_a_group_that_can_never_fit_is_refused() -> None:
    async def scenario() -> None:
        house = House(models=1)
        house.residency.worker_up(FakeWorker())
        with pytest.raises(BadOption, match="do not fit"):
            await house.residency.load((A, B))

    asyncio.run(scenario())


def test_two_models_that_rows_wait_for_take_turns_in_one_place() -> None:
    async def scenario() -> None:
        house = House(models=1)
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await house.residency.load((A,))
        house.listener.waiting = [(A,), (B,)]
        house.residency.want((B,))
        await until(lambda: len(worker.loads) == 3)
        house.listener.waiting = []
        await settle()
        assert worker.loads[:3] == ["a/1", "b/1", "a/1"]  # the next may have begun by now
        await house.residency.close()

    asyncio.run(scenario())


def test_a_model_that_must_wait_for_its_place_asks_for_it_when_it_may_be_free_and_not_before() -> None:
    async def scenario() -> None:
        listener, asked = Listener(), list[float]()

        class Counted(LeastRecentlyUsed):
            def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
                asked.append(now_s)
                return super().decide(state, now_s)

        residency = Residency(
            listener, lambda worker: Capacity(max_models=1), lambda *_: None, policy=Counted()
        )
        residency.worker_up(FakeWorker())
        await residency.load((A,))
        listener.waiting = [(A,), (B,)]
        asked.clear()
        await asyncio.wait_for(residency.load((B,)), 10)
        assert 2 <= len(asked) <= 6
        listener.waiting = []
        await residency.close()

    asyncio.run(scenario())


def test_sizes_that_the_registry_remembers_count_before_the_first_load() -> None:
    async def scenario() -> None:
        listener, worker = Listener(), FakeWorker(sizes={"a/1": 60, "b/1": 60})
        residency = Residency(
            listener,
            lambda worker: Capacity(capacity_bytes=100),
            lambda *_: None,
            starting=lambda: [(A,), (B,)],
        )
        residency.know([text_model("a", resident_bytes=60), text_model("b", resident_bytes=60)])
        residency.worker_up(worker)
        await settle()
        assert worker.loads == ["a/1"]

    asyncio.run(scenario())


def test_it_says_when_each_model_was_last_used() -> None:
    async def scenario() -> None:
        house, before_s = House(), time.time()
        house.residency.know([text_model("a", last_used_at=5.0), text_model("b", last_used_at=9.0)])
        house.residency.touch(["b/1", "c/1"])
        used = house.residency.last_used()
        assert used["a/1"] == 5.0
        assert before_s <= used["b/1"] == used["c/1"] <= time.time()

    asyncio.run(scenario())


def test_a_lost_worker_takes_its_models_along_and_its_successor_is_filled_again() -> None:
    async def scenario() -> None:
        house = House()
        house.starting((A,))
        first, second = FakeWorker(), FakeWorker()
        house.residency.worker_up(first)
        assert not house.residency.holds_anything()
        await settle()
        assert house.residency.holds_anything()
        house.residency.worker_down(first)
        assert not house.residency.holds_anything()
        assert house.listener.resident == {}
        house.residency.worker_up(second)
        await settle()
        house.residency.worker_down(first)  # late news of the old one
        assert second.resident == ["a/1"]
        assert house.residency.is_resident((A,))

    asyncio.run(scenario())


def test_a_load_waits_for_a_worker_to_come_up() -> None:
    async def scenario() -> None:
        house = House()
        loading = asyncio.ensure_future(house.residency.load((A,)))
        await settle()
        assert not loading.done()
        house.residency.worker_up(FakeWorker())
        await asyncio.wait_for(loading, 5)

    asyncio.run(scenario())


def test_spreading_fills_free_places_and_evicts_nobody() -> None:
    async def scenario() -> None:
        house = House(models=1)
        full, free = FakeWorker("w0"), FakeWorker("w1")
        house.residency.worker_up(full)
        house.residency.worker_up(free)
        await house.residency.load((A,))
        await house.residency.spread((B,))
        assert (full.resident, free.resident) == (["a/1"], ["b/1"])
        assert full.unloads == []

    asyncio.run(scenario())


def test_what_a_worker_says_it_does_not_hold_is_believed() -> None:
    async def scenario() -> None:
        house = House()
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await house.residency.load((A,))
        house.residency.not_there(worker, ["a/1"])
        assert not house.residency.is_resident((A,))
        assert house.listener.resident["w0"] == frozenset()

    asyncio.run(scenario())


def test_unloading_takes_a_model_from_every_worker() -> None:
    async def scenario() -> None:
        house = House()
        workers = [FakeWorker("w0"), FakeWorker("w1")]
        for worker in workers:
            house.residency.worker_up(worker)
        await house.residency.load((A,))
        await house.residency.spread((A,))
        assert [worker.resident for worker in workers] == [["a/1"], ["a/1"]]
        await house.residency.unload(["a/1", "never/1"])
        assert [worker.resident for worker in workers] == [[], []]

    asyncio.run(scenario())


def test_a_load_outlives_a_worker_that_comes_and_goes_in_one_turn() -> None:
    async def scenario() -> None:
        house = House()
        loading = asyncio.ensure_future(house.residency.load((A,)))
        await settle()
        brief = FakeWorker("w0")
        house.residency.worker_up(brief)
        house.residency.worker_down(brief)
        await settle()
        assert not loading.done()
        house.residency.worker_up(FakeWorker("w1"))
        await asyncio.wait_for(loading, 5)

    asyncio.run(scenario())


def test_whatever_a_load_dies_of_those_who_wait_for_it_hear_it() -> None:
    async def scenario() -> None:
        house = House()
        house.residency.worker_up(BrokenWorker())
        await settle()
        house.residency.want((A,))
        await settle()
        ((group, error),) = house.listener.failed
        assert group == (A,)
        assert "a/1 cannot be loaded: RuntimeError('a bug')" in error.message

    asyncio.run(scenario())


class BrokenWorker(FakeWorker):
    def send(self, message: Message, on_reply: OnReply) -> int:
        raise RuntimeError("a bug")


def test_members_that_no_worker_can_hold_together_are_loaded_apart_and_only_then() -> None:
    async def scenario() -> None:
        house = House(models=2)
        workers = [FakeWorker("w0"), FakeWorker("w1")]
        for worker in workers:
            house.residency.worker_up(worker)
        await house.residency.load((A, B))
        assert sum({"a/1", "b/1"} <= set(worker.resident) for worker in workers) >= 1
        await house.residency.load((A, B, C))
        assert house.residency.is_resident((A, B, C))
        held = [set(worker.resident) for worker in workers]
        assert set.union(*held) == {"a/1", "b/1", "c/1"}
        assert all(len(models) <= 2 for models in held)

    asyncio.run(scenario())


def test_what_members_apart_need_of_a_worker_that_is_gone_waits_until_it_is_back() -> None:
    async def scenario() -> None:
        house = House(models=2)
        workers = [FakeWorker("w0"), FakeWorker("w1")]
        for worker in workers:
            house.residency.worker_up(worker)
        await house.residency.load((A, B, C))
        house.listener.waiting = [(A, B, C)]
        house.residency.worker_down(workers[1])
        await settle()
        assert not house.residency.is_resident((A, B, C))
        assert house.listener.failed == [], "it comes again"
        house.residency.worker_up(FakeWorker("w1"))
        await until(lambda: house.residency.is_resident((A, B, C)), 5)

    asyncio.run(scenario())


def test_what_is_kept_of_models_does_not_grow_with_versions_that_are_no_more() -> None:
    house, worker = House(models=2), FakeWorker()

    async def versions(first: int, last: int) -> None:
        for number in range(first, last):
            model = text_model(f"m{number}")
            house.residency.serve(model.key, (model,), 0.5, [lambda rows: 0.01], 8, in_part=False)
            await house.residency.load((model,))
            house.residency.arrived((model,), 1)
            house.residency.touch([model.key], 1, worker.name)
            house.residency.idle([model.key], worker)
            house.residency.serve_no_more(model.key)
            await settle()
        for kept in (worker.loads, worker.unloads, house.measured):
            kept.clear()

    async def scenario() -> None:
        house.residency.worker_up(worker)
        await versions(0, 270)  # as many moves as are remembered
        held = set(house.residency.resident()["w0"])
        assert len(held) == 2
        assert set(house.residency.last_used()) == held, "of the others nothing is known any more"
        assert house.residency.rows_per_s("m0/1") == 0.0
        tracemalloc.start()
        await versions(270, 290)
        before, _ = tracemalloc.get_traced_memory()
        await versions(290, 390)
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 100 * 700, "bytes: what the link did in the last minute"

    logging.disable(logging.CRITICAL)  # what tests keep of it grows
    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)
