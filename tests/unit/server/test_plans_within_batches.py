"""Workers that follow a plan within each batch, live: whom a row rests on, and what survives faults."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import numpy as np
import pytest

from gpu_worker.pipeline.asking import AskPlan, log_floored
from gpu_worker.wire.protocol import Answer
from server.ensemble.cascade import PlanOnWorker
from server.ensemble.policies.geared import Value
from server.errors import ServiceError
from tests.answers import classified
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_plans import NAMES, PRICE, Planned, runs


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(info=replace(FakeWorker().info, device_name="cpu"))


def answer_by_steps(worker: FakeWorker, sure: dict[str, float]) -> list[int]:
    """Answer the oldest batch as a worker does that follows its steps; which members answered each row."""
    message, on_reply = worker.batches.pop(0)
    plan = AskPlan(message.steps, len(message.models))
    answered = []
    told = []
    for row in message.rows:
        top = sure[row.decode()]
        row_scores = np.array([[top, (1 - top) / 2, (1 - top) / 2]], np.float32)
        subset, place = 0, plan.first
        while place != -1:
            subset |= 1 << place
            logs = {each: log_floored(row_scores) for each in range(3) if subset >> each & 1}
            place = int(plan.following(subset, logs)[0])
        answered.append(subset)
    for place, model in enumerate(message.models):
        tops = [
            sure[row.decode()] if subset >> place & 1 else 0.0
            for row, subset in zip(message.rows, answered, strict=True)
        ]
        scores = b"".join(struct.pack("<3f", top, *[(1 - top) / 2 if top else 0.0] * 2) for top in tops)
        told.append(classified(model, ["laksa" if top else "" for top in tops], tops, scores))
    members_s = [[0.001, 0.001]] * 3
    on_reply(Answer(message.id, told, [], 0.001, 0.002, 0.004, 0.004, members_s, answered))
    return answered


def follow_within_batches(served: Planned, price: float) -> None:
    """Its bulk rows are asked by that plan within each batch."""
    served.follow(price)
    ((_, lane),) = served.house.dispatcher._core._queues.pooled.items()
    assert lane.pool is not None
    policy = lane.pool.policy
    assert isinstance(policy, Value)
    lane.planned = PlanOnWorker(policy.plans[0].choices, lane.pool.evidence, policy.plans[0].accuracy)


@runs
async def test_a_worker_that_asks_by_the_plan_answers_each_row_by_those_whom_it_asked(worker):
    served = Planned(worker)
    await served.start()
    follow_within_batches(served, PRICE)
    pending = served.ask("sure", "unsure", "sure", "unsure", row_class="bulk")
    await settle()
    assert worker.batches[0][0].models == ["a/1", "b/1", "c/1"]
    answered = answer_by_steps(worker, {"sure": 0.999, "unsure": 0.34})
    await settle()
    reply = pending.future.result()
    by_row = [who for first, end, who in reply.answered_by for _ in range(first, end)]
    named = [",".join(name for place, name in enumerate(NAMES) if subset >> place & 1) for subset in answered]
    assert by_row == named
    assert len(by_row[0].split(",")) < len(by_row[1].split(","))
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
    assert reply.columns["label"].values == ["laksa"] * 4


@runs
async def test_rows_of_a_worker_that_died_under_a_plan_are_answered_by_another(worker):
    served = Planned(worker)
    await served.start()
    follow_within_batches(served, PRICE)
    pending = served.ask("sure", "unsure", row_class="bulk")
    await settle()
    worker.fail("overloaded")
    await asyncio.sleep(0.2)
    assert worker.batches[0][0].steps
    answer_by_steps(worker, {"sure": 0.999, "unsure": 0.34})
    await settle()
    assert pending.future.result().rows == 2


@runs
async def test_who_wants_to_know_what_members_said_is_told_which_of_them_answered_each_row(worker):
    served = Planned(worker)
    await served.start()
    follow_within_batches(served, PRICE)
    pending = served.ask("sure", "unsure", row_class="bulk", with_members=True)
    await settle()
    answered = answer_by_steps(worker, {"sure": 0.999, "unsure": 0.34})
    await settle()
    ((first, told),) = pending.future.result().told
    assert (first, told.answered) == (0, answered)
    assert set(answered) > {0b111}, "not all answered the sure one"


@runs
async def test_an_answer_that_says_not_who_answered_each_row_is_of_no_use(worker):
    served = Planned(worker)
    await served.start()
    follow_within_batches(served, PRICE)
    pending = served.ask("one", "two", row_class="bulk")
    await settle()
    message, on_reply = worker.batches.pop(0)
    told = [
        classified(model, ["laksa"] * 2, [1.0] * 2, struct.pack("<6f", *[1, 0, 0] * 2))
        for model in message.models
    ]
    on_reply(Answer(message.id, told, [], answered=[7]))
    await settle()
    with pytest.raises(ServiceError, match="cannot be used"):
        pending.future.result()
