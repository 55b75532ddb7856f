"""Models behind other servers, as the server keeps them: in and out, waited for, and left out of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_worker.model_files.endpoints import AllowedEndpoints
from gpu_worker.wire.protocol import (
    Answer,
    Column,
    Failed,
    Infer,
    Load,
    Loaded,
    MemberAnswer,
    Message,
    RowError,
)
from server.catalog.functions import ModelVersion
from server.errors import BadOption, RemoteUnavailable
from server.placement.remote_models import RemoteModels
from server.scheduling.core import Slice
from server.serving.absent import MemberOut, asked_now, unanswered
from server.serving.calls import Call
from server.serving.evidence import Evidence
from server.workers.endpoint_slot import EndpointSlot
from server.workers.pool import OnReply, Worker, WorkerInfo, WorkerListener, WorkerStatus
from tests.unit.server.served import function, text_model
from tests.waiting import until

URL = "http://127.0.0.1:9/v2/models/far"
FAR = replace(text_model("far"), endpoint=URL, concurrency=2)
HERE = text_model("here")


class Process:
    """A worker whose loads answer what `loads` says; `sent`: the other messages, with who waits."""

    name = "remote0"
    info = WorkerInfo("remote", "other servers", 0)

    def __init__(self) -> None:
        self.loads: Callable[[], Message] = lambda: Loaded(0, 0, 0.0)
        self.loaded = 0
        self.sent: list[tuple[Message, OnReply]] = []
        self.cancelled: list[int] = []

    def send(self, message: Message, on_reply: OnReply) -> int:
        self.sent.append((message, on_reply))
        return len(self.sent)

    async def call(self, message: Message) -> Message:
        assert isinstance(message, Load)
        self.loaded += 1
        return self.loads()

    def cancel(self, message_id: int) -> None:
        self.cancelled.append(message_id)

    def kill(self, reason: str) -> None:
        raise AssertionError(reason)


class Pool:
    def __init__(self) -> None:
        self.process = Process()
        self.starts = 0

    async def start(self, listener: WorkerListener) -> None:
        self.starts += 1
        listener.worker_up(self.process)

    async def close(self) -> None:
        pass

    def states(self) -> Sequence[WorkerStatus]:
        return [WorkerStatus("remote0", "up", 1, 0, self.process.info, "")]


class Listener:
    """What has been told: the slots that may be asked, and why models are out."""

    def __init__(self) -> None:
        self.slots: dict[str, Worker] = {}
        self.out: dict[str, tuple[str, bool]] = {}

    def resident_changed(self, worker: Worker, resident: frozenset[str]) -> None:
        self.slots[worker.name] = worker

    def worker_lost(self, worker: Worker) -> None:
        self.slots.pop(worker.name, None)

    def member_out(self, model: str, reason: str, *, waits: bool) -> None:
        self.out[model] = (reason, waits)

    def member_back(self, model: str) -> None:
        self.out.pop(model, None)


class House:
    def __init__(self, *models: ModelVersion) -> None:
        self.pool, self.listener = Pool(), Listener()
        allowed = AllowedEndpoints(("http://127.0.0.1:9",))
        self.remote = RemoteModels(self.listener, self.pool, allowed, pause_s=(0.001, 0.002))
        self.remote.serve(models)

    async def run(self, test: Callable[[House], Any]) -> None:
        self.remote.start()
        try:
            await test(self)
        finally:
            await self.remote.close()


def run(house_of: Callable[[], House], test: Callable[[House], Any]) -> None:
    async def whole() -> None:
        await house_of().run(test)

    asyncio.run(whole())


def test_no_process_is_started_before_there_is_such_a_model() -> None:
    async def test(house: House) -> None:
        await asyncio.sleep(0.01)
        assert (house.pool.starts, house.remote.states()) == (0, [])
        house.remote.serve([FAR])
        await until(lambda: house.listener.slots)
        assert house.pool.starts == 1

    run(lambda: House(HERE), test)


def test_a_model_is_as_many_workers_as_its_endpoint_takes_requests() -> None:
    async def test(house: House) -> None:
        assert house.listener.out[FAR.key][1], "rows wait while nothing is known"
        await house.remote.load([FAR, HERE])
        assert list(house.listener.slots) == ["remote far/1 0", "remote far/1 1"]
        assert {slot.info.in_flight for slot in house.listener.slots.values()} == {1}
        assert house.remote.resident() == {"remote0": [FAR.key]}
        assert house.listener.out == {}

    run(lambda: House(FAR), test)


def test_one_that_cannot_be_asked_is_out_with_the_reason_and_looked_for_again() -> None:
    async def test(house: House) -> None:
        process = house.pool.process
        process.loads = lambda: Failed(0, "remote_unavailable", "nobody listens")
        with pytest.raises(RemoteUnavailable, match="far/1 cannot be asked: nobody listens"):
            await house.remote.load([FAR])
        assert house.listener.out == {FAR.key: ("nobody listens", False)}
        await until(lambda: process.loaded > 3)
        process.loads = lambda: Loaded(0, 0, 0.0)
        await until(lambda: house.listener.slots)
        assert house.remote.reason(FAR) == ""

    run(lambda: House(FAR), test)


def test_a_batch_without_an_answer_takes_it_out_until_it_was_looked_for() -> None:
    async def test(house: House) -> None:
        await house.remote.load([FAR])
        process = house.pool.process
        process.loads = lambda: Failed(0, "remote_unavailable", "gone")
        replies: list[Message] = []
        slot = house.listener.slots["remote far/1 0"]
        slot.send(Infer(0, [FAR.key], "text", [b"a", b"b"]), replies.append)
        some = Answer(1, [], [RowError(0, "remote_unavailable", "500")])
        process.sent[0][1](some)
        assert house.listener.out == {}, "one row of two is no reason"
        slot.send(Infer(0, [FAR.key], "text", [b"a"]), replies.append)
        process.sent[1][1](some)
        assert house.listener.out == {FAR.key: ("500", True)}
        assert house.listener.slots == {}
        assert replies == [some, some]
        await until(lambda: house.listener.out == {FAR.key: ("gone", False)})

    run(lambda: House(FAR), test)


def test_one_that_says_it_is_there_and_answers_nothing_is_asked_ever_more_rarely() -> None:
    async def test(house: House) -> None:
        process = house.pool.process
        waits = []
        for _ in range(3):
            await until(lambda: house.listener.slots)
            slot = house.listener.slots["remote far/1 0"]
            slot.send(Infer(0, [FAR.key], "text", [b"a"]), lambda _: None)
            process.sent[-1][1](Answer(1, [], [RowError(0, "remote_unavailable", "503")]))
            waits.append(house.listener.out[FAR.key][1])
        assert waits == [True, False, False], "after the second its rows wait no longer"
        await until(lambda: house.listener.slots)
        slot = house.listener.slots["remote far/1 0"]
        slot.send(Infer(0, [FAR.key], "text", [b"a"]), lambda _: None)
        process.sent[-1][1](Answer(1, [], []))
        slot.send(Infer(0, [FAR.key], "text", [b"a"]), lambda _: None)
        process.sent[-1][1](Answer(1, [], [RowError(0, "remote_unavailable", "503")]))
        assert house.listener.out[FAR.key][1], "an answer in between, and it is the first again"

    run(lambda: House(FAR), test)


def test_a_slot_that_is_slow_spares_the_process_and_rows_of_one_that_dies_are_no_suspects() -> None:
    process, told, replies = Process(), list[str](), list[Message]()
    slot = EndpointSlot("far/1", 0, process, told.append)
    slot.send(Infer(0, ["far/1"], "text", [b"a"]), replies.append)
    slot.kill("no batch came back")
    assert (process.cancelled, told, replies) == ([], [], []), "its request keeps its own time"
    process.sent[0][1](Failed(1, "worker_lost", "died"))
    assert isinstance(replies[0], Failed)
    assert replies[0].code == "cancelled", "its rows run again, and are no suspects"


def test_a_dead_process_takes_all_out_until_it_is_back() -> None:
    async def test(house: House) -> None:
        await house.remote.load([FAR])
        house.remote.worker_down(house.pool.process)
        assert house.listener.slots == {}
        assert house.listener.out[FAR.key][1]
        house.remote.worker_up(house.pool.process)
        await until(lambda: house.listener.slots)

    run(lambda: House(FAR), test)


def test_an_endpoint_that_is_not_allowed_is_refused() -> None:
    remote = House().remote
    remote.check(FAR)
    remote.check(HERE)
    with pytest.raises(BadOption, match=r"--allow-remote http://example\.org"):
        remote.check(replace(FAR, endpoint="http://example.org/v1"))


def asked(members: tuple[str, ...] | None, **out: bool) -> tuple[tuple[str, ...] | None, list[str]]:
    call = Call(function(FAR, HERE), "text", [b"a"], 1)
    absent = {f"{name}/1": MemberOut(RowError(0, "x", "y"), waits) for name, waits in out.items()}
    left, gone = asked_now(call, members, absent)
    return left, sorted(gone)


def test_rows_go_to_the_members_that_can_be_asked() -> None:
    assert asked(None) == (None, [])
    assert asked(None, other=False) == (None, [])
    assert asked(None, far=False) == (("here/1",), ["far/1"])
    assert asked(None, far=True) == (("here/1",), ["far/1"]), "an ensemble waits for nobody"
    assert asked(("far/1",), far=False) == ((), ["far/1"])
    assert asked(("far/1",), far=True) == (("far/1",), []), "alone it waits until more is known"


def member(name: str, *labels: str) -> MemberAnswer:
    return MemberAnswer(name, [Column("label", "BYTES", (), list(labels))])


def test_a_members_faults_are_its_own_and_the_others_answer() -> None:
    evidence, whole = Evidence(), Slice(1, 0, 3)
    evidence.expect(whole, ["far/1", "here/1"])
    fault = RowError(1, "remote_invalid", "no JSON")
    assert evidence.take(whole, 0, Answer(0, [member("far/1", "a", "", "c")], [fault])) == []
    (span,) = evidence.take(whole, 0, Answer(0, [member("here/1", "a", "b", "c")], []))
    told = span.answer()
    assert (told.answered, told.errors) == ([3, 2, 3], [])


def test_a_row_that_all_members_fault_at_has_the_error() -> None:
    evidence, whole = Evidence(), Slice(1, 0, 2)
    evidence.expect(whole, ["far/1"])
    (span,) = evidence.take(
        whole, 0, Answer(0, [member("far/1", "", "b")], [RowError(0, "remote_invalid", "no JSON")])
    )
    assert span.answer().errors == [RowError(0, "remote_invalid", "no JSON")]


def test_a_member_that_is_left_out_is_waited_for_no_more() -> None:
    evidence, whole = Evidence(), Slice(1, 0, 4)
    evidence.expect(whole, ["far/1", "here/1"])
    evidence.take(Slice(1, 0, 2), 0, Answer(0, [member("here/1", "a", "b")], []))
    why = {"far/1": RowError(0, "remote_unavailable", "gone")}
    (done,) = evidence.leave_out(whole, why)
    assert (done.offset, done.rows, list(done.found), list(done.absent)) == (0, 2, ["here/1"], ["far/1"])
    assert evidence.missing(whole) == {"here/1"}
    (last,) = evidence.take(Slice(1, 2, 2), 0, Answer(0, [member("here/1", "c", "d")], []))
    assert [told.model for told in last.answer().members] == ["here/1"]


def test_a_batch_that_was_not_answered_teaches_nothing() -> None:
    faults = [RowError(row, "remote_unavailable", "gone") for row in range(2)]
    whole, part = Answer(7, [], faults), Answer(7, [], faults[:1])
    assert unanswered(whole, 2, choices=False) == Failed(7, "remote_unavailable", "gone")
    assert unanswered(part, 2, choices=False) is None
    assert unanswered(part, 2, choices=True) is not None
    assert unanswered(Answer(7, [], [RowError(0, "input_invalid", "x")]), 1, choices=True) is None
    assert unanswered(Failed(7, "internal", "x"), 1, choices=False) is None
