"""A capacity policy is asked again and again; what it decides is carried out, one thing after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_worker.model_files.file_list import ModelFile
from gpu_worker.wire.protocol import Loaded, Message
from server.capacity.autoscaler import Autoscaler
from server.capacity.observed import FleetReader, model_of
from server.capacity.policy import (
    Action,
    Decision,
    Downgrade,
    Drop,
    Fleet,
    Replicate,
    State,
    Warm,
    WorkerDown,
    WorkerUp,
)
from server.capacity.prices import Price
from server.scheduling.latency_model import LatencyModel
from server.workers.pool import WorkerInfo
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_workforce import A, B, Shop


class Told:
    """A policy that answers what the test says, and remembers what it saw."""

    name = "told"
    every_s = 2.0

    def __init__(self) -> None:
        self.next: list[tuple[Action, ...]] = []
        self.seen: list[Fleet] = []
        self.fault: Exception | None = None

    def decide(self, fleet: Fleet, state: State) -> Decision:
        self.seen.append(fleet)
        if self.fault is not None:
            raise self.fault
        actions = self.next.pop(0) if self.next else ()
        return Decision(actions, {"asked": state.get("asked", 0) + 1})


class Profiled:
    """l̂ of every model."""

    def of_rows(self, model: object, form: object) -> LatencyModel:
        return LatencyModel({1: 0.01, 4: 0.02})


class FromDisk(FakeWorker):
    """Its loads come from the disk, after what is done once."""

    def _carried_out(self, message: Message) -> Message:
        reply = super()._carried_out(message)
        if isinstance(reply, Loaded):
            reply.load_s, reply.read_s, reply.prepare_s, reply.again_s = 5.0, 1.5, 3.0, 0.25
        return reply


class Scaled(Shop):
    """A shop that a policy watches over."""

    def __init__(self, *, prices: Mapping[str, Price] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.policy = Told()
        self.fleets = FleetReader(
            self.workforce,
            self.residency,
            self.house.dispatcher,
            Profiled(),  # type: ignore[arg-type]  # what is read of it
            self.house.metrics,
            prices,
        )
        self.autoscaler = Autoscaler(self.policy, self.fleets, self.workforce, self.residency, self.timeline)

    async def decide(self, *actions: Action) -> None:
        self.policy.next.append(actions)
        await self.autoscaler.step()

    async def acted(self) -> None:
        acting = self.autoscaler._acting
        assert acting is not None
        await asyncio.wait({acting})


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_policy_sees_the_rows_of_every_turn_that_is_over() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1, bounds="1:3")
        await settle()
        for _ in range(2):
            for row in "abc":
                shop.ask(row)
            await settle()
        assert [(one.name, one.arrived) for one in shop.fleets.read().functions] == [("a/1", 6), ("b/1", 0)]

    run(scenario)


def test_a_policy_sees_the_fleet_as_it_is() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1, bounds="1:3", prices={"cpu": Price(per_gb_s=2.0, per_hour=1.0)})
        await settle()
        pendings = [shop.ask(row) for row in "abc"]
        shop.training.busy.add("w0")
        fleet = shop.fleets.read()
        assert [(one.name, one.goal_s) for one in fleet.functions] == [("a/1", 0.05), ("b/1", 0.05)]
        assert fleet.functions[0].waiting == 3
        assert set(fleet.variants) == {"a/1@cpu", "b/1@cpu"}
        assert fleet.variants["a/1@cpu"].profile == ((1, 0.01), (4, 0.02))
        assert {(one.variant, one.worker, one.state) for one in fleet.copies} == {
            ("a/1@cpu", "w0", "ready"),
            ("b/1@cpu", "w0", "ready"),
        }
        (worker,) = fleet.workers.values()
        assert (worker.device, worker.state, worker.blocked) == ("cpu", "ready", True)
        kind = fleet.devices["cpu"]
        assert (kind.least, kind.most, kind.price_per_gb_s, kind.price_per_hour) == (1, 3, 2.0, 1.0)
        assert Fleet.from_json(fleet.to_json()) == fleet
        shop.house.dispatcher.remove(shop.f)
        assert [one.name for one in shop.fleets.read().functions] == ["b/1"]
        assert all(one.future.exception() for one in pendings)

    run(scenario)


def test_workers_that_join_and_leave_are_shown_as_such_and_counted() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1)
        await settle()
        await shop.decide(WorkerUp("cpu", reason="a jump"))
        await settle()
        assert shop.fleets.read().workers["w1"].state == "joining"
        shop.pool.up(FakeWorker("w1"))
        await shop.acted()
        assert shop.fleets.read().workers["w1"].state == "ready"
        await shop.decide(WorkerDown("w0", reason="idle"))
        assert shop.fleets.read().workers["w0"].state == "leaving" or not shop.pool.ended
        await shop.acted()
        assert set(shop.fleets.read().workers) == {"w1"}
        assert [(one.action, one.worker, one.by, one.reason) for one in shop.timeline.last()] == [
            ("worker_down", "w0", "told", "idle"),
            ("worker_up", "w1", "told", "a jump"),
        ]

    run(scenario)


def test_while_something_is_under_way_the_policy_sees_and_nothing_else_is_begun() -> None:
    async def scenario() -> None:
        shop = Scaled(bounds="1:3")
        await settle()
        await shop.decide(WorkerUp("cpu"))
        await settle()
        await shop.decide(WorkerUp("cpu"))
        await settle()
        assert len(shop.policy.seen) == 2
        assert sorted(shop.pool.statuses) == ["w0", "w1"]
        assert [one.is_done for one in shop.autoscaler.decided] == [True, False]
        shop.pool.up(FakeWorker("w1"))
        await shop.acted()

    run(scenario)


def test_what_may_not_be_is_not_begun() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1)
        await settle()
        await shop.decide(
            WorkerDown("w0"), Drop("a/1@cpu", "w0"), WorkerUp("cuda"), Replicate("z/1@cpu", "w0")
        )
        assert shop.autoscaler._acting is None
        assert not shop.timeline.last()
        assert shop.worker("w0").unloads == []

    run(scenario)


def test_copies_come_and_go_and_a_cheaper_one_takes_the_place_of_another() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=2)
        await settle()
        await shop.decide(Drop("a/1@cpu", "w1", reason="idle"))
        await shop.acted()
        assert shop.residency.resident() == {"w0": ["a/1", "b/1"], "w1": ["b/1"]}
        await shop.decide(Replicate("a/1@cpu", "w1", reason="more rows"))
        await shop.acted()
        assert shop.residency.resident()["w1"] == ["a/1", "b/1"]
        await shop.decide(Drop("b/1@cpu", "w1"))
        await shop.acted()
        await shop.decide(Downgrade("b/1@cpu", "w1", (("a/1@cpu", "w1"),)))
        await shop.acted()
        await shop.decide(Warm("a/1@cpu", "w1"))
        await shop.acted()
        assert shop.residency.resident() == {"w0": ["a/1", "b/1"], "w1": ["b/1"]}
        assert [(one.action, one.model, one.outcome) for one in reversed(shop.timeline.last())] == [
            ("drop", "a/1", "done"),
            ("replicate", "a/1", "done"),
            ("drop", "b/1", "done"),
            ("downgrade", "b/1", "done"),
            ("warm", "a/1", "refused"),
        ]
        assert model_of("a/1@cpu") == "a/1"

    run(scenario)


def test_a_policy_that_faults_begins_anew_and_the_server_goes_on() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1)
        await shop.decide()
        assert shop.autoscaler._state == {"asked": 1}
        shop.policy.fault = ZeroDivisionError("a bug")
        await shop.autoscaler.step()
        assert shop.autoscaler._state == {}
        shop.policy.fault = None
        await shop.decide(WorkerUp("cpu"))
        await settle()
        assert shop.state("w1") == "joining"
        shop.pool.up(FakeWorker("w1"))
        await shop.acted()

    run(scenario)


def test_no_worker_more_may_be_asked_for_while_one_that_was_given_up_is_paused() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1, patience_s=0.05)
        await shop.decide(WorkerUp("cpu"))
        await shop.acted()
        assert shop.state("w1") == "given up"
        assert shop.fleets.read().devices["cpu"].most == 1
        await shop.decide(WorkerUp("cpu"))
        await settle()
        assert sorted(shop.pool.statuses) == ["w0"]

    run(scenario)


def test_rows_over_their_goal_are_counted_for_the_models_that_they_ask() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1)
        await settle()
        assert shop.fleets.read().functions[0].late == 0
        shop.house.metrics.of(shop.f).over_goal_rows += 7
        assert [one.late for one in shop.fleets.read().functions] == [7, 0]

    run(scenario)


def test_a_policy_thinks_while_the_loop_goes_on() -> None:
    """It waits for what only the loop can do."""

    async def scenario() -> None:
        shop = Scaled(workers=1)
        loop_went_on = threading.Event()

        class Slow(Told):
            def decide(self, fleet: Fleet, state: State) -> Decision:
                assert loop_went_on.wait(10)
                return super().decide(fleet, state)

        shop.autoscaler._policy = Slow()
        asked = asyncio.ensure_future(shop.autoscaler.step())
        await settle()
        loop_went_on.set()
        await asked
        assert len(shop.autoscaler.decided) == 1

    run(scenario)


def test_decisions_are_read_while_others_are_made() -> None:
    """By a thread of the framework's, which a 500 would come of."""

    async def scenario() -> None:
        shop = Scaled(workers=1)
        await shop.autoscaler.step()
        reading = iter(shop.autoscaler.decided)
        await shop.autoscaler.step()
        assert len(list(reading)) == 1
        assert len(shop.autoscaler.decided) == 2

    run(scenario)


def test_what_lies_in_host_memory_alone_is_not_taken_from_there() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=0)
        host = {"b/1": 10}
        shop.pool.up(FromDisk("w0", info=WorkerInfo("sim:1GB,1", "simulated", 0), host=host))
        await settle()
        await shop.residency.unload_from("w0", "b/1")
        await shop.residency.check()
        assert [one.state for one in shop.fleets.read().copies if one.variant == "b/1@sim"] == ["warm"]
        await shop.decide(Drop("b/1@sim", "w0"))
        assert shop.autoscaler._acting is None
        assert not shop.timeline.last()

    run(scenario)


def test_a_model_that_was_loaded_nowhere_weighs_what_its_files_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = Scaled(workers=0)
        there = replace(A, directory=tmp_path, files=(ModelFile("weights"), ModelFile("words")))
        (tmp_path / "weights").write_bytes(bytes(700))
        (tmp_path / "words").write_bytes(bytes(34))
        shop.house.dispatcher.configure(replace(shop.f, members=(there,)))
        assert shop.fleets.read().variants["a/1@auto"].size_bytes == 734
        gone = replace(B, directory=tmp_path / "gone", files=(ModelFile("weights"),))
        shop.house.dispatcher.configure(replace(shop.g, members=(gone,)))
        assert shop.fleets.read().variants["b/1@auto"].size_bytes == 0
        remembered = replace(gone, resident_bytes=90)
        shop.house.dispatcher.configure(replace(shop.g, members=(remembered,)))
        assert shop.fleets.read().variants["b/1@auto"].size_bytes == 90

    run(scenario)


def test_where_the_host_keeps_models_a_load_from_there_is_told_from_one_from_the_disk() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=0)
        shop.pool.up(FromDisk("w0", info=WorkerInfo("sim:1GB,1", "a simulated device", 0)))
        await settle()
        seen = shop.fleets.read().variants["a/1@sim"]
        assert (seen.load_s, seen.warm_load_s) == (2.0, 0.25)
        plain = Scaled(workers=0)
        plain.pool.up(FromDisk("w0"))
        await settle()
        seen = plain.fleets.read().variants["a/1@cpu"]
        assert (seen.load_s, seen.warm_load_s) == (0.25, None)

    run(scenario)


def test_a_variant_of_which_nothing_has_changed_is_the_same_object() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1)
        await settle()
        once, again = shop.fleets.read(), shop.fleets.read()
        assert once.variants["a/1@cpu"] is again.variants["a/1@cpu"]

    run(scenario)


def test_prices_stand_before_any_worker_has_said_what_its_device_is() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=0, bounds="1:2", prices={"cpu": Price(per_gb_s=2.0)})
        (kind,) = shop.fleets.read().devices.values()
        assert (kind.name, kind.price_per_gb_s) == ("auto", 2.0)

    run(scenario)
