"""A pipeline's calls over stages that answer when they are told to: goals, deadlines, cancels, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from gpu_worker.wire.protocol import Column, RowError
from server.catalog.functions import Function
from server.catalog.pipeline import Pipeline
from server.errors import DeadlineExceeded, Overloaded, ServiceError, VersionGone
from server.http.body import ClientGone
from server.serving.calls import Call, PendingReply, Reply
from server.serving.dispatcher import Dispatcher
from server.serving.outcomes import Outcomes
from server.serving.pipelines.calls import PipelineCall, PipelineCalls
from server.serving.pipelines.cropping import Cropper
from server.serving.scheduler_adapter import submission_of
from tests.unit.server.served import function, text_model

FIRST, SECOND = (function(text_model(f"{name}_net"), name=name) for name in ("udf_write", "udf_text"))
WAIT_S = 10.0


def pipeline_of(*stages: Function, split: str = "none", slo_ms: float = 1000.0) -> Function:
    members = tuple({model.key: model for stage in stages for model in stage.members}.values())
    made_of = Pipeline(stages, None, split)
    return Function("udf_both", 3, members, "text", slo_ms=slo_ms, pipeline=made_of)


def answered(call: Call, errors: dict[int, RowError] | None = None) -> Reply:
    """Each row, in capitals."""
    texts = [row.decode().upper() for row in call.rows]
    rows = len(texts)
    columns = {"label": Column("label", "BYTES", (), list(texts))}
    by = [(0, rows, call.function.members[0].name)]
    return Reply(call.function, rows, columns, errors or {}, by, set())


class Stages:
    """Has of a dispatcher what pipelines need. refuses: so many calls first."""

    def __init__(self, refuses: int = 0) -> None:
        self.begun: list[PendingReply] = []
        self.ended: list[PendingReply] = []
        self.refusals = refuses
        self.is_open = True
        self._changed = asyncio.Event()

    def check_open(self) -> None:
        if not self.is_open:
            raise Overloaded("the server is shutting down")

    def current(self, function: Function) -> Function:
        return function

    def begin(self, call: Call) -> PendingReply:
        assert call.is_part
        if self.refusals:
            self.refusals -= 1
            raise Overloaded("the queue is full", 0.01)
        pending = PendingReply(Outcomes(), len(self.begun), call, time.monotonic())
        self.begun.append(pending)
        self._changed.set()
        return pending

    def end(self, pending: PendingReply) -> None:
        pending.cancel()
        self.ended.append(pending)
        self._changed.set()

    async def asked(self, number: int) -> PendingReply:
        """A call of a stage, once it is there."""
        await self.until(lambda: len(self.begun) > number)
        return self.begun[number]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


class House:
    """A pipeline's calls over such stages, with each model taking a millisecond a row."""

    def __init__(self, refuses: int = 0) -> None:
        self.stages = Stages(refuses)
        dispatcher = cast(Dispatcher, self.stages)
        self.calls = PipelineCalls(
            dispatcher, None, Cropper(list), lambda model, form: lambda rows: rows / 1000
        )

    def begin(self, function: Function, *rows: bytes, **fields: Any) -> PipelineCall:
        return self.calls.begin(Call(function, "text", list(rows), sum(map(len, rows)), **fields))

    async def ended(self) -> None:
        """Wait until no stage has anything of it."""
        await self.stages.until(lambda: len(self.stages.ended) == len(self.stages.begun))


def in_loop(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_rows_go_from_stage_to_stage_in_the_name_of_who_asks() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a", b"b", caller="ann", row_class="bulk")
        first = await house.stages.asked(0)
        first.finish(answered(first.call))
        second = await house.stages.asked(1)
        assert second.call.rows == [b"A", b"B"]
        assert (second.call.caller, second.call.row_class, second.call.function) == ("ann", "bulk", SECOND)
        second.finish(answered(second.call))
        reply = await one.future
        assert reply.columns["label"].data == ["A", "B"]
        assert reply.answered_by == [(0, 2, "udf_write_net,udf_text_net")]
        house.calls.end(one)
        await house.calls.drained()

    in_loop(run)


def test_each_stage_that_a_proxy_answers_for_keeps_the_agreement_that_is_asked_for() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a", min_agreement=1.0)
        for number in range(2):
            stage = await house.stages.asked(number)
            assert stage.call.min_agreement == 1.0
            stage.finish(answered(stage.call))
        await one.future
        house.calls.end(one)

    in_loop(run)


def test_rows_of_a_large_bulk_job_wait_for_its_turn_in_each_stage() -> None:
    async def run() -> None:
        house = House()
        of_job = {"caller": "ann", "row_class": "bulk", "turn": "ann\0job", "turn_weight": 0.5}
        one = house.begin(pipeline_of(FIRST, SECOND), b"a", **of_job)
        for number in range(2):
            stage = await house.stages.asked(number)
            asked = submission_of(stage, 0, 1)
            assert (asked.tenant, asked.weight) == ("ann\0job", 0.5)
            stage.finish(answered(stage.call))
        await one.future
        house.calls.end(one)

    in_loop(run)


@pytest.mark.parametrize(("split", "first_s"), [("none", 0.998), ("even", 0.5)])
def test_each_stage_has_its_part_of_the_goal_and_the_whole_deadline(split: str, first_s: float) -> None:
    async def run() -> None:
        house = House()
        ends_s = time.monotonic() + 100
        one = house.begin(pipeline_of(FIRST, SECOND, split=split), b"a", b"b", deadline_s=ends_s)
        first = await house.stages.asked(0)
        assert first.call.deadline_s == ends_s
        assert first.call.slo_s == pytest.approx(first_s, abs=0.2)
        assert first.call.slo_s is not None
        assert first.call.slo_s <= first_s
        first.finish(answered(first.call))
        second = await house.stages.asked(1)
        assert second.call.deadline_s == ends_s
        assert second.call.slo_s is not None
        assert second.call.slo_s <= 1.0
        house.calls.end(one)
        await house.ended()

    in_loop(run)


def test_a_row_at_fault_goes_no_further_and_names_its_stage() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a", b"b", b"c")
        first = await house.stages.asked(0)
        first.finish(answered(first.call, {1: RowError(1, "input_invalid", "it is wrong")}))
        second = await house.stages.asked(1)
        assert second.call.rows == [b"A", b"C"]
        second.finish(answered(second.call, {1: RowError(1, "internal", "no number")}))
        reply = await one.future
        assert {row: (error.index, error.message) for row, error in reply.errors.items()} == {
            1: (1, "stage 1 (udf_write): it is wrong"),
            2: (2, "stage 2 (udf_text): no number"),
        }
        assert reply.columns["label"].values[0] == "A"

    in_loop(run)


@pytest.mark.parametrize(
    ("failure", "found", "message"),
    [
        (Overloaded("no room", 3.0), Overloaded, "stage 1 (udf_write): no room"),
        (ServiceError("it broke"), ServiceError, "stage 1 (udf_write): it broke"),
        (VersionGone("version 1 of udf_write"), VersionGone, "version 3 of udf_both is no longer served"),
    ],
)
def test_a_stage_that_fails_names_itself(
    failure: ServiceError, found: type[ServiceError], message: str
) -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a")
        (await house.stages.asked(0)).fail(failure)
        with pytest.raises(found) as caught:
            await one.future
        assert caught.value.message == message
        assert failure.message != message  # it may be others' failure too
        await house.ended()

    in_loop(run)


def test_who_asks_no_more_ends_what_is_under_way_in_each_stage() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), *[b"a"] * 130)  # three parts
        for number in range(3):
            await house.stages.asked(number)
        ready = house.stages.begun[0]
        ready.finish(answered(ready.call))
        await house.stages.asked(3)
        one.fail(ClientGone())
        house.calls.end(one)
        await house.ended()
        assert len(house.stages.begun) == 4
        await house.calls.drained()

    in_loop(run)


def test_a_deadline_that_passes_between_stages_ends_the_call() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a", deadline_s=time.monotonic() + 0.05)
        await house.stages.asked(0)
        with pytest.raises(DeadlineExceeded, match=r"no answer of udf_both after .* ms, its deadline"):
            await one.future
        await house.ended()

    in_loop(run)


def test_rows_that_were_taken_wait_for_room_in_the_next_stage() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a")
        first = await house.stages.asked(0)
        house.stages.refusals = 2
        first.finish(answered(first.call))
        second = await house.stages.asked(1)
        second.finish(answered(second.call))
        assert (await one.future).rows == 1

    in_loop(run)


def test_rows_that_the_next_stage_refuses_after_it_looked_at_files_wait_for_room_too() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a")
        first = await house.stages.asked(0)
        first.finish(answered(first.call))
        (await house.stages.asked(1)).fail(Overloaded("the queue is full", 0.01))
        second = await house.stages.asked(2)
        assert second.call.rows == [b"A"]
        second.finish(answered(second.call))
        assert (await one.future).rows == 1
        await house.ended()

    in_loop(run)


def test_rows_that_workers_of_the_next_stage_refuse_again_and_again_wait_no_longer() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a")
        first = await house.stages.asked(0)
        first.finish(answered(first.call))
        second = await house.stages.asked(1)
        second.first_sent_s = time.monotonic()
        second.fail(Overloaded("workers refused it again and again", 0.01))
        with pytest.raises(Overloaded) as caught:
            await one.future
        assert caught.value.message == "stage 2 (udf_text): workers refused it again and again"

    in_loop(run)


def test_what_no_stage_has_taken_is_refused_at_once() -> None:
    async def run() -> None:
        one = House(refuses=1).begin(pipeline_of(FIRST, SECOND), b"a")
        with pytest.raises(Overloaded) as caught:
            await one.future
        assert caught.value.message == "stage 1 (udf_write): the queue is full"

    in_loop(run)


def test_no_call_begins_while_the_server_shuts_down_and_those_under_way_go_on() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(pipeline_of(FIRST, SECOND), b"a")
        first = await house.stages.asked(0)
        house.stages.is_open = False
        with pytest.raises(Overloaded, match="shutting down"):
            house.begin(pipeline_of(FIRST, SECOND), b"b")
        first.finish(answered(first.call))
        second = await house.stages.asked(1)
        second.finish(answered(second.call))
        assert (await one.future).columns["label"].data == ["A"]

    in_loop(run)


def test_a_pipeline_may_keep_its_rows_out_of_the_answer_cache() -> None:
    async def run() -> None:
        house = House()
        one = house.begin(replace(pipeline_of(FIRST, SECOND), answer_cache=False), b"a")
        assert not (await house.stages.asked(0)).call.answer_cache
        house.calls.end(one)
        await house.ended()

    in_loop(run)
