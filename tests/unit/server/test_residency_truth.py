"""What is believed of a worker is held against its own word, and goes by that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpu_worker.wire.protocol import ListResidents, Load, Message, Read
from server.errors import ServiceError
from server.observability.moves import Moves
from server.placement.policy import Abort, Capacity, Fetch, PlacementDecision, PlacementState
from server.placement.residency import Residency
from server.workers.pool import WorkerInfo
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import text_model
from tests.unit.server.test_residency import A, B, C, Listener
from tests.unit.server.test_residency_faults import run
from tests.waiting import until


class House:
    """A residency that asks its workers only when a test says so."""

    def __init__(self, *workers: FakeWorker, models: int = 2, **fields: Any) -> None:
        self.listener = Listener()
        self.moves = Moves()
        self.residency = Residency(
            self.listener,
            lambda worker: Capacity(max_models=models),
            lambda *_: None,
            moves=self.moves,
            check_every_s=fields.pop("check_every_s", 0.0),
            **fields,
        )
        for worker in workers:
            self.residency.worker_up(worker)

    def agrees(self, *workers: FakeWorker) -> bool:
        truth = {worker.name: sorted(worker.resident) for worker in workers}
        told = {name: sorted(keys) for name, keys in self.listener.resident.items()}
        return self.residency.resident() == told == truth

    def moved(self, outcome: str = "done") -> list[tuple[str, str, str]]:
        """Kind, model and reason of what has moved, the oldest first."""
        return [
            (move.kind, move.model, move.why)
            for move in reversed(self.moves.last())
            if move.outcome == outcome
        ]


# ── the worker's word ─────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_a_worker_has_lost_is_no_longer_believed_to_be_there() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await house.residency.load((A,))
        worker.resident.clear()
        await house.residency.check()
        assert house.agrees(worker)
        assert house.moves.differences == {"missing": 1}
        assert house.moved()[-1] == ("eviction", "a/1", "was not there")

    run(scenario)


def test_a_lost_model_that_rows_wait_for_is_loaded_again() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await house.residency.load((A,))
        house.listener.waiting = [(A,)]
        worker.resident.clear()
        await house.residency.check()
        await settle()
        assert worker.loads == ["a/1", "a/1"]
        assert house.agrees(worker)

    run(scenario)


def test_a_model_that_nobody_knew_of_leaves() -> None:
    async def scenario() -> None:
        worker = FakeWorker(resident=["stray/1"])
        house = House(worker)
        await house.residency.load((A,))
        await house.residency.check()
        await settle()
        assert worker.unloads == ["stray/1"]
        assert house.agrees(worker)
        assert house.moves.differences == {"unknown": 1}
        assert house.moved()[-1] == ("eviction", "stray/1", "was not known of")

    run(scenario)


def test_a_worker_that_says_again_and_again_what_it_does_not_hold_costs_an_eviction_each_time() -> None:
    class Liar(FakeWorker):
        def _carried_out(self, message: Message) -> Message:
            reply = super()._carried_out(message)
            if isinstance(message, ListResidents):
                reply.device["stray/1"] = 10  # type: ignore[attr-defined]  # a ResidentsListed
            return reply

    async def scenario() -> None:
        worker = Liar()
        house = House(worker)
        await house.residency.load((A,))
        for _ in range(3):
            await house.residency.check()
            await settle()
        assert worker.unloads == ["stray/1"] * 3
        assert house.moves.differences == {"unknown": 3}
        assert house.agrees(worker)

    run(scenario)


def test_what_moves_while_a_worker_is_asked_is_no_difference() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load, ListResidents})
        house = House(worker)
        loading = asyncio.ensure_future(house.residency.load((A,)))
        await settle()
        checking = asyncio.ensure_future(house.residency.check())
        await settle()
        worker.held.reverse()
        worker.go_on()  # it says that it holds nothing,
        worker.go_on()  # and then it has loaded
        await asyncio.gather(loading, checking)
        await settle()
        assert house.moves.differences == {}
        assert house.agrees(worker)

    run(scenario)


def test_a_worker_is_asked_every_few_seconds_while_it_lives() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker, check_every_s=0.01)
        await house.residency.load((A,))
        worker.resident.clear()
        await until(lambda: house.residency.resident() == {"w0": []})
        house.residency.worker_down(worker)

    run(scenario)


# ── loads that are given up ───────────────────────────────────────────────────────────────────────────────


def test_a_load_whose_caller_has_left_is_given_up_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker, models=1)
        deploying = asyncio.ensure_future(house.residency.load((A,)))
        await settle()
        deploying.cancel()
        await settle()
        assert worker.cancelled
        assert worker.held == []
        assert house.agrees(worker)
        assert house.listener.failed == []
        assert house.moved("given up") == [("load", "a/1", "wanted")]
        worker.stalled = set()
        await house.residency.load((B,))
        assert house.agrees(worker)

    run(scenario)


def test_a_load_that_rows_wait_for_too_goes_on_without_its_caller() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        house.listener.waiting = [(A,)]
        deploying = asyncio.ensure_future(house.residency.load((A,)))
        await settle()
        deploying.cancel()
        await settle()
        assert worker.cancelled == []

    run(scenario)


def test_a_load_that_another_caller_waits_for_goes_on() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        first = asyncio.ensure_future(house.residency.load((A,)))
        second = asyncio.ensure_future(house.residency.load((A, B)))
        await settle()
        first.cancel()
        await settle()
        assert worker.cancelled == []
        worker.stalled = set()
        worker.go_on()
        await second
        assert house.agrees(worker)

    run(scenario)


def test_an_unload_does_not_wait_for_the_load_that_it_undoes() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        house.residency.want((A,))
        await settle()
        await house.residency.unload(["a/1"])
        await settle()
        assert worker.cancelled
        assert worker.resident == []
        assert house.agrees(worker)

    run(scenario)


def test_what_only_a_function_that_is_gone_wanted_is_given_up() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        for name in ("f", "g"):
            house.residency.serve(name, (A,), 1.0, [lambda rows: 0.01], 8, in_part=False)
        house.residency.want((A,))
        await settle()
        house.residency.serve_no_more("f")
        await settle()
        assert worker.cancelled == [], "another function has the same model"
        house.residency.serve_no_more("g")
        await settle()
        assert worker.cancelled
        assert house.agrees(worker)

    run(scenario)


def test_a_policy_gives_up_a_load_for_another() -> None:
    class Fickle:
        """Begins with a, gives it up, and loads b."""

        name = "fickle"

        def __init__(self) -> None:
            self.turn = 0

        def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
            moving = state.workers["w0"].moving if "w0" in state.workers else None
            if moving is not None and moving.loading == "a/1" and not moving.aborted:
                return PlacementDecision((Abort("w0", "a/1", "successor of", "z/1"),))
            if moving is None and self.turn < 2 and "w0" in state.workers:
                self.turn += 1
                model = "a/1" if self.turn == 1 else "b/1"
                return PlacementDecision((Fetch("w0", model, "rows waited"),))
            return PlacementDecision()

    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker, policy=Fickle())
        house.residency.want((A,))
        await settle()
        house.residency.want((B,))
        await settle()
        worker.stalled = set()
        while worker.held:
            worker.go_on()
        await settle()
        assert len(worker.cancelled) == 1
        assert worker.resident == ["b/1"]
        assert house.agrees(worker)
        assert house.moved("given up") == [("load", "a/1", "rows waited")]
        assert house.moved() == [("load", "b/1", "rows waited")]

    run(scenario)


def test_a_load_that_ends_before_its_worker_hears_of_the_cancel_counts() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load}, cancels=False)
        house = House(worker)
        deploying = asyncio.ensure_future(house.residency.load((A,)))
        await settle()
        deploying.cancel()
        await settle()
        assert worker.cancelled
        worker.go_on()
        await settle()
        assert worker.resident == ["a/1"]
        assert house.agrees(worker)

    run(scenario)


def test_a_worker_that_gives_up_loads_by_itself_has_failed() -> None:
    async def scenario() -> None:
        house = House(FakeWorker(unloadable={"a/1": "cancelled"}))
        with pytest.raises(ServiceError, match="model a/1 cannot be loaded"):
            await house.residency.load((A,))

    run(scenario)


# ── the next one is read ahead ──────────────────────────────────────────────────────────────────────────────


def tiered(**fields: Any) -> FakeWorker:
    """A worker whose device has memory of its own."""
    return FakeWorker(info=WorkerInfo("sim:1MB,1", "fake", 0), **fields)


def test_while_one_model_is_loaded_the_next_one_is_read_into_the_hosts_memory() -> None:
    async def scenario() -> None:
        worker = tiered(stalled={Load})
        house = House(worker)
        house.residency.want((A,))
        house.residency.want((B,))
        await settle()
        assert worker.reads == ["b/1"]
        worker.stalled = set()
        worker.go_on()
        await settle()
        assert (worker.loads, worker.reads) == (["a/1", "b/1"], ["b/1"])
        assert house.agrees(worker)

    run(scenario)


def test_what_is_read_ahead_is_given_up_for_a_load_that_comes_first() -> None:
    async def scenario() -> None:
        worker = tiered(stalled={Load, Read})
        house = House(worker)
        house.residency.want((A,))
        deploying = asyncio.ensure_future(house.residency.load((B,)))
        await until(lambda: len(worker.held) == 2)
        (reading,) = [message.id for message, _ in worker.held if isinstance(message, Read)]
        deploying.cancel()
        house.residency.want((C,))
        await settle()
        worker.stalled = set()
        worker.go_on()
        await settle()
        assert worker.loads == ["a/1", "c/1"]
        assert worker.cancelled == [reading]

    run(scenario)


def test_where_host_and_device_are_one_memory_nothing_is_read_ahead() -> None:
    async def scenario() -> None:
        worker = FakeWorker(stalled={Load})
        house = House(worker)
        house.residency.want((A,))
        house.residency.want((B,))
        await settle()
        assert worker.reads == []
        await house.residency.close()

    run(scenario)


# ── many at once ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_hundred_deployments_and_unloads_at_once_leave_the_map_true() -> None:
    async def scenario() -> None:
        workers = [FakeWorker("w0"), FakeWorker("w1")]
        house = House(*workers, models=3)
        groups = [(text_model(f"m{number}"),) for number in range(20)]
        asked: list[asyncio.Future[None]] = []
        for turn in range(100):
            group = groups[turn * 7 % 20]
            work = house.residency.unload([group[0].key]) if turn % 3 == 2 else house.residency.load(group)
            asked.append(asyncio.ensure_future(work))
            if turn % 5 == 4:
                asked[turn - 2].cancel()
            await settle(turn % 4)
        async with asyncio.timeout(15):
            ended = await asyncio.gather(*asked, return_exceptions=True)
        await settle(200)
        assert all(error is None or isinstance(error, asyncio.CancelledError) for error in ended)
        assert house.agrees(*workers)
        await house.residency.check()
        assert house.moves.differences == {}

    run(scenario)
