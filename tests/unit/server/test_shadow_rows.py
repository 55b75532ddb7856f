"""Rows that all members are asked beside their plan; and a member that is left out, whom nobody asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.catalog.functions import Function
from server.ensemble.agreement import Fall
from server.ensemble.feedback import begun, begun_anew
from server.ensemble.guard import guarded
from server.observability.metrics import Metrics
from server.serving.calls import Call
from server.serving.dispatcher import Dispatcher
from server.serving.shadow_rows import ShadowRows
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_plans import FIT, NAMES, Planned, answer, answered, runs
from tests.waiting import until

EVERYBODY = "a/1,b/1,c/1"


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker("w0")


class Heard:
    """In place of what has learned: who named which class."""

    def __init__(self) -> None:
        self.named: list[Any] = []

    def agreed(self, function: Function, named: Any) -> None:  # an array
        self.named.append(named)


def shadows(served: Planned, share: float) -> tuple[ShadowRows, Heard]:
    heard = Heard()
    made = ShadowRows(
        served.house.dispatcher,
        heard,  # type: ignore[arg-type]  # as far as it is told
        Metrics(),
        share=share,
        every_s=0.005,
    )
    return made, heard


def plans_of(dispatcher: Dispatcher, function: Function) -> object:
    followed = dispatcher.followed(function, "text")
    return None if followed is None else followed.plans


def call(served: Planned, rows: int, **fields: Any) -> Call:
    return Call(served.function, "text", [b"u"] * rows, rows, **fields)


@runs
async def test_all_members_are_asked_of_a_share_of_the_rows_once_nothing_waits(worker):
    served = Planned(worker)
    await served.start()
    shadow, heard = shadows(served, share=0.1)
    for _ in range(4):
        shadow.answered(call(served, 10))
    shadow.answered(call(served, 100, members=("a/1",)))  # who named them wants no others
    waiting = [served.ask("u") for _ in range(30)]
    shadow.start()
    await until(lambda: bool(worker.batches))
    for pending in waiting:
        await answered(worker, pending, {"u": 0.9})
    assert heard.named == [], "they wait for an idle moment"
    await until(lambda: bool(worker.batches))
    assert answer(worker, {"u": 0.9}) == EVERYBODY
    await until(lambda: bool(heard.named))
    (named,) = heard.named
    assert named.tolist() == [[0] * 4] * 3
    await shadow.close()


@runs
async def test_rows_that_are_put_aside_are_few_and_none_of_other_functions(worker):
    served = Planned(worker)
    await served.start()
    shadow, _ = shadows(served, share=1.0)
    for _ in range(20):
        shadow.answered(call(served, 100))
    assert len(shadow._aside) == 256
    none, _ = shadows(served, share=0.0)
    none.answered(call(served, 100))
    other, _ = shadows(served, share=1.0)
    for fields in ({"select": "all"}, {"combine": "mean"}, {"fit": replace(FIT, agreement=())}):
        other.answered(Call(replace(served.function, **fields), "text", [b"u"] * 100, 100))
    assert not none._aside
    assert not other._aside


@runs
@pytest.mark.security
async def test_rows_that_are_put_aside_are_read_below_their_callers_folders(worker, monkeypatch):
    served = Planned(worker)
    await served.start()
    shadow, heard = shadows(served, share=1.0)
    for roots in (("/photos/team",), ("/photos/team",), None):
        shadow.answered(call(served, 1, media_roots=roots))
    asked: list[Call] = []
    begin = served.house.dispatcher.begin

    def noted(call: Call) -> Any:
        asked.append(call)
        return begin(call)

    monkeypatch.setattr(served.house.dispatcher, "begin", noted)
    shadow.start()
    for _ in range(2):
        await until(lambda: bool(worker.batches))
        answer(worker, {"u": 0.9})
    await until(lambda: len(heard.named) == 2)
    assert [(each.media_roots, len(each.rows)) for each in asked] == [(("/photos/team",), 2), (None, 1)]
    await shadow.close()


@runs
async def test_a_member_that_is_left_out_is_asked_by_nobody_who_does_not_name_it(worker):
    served = Planned(worker)
    await served.start()
    at_rest = served.ask("u")
    assert await answered(worker, at_rest, {"u": 0.5}) == [EVERYBODY]
    note, made = guarded(begun(NAMES, FIT), FIT, Fall((2,), 40, 0.05, 0.85), "now")
    feedback = begun_anew(begun(NAMES, FIT), made, note)
    served.function = replace(served.function, feedback=feedback, refit=made)
    assert served.function.left_out == ("c",)
    dispatcher = served.house.dispatcher
    deployed = dispatcher.followed(served.function, "text")
    assert deployed is not None
    dispatcher.answer_as(served.function)
    await until(lambda: plans_of(dispatcher, served.function) is not deployed.plans)
    await settle()
    asked: set[str] = set()
    for fields in ({}, {}, {"row_class": "bulk"}, {"slo_s": 60.0}):
        pending = served.ask(*["u"] * 4, **fields)
        for members in await answered(worker, pending, {"u": 0.5}):
            asked |= set(members.split(","))
    assert asked
    assert "c/1" not in asked
    named = served.ask("u", row_class="bulk", members=("a/1", "b/1", "c/1"))
    assert await answered(worker, named, {"u": 0.5}) == [EVERYBODY], "labels are for all"
