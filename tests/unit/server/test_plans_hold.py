"""Plans hold, or are made anew, whatever becomes of workers, forms and versions; and rows are answered."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_worker.wire.protocol import Answer
from server.catalog.functions import Form, Proxy
from server.catalog.selections import Selections
from server.ensemble.agreement import Fall
from server.ensemble.feedback import begun
from server.ensemble.guard import guarded
from server.ensemble.proxy import ProxyFit, ProxyLevel
from server.ensemble.refit import refitted
from server.ensemble.selection import Ensemble
from server.errors import WorkerLost
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import Call, PendingReply
from server.workers.pool import WorkerInfo
from tests.answers import classified
from tests.unit.ensemble.ensembles import drawn
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import CLASSES, image_model
from tests.unit.server.test_members_apart import House
from tests.unit.server.test_plans import COSTS_S, MEMBERS, fitted, planned, runs
from tests.waiting import until

FIT = fitted()


class Following(House):
    """A house whose function follows plans: told(form) is the ensemble of its plans."""

    def __init__(self, **fields) -> None:
        served = planned(**{"slo_ms": 500.0, **fields})
        super().__init__(
            MEMBERS,
            combine="log_pool",
            fit=FIT,
            select=served.select,
            **{"slo_ms": 500.0, **fields},
        )
        for model in MEMBERS:
            cost_s = COSTS_S[model.name]
            self.latencies[model.key] = LatencyModel({1: cost_s, 4: 2 * cost_s})
        self.plans = self.dispatcher._selecting.plans
        self.told: dict[str, Ensemble] = {}
        follow = self.plans._follow

        def seen(function, form, ensemble, policy):
            self.told[form] = ensemble
            follow(function, form, ensemble, policy)

        self.plans._follow = seen

    async def follows(self, form: Form = "text") -> Ensemble:
        """Look until the plans are of how it is now."""
        for _ in range(3):
            for followed in self.plans._followed.values():
                followed.looked_s = -1e9
            self.plans.look(1e9, self.function, form)
            await until(lambda: not any(each.task for each in self.plans._followed.values()))
        await settle()
        return self.told[form]

    async def answered(self, *calls: PendingReply, sure: float = 0.4) -> None:
        for _ in range(1000):
            for worker in self.workers.values():
                while worker.batches:
                    told(worker, sure)
            if all(call.done for call in calls):
                return
            await asyncio.sleep(0.002)
        raise AssertionError("rows were left without an answer")

    def who(self, call: PendingReply) -> set[str]:
        found = {who for _, _, who in call.future.result().answered_by}
        self.dispatcher.end(call)
        return {member for each in found for member in each.split(",")}


def told(worker: FakeWorker, sure: float) -> None:
    message, on_reply = worker.batches.pop(0)
    rows = len(message.rows)
    scores = struct.pack("<3f", sure, *[(1 - sure) / 2] * 2) * rows
    label = CLASSES[int(np.argmax([sure, (1 - sure) / 2]))]
    members = [classified(model, [label] * rows, [sure] * rows, scores) for model in message.models]
    on_reply(Answer(message.id, members, [], 0.001, 0.002))


@runs
async def test_members_on_different_workers_are_planned_as_devices_of_their_own():
    house = Following()
    house.place(w0="a b", w1="c")
    apart = await house.follows()
    assert [member.device for member in apart.members] == [0, 0, 1]
    calls = [house.ask("x") for _ in range(8)]
    await house.answered(*calls)
    house.place(w0="a b c", w1="a b c")
    together = await house.follows()
    assert together.devices == 1
    call = house.ask("y")
    await house.answered(call)
    assert house.who(call)


@runs
async def test_each_device_is_planned_by_its_own_latency():
    house = Following()
    for model in MEMBERS:
        house.latencies[model.key].on("slow", "text").start({1: 1.0, 4: 2.0})
    house.workers["w1"] = FakeWorker("w1", info=WorkerInfo("cpu", "slow", 0))
    house.place(w0="a b", w1="c")
    apart = await house.follows()
    assert apart.members[2].cost_s > 50 * apart.members[0].cost_s
    alone_s = apart.members[2].cost_s
    house.place(w0="a b c", w1="c")
    shared = await house.follows()
    assert shared.members[2].cost_s < alone_s / 10, "two share the work, and one of them is fast"


@runs
async def test_plans_stay_where_members_stay():
    house = Following()
    house.place(w0="a b c")
    before = await house.follows()
    house.place(w1="a b c")
    assert await house.follows() is before, "one more that holds all is no other plan"
    house.lose("w1")
    assert await house.follows() is before


@runs
async def test_a_member_that_died_with_its_worker_is_planned_without():
    house = Following()
    house.place(w0="a b", w1="c")
    await house.follows()
    calls = [house.ask("x") for _ in range(6)]
    await settle()
    house.lose("w1")
    left = await house.follows()
    assert [member.is_held for member in left.members] == [True, True, False]
    later = house.ask("y")
    await house.answered(later)
    assert house.who(later) <= {"a", "b"}
    house.place(w2="c")
    await house.answered(*calls)
    again = await house.follows()
    assert all(member.is_held for member in again.members)


@runs
async def test_plans_made_anew_keep_the_gear(monkeypatch):
    house = Following()
    house.place(w0="a b c")
    before = await house.follows()
    (lane,) = house.dispatcher._core._queues.pooled.values()
    pool: Any = lane.pool
    pool.state = {"gear": 2}
    took_s = pool.policy.plans[2].uses_s
    model = house.latencies["c/1"].on("fake", "text")
    for _ in range(30):
        model.observe(1, 1.5 * COSTS_S["c"])
        model.observe(4, 3 * COSTS_S["c"])
    after = await house.follows()
    assert after is not before
    gear = pool.state["gear"]
    off = [abs(np.log(plan.uses_s / took_s)) for plan in pool.policy.plans]
    assert gear > 0
    assert off[gear] == min(off)


@runs
async def test_rows_of_several_forms_are_answered_each_by_plans_of_its_own():
    house = Following()
    members = tuple(
        replace(image_model(name), accuracy=accuracy)
        for name, accuracy in zip("abc", (0.6, 0.75, 0.9), strict=True)
    )
    served = replace(planned(), name="photos", members=members, form="path")
    house.dispatcher.configure(served)
    house.place(w0="a b c")
    for form in ("path", "image"):
        house.plans.look(0.0, served, form)
    await until(lambda: {"path", "image"} <= house.told.keys())
    calls = [
        house.dispatcher.begin(Call(served, form, [b"x", b"y"], 2))
        for _ in range(4)
        for form in ("path", "image", "tensor")
    ]
    await house.answered(*calls)
    keys = {
        lane.key[2] for lane in house.dispatcher._core._queues.pooled.values() if lane.key[0] == served.key
    }
    assert keys >= {"path", "image"}


@runs
async def test_rows_that_wait_while_the_function_is_deployed_anew_are_answered_and_by_their_own_version():
    house = Following()
    house.place(w0="a b c")
    await house.follows()
    old = [house.ask("x") for _ in range(10)]
    before = house.function
    for version, select in enumerate(("all", "gear", "best", "value"), 2):
        house.function = replace(before, version=version, select=select)
        house.dispatcher.configure(house.function)
        old.append(house.ask("y"))
    await house.answered(*old)
    assert {call.future.result().function.version for call in old} == {1, 2, 3, 4, 5}
    house.dispatcher.remove(before)
    assert not any(key[0] == before.key for key in house.plans._followed)


@runs
async def test_what_labels_taught_meanwhile_does_not_leave_rows_without_plans():
    house = Following()
    house.place(w0="a b c")
    house.plans.look(0.0, house.function, "text")
    house.dispatcher.answer_as(replace(house.function))
    await until(lambda: "text" in house.told)
    assert house.dispatcher._core._queues.pooled


@runs
async def test_plans_follow_what_a_refit_counted_and_say_what_is_expected_by_it():
    house = Following()
    house.place(w0="a b c")
    selections = Selections(house.dispatcher, lambda model, form: house.latencies[model.key])
    before = await house.follows()
    told, labels = drawn([0.6, 0.75, 0.9], rows=100, classes=3, seed=1)
    best = FIT.members.index("c")
    told[best] = np.roll(told[best], 1, axis=1)  # as sure as before, and wrong
    refit = refitted(FIT, told, labels, [best])
    promised = selections.of(house.function).expected_accuracy
    house.function = replace(house.function, refit=refit)
    house.dispatcher.answer_as(house.function)
    await until(lambda: house.told["text"] is not before)
    await settle()
    assert house.told["text"].evidence is refit.evidence
    (lane,) = house.dispatcher._core._queues.pooled.values()
    assert lane.pool is not None
    assert lane.pool.evidence is refit.evidence
    assert refit.evidence is not None
    expected = selections.of(house.function).expected_accuracy
    assert promised is not None
    assert expected is not None
    assert expected < promised - 0.05
    assert expected <= max(refit.evidence.accuracy(subset) for subset in refit.evidence.subsets)


@runs
async def test_a_proxy_that_is_found_broken_answers_no_more_and_answers_again_once_it_is_not():
    found = ProxyFit("a", ("a", "b", "c"), 0.9, 1.0, (ProxyLevel(0.9, 0.5, 0.75, 0.95, 0.92),), 0.8, 400, 600)
    cascade = {"is_used": True, "agreement": 0.9}
    house = Following(proxy=Proxy.of(MEMBERS[0], MEMBERS, found), cascade=cascade)
    selections = Selections(house.dispatcher, lambda model, form: house.latencies[model.key])
    house.place(w0="a b c")
    before = await house.follows()

    def kept_off() -> Any:
        told = selections.of(house.function).cascade
        assert told is not None
        return told["kept_off"]

    async def asked() -> set[str]:
        call = house.ask("x")
        await settle()
        batches = [batch for worker in house.workers.values() for batch, _ in worker.batches]
        await house.answered(call)
        house.dispatcher.end(call)
        return {model for batch in batches for model in batch.models}

    assert (await asked(), kept_off()) == ({"a/1"}, None)
    as_deployed, known = house.function, begun(["a", "b", "c"], FIT)
    note, without = guarded(known, FIT, Fall((FIT.members.index("a"),), 50, 0.1, 0.8), "now")
    house.function = replace(as_deployed, feedback=replace(known, refit=note), refit=without)
    house.dispatcher.answer_as(house.function)
    await until(lambda: house.told["text"] is not before)
    await settle()
    assert await asked() == {"b/1", "c/1"}
    assert kept_off() == "a was found broken, and is asked for labels alone"
    broken = house.told["text"]
    house.function = as_deployed
    house.dispatcher.answer_as(house.function)
    await until(lambda: house.told["text"] is not broken)
    await settle()
    assert (await asked(), kept_off()) == ({"a/1"}, None)


@runs
async def test_a_row_that_kills_workers_is_the_only_one_without_an_answer():
    house = Following()
    house.place(w0="a b c", w1="a b c", w2="a b c")
    await house.follows()
    bad = house.ask("bad")
    good = [house.ask("good") for _ in range(3)]
    for _ in range(2000):
        if bad.done and all(call.done for call in good):
            break
        for name, worker in list(house.workers.items()):
            if any(b"bad" in message.rows for message, _ in worker.batches):
                house.lose(name)
                house.place(**{f"{name}x": "a b c"})
            else:
                while worker.batches:
                    told(worker, 0.9)
        await asyncio.sleep(0.001)
    for call in good:
        assert house.who(call)
    reply = bad.future.result()
    assert reply.errors[0].code == WorkerLost.code


@pytest.mark.parametrize("held", [{}, {"w0": ""}])
@runs
async def test_where_nobody_holds_a_member_plans_wait_for_one(held):
    house = Following()
    house.place(**held)
    call = house.ask("x")
    assert not house.plans._followed[house.function.key, "text"].task
    house.place(w0="a b c")
    await house.answered(call)
    assert (await house.follows()).devices == 1
