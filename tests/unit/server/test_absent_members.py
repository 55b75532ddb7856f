"""Members that cannot be asked, or have no answer to a row: the others answer, whatever the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_worker.wire.protocol import Answer, RowError
from tests.answers import classified
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import text_model
from tests.unit.server.test_plans import PRICE, Planned, answered, runs

FAR = replace(text_model("far"), endpoint="http://127.0.0.1:9/v2/models/far", concurrency=1)
HERE = text_model("here")
GONE = "nobody listens there"


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(info=replace(FakeWorker().info, device_name="cpu"))


def fault(worker: FakeWorker, *codes: str) -> str:
    """Answer the oldest batch; codes: of each row, "" where it has an answer. Whom it was for."""
    message, on_reply = worker.batches.pop(0)
    told = [classified(model, ["laksa"] * len(codes), [1.0] * len(codes)) for model in message.models]
    errors = [RowError(row, code, "no JSON") for row, code in enumerate(codes) if code]
    on_reply(Answer(message.id, told, errors, 0.001, 0.002))
    return ",".join(message.models)


@runs
@pytest.mark.parametrize("code", ["remote_invalid", "remote_unavailable"])
async def test_a_row_that_follows_a_plan_goes_on_to_members_that_have_an_answer(worker, code):
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    pending = served.ask("row", "other")
    while not worker.batches:
        await settle()
    first = fault(worker, code, "")
    asked = await answered(worker, pending, {"row": 0.999, "other": 0.999})
    reply = pending.future.result()
    served.house.dispatcher.end(pending)
    assert first not in asked, "it is not asked again"
    assert reply.errors == {}
    assert list(reply.columns["label"].values) == ["laksa", "laksa"]
    assert all(first[0] not in members.split(",") for _, _, members in reply.answered_by)


@runs
async def test_rows_that_wait_for_a_member_that_goes_are_answered_by_the_others():
    here = FakeWorker("w0", answers=True)
    house = House(here)
    house.function = replace(house.function, members=(FAR, HERE), name="both", select="all")
    house.dispatcher.configure(house.function)
    await house.residency.load((HERE,))
    waiting = house.ask("laksa")  # no worker has the other member
    await settle()
    assert not waiting.done
    house.dispatcher.member_out(FAR.key, GONE, waits=False)
    await settle()
    assert house.labels(waiting) == ["laksa"]
    assert house.metrics.of(house.function).absent_members == 1
    later = house.ask("satay")
    await settle()
    assert house.labels(later) == ["satay"]


@runs
async def test_a_function_of_it_alone_waits_until_more_is_known_and_then_says_it():
    house = House()
    house.function = replace(house.function, members=(FAR,), name="alone")
    house.dispatcher.configure(house.function)
    house.dispatcher.member_out(FAR.key, "it is looked for", waits=True)
    waiting = house.ask("a", "b")
    await settle()
    assert not waiting.done
    house.dispatcher.member_out(FAR.key, GONE, waits=False)
    await settle()
    errors = waiting.future.result().errors
    house.dispatcher.end(waiting)
    assert [(row, error.code, error.message) for row, error in errors.items()] == [
        (row, "remote_unavailable", GONE) for row in (0, 1)
    ]
    at_once = house.ask("c")
    assert at_once.future.result().errors[0].message == GONE
    house.dispatcher.end(at_once)
    slot = FakeWorker("remote far/1 0", answers=True)
    house.dispatcher.member_back(FAR.key)
    house.dispatcher.resident_changed(slot, frozenset((FAR.key,)))
    back = house.ask("satay")
    await settle()
    assert house.labels(back) == ["satay"]
    assert house.dispatcher.queue_depth()["alone", 1] == (0, 0)


@runs
async def test_members_that_answered_already_are_enough_when_another_goes():
    here, slot = FakeWorker("w0"), FakeWorker("remote far/1 0")
    house = House(here)
    house.function = replace(house.function, members=(FAR, HERE), name="both", select="all")
    house.dispatcher.configure(house.function)
    await house.residency.load((HERE,))
    house.dispatcher.resident_changed(slot, frozenset((FAR.key,)))
    pending = house.ask("laksa")
    await settle()
    here.answer()
    await settle()
    assert not pending.done
    house.dispatcher.member_out(FAR.key, GONE, waits=False)
    house.dispatcher.worker_lost(slot)
    slot.fail("cancelled")
    await settle()
    assert house.labels(pending) == ["laksa"]
