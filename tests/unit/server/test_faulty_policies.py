"""A policy with a bug costs nobody an answer: it is put aside for goodput, and that is said."""

from __future__ import annotations

import asyncio
import logging

import pytest

from server.errors import BadOption
from tests.unit.faulty_policies import FAULTY, METHODS, named
from tests.unit.server.fake_worker import FakeWorker
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until


@pytest.mark.parametrize("policy", FAULTY)
def test_every_row_is_answered_its_own_and_those_of_others(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        worker = FakeWorker(answers=True)
        house = House(worker, policy=named(policy))
        other = function(text_model("other"), name="g", max_batch=4, batch_sizes=(1, 4), policy="goodput")
        house.dispatcher.configure(other)
        for turn in range(3):
            mine = [house.ask(f"a{turn}"), house.ask(*"bcdefg")]
            others = house.ask("x", "y", function=other)
            await asyncio.wait_for(asyncio.gather(*(p.future for p in [*mine, others])), 5)
            assert [house.labels(pending) for pending in mine] == [[f"a{turn}"], list("bcdefg")]
            assert house.labels(others) == ["x", "y"]
        await until(lambda: house.metrics.of(house.function).policy_faults)
        assert house.metrics.of(house.function).policy_faults == 1
        assert house.metrics.of(other).policy_faults == 0

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "policy put aside for goodput function=f@1" in line
    assert named(policy) in line


@pytest.mark.parametrize("method", METHODS)
def test_the_log_names_the_method_and_the_cause(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        worker = FakeWorker(answers=True)
        house = House(worker, policy=named(f"RaisesIn{method.capitalize()}"))
        pending = house.ask("a")
        await asyncio.wait_for(pending.future, 5)
        await until(lambda: house.metrics.of(house.function).policy_faults)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert f"method={method}" in record.getMessage()
    assert record.exc_info is not None
    assert f"a bug in {method}" in str(record.exc_info[1])


def test_a_policy_that_is_put_aside_decides_nowhere_else_until_it_is_deployed_again() -> None:
    async def scenario() -> None:
        worker = FakeWorker(answers=True)
        members = (text_model("net"), text_model("other"))
        house = House(worker)
        both = function(*members, name="g", max_batch=4, batch_sizes=(1, 4), policy=named("RaisesInDecide"))
        house.dispatcher.configure(both)
        for asked in (None, ("net/1",), ("other/1",)):
            pending = house.ask("a", function=both, members=asked)
            await asyncio.wait_for(pending.future, 5)
        assert house.metrics.of(both).policy_faults == 1
        house.dispatcher.configure(both)
        await asyncio.wait_for(house.ask("a", function=both).future, 5)
        assert house.metrics.of(both).policy_faults == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["CannotBegin", "CannotBeMade"])
def test_a_policy_that_cannot_begin_is_refused_when_it_is_deployed(policy: str) -> None:
    async def scenario() -> None:
        house = House()
        draft = function(name="g", max_batch=4, batch_sizes=(4,), policy=named(policy))
        with pytest.raises(BadOption, match=policy):
            house.dispatcher.check(draft)
        with pytest.raises(BadOption, match=policy):
            house.dispatcher.configure(draft)

    asyncio.run(scenario())
