"""A function whose members live on different workers: one message each, one answer a row, none twice."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer, RowError
from server.catalog.functions import Function, ModelVersion
from server.ensemble.contexts import Context
from server.ensemble.feedback import begun
from server.ensemble.fit import Fit, SubsetFit
from server.errors import DeadlineExceeded, ServiceError
from server.observability.metrics import Metrics
from server.scheduling.core import Scheduler
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import Call, PendingReply
from server.serving.contexts import Contexts
from server.serving.dispatcher import Dispatcher
from server.serving.scheduler_adapter import QueueBounds
from tests.answers import classified, confidences_of, labels_of, scores_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import CLASSES, function, text_model
from tests.waiting import until

MEMBERS = (text_model("a", accuracy=0.7), text_model("b", accuracy=0.8), text_model("c", accuracy=0.9))


class Placed:
    """A residency of which the test says what is where; it only counts what is wanted."""

    def __init__(self) -> None:
        self.held: dict[str, frozenset[str]] = {}
        self.wanted: list[tuple[str, ...]] = []

    def serve(self, *args: Any, **options: Any) -> None:
        pass

    def serve_no_more(self, name: str) -> None:
        pass

    def arrived(self, group: tuple[ModelVersion, ...], rows: int) -> None:
        pass

    def lost(self, group: tuple[ModelVersion, ...], rows: int) -> None:
        pass

    def touch(self, keys: Iterable[str], rows: int = 1, worker: str = "") -> None:
        pass

    def idle(self, keys: Iterable[str], worker: FakeWorker) -> None:
        pass

    def is_resident(self, group: tuple[ModelVersion, ...], without: Collection[str] = ()) -> bool:
        return frozenset().union(*self.held.values()).issuperset(model.key for model in group)

    def want(self, group: tuple[ModelVersion, ...], without: Collection[str] = ()) -> None:
        self.wanted.append(tuple(model.key for model in group))

    def not_there(self, worker: FakeWorker, keys: Iterable[str]) -> None:
        pass

    def swap_s(self, model: ModelVersion, device: str) -> float:
        return 1.0


class House:
    """A dispatcher, and workers that hold `w0="a b"`."""

    def __init__(self, members: tuple[ModelVersion, ...] = MEMBERS, **fields: Any) -> None:
        self.metrics = Metrics()
        self.placed = Placed()
        self.contexts = Contexts()
        parity = fields.get("parity")
        models = members if parity is None else (*members, parity)
        self.latencies = {model.key: LatencyModel({1: 0.001, 64: 0.01}) for model in models}
        self.dispatcher = Dispatcher(
            Scheduler(),
            QueueBounds(1000, 1 << 20),
            lambda model: self.latencies[model.key],
            self.metrics,
            lambda listener: self.placed,  # type: ignore[arg-type,return-value]  # as far as it is asked
            contexts=self.contexts,
        )
        self.function: Function = function(
            *members, **{"max_batch": 4, "batch_sizes": (1, 4), "policy": "goodput", "slo_ms": 50.0, **fields}
        )
        self.dispatcher.configure(self.function)
        self.workers: dict[str, FakeWorker] = {}

    def place(self, **held: str) -> None:
        for name, models in held.items():
            worker = self.workers.setdefault(name, FakeWorker(name))
            self.placed.held[name] = frozenset(f"{model}/1" for model in models.split())
            self.dispatcher.resident_changed(worker, self.placed.held[name])

    def lose(self, name: str) -> FakeWorker:
        """The worker dies: what was on it fails."""
        worker = self.workers.pop(name)
        del self.placed.held[name]
        self.dispatcher.worker_lost(worker)
        while worker.batches:
            worker.fail()
        return worker

    def ask(self, *rows: str, **fields: Any) -> PendingReply:
        data = [row.encode() for row in rows]
        return self.dispatcher.begin(Call(self.function, "text", data, sum(map(len, data)), **fields))

    def on(self, name: str) -> list[tuple[list[str], list[bytes]]]:
        """What was sent to a worker and is not answered: members and rows of each batch."""
        return [(message.models, message.rows) for message, _ in self.workers[name].batches]

    @property
    def rerun_rows(self) -> int:
        return self.metrics.of(self.function).rerun_rows


def test_members_on_different_workers_get_one_message_each_for_the_same_rows() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c")
        first, second = house.ask("x", "y"), house.ask("z")
        await settle()
        rows = [b"x", b"y", b"z"]
        assert house.on("w0") == [(["a/1", "b/1"], rows)]
        assert house.on("w1") == [(["c/1"], rows)]
        house.workers["w1"].answer(label=lambda row: "late" if row == b"y" else row.decode())
        assert not first.future.done()
        house.workers["w0"].answer()
        reply = first.future.result()
        assert labels_of(reply) == ["x", "y"]  # two of three say so
        assert confidences_of(reply) == pytest.approx([1.0, 2 / 3])
        assert {who for _, _, who in reply.answered_by} == {"a,b,c"}
        assert labels_of(second.future.result()) == ["z"]
        assert house.metrics.of(house.function).batches == 2
        assert house.placed.wanted == []

    asyncio.run(scenario())


def test_where_one_worker_holds_all_members_they_are_one_batch() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c", w2="a b c")
        pending = house.ask("x")
        await settle()
        assert (house.on("w0"), house.on("w1")) == ([], [])
        assert house.on("w2") == [(["a/1", "b/1", "c/1"], [b"x"])]
        house.workers["w2"].answer()
        assert labels_of(pending.future.result()) == ["x"]

    asyncio.run(scenario())


@pytest.mark.parametrize("order", ["0101", "1100", "0011"])
def test_a_long_request_is_answered_in_order_in_whatever_order_members_answer(order: str) -> None:
    async def scenario() -> None:
        house = House(combine="mean")
        house.place(w0="a", w1="b c")
        pending = house.ask(*"01201210", outputs=("scores",))
        await settle()
        for number in order:
            message, on_reply = house.workers[f"w{number}"].batches.pop(0)
            assert "scores" in message.outputs
            scores = b"".join(np.eye(3, dtype="<f4")[int(row)].tobytes() for row in message.rows)
            labels = [CLASSES[int(row)] for row in message.rows]
            answers = [classified(model, labels, [1.0] * len(labels), scores) for model in message.models]
            on_reply(Answer(message.id, answers, []))
            await settle()
        reply = pending.future.result()
        assert labels_of(reply) == [CLASSES[int(row)] for row in "01201210"]
        assert len(scores_of(reply)) == 8 * 12

    asyncio.run(scenario())


def test_a_row_at_fault_for_every_member_has_one_error_and_spoils_no_other() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c")
        pending = house.ask("x", "y", "z")
        await settle()
        house.workers["w0"].answer(errors=(1,))
        house.workers["w1"].answer(errors=(1,))
        reply = pending.future.result()
        assert list(reply.errors) == [1]
        assert labels_of(reply) == ["x", "", "z"]

    asyncio.run(scenario())


@pytest.mark.parametrize("first", ["w0", "w1"])
def test_of_a_worker_that_dies_only_its_members_run_again(first: str) -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c", w2="c")
        pending = house.ask("x", "y")
        await settle()
        holder = "w1" if house.on("w1") else "w2"
        other = "w2" if holder == "w1" else "w1"
        if first == "w0":
            house.workers["w0"].answer()
        house.lose(holder)
        await settle()
        seen = []
        while house.on(other):
            seen += house.on(other)
            house.workers[other].answer()
            await settle()
        if first != "w0":
            assert not pending.future.done()
            assert house.on("w0") == [(["a/1", "b/1"], [b"x", b"y"])]
            house.workers["w0"].answer()
            await settle()
        assert seen == [(["c/1"], [b"x"]), (["c/1"], [b"y"])]  # each alone: one of them may have done it
        assert labels_of(pending.future.result()) == ["x", "y"]
        assert house.on("w0") == []
        assert house.rerun_rows == 2

    asyncio.run(scenario())


def test_rows_in_quarantine_run_member_by_member_where_no_worker_holds_all_of_them() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b c")
        pending = house.ask("x")
        await settle()
        house.lose("w0")
        await settle()
        assert house.placed.wanted[-1] == ("a/1", "b/1", "c/1")
        house.place(w1="a b")
        await settle()
        assert house.on("w1") == []
        house.place(w2="c")
        await settle()
        assert house.on("w1") == [(["a/1", "b/1"], [b"x"])]
        house.workers["w1"].answer()
        await settle()
        assert house.on("w2") == [(["c/1"], [b"x"])]
        house.workers["w2"].answer()
        await settle()
        assert labels_of(pending.future.result()) == ["x"]
        assert house.on("w1") == house.on("w2") == []

    asyncio.run(scenario())


def test_rows_in_quarantine_whose_members_are_nowhere_hold_up_no_others() -> None:
    async def scenario() -> None:
        house = House((text_model("a"),))
        other = function(text_model("d"), name="other", policy="goodput", max_batch=4, batch_sizes=(1, 4))
        house.latencies["d/1"] = LatencyModel({1: 0.001, 64: 0.01})
        house.dispatcher.configure(other)
        house.place(w0="a d")
        first = house.ask("x", "y")
        second = house.dispatcher.begin(Call(other, "text", [b"z"], 1))
        await settle()
        assert sorted(house.on("w0")) == [(["a/1"], [b"x", b"y"]), (["d/1"], [b"z"])]
        house.lose("w0")
        house.place(w1="d")
        await settle()
        assert house.on("w1") == [(["d/1"], [b"z"])], "though those of a, who is loading, came before it"
        house.workers["w1"].answer()
        assert labels_of(second.future.result()) == ["z"]
        house.place(w1="a d")
        for row in (b"x", b"y"):
            await settle()
            assert house.on("w1") == [(["a/1"], [row])]
            house.workers["w1"].answer()
        assert labels_of(first.future.result()) == ["x", "y"]

    asyncio.run(scenario())


def test_a_row_under_which_two_workers_died_fails_though_other_members_have_answered() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c")
        pending = house.ask("x")
        await settle()
        house.workers["w0"].answer()
        house.lose("w1")
        house.place(w1="c")
        await settle()
        house.lose("w1")
        (error,) = pending.future.result().errors.values()
        assert error.code == "worker_lost"

    asyncio.run(scenario())


def test_a_worker_that_has_no_room_for_its_members_is_asked_again_for_those_alone() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c")
        pending = house.ask("x", "y")
        await settle()
        house.workers["w0"].answer()
        house.workers["w1"].fail("overloaded", "full")
        await until(lambda: house.on("w1"))
        assert house.on("w0") == []
        assert house.on("w1") == [(["c/1"], [b"x", b"y"])]
        house.workers["w1"].answer()
        assert labels_of(pending.future.result()) == ["x", "y"]

    asyncio.run(scenario())


def test_a_late_members_answer_is_dropped_and_its_time_still_taught() -> None:
    async def scenario() -> None:
        house = House(late_members="leave_out")
        house.place(w0="a b", w1="c")
        pending = house.ask("x", "y")
        await settle()
        house.workers["w0"].answer()
        assert not pending.future.done(), "it waits for all until its goal"
        await asyncio.wait_for(pending.future, 5)
        reply = pending.future.result()
        assert labels_of(reply) == ["x", "y"]
        assert {who for _, _, who in reply.answered_by} == {"a,b"}
        house.dispatcher.end(pending)
        assert house.workers["w1"].cancelled == []
        before_s = house.latencies["c/1"].on("fake", "text")(2)
        message, on_reply = house.workers["w1"].batches.pop(0)
        on_reply(
            Answer(message.id, [classified("c/1", ["no", "no"], [1.0, 1.0])], [], work_s=0.5, stay_s=0.5)
        )
        await settle()
        assert labels_of(reply) == ["x", "y"]
        assert house.latencies["c/1"].on("fake", "text")(2) > 1.05 * before_s
        assert house.rerun_rows == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("late_members", ["wait", "leave_out"])
def test_an_answer_that_cannot_be_combined_fails_its_call_and_no_other(late_members: str) -> None:
    """Whether all have come, or it is the goal at which what has come is to be the answer."""

    def say_no_label(worker: FakeWorker) -> None:
        message, on_reply = worker.batches.pop(0)
        sure = Column("confidence", "FP32", (), struct.pack("<2f", 1.0, 1.0))
        on_reply(Answer(message.id, [MemberAnswer(model, [sure]) for model in message.models], []))

    async def scenario() -> None:
        house = House(late_members=late_members)
        house.place(w0="a b", w1="c")
        pending = house.ask("x", "y")
        await settle()
        if late_members == "wait":
            house.workers["w0"].answer()
            say_no_label(house.workers["w1"])
        else:
            say_no_label(house.workers["w0"])
        with pytest.raises(ServiceError, match="cannot be used"):
            await asyncio.wait_for(pending.future, 5)
        house.dispatcher.end(pending)
        if late_members != "wait":
            house.workers["w1"].answer()
        again = house.ask("z")
        await settle()
        for worker in house.workers.values():
            worker.answer()
        assert labels_of(again.future.result()) == ["z"]

    asyncio.run(scenario())


def test_the_mean_of_values_is_of_those_that_came() -> None:
    members = tuple(replace(text_model(name), task="text-regression", classes=()) for name in "abc")

    def said(worker: str, house: House, **values: float) -> None:
        message, on_reply = house.workers[worker].batches.pop(0)
        told = [
            MemberAnswer(f"{name}/1", [Column("value", "FP64", (), struct.pack("<d", value))])
            for name, value in values.items()
        ]
        on_reply(Answer(message.id, told, [], work_s=0.01, stay_s=0.01))

    async def scenario() -> None:
        house = House(members, late_members="leave_out", combine="mean")
        house.place(w0="a b", w1="c")
        everybody = house.ask("x")
        await settle()
        said("w0", house, a=1.0, b=2.0)
        said("w1", house, c=6.0)
        await asyncio.wait_for(everybody.future, 5)
        some = house.ask("x")
        await settle()
        said("w0", house, a=1.0, b=2.0)
        assert not some.future.done(), "it waits for all until its goal"
        await asyncio.wait_for(some.future, 5)
        for pending, value, who in ((everybody, 3.0, "a,b,c"), (some, 1.5, "a,b")):
            reply = pending.future.result()
            assert list(reply.columns["value"].values) == [value]
            assert [names for _, _, names in reply.answered_by] == [who]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("came", "answering", "expected"),
    [("a b", "a,b", [0.9, 0.05, 0.05]), ("c", "c", [0.4**2, 0.3**2, 0.3**2])],
)
def test_those_that_came_in_time_answer_by_the_weights_that_were_fitted_for_them(
    came: str, answering: str, expected: list[float]
) -> None:
    """Of a and b together a alone counts; c alone is as sure as its temperature says."""
    fit = Fit(
        ("a", "b", "c"),
        (1.0, 1.0, 0.5),
        (SubsetFit((0, 1), (1.0, 1e-9), 1.0, 0.0), SubsetFit((0, 1, 2), (1e-9, 1e-9, 1.0), 1.0, 0.0)),
        100,
        3,
    )
    said = {"a": [0.9, 0.05, 0.05], "b": [0.1, 0.8, 0.1], "c": [0.4, 0.3, 0.3]}

    async def scenario() -> None:
        house = House(late_members="leave_out", combine="log_pool", fit=fit)
        house.place(w0="a b", w1="c")
        pending = house.ask("x", outputs=("label", "confidence", "scores"))
        await settle()
        worker = house.workers["w0" if came == "a b" else "w1"]
        message, on_reply = worker.batches.pop(0)
        assert "scores" in message.outputs
        answers = []
        for model in message.models:
            p = np.asarray(said[model.partition("/")[0]], "<f4")
            answers.append(classified(model, [CLASSES[int(p.argmax())]], [float(p.max())], p.tobytes()))
        on_reply(Answer(message.id, answers, []))
        reply = await asyncio.wait_for(pending.future, 5)
        assert {who for _, _, who in reply.answered_by} == {answering}
        told = np.frombuffer(scores_of(reply), "<f4")
        assert told == pytest.approx(np.asarray(expected) / sum(expected), abs=1e-5)
        assert confidences_of(reply) == pytest.approx([told.max()])

    asyncio.run(scenario())


def test_at_the_goal_the_default_is_answered_by_what_the_calibrated_probability_of_those_is_that_came() -> (
    None
):
    """c says 0.9 and is made less sure by its temperature: below the threshold, as its own word is not."""
    fit = Fit(("a", "b", "c"), (1.0, 1.0, 4.0), (), 100, 3)
    p = np.array([0.9, 0.05, 0.05], "<f4")

    async def scenario() -> None:
        house = House(
            late_members="leave_out",
            combine="log_pool",
            fit=fit,
            min_confidence=0.8,
            default="none",
            slo_ms=50.0,
        )
        house.place(w0="a b", w1="c")
        pending = house.ask("x")
        await settle()
        message, on_reply = house.workers["w1"].batches.pop(0)
        on_reply(Answer(message.id, [classified("c/1", [CLASSES[0]], [0.9], p.tobytes())], []))
        reply = await asyncio.wait_for(pending.future, 5)
        sure = p**0.25 / (p**0.25).sum()
        assert confidences_of(reply) == pytest.approx([sure[0]], abs=1e-5)
        assert (labels_of(reply), reply.defaulted) == (["none"], {0})
        assert {who for _, _, who in reply.answered_by} == {"c"}
        stats = house.metrics.of(house.function)
        assert (stats.goal_rows, stats.late_members) == (1, 2)

    asyncio.run(scenario())


def test_rows_of_which_nothing_has_come_at_their_goal_get_the_first_that_comes() -> None:
    async def scenario() -> None:
        house = House(late_members="leave_out", slo_ms=20.0)
        house.place(w0="a b", w1="c")
        pending = house.ask("x")
        await settle()
        await asyncio.sleep(0.05)
        assert not pending.future.done()
        house.workers["w1"].answer()
        assert {who for _, _, who in pending.future.result().answered_by} == {"c"}

    asyncio.run(scenario())


def test_what_has_come_at_the_deadline_is_the_answer_where_the_function_says_so() -> None:
    async def scenario() -> None:
        for late_members in ("leave_out", "wait"):
            house = House(late_members=late_members, slo_ms=1000.0)
            house.place(w0="a b", w1="c")
            pending = house.ask("x", deadline_s=time.monotonic() + 0.1)
            await settle()
            house.workers["w0"].answer()
            await asyncio.wait({pending.future}, timeout=5)
            if late_members == "leave_out":
                assert labels_of(pending.future.result()) == ["x"]
            else:
                with pytest.raises(DeadlineExceeded):
                    pending.future.result()
            house.dispatcher.end(pending)
            assert len(house.workers["w1"].cancelled) == (late_members == "wait")

    asyncio.run(scenario())


def test_a_dead_workers_rows_that_are_answered_without_it_do_not_run_again() -> None:
    async def scenario() -> None:
        house = House(late_members="leave_out", slo_ms=20.0)
        house.place(w0="a b", w1="c")
        pending = house.ask("x")
        await settle()
        house.workers["w0"].answer()
        await asyncio.wait_for(pending.future, 5)
        house.lose("w1")
        house.place(w1="c")
        await settle()
        assert house.on("w1") == []
        assert house.rerun_rows == 0

    asyncio.run(scenario())


def test_a_late_member_that_fails_spoils_no_answer() -> None:
    async def scenario() -> None:
        house = House(late_members="leave_out", slo_ms=50.0)
        house.place(w0="a b", w1="c")
        pending = house.ask(*"stuvwxyz")  # two batches each; of the second nothing has come
        await settle()
        house.workers["w0"].answer()
        await asyncio.sleep(0.1)
        house.workers["w1"].fail("internal", "broken")
        await settle()
        assert not pending.future.done()
        while house.on("w0"):
            house.workers["w0"].answer()
            await settle()
        assert labels_of(pending.future.result()) == list("stuvwxyz")

    asyncio.run(scenario())


def test_a_client_that_goes_takes_its_rows_from_every_worker_and_queue() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c")
        pending = house.ask(*"uvwxyz")
        await settle()
        asked = len(house.on("w1"))
        house.workers["w1"].fail("overloaded", "full")
        await until(lambda: len(house.on("w1")) == asked)  # it has been asked again
        house.dispatcher.end(pending)
        assert len(house.workers["w0"].cancelled) == len(house.on("w0"))
        assert len(house.workers["w1"].cancelled) == len(house.on("w1"))
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "members",
    [
        [classified("c/1", ["x"], [1.0])],  # a row too few
        [],
        [classified("a/1", ["x", "y"], [1.0, 1.0])],  # somebody else
    ],
)
def test_an_answer_that_is_not_what_was_asked_fails_the_call_and_nothing_hangs(
    members: list[MemberAnswer],
) -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b", w1="c")
        pending = house.ask("x", "y")
        await settle()
        message, on_reply = house.workers["w1"].batches.pop(0)
        on_reply(Answer(message.id, members, []))
        with pytest.raises(ServiceError):
            pending.future.result()

    asyncio.run(scenario())


def test_an_overdue_worker_that_holds_all_members_does_not_keep_rows_from_others() -> None:
    async def scenario() -> None:
        house = House()
        house.place(w0="a b c")
        stuck = house.ask("x")
        await settle()
        house.place(w1="a", w2="b c")
        await asyncio.sleep(0.4)  # its batch was to take 3 ms
        pending = house.ask("y")
        await settle()
        assert house.on("w0") == [(["a/1", "b/1", "c/1"], [b"x"])]
        assert house.on("w1") == [(["a/1"], [b"y"])]
        assert house.on("w2") == [(["b/1", "c/1"], [b"y"])]
        for name in ("w1", "w2"):
            house.workers[name].answer()
        assert labels_of(pending.future.result()) == ["y"]
        assert not stuck.future.done()

    asyncio.run(scenario())


@pytest.mark.parametrize("places", [{"w0": "a b"}, {"w0": "a", "w1": "b"}])
def test_rows_of_several_contexts_share_a_batch_and_each_is_answered_by_its_own(
    places: dict[str, str],
) -> None:
    async def scenario() -> None:
        fit = Fit(("a", "b"), (1.0, 1.0), (SubsetFit((0, 1), (0.8, 0.7), 0.5, 1.0),), 10, 3)
        known = begun(("a", "b"), fit)
        house = House(MEMBERS[:2], combine="log_pool", fit=fit, feedback=known)
        house.place(**places)
        taught = [("ours", Context((-2.0, 1.0))), ("theirs", Context((1.0, -2.0)))]
        house.contexts.learn(house.function, taught)
        calls = [
            house.ask("x", "y"),
            house.ask("z", context="ours"),
            house.ask("u", context="theirs"),
        ]
        await settle()
        sent = [rows for name in places for _, rows in house.on(name)]
        assert sent == [[b"x", b"y", b"z", b"u"]] * len(places), "one batch for each worker"
        for name in places:
            message, on_reply = house.workers[name].batches.pop(0)
            told = []
            for model in message.models:  # `a` says laksa, and `b` pizza
                scores = np.full((4, 3), 0.1, "<f4")
                named = int(model == "b/1")
                scores[:, named] = 0.8
                told.append(classified(model, [CLASSES[named]] * 4, [0.8] * 4, scores.tobytes()))
            on_reply(Answer(message.id, told, [RowError(3, "input_invalid", "bad row")]))
        replies = [call.future.result() for call in calls]
        assert [labels_of(reply) for reply in replies[:2]] == [["laksa", "laksa"], ["pizza"]]
        assert [list(reply.errors) for reply in replies] == [[], [], [0]]
        assert confidences_of(replies[1])[0] > 0.8
        assert [reply.answered_by[0][2] for reply in replies] == ["a,b"] * 3
        later = house.ask("v", context="unheard of")
        house.dispatcher.remove(house.function)
        assert house.contexts.shifts(house.function, "ours") is None
        house.dispatcher.end(later)

    asyncio.run(scenario())
