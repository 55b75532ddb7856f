"""Models of sizes that the server does not know yet: what a real worker's cache does, the server knows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from gpu_worker.errors import WorkerError
from gpu_worker.model_cache import ModelCache, Resident
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.networks.network import Network
from gpu_worker.wire.protocol import Done, Failed, Load, Loaded, Message, Unload
from server.errors import BadOption, Overloaded
from server.placement.policy import Capacity
from server.placement.residency import Group, Residency
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import text_model
from tests.unit.server.test_residency import Listener

MANIFEST = Manifest("/m", "m", 1, "text-classification", "torch", "hashing", ("a",), InputSpec())
A, B, C = (text_model(name) for name in "abc")


@dataclass
class SizedBody:
    resident_bytes: int


class CachingWorker(FakeWorker):
    """Keeps models as a worker does: `stored` bytes are known before a load, `sizes` after it."""

    def __init__(self, capacity_bytes: int, sizes: dict[str, int], stored: dict[str, int]) -> None:
        super().__init__(sizes=sizes)
        self.cache = ModelCache(max_bytes=capacity_bytes, max_models=0)
        self.stored = stored
        self.in_use: dict[str, list[Resident]] = {}

    def use(self, key: str) -> None:
        """Rows for the model are in flight from now on."""
        self.in_use[key] = self.cache.acquire([key])

    def _carried_out(self, message: Message) -> Message:
        if isinstance(message, Unload):
            self.unloads.append(message.model)
            self.cache.release(self.in_use.pop(message.model, []))  # the server waits for the last row
            self.cache.remove(message.model)
            return Done(message.id)
        assert isinstance(message, Load)
        key = message.model
        self.loads.append(key)
        network = cast(Network, SizedBody(self.sizes[key]))
        try:
            self.cache.put(key, MANIFEST, self.stored[key], lambda: network)
        except WorkerError as exc:
            return Failed(message.id, exc.code, str(exc), wanted_bytes=exc.wanted_bytes)
        return Loaded(message.id, self.sizes[key], 0.001)


class House:
    def __init__(
        self, capacity_bytes: int, sizes: dict[str, int], stored: dict[str, int] | None = None
    ) -> None:
        self.listener = Listener()
        self.residency = Residency(
            self.listener,
            lambda worker: Capacity(capacity_bytes=capacity_bytes),
            lambda model, size, seconds: None,
            starting=lambda: (),
        )
        self.worker = CachingWorker(capacity_bytes, sizes, stored or dict.fromkeys(sizes, 1))
        self.residency.worker_up(self.worker)

    def assert_told_the_truth(self) -> None:
        assert self.listener.resident["w0"] == set(self.worker.cache.keys())


def test_members_that_do_not_fit_together_are_not_a_success() -> None:
    async def scenario() -> None:
        house = House(100, {"a/1": 60, "b/1": 60})
        with pytest.raises(BadOption, match="do not fit"):
            await house.residency.load((A, B))
        assert not house.residency.is_resident((A, B))
        house.assert_told_the_truth()

    asyncio.run(scenario())


def test_a_second_member_of_unknown_size_makes_room_among_others_and_not_by_the_first() -> None:
    async def scenario() -> None:
        house = House(100, {"a/1": 40, "b/1": 50, "c/1": 30})
        await house.residency.load((C,))
        await house.residency.load((A,))
        house.worker.cache.acquire(["c/1"])  # the most recently used now, on the worker alone
        house.worker.cache.release([house.worker.cache._models["c/1"]])
        await house.residency.load((A, B))
        assert house.residency.is_resident((A, B))
        house.assert_told_the_truth()

    asyncio.run(scenario())


def test_a_first_load_of_unknown_size_does_not_starve_beside_models_that_are_always_in_use() -> None:
    async def scenario() -> None:
        house = House(100, {"a/1": 60, "b/1": 30, "c/1": 70})
        for group in ((A,), (B,)):
            await house.residency.load(group)
        house.worker.use("a/1")
        house.worker.use("b/1")
        await house.residency.load((C,))
        assert house.residency.is_resident((C,))
        house.assert_told_the_truth()

    asyncio.run(scenario())


def test_what_left_for_a_load_that_failed_is_known_to_be_gone() -> None:
    async def scenario() -> None:
        house = House(100, {"a/1": 60, "c/1": 101}, {"a/1": 60, "c/1": 50})
        await house.residency.load((A,))
        with pytest.raises(BadOption):
            await house.residency.load((C,))
        assert house.worker.unloads == ["a/1"]
        assert house.worker.cache.keys() == []
        house.assert_told_the_truth()

    asyncio.run(scenario())


def test_spreading_a_model_of_unknown_size_evicts_nothing() -> None:
    async def scenario() -> None:
        house = House(100, {"a/1": 60, "c/1": 70})
        await house.residency.load((A,))
        await house.residency.spread((C,))
        assert house.worker.unloads == []
        assert house.worker.cache.keys() == ["a/1"]
        house.assert_told_the_truth()

    asyncio.run(scenario())


def test_a_group_whose_sizes_change_each_time_ends_with_an_error() -> None:
    class Growing(CachingWorker):
        def _carried_out(self, message: Message) -> Message:
            if isinstance(message, Load):
                self.loads.append(message.model)
                wanted_bytes = 10 + len(self.loads)
                return Failed(message.id, "overloaded", "no room", wanted_bytes=wanted_bytes)
            return super()._carried_out(message)

    async def scenario() -> None:
        house = House(100, {})
        house.residency.worker_down(house.worker)
        worker = Growing(100, {}, {})
        house.residency.worker_up(worker)
        group: Group = (A, B)
        with pytest.raises(Overloaded):
            await house.residency.load(group)
        await settle()
        assert len(worker.loads) <= 5

    asyncio.run(scenario())
