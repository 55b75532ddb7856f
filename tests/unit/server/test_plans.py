"""Functions that follow plans, live: who is asked, what is answered from, and what survives faults."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pytest

from gpu_worker.wire.protocol import Answer
from server.catalog.functions import Function
from server.ensemble.contexts import Context
from server.ensemble.feedback import adapted, begun
from server.ensemble.fit import Fit
from server.ensemble.places import MemberPlace
from server.ensemble.plan import solve
from server.ensemble.policies.geared import Value
from server.errors import DeadlineExceeded, ServiceError
from server.scheduling.latency_model import LatencyModel
from server.serving.plans import ensemble_of
from server.training.promotion.combination import choose_combination
from tests.answers import classified, labels_of
from tests.unit.ensemble.ensembles import drawn, untaught
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import CLASSES, function, text_model
from tests.unit.server.test_cascade_saving import cascading
from tests.unit.server.test_members_apart import House as Apart
from tests.waiting import until

NAMES = ("a", "b", "c")
MEMBERS = tuple(
    text_model(name, accuracy=accuracy) for name, accuracy in zip(NAMES, (0.6, 0.75, 0.9), strict=True)
)
TOLD, LABELS = drawn([0.6, 0.75, 0.9], classes=3)
PRICE = 80.0  # of a second: a sure row is worth no more members, an unsure one is
PLACES = (MemberPlace(0, ("cpu",)),) * 3
COSTS_S = {"a": 0.001, "b": 0.002, "c": 0.004}
TOOK_S = {"small": 0.001, "large": 0.05, "net": 0.001}


def fitted() -> Fit:
    scores = {name: each.astype(np.float32) for name, each in zip(NAMES, TOLD, strict=True)}
    return choose_combination(scores, np.asarray(LABELS)).fit


FIT = fitted()


def planned(select: str = "value", **fields: Any) -> Function:
    given: dict[str, Any] = {
        "slo_ms": 500.0,
        "policy": "goodput",
        "max_batch": 4,
        "batch_sizes": (1, 4),
        **fields,
    }
    return function(*MEMBERS, name="plan", combine="log_pool", fit=FIT, select=select, **given)


def latency_of():
    models = {
        name: LatencyModel({1: cost_s, 4: 2 * cost_s}, measured=True) for name, cost_s in COSTS_S.items()
    }
    return lambda model: models.get(model.name) or LatencyModel({1: 0.001})


class Planned:
    """A house whose function follows plans already."""

    def __init__(self, *workers: FakeWorker, **fields: Any) -> None:
        self.workers = workers
        self.latency_of = latency_of()
        self.house = House(*workers, latency_of=self.latency_of)
        self.function = planned(**fields)

    async def start(self) -> None:
        dispatcher = self.house.dispatcher
        await settle()
        dispatcher.configure(self.function)
        await asyncio.wait_for(self.house.residency.load(self.function.members), 5)
        for _ in range(500):
            await asyncio.sleep(0.01)
            if not any(each.task for each in dispatcher._selecting.plans._followed.values()):
                break
        await settle()

    def follow(self, price: float) -> None:
        """The plan for that price of time alone, whatever the load."""
        ensemble = ensemble_of(self.function, self.latency_of, PLACES, "text")
        policy = Value(ensemble, [solve(ensemble, (price,))])
        self.house.dispatcher._selecting.follow(self.function, "text", ensemble, policy)

    def ask(self, *rows: str, **fields: Any):
        return self.house.ask(*rows, function=self.function, **fields)


def answer(worker: FakeWorker, sure: dict[str, float], *, errors=()) -> str:
    """Answer the oldest batch: laksa, as surely as `sure` says for each row. Whom it was for."""
    message, on_reply = worker.batches.pop(0)
    told = []
    for model in message.models:
        tops = [sure[row.decode()] for row in message.rows]
        scores = b"".join(struct.pack("<3f", top, *[(1 - top) / 2] * 2) for top in tops)
        labels = [CLASSES[int(np.argmax([top, (1 - top) / 2]))] for top in tops]
        told.append(classified(model, labels, tops, scores))
    on_reply(Answer(message.id, told, list(errors), 0.001, 0.002))
    return ",".join(message.models)


async def answered(worker: FakeWorker, pending, sure: dict[str, float]) -> list[str]:
    """Answer batches until the call is: who was asked."""
    asked = []
    give_up_s = time.monotonic() + 20.0
    while not pending.done and time.monotonic() < give_up_s:
        await asyncio.sleep(0.002)
        if not pending.done and worker.batches:
            asked.append(answer(worker, sure))
    assert pending.done
    return asked


def runs(test):
    """The scenario on an event loop of its own."""

    @wraps(test)
    def run(*args, **fields):
        asyncio.run(asyncio.wait_for(test(*args, **fields), 30))

    return run


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(info=replace(FakeWorker().info, device_name="cpu"))


@runs
async def test_a_row_that_is_sure_is_answered_by_fewer_members_than_one_that_is_not(worker):
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    sure = served.ask("sure")
    few = await answered(worker, sure, {"sure": 0.999})
    unsure = served.ask("unsure")
    many = await answered(worker, unsure, {"unsure": 0.34})
    assert len(few) < len(many)
    assert len(many) == len(set(many)), "nobody is asked twice"
    assert {member for asked in many for member in asked.split(",")} <= {"a/1", "b/1", "c/1"}
    assert len(sure.future.result().answered_by[0][2].split(",")) == len(few)
    served.house.dispatcher.end(sure)
    served.house.dispatcher.end(unsure)
    assert served.house.dispatcher.queue_depth()["plan", 1] == (0, 0)


@runs
async def test_rows_follow_a_network_that_was_trained_for_the_function(worker):
    served = Planned(worker, select="actor_critic", actor=untaught(3, favoured=0b011, by=50.0))
    await served.start()
    pending = served.ask("one", "two")
    asked = await answered(worker, pending, {"one": 0.999, "two": 0.34})
    assert sorted(asked) == ["a/1", "b/1"], "the two cheapest ones, however sure the first is"
    assert {who for _, _, who in pending.future.result().answered_by} == {"a,b"}


@runs
async def test_rows_of_a_call_may_be_answered_by_different_members_each_by_the_fit(worker):
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    pending = served.ask("sure", "unsure", "sure", "unsure")
    await answered(worker, pending, {"sure": 0.999, "unsure": 0.34})
    reply = pending.future.result()
    by_row = [who for first, end, who in reply.answered_by for _ in range(first, end)]
    assert len(by_row) == 4
    assert len(by_row[0].split(",")) < len(by_row[1].split(","))
    assert (by_row[0], by_row[1]) == (by_row[2], by_row[3])
    expected = served.function.rule.answer(
        Answer(
            0,
            [
                classified(f"{name}/1", ["laksa"], [0.34], struct.pack("<3f", 0.34, 0.33, 0.33))
                for name in by_row[1].split(",")
            ],
            [],
        )
    )
    assert reply.columns["confidence"].values[1] == pytest.approx(expected.columns["confidence"].values[0])
    assert reply.columns["confidence"].values[1] == reply.columns["confidence"].values[3]


@runs
async def test_at_the_goal_a_row_is_answered_by_those_that_came(worker):
    served = Planned(worker, slo_ms=100.0, select="gear")
    await served.start()
    pending = served.ask("unsure")
    await settle()
    first = answer(worker, {"unsure": 0.34})
    await asyncio.sleep(0.2)
    assert pending.done
    assert pending.future.result().answered_by == [(0, 1, first.removesuffix("/1"))]
    stats = served.house.metrics.of(served.function)
    assert stats.goal_rows == 1
    assert stats.late_members == len(worker.batches)
    while worker.batches:
        answer(worker, {"unsure": 0.34})
    served.house.dispatcher.end(pending)


@pytest.mark.parametrize("default", ["none", None])
@runs
async def test_below_the_threshold_the_default_is_answered_by_the_goal_and_by_the_plan(worker, default):
    served = Planned(worker, select="gear", slo_ms=150.0, min_confidence=0.8, default=default)
    await served.start()
    sure = {"sure": 0.999, "unsure": 0.34}
    pending = served.ask("unsure", "sure")
    await settle()
    answer(worker, sure)
    await asyncio.sleep(0.3)
    cut_short = pending.future.result()
    while worker.batches:
        answer(worker, sure)
    whole = served.ask("unsure", "sure")
    await answered(worker, whole, sure)
    for reply, call in ((cut_short, pending), (whole.future.result(), whole)):
        assert reply.columns["confidence"].values[0] < 0.8 <= reply.columns["confidence"].values[1]
        assert reply.columns["label"].values[1] == "laksa"
        if default is None:
            assert reply.errors[0].code == "no_confident_answer"
            assert reply.errors.keys() == {0}
        else:
            assert (reply.columns["label"].values[0], reply.defaulted) == (default, {0})
        served.house.dispatcher.end(call)
    assert len(cut_short.answered_by[0][2].split(",")) < 3, "it was answered from a part of the members"


@runs
async def test_without_an_answer_a_row_waits_for_its_deadline_and_no_longer(worker):
    served = Planned(worker, slo_ms=20.0)
    await served.start()
    loop_s = time.monotonic()
    late, lost = served.ask("late"), served.ask("lost", deadline_s=loop_s + 0.1)
    await asyncio.sleep(0.15)
    assert not late.done
    with pytest.raises(DeadlineExceeded):
        lost.future.result()
    served.house.dispatcher.end(lost)
    await answered(worker, late, {"late": 0.5, "lost": 0.5})
    assert late.future.result().answered_by[0][2]


@runs
async def test_rows_of_a_worker_that_died_are_answered_by_all_members(worker):
    other = FakeWorker("w1", info=worker.info)
    served = Planned(worker, other)
    await served.start()
    pending = served.ask("x", "y")
    await settle()
    busy, idle = (worker, other) if worker.batches else (other, worker)
    served.house.lose(busy)
    for _ in range(300):
        await asyncio.sleep(0.002)
        while idle.batches:
            answer(idle, {"x": 0.9, "y": 0.9})
        if pending.done:
            break
    reply = pending.future.result()
    assert sorted(reply.answered_by[0][2].split(",")) == ["a", "b", "c"]


async def apart(**held: str) -> Apart:
    """A house whose function follows plans, with its members on different workers."""
    house = Apart(MEMBERS, combine="log_pool", fit=FIT, select="value", slo_ms=5000.0)
    house.place(**held)
    first = house.ask("first")
    for _ in range(500):
        await asyncio.sleep(0.01)
        for each in house.workers.values():
            while each.batches:
                answer(each, {"first": 0.9})
        if first.done and house.dispatcher.followed(house.function, "text") is not None:
            return house
    raise AssertionError("there is no plan")


@runs
async def test_rows_of_a_worker_that_died_with_its_members_are_answered_by_those_that_others_hold():
    house = await apart(w0="c", w1="a b")
    pending = house.ask("x")
    await settle()
    (busy,) = [name for name, each in house.workers.items() if each.batches]
    (other,) = [name for name in house.workers if name != busy]
    house.lose(busy)
    await answered(house.workers[other], pending, {"x": 0.9})
    held = {key.partition("/")[0] for key in house.placed.held[other]}
    assert {*pending.future.result().answered_by[0][2].split(",")} <= held


@runs
async def test_rows_whose_next_member_died_with_all_that_hold_it_are_answered_from_what_is_known():
    house = await apart(w0="b c", w1="a")
    pending = house.ask("x")
    for _ in range(200):
        await asyncio.sleep(0.002)
        if house.workers["w0"].batches:
            answer(house.workers["w0"], {"x": 0.34})
        if house.workers["w1"].batches:
            break
    house.lose("w1")
    await settle()
    assert {*pending.future.result().answered_by[0][2].split(",")} <= {"b", "c"}


@runs
async def test_bulk_rows_are_asked_of_one_member_after_the_other(worker):
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    pending = served.ask("sure", "unsure", row_class="bulk")
    asked = await answered(worker, pending, {"sure": 0.99, "unsure": 0.36})
    reply = pending.future.result()
    by = {row: told for first, end, told in reply.answered_by for row in range(first, end)}
    assert len(by[0].split(",")) < len(by[1].split(","))
    assert {f"{name}/1" for name in by[1].split(",")} <= set(asked), "each by itself"


@pytest.mark.parametrize("code", ["overloaded", "unknown_function"])
@runs
async def test_rows_that_a_worker_refused_are_answered(worker, code):
    served = Planned(worker)
    await served.start()
    pending = served.ask("x")
    await settle()
    worker.fail(code, "no")
    for _ in range(300):
        await asyncio.sleep(0.002)
        while worker.batches:
            answer(worker, {"x": 0.9})
        if pending.done:
            break
    assert pending.future.result().columns["label"].values[0] == "laksa"


@runs
async def test_an_answer_that_cannot_be_used_fails_its_call_and_no_other(worker):
    served = Planned(worker)
    await served.start()
    pending = served.ask("x")
    await settle()
    message, on_reply = worker.batches.pop(0)
    on_reply(Answer(message.id, [classified("z/1", ["laksa"], [1.0])], []))
    await settle()
    with pytest.raises(Exception, match="cannot be used"):
        pending.future.result()
    served.house.dispatcher.end(pending)
    again = served.ask("y")
    await answered(worker, again, {"y": 0.99})


@runs
async def test_an_answer_that_cannot_be_combined_with_others_fails_its_call_too(worker):
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    pending = served.ask("x", "y")
    await settle()
    answer(worker, {"x": 0.4, "y": 0.4})
    await settle()
    message, on_reply = worker.batches.pop(0)
    (model,) = message.models
    told = classified(model, [CLASSES[0]] * 2, [0.4] * 2)  # without the scores by which it is weighed
    on_reply(Answer(message.id, [told], [], 0.001, 0.002))
    await settle()
    with pytest.raises(ServiceError, match="cannot be used"):
        await asyncio.wait_for(pending.future, 5)
    served.house.dispatcher.end(pending)
    again = served.ask("z")
    await answered(worker, again, {"z": 0.99})


@runs
async def test_a_client_that_has_gone_leaves_nothing_behind(worker):
    served = Planned(worker)
    await served.start()
    pending = served.ask("x", "y", "z")
    await settle()
    served.house.dispatcher.end(pending)
    while worker.batches:
        answer(worker, {"x": 0.4, "y": 0.4, "z": 0.4})
        await settle()
    assert served.house.dispatcher.queue_depth()["plan", 1] == (0, 0)


@runs
async def test_a_client_that_goes_is_no_fault_of_the_proxy_that_it_waited_for(worker, caplog):
    served = Planned(worker)
    served.function = replace(cascading(), name="cascade", max_batch=64, policy="goodput")
    known = {name: LatencyModel({1: took_s}, measured=True) for name, took_s in TOOK_S.items()}
    served.house = House(worker, latency_of=lambda model: known[model.name])
    await served.start()
    await served.house.residency.load(served.function.asked)
    first = served.ask("a")  # plans are made for the rows behind it
    await settle()
    worker.answer(lambda row: CLASSES[0])
    await until(lambda: served.house.dispatcher.followed(served.function, "text"))
    assert first.done
    pending = served.ask("b")
    await settle()
    assert worker.batches[0][0].models == ["small/1"]
    served.house.dispatcher.end(pending)
    assert worker.cancelled == [worker.batches[0][0].id]
    worker.fail("cancelled", "given up")
    await settle()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@runs
async def test_under_load_answers_rest_on_fewer_members(worker):
    served = Planned(worker, slo_ms=60.0)
    await served.start()
    one = served.ask("u")
    alone = await answered(worker, one, {"u": 0.34})
    calls = [served.ask("u") for _ in range(100)]
    batches = 0
    for _ in range(400):
        await asyncio.sleep(0.002)
        if worker.batches:
            answer(worker, {"u": 0.34})
            batches += 1
        if all(call.done for call in calls):
            break
    asked = [len(call.future.result().answered_by[0][2].split(",")) for call in calls]
    assert sum(asked) / len(asked) < len(",".join(alone).split(","))


@runs
async def test_under_load_a_call_with_an_accuracy_is_answered_by_more_than_others(worker):
    served = Planned(worker, slo_ms=1500.0)
    await served.start()
    followed = served.house.dispatcher.followed(served.function, "text")
    assert followed is not None
    no_hurry: dict[str, Any] = {"slo_s": 60.0}  # none is cut short at its goal, however slow the machine
    crowd = [served.ask(*["u"] * 100, **no_hurry) for _ in range(9)]
    limited = served.ask("u", min_accuracy=followed.plans[0].accuracy, priority=2, **no_hurry)
    await answered(worker, limited, {"u": 0.34})
    for call in crowd:
        await answered(worker, call, {"u": 0.34})
    asked = [len(who.split(",")) for call in crowd for _, _, who in call.future.result().answered_by]
    assert len(limited.future.result().answered_by[0][2].split(",")) > sum(asked) / len(asked)
    for call in (limited, *crowd):
        served.house.dispatcher.end(call)


@runs
async def test_plans_are_fitted_anew_when_latencies_have_moved(worker, monkeypatch):
    monkeypatch.setattr("server.serving.plans._AT_MOST_EVERY_S", 0.0)
    served = Planned(worker)
    await served.start()
    plans = served.house.dispatcher._selecting.plans
    (followed,) = plans._followed.values()
    before_s = ensemble_of(served.function, served.latency_of, PLACES, "text").members[2].cost_s
    plans.look(1e9, served.function, "text")
    assert followed.task is None, "nothing has moved"
    model = served.latency_of(MEMBERS[2])
    for _ in range(30):
        model.on("cpu", "text").observe(1, 0.1)
        model.on("cpu", "text").observe(4, 0.2)
    plans.look(2e9, served.function, "text")
    assert followed.task is None, "once may be chance"
    plans.look(3e9, served.function, "text")
    assert followed.task is not None
    await asyncio.wait_for(followed.task, 10)
    after_s = ensemble_of(served.function, served.latency_of, PLACES, "text").members[2].cost_s
    assert after_s > 2 * before_s
    plans.look(4e9, served.function, "text")
    assert followed.task is None, "they are of these costs"
    pending = served.ask("x")
    await answered(worker, pending, {"x": 0.9})


def test_a_fit_keeps_its_evidence_in_json_and_one_from_before_has_none():
    again = Fit.from_json(json.loads(json.dumps(FIT.to_json())))
    assert again == FIT
    assert again.evidence is not None
    assert FIT.evidence is not None
    assert again.evidence.to_json() == FIT.evidence.to_json()
    old = FIT.to_json()
    del old["evidence"]
    assert Fit.from_json(old).evidence is None
    with pytest.raises(ValueError, match="missing or wrong"):
        Fit.from_json({**FIT.to_json(), "evidence": {"members": 3}})


def test_what_a_row_costs_is_read_off_the_learned_latency():
    ensemble = ensemble_of(planned(), latency_of(), PLACES, "text")
    assert [member.name for member in ensemble.members] == ["a/1", "b/1", "c/1"]
    assert ensemble.members[0].per_row_s == pytest.approx(0.001 / 3, rel=0.3)


@runs
async def test_a_row_is_as_sure_as_the_weights_of_its_context_say(worker):
    known = begun(NAMES, FIT)
    served = Planned(worker, feedback=known)
    await served.start()
    served.follow(PRICE)
    doubts = Context((-3.0, -3.0, -3.0))
    served.house.dispatcher._contexts.learn(served.function, [("doubts", doubts)])
    plain, doubted = served.ask("x"), served.ask("x", context="doubts")
    for _ in range(300):
        await asyncio.sleep(0.002)
        while worker.batches:
            answer(worker, {"x": 0.36})
        if plain.done and doubted.done:
            break
    sure = []
    for call, context in ((plain, None), (doubted, doubts)):
        reply = call.future.result()
        names = reply.answered_by[0][2].split(",")
        told = struct.pack("<3f", 0.36, 0.32, 0.32)
        evidence = [classified(f"{name}/1", ["laksa"], [0.36], told) for name in names]
        rule = replace(served.function.rule, fit=adapted(FIT, known, context))
        expected = rule.answer(Answer(0, evidence, [])).columns["confidence"].values[0]
        sure.append(reply.columns["confidence"].values[0])
        assert len(names) > 1
        assert sure[-1] == pytest.approx(expected)
    assert sure[0] > sure[1]


@runs
async def test_a_row_whose_answer_has_just_come_has_it_though_its_version_goes(worker):
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    pending = served.ask("sure")
    await settle()
    answer(worker, {"sure": 0.999})
    served.house.dispatcher.remove(served.function)
    assert labels_of(await asyncio.wait_for(pending.future, 5)) == ["laksa"]
    served.house.dispatcher.end(pending)


@runs
async def test_a_worker_that_lets_go_of_all_members_ends_what_it_has_of_them(worker):
    served = Planned(worker, slo_ms=200.0)
    await served.start()
    served.follow(PRICE)
    pending = served.ask("unsure")
    await settle()
    served.house.dispatcher.resident_changed(worker, frozenset())
    asked = answer(worker, {"unsure": 0.34})
    reply = await asyncio.wait_for(pending.future, 5)
    assert reply.answered_by == [(0, 1, asked.removesuffix("/1"))], "at its goal, from what is known"
    served.house.dispatcher.end(pending)
