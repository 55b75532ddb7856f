"""A capacity policy is asked again and again; what it decides is carried out, one thing after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

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
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_workforce import Shop


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

    def decide(self, *actions: Action) -> None:
        self.policy.next.append(actions)
        self.autoscaler.step()

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
        shop.decide(WorkerUp("cpu", reason="a jump"))
        await settle()
        assert shop.fleets.read().workers["w1"].state == "joining"
        shop.pool.up(FakeWorker("w1"))
        await shop.acted()
        assert shop.fleets.read().workers["w1"].state == "ready"
        shop.decide(WorkerDown("w0", reason="idle"))
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
        shop.decide(WorkerUp("cpu"))
        await settle()
        shop.decide(WorkerUp("cpu"))
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
        shop.decide(WorkerDown("w0"), Drop("a/1@cpu", "w0"), WorkerUp("cuda"), Replicate("z/1@cpu", "w0"))
        assert shop.autoscaler._acting is None
        assert not shop.timeline.last()
        assert shop.worker("w0").unloads == []

    run(scenario)


def test_copies_come_and_go_and_a_cheaper_one_takes_the_place_of_another() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=2)
        await settle()
        shop.decide(Drop("a/1@cpu", "w1", reason="idle"))
        await shop.acted()
        assert shop.residency.resident() == {"w0": ["a/1", "b/1"], "w1": ["b/1"]}
        shop.decide(Replicate("a/1@cpu", "w1", reason="more rows"))
        await shop.acted()
        assert shop.residency.resident()["w1"] == ["a/1", "b/1"]
        shop.decide(Drop("b/1@cpu", "w1"))
        await shop.acted()
        shop.decide(Downgrade("b/1@cpu", "w1", (("a/1@cpu", "w1"),)))
        await shop.acted()
        shop.decide(Warm("a/1@cpu", "w1"))
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
        shop.decide()
        assert shop.autoscaler._state == {"asked": 1}
        shop.policy.fault = ZeroDivisionError("a bug")
        shop.autoscaler.step()
        assert shop.autoscaler._state == {}
        shop.policy.fault = None
        shop.decide(WorkerUp("cpu"))
        await settle()
        assert shop.state("w1") == "joining"
        shop.pool.up(FakeWorker("w1"))
        await shop.acted()

    run(scenario)


def test_no_worker_more_may_be_asked_for_while_one_that_was_given_up_is_paused() -> None:
    async def scenario() -> None:
        shop = Scaled(workers=1, patience_s=0.05)
        shop.decide(WorkerUp("cpu"))
        await shop.acted()
        assert shop.state("w1") == "given up"
        assert shop.fleets.read().devices["cpu"].most == 1
        shop.decide(WorkerUp("cpu"))
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
