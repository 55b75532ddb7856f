"""Workers join and leave while rows flow: no row is lost, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpu_worker.wire.protocol import Load
from server.capacity.timeline import Timeline
from server.capacity.workforce import Change, Workforce
from server.errors import BadOption, Overloaded
from server.placement.policy import Capacity
from server.placement.residency import Residency
from server.serving.calls import PendingReply
from server.settings import WorkerBounds
from server.workers.pool import WorkerListener, WorkerStatus
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until

A, B = text_model("a"), text_model("b")


@dataclass
class FakePool:
    """Workers in memory, which come up when the test says so."""

    listener: WorkerListener
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    statuses: dict[str, WorkerStatus] = field(default_factory=dict)

    async def start(self, listener: WorkerListener) -> None: ...

    async def close(self) -> None: ...

    def states(self) -> list[WorkerStatus]:
        return list(self.statuses.values())

    def add(self, numbers: Iterable[int]) -> str:
        name = next(name for name in (f"w{number}" for number in numbers) if name not in self.statuses)
        self.statuses[name] = WorkerStatus(name, "starting", None, 0, None, "")
        return name

    def number(self, name: str) -> int:
        return int(name.removeprefix("w"))

    def retire(self, name: str) -> None:
        self.retired.add(name)

    def keep(self, name: str) -> None:
        self.retired.discard(name)

    async def end(self, name: str) -> None:
        self.ended.append(name)
        if name in self.workers:
            self.kill(name)
        del self.statuses[name]

    async def move(self, name: str) -> None:
        self.moved.append(name)
        if name in self.workers:
            self.kill(name)

    def drain(self, node: str) -> list[str]:
        if node != "gpu-b":
            raise KeyError(node)
        self.drained.add(node)
        return sorted(self.workers)[1:]

    def undrain(self, node: str) -> None:
        self.drained.remove(node)

    def up(self, worker: FakeWorker) -> FakeWorker:
        self.workers[worker.name] = worker
        old = self.statuses.get(worker.name, WorkerStatus(worker.name, "up", 1, 0, None, ""))
        self.statuses[worker.name] = replace(old, state="up", info=worker.info)
        self.listener.worker_up(worker)
        return worker

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        self.statuses[name] = replace(self.statuses[name], state="down", last_error="exit status -9")
        self.listener.worker_down(worker)
        while worker.batches:
            worker.fail()


@dataclass
class FakeTraining:
    """Trials that the test says are under way."""

    busy: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)

    def withdraw(self, name: str) -> None:
        self.withdrawn.add(name)

    def readmit(self, name: str) -> None:
        self.withdrawn.discard(name)

    def is_busy(self, name: str) -> bool:
        return name in self.busy


class Shop:
    """A house whose workers join and leave, with functions f of model a and g of model b."""

    def __init__(
        self, bounds: str = "1:2", *, workers: int = 1, models: int = 2, patience_s: float = 30.0
    ) -> None:
        self.house = House()
        self.house.dispatcher.remove(self.house.function)
        dispatcher = self.house.dispatcher
        self.residency = dispatcher.residency = self.house.residency = Residency(
            dispatcher,
            lambda worker: Capacity(max_models=models),
            lambda *_: None,
            workers=workers,
            starting=lambda: [f.asked for f in dispatcher.served()],
            check_every_s=0,
        )
        self.f = function(A, name="f", max_batch=4, batch_sizes=(1, 4), slo_ms=50.0)
        self.g = function(B, name="g", max_batch=4, batch_sizes=(1, 4), slo_ms=50.0)
        for one in (self.f, self.g):
            dispatcher.configure(one)
        self.pool = FakePool(self.residency)
        self.training = FakeTraining()
        self.timeline = Timeline()
        self.now_s = 0.0
        self.workforce = Workforce(
            self.pool,
            self.residency,
            dispatcher,
            self.training,
            WorkerBounds.of(bounds),
            ["auto"] * WorkerBounds.of(bounds).most,
            self.timeline,
            patience_s,
        )
        for number in range(workers):
            self.pool.up(FakeWorker(f"w{number}"))

    def state(self, name: str) -> str:
        return {status.name: status.state for status in self.workforce.states()}[name]

    def worker(self, name: str) -> FakeWorker:
        return self.pool.workers[name]

    def ask(self, *rows: str, **fields: Any) -> PendingReply:
        return self.house.ask(*rows, **{"function": self.f, **fields})

    def told(self) -> list[tuple[str, str, str]]:
        return [(one.action, one.worker, one.outcome) for one in reversed(self.timeline.last())]


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


async def over(change: Change) -> None:
    await asyncio.wait({change.done})


def test_a_worker_joins_and_takes_rows_once_its_models_are_loaded() -> None:
    async def scenario() -> None:
        shop = Shop()
        await settle()
        change = shop.workforce.join("the load grows", "ours")
        assert shop.state("w1") == "joining"
        joining = FakeWorker("w1", stalled={Load})
        shop.pool.up(joining)
        shop.ask("a"), shop.ask("b")
        await settle()
        assert not joining.batches, "what is not loaded there is not asked of it"
        assert shop.state("w1") == "joining"
        while joining.held:
            joining.go_on()
            await settle()
        await over(change)
        assert shop.state("w1") == "up"
        for _ in range(12):
            shop.ask("c")
        await until(lambda: joining.batches)
        assert shop.told() == [("worker_up", "w1", "done")]
        assert shop.workforce.joined == 1

    run(scenario)


def test_a_worker_leaves_once_its_models_are_elsewhere_and_its_rows_answered() -> None:
    async def scenario() -> None:
        shop = Shop(workers=2, models=1)
        await settle()
        (a_at,) = (name for name, held in shop.residency.resident().items() if held == ["a/1"])
        (b_at,) = {"w0", "w1"} - {a_at}
        waiting = shop.ask("x")
        await until(lambda: shop.worker(a_at).batches)
        change = shop.workforce.leave(a_at, "idle", "ours")
        assert shop.state(a_at) == "leaving"
        assert a_at in shop.pool.retired
        assert a_at in shop.training.withdrawn
        assert {place.worker for place in shop.residency.places()} == {"w0", "w1"}, "it is there yet"
        await settle()
        # Rows came for a of late: it is loaded where b is, for which none did.
        await until(lambda: shop.residency.resident()[b_at] == ["a/1"])
        late = shop.ask("y")
        await until(lambda: shop.worker(b_at).batches)
        assert not change.done.done(), "rows are on it"
        assert len(shop.worker(a_at).batches) == 1, "no new ones"
        shop.worker(a_at).answer()
        await over(change)
        assert shop.house.labels(waiting) == ["x"]
        shop.worker(b_at).answer()
        await settle()
        assert shop.house.labels(late) == ["y"]
        assert (shop.pool.ended, shop.told()) == ([a_at], [("worker_down", a_at, "done")])
        assert a_at not in {status.name for status in shop.workforce.states()}
        assert shop.workforce.left == 1

    run(scenario)


def test_a_drained_nodes_workers_move_one_after_the_other_once_their_rows_are_answered() -> None:
    async def scenario() -> None:
        shop = Shop("3", workers=3)
        await settle()
        waiting = [shop.ask(str(number)) for number in range(30)]
        await until(lambda: shop.worker("w1").batches)
        assert shop.workforce.drain("gpu-b", "it is to go", "ours") == ["w1", "w2"]
        change = shop.workforce.change
        assert change is not None
        assert shop.state("w1") == "moving"
        with pytest.raises(Overloaded, match="worker w1 moves"):
            shop.workforce.drain("gpu-b", "", "")
        await settle()
        assert shop.pool.moved == [], "it has rows"
        while shop.pool.moved != ["w1", "w2"]:
            for worker in list(shop.pool.workers.values()):
                if worker.batches:
                    worker.answer()
            await asyncio.sleep(0.01)
        await over(change)
        for name in ("w1", "w2"):
            assert shop.state(name) == "down"
            shop.pool.up(FakeWorker(name))
        await settle()
        while not all(each.future.done() for each in waiting):
            for worker in list(shop.pool.workers.values()):
                if worker.batches:
                    worker.answer()
            await asyncio.sleep(0.01)
        assert shop.told() == [("worker_moved", "w1", "done"), ("worker_moved", "w2", "done")]
        shop.workforce.undrain("gpu-b")
        assert shop.pool.drained == set()

    run(scenario)


def test_a_node_that_is_not_known_or_has_a_trial_is_not_drained() -> None:
    async def scenario() -> None:
        shop = Shop("2", workers=2)
        await settle()
        with pytest.raises(BadOption, match="there is no node 'gpu-z'; workers are on: no node"):
            shop.workforce.drain("gpu-z", "", "")
        shop.training.busy.add("w1")
        with pytest.raises(Overloaded, match="training works on w1; drain the node when the trial is over"):
            shop.workforce.drain("gpu-b", "", "")
        assert shop.pool.drained == set(), "it gets workers as before"

    run(scenario)


def test_a_worker_does_not_leave_with_what_has_no_room_elsewhere() -> None:
    async def scenario() -> None:
        shop = Shop(workers=2, models=1)
        await settle()
        for one in (shop.f, shop.g):
            shop.ask("x", function=one)
        await until(lambda: all(worker.batches for worker in shop.pool.workers.values()))
        for worker in shop.pool.workers.values():
            worker.answer()
        change = shop.workforce.leave("w1", "idle", "ours")
        await over(change)
        (entry,) = shop.timeline.last()
        assert entry.outcome == "failed"
        assert "no room for what rows are asked of" in entry.error
        assert (shop.state("w1"), shop.pool.retired, shop.training.withdrawn) == ("up", set(), set())
        later = [shop.ask("z", function=one) for one in (shop.f, shop.g)]
        await until(lambda: all(worker.batches for worker in shop.pool.workers.values()))
        for worker in shop.pool.workers.values():
            worker.answer()
        await settle()
        assert [shop.house.labels(one) for one in later] == [["z"], ["z"]], "it takes rows as before"

    run(scenario)


@pytest.mark.parametrize("when", ["loading elsewhere", "finishing"])
def test_of_a_worker_that_is_killed_as_it_leaves_no_row_is_lost(when: str) -> None:
    async def scenario() -> None:
        shop = Shop(workers=2)
        await settle()
        pendings = [shop.ask(str(number)) for number in range(6)]
        await until(lambda: shop.worker("w1").batches)
        if when == "loading elsewhere":
            shop.worker("w0").stalled.add(Load)
        change = shop.workforce.leave("w1", "idle", "ours")
        await settle()
        shop.pool.kill("w1")
        shop.worker("w0").answers = True
        shop.worker("w0").stalled.clear()
        while shop.worker("w0").batches:
            shop.worker("w0").answer()
            await settle()
        await over(change)
        await until(lambda: all(one.future.done() for one in pendings))
        assert [shop.house.labels(one) for one in pendings] == [[str(number)] for number in range(6)]
        assert shop.told() == [("worker_down", "w1", "done")]

    run(scenario)


def test_a_worker_that_is_killed_as_it_joins_may_come_again() -> None:
    async def scenario() -> None:
        shop = Shop()
        await settle()
        change = shop.workforce.join("asked for", "")
        shop.pool.up(FakeWorker("w1", stalled={Load}))
        await settle()
        shop.pool.kill("w1")
        await settle()
        assert shop.state("w1") == "joining"
        shop.pool.up(FakeWorker("w1"))
        await over(change)
        assert (shop.state("w1"), shop.told()) == ("up", [("worker_up", "w1", "done")])

    run(scenario)


def test_a_worker_that_never_gets_ready_is_given_up_and_not_tried_again_at_once() -> None:
    async def scenario() -> None:
        shop = Shop(patience_s=0.05)
        change = shop.workforce.join("the load grows", "ours")
        shop.pool.statuses["w1"] = replace(shop.pool.statuses["w1"], last_error="exit status 1")
        await over(change)
        assert shop.state("w1") == "given up"
        (given_up,) = (status for status in shop.workforce.states() if status.state == "given up")
        assert "not ready within 0.05 s (--worker-start-s): exit status 1" in given_up.last_error
        assert (shop.pool.ended, shop.told()) == (["w1"], [("worker_up", "w1", "given up")])
        assert 0 < shop.workforce.pause_left_s <= 60
        assert shop.workforce.gave_up == 1
        again = shop.workforce.join("by hand", "")  # who asks for it may try
        assert shop.state("w1") == "joining"
        await over(again)
        assert shop.workforce.pause_left_s > 60, "twice as long"

    run(scenario)


def test_what_cannot_be_is_refused_with_what_to_do() -> None:
    async def scenario() -> None:
        shop = Shop(workers=1)
        with pytest.raises(BadOption, match=r"--workers 1:2 allows no fewer.*smaller MIN"):
            shop.workforce.leave("w0", "", "")
        with pytest.raises(BadOption, match="no worker 'w7'; there are: w0"):
            shop.workforce.leave("w7", "", "")
        change = shop.workforce.join("", "")
        with pytest.raises(Overloaded, match="worker w1 joins; ask again when that is over"):
            shop.workforce.join("", "")
        shop.pool.up(FakeWorker("w1"))
        await over(change)
        with pytest.raises(BadOption, match=r"--workers 1:2 allows no more.*larger MAX"):
            shop.workforce.join("", "")
        shop.training.busy.add("w1")
        with pytest.raises(Overloaded, match=r"training works on w1.*pause"):
            shop.workforce.leave("w1", "", "")
        shop.training.busy.clear()
        shop.pool.kill("w0")
        with pytest.raises(Overloaded, match="no worker but w1 is up"):
            shop.workforce.leave("w1", "", "")
        assert shop.pool.ended == []

    run(scenario)


def test_a_trial_that_began_as_its_worker_was_asked_to_leave_is_awaited() -> None:
    async def scenario() -> None:
        shop = Shop(workers=2, patience_s=0.05)
        await settle()
        change = shop.workforce.leave("w1", "idle", "ours")
        shop.training.busy.add("w1")
        await asyncio.sleep(0.2)
        assert not change.done.done()
        assert shop.pool.ended == []
        shop.training.busy.clear()
        await over(change)
        assert shop.pool.ended == ["w1"]

    run(scenario)


def test_the_first_worker_may_leave_and_its_name_is_taken_again() -> None:
    async def scenario() -> None:
        shop = Shop(workers=2)
        await settle()
        await over(shop.workforce.leave("w0", "", ""))
        change = shop.workforce.join("", "")
        assert change.worker == "w0"
        fresh = shop.pool.up(FakeWorker("w0", answers=True))
        await over(change)
        assert sorted(fresh.resident) == ["a/1", "b/1"]
        shop.worker("w1").answers = True
        pendings = [shop.ask(str(number)) for number in range(8)]
        await until(lambda: all(one.future.done() for one in pendings))
        assert shop.state("w0") == "up"

    run(scenario)


@pytest.mark.parametrize(
    ("text", "bounds"), [("3", (3, 3)), ("1:4", (1, 4)), ("2:2", (2, 2)), ("auto", (0, 0)), ("0", (0, 0))]
)
def test_how_many_workers_is_a_number_or_two(text: str, bounds: tuple[int, int]) -> None:
    found = WorkerBounds.of(text)
    assert (found.least, found.most) == bounds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4:1", "at least 4 and at most 1; write 1:4"),
        ("0:2", "write 1:2"),
        ("0:0", "write N, MIN:MAX"),
        ("two", "write N, MIN:MAX"),
        ("1:2:3", "write N, MIN:MAX"),
        ("1:", "write N, MIN:MAX"),
        ("", "write N, MIN:MAX"),
        ("-1", "write N, MIN:MAX"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        WorkerBounds.of(text)
