"""The live shell: rows are queued, batched, sent, answered, run again; none is lost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.errors import BadOption, DeadlineExceeded, ServiceError, VersionGone, WorkerLost
from server.scheduling.latency_model import LatencyModel
from server.workers.pool import WorkerInfo
from tests.answers import classified, labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until


def test_rows_of_requests_that_come_together_share_a_batch() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        first, second = house.ask("a", "b"), house.ask("c")
        await settle()
        assert [message.rows for message, _ in worker.batches] == [[b"a", b"b", b"c"]]
        worker.answer()
        await settle()
        assert (house.labels(first), house.labels(second)) == (["a", "b"], ["c"])

    asyncio.run(scenario())


def test_a_large_request_is_cut_into_batches_and_put_together_in_order() -> None:
    async def scenario() -> None:
        worker = FakeWorker(answers=True)
        house = House(worker)
        rows = [str(i) for i in range(101)]
        pending = house.ask(*rows)
        await asyncio.wait_for(pending.future, 5)
        assert house.labels(pending) == rows
        assert house.metrics.of(house.function).batches == 26

    asyncio.run(scenario())


def test_a_row_at_fault_spoils_no_other() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        good, bad = house.ask("a"), house.ask("x", "b")
        await settle()
        worker.answer(errors=(1,))
        await settle()
        assert good.future.result().errors == {}
        assert list(bad.future.result().errors) == [0]
        assert list(labels_of(bad.future.result())) == ["", "b"]

    asyncio.run(scenario())


def test_a_killed_workers_rows_run_again_on_another_each_by_itself() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1", answers=True)
        house = House(first)
        await settle()
        pending = house.ask("a", "b")
        await settle()
        house.lose(first)
        house.residency.worker_up(second)
        await settle()
        assert house.labels(pending) == ["a", "b"]
        assert house.metrics.of(house.function).rerun_rows == 2

    asyncio.run(scenario())


def test_a_row_that_runs_alone_and_whose_model_is_not_there_after_all_waits_for_its_load() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first)
        await settle()
        pending = house.ask("a")
        await settle()
        house.lose(first)
        house.residency.worker_up(second)
        await settle()
        second.resident.clear()
        second.fail("unknown_function", missing=["net/1"])
        await settle()
        assert second.loads == ["net/1", "net/1"]
        assert second.batches == []
        await until(lambda: second.batches)
        second.answer()
        await settle()
        assert house.labels(pending) == ["a"]

    asyncio.run(scenario())


def test_a_row_that_runs_alone_is_not_asked_for_again_at_once_where_there_is_no_room() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first)
        await settle()
        pending = house.ask("a")
        await settle()
        house.lose(first)
        house.residency.worker_up(second)
        await settle()
        for _ in range(3):
            second.fail("overloaded", "it is full")
            await settle()
            assert second.batches == []
            await until(lambda: second.batches)
        second.answer()
        await settle()
        assert house.labels(pending) == ["a"]

    asyncio.run(scenario())


def test_a_row_under_which_two_workers_died_fails_and_says_so() -> None:
    async def scenario() -> None:
        house = House()
        pending = house.ask("a")
        for name in ("w0", "w0"):
            worker = FakeWorker(name)
            house.residency.worker_up(worker)
            await settle()
            house.lose(worker)
        await settle()
        (error,) = pending.future.result().errors.values()
        assert (error.index, error.code) == (0, WorkerLost.code)
        assert "died twice under rows of f, of this one alone" in error.message

    asyncio.run(scenario())


def test_only_the_lost_part_of_a_request_runs_again() -> None:
    async def scenario() -> None:
        lost, good = FakeWorker("w0"), FakeWorker("w1")
        house = House(lost)
        await settle()
        pending = house.ask(*"abcdef")
        await settle()
        assert [message.rows for message, _ in lost.batches] == [[b"a", b"b", b"c", b"d"], [b"e", b"f"]]
        lost.answer()
        house.lose(lost)
        house.residency.worker_up(good)
        await settle()
        assert [message.rows for message, _ in good.batches] == [[b"e"]]
        good.answer()
        await settle()
        assert [message.rows for message, _ in good.batches] == [[b"f"]]
        good.answer()
        await settle()
        assert house.labels(pending) == list("abcdef")

    asyncio.run(scenario())


def test_a_worker_that_does_not_hold_a_model_after_all_gets_it_and_the_rows_run() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        worker.resident.clear()
        worker.fail("unknown_function", "not resident")
        await settle()
        worker.answer()
        await settle()
        assert house.labels(pending) == ["a"]
        assert worker.loads == ["net/1", "net/1"]

    asyncio.run(scenario())


def test_of_several_members_only_the_missing_one_is_loaded_again() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        two = function(text_model("a"), text_model("b"), name="two", max_batch=4, batch_sizes=(1, 4))
        house.dispatcher.configure(two)
        await settle()
        pending = house.ask("x", function=two)
        await until(lambda: worker.batches)
        before = list(worker.loads)
        worker.resident.remove("b/1")
        worker.fail("unknown_function", "not resident", missing=["b/1"])
        await until(lambda: worker.batches)
        worker.answer()
        await settle()
        assert house.labels(pending) == ["x"]
        assert worker.loads == [*before, "b/1"]

    asyncio.run(scenario())


def test_refused_rows_that_find_the_queue_full_wait_outside_and_are_answered() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker, rows=4)
        await settle()
        calls = []
        for rows in ("abcd", "efgh", "ijkl"):  # two on the worker, one that fills the queue
            calls.append(house.ask(*rows))
            await settle()
        worker.fail("cancelled")
        worker.answers = True
        while worker.batches:
            worker.answer()
        await asyncio.wait_for(asyncio.gather(*(call.future for call in calls)), 10)
        assert [house.labels(call) for call in calls] == [list("abcd"), list("efgh"), list("ijkl")]

    asyncio.run(scenario())


def test_refused_rows_that_find_the_queue_full_come_back_when_the_core_says() -> None:
    async def scenario() -> None:
        worker, slow = FakeWorker(), LatencyModel({1: 20.0})
        house = House(worker, rows=4, latency_of=lambda model: slow, policy="greedy", slo_ms=60_000.0)
        await settle()
        for rows in ("abcd", "efgh", "ijkl"):
            house.ask(*rows)
            await settle()
        worker.fail("cancelled")  # half of the queue is through in some 10 s
        await asyncio.sleep(0.1)
        assert [b"".join(message.rows) for message, _ in worker.batches] == [b"efgh", b"ijkl"]
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    asyncio.run(scenario())


def test_refused_rows_that_cannot_meet_their_deadline_any_more_are_told_so_at_once() -> None:
    async def scenario() -> None:
        worker, slow = FakeWorker(), LatencyModel({1: 200.0})
        house = House(latency_of=lambda model: slow, policy="greedy")
        pending = house.ask("a", deadline_s=time.monotonic() + 100)
        house.residency.worker_up(worker)
        await settle()
        worker.fail("cancelled")
        await settle()
        with pytest.raises(DeadlineExceeded):
            pending.future.result()

    asyncio.run(scenario())


@pytest.mark.parametrize(("code", "error"), [("bad_option", BadOption), ("internal", ServiceError)])
def test_a_batch_that_fails_as_a_whole_fails_its_requests(code: str, error: type[ServiceError]) -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        worker.fail(code, "no such form")
        await settle()
        with pytest.raises(error, match="f: no such form"):
            pending.future.result()

    asyncio.run(scenario())


def test_batches_teach_what_a_model_takes_and_failed_ones_do_not() -> None:
    async def scenario() -> None:
        worker, latency = FakeWorker(), LatencyModel({1: 0.001}, measured=False)
        house = House(worker, latency_of=lambda model: latency)
        await settle()
        learned = latency.on("fake", "text")
        for failed in (True, False):
            pending = house.ask("a")
            await settle()
            await asyncio.sleep(0.05)
            worker.fail("bad_option") if failed else worker.answer()
            await settle()
            assert learned.is_known is not failed
            house.dispatcher.end(pending)
        assert learned(1) == pytest.approx(0.05, rel=0.8)
        assert learned(1) >= 0.05

    asyncio.run(scenario())


def test_rows_of_a_call_that_ended_do_not_run_again() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first)
        await settle()
        gone, stays = house.ask("a"), house.ask("b")
        await settle()
        house.dispatcher.end(gone)
        house.lose(first)
        house.residency.worker_up(second)
        await settle()
        assert [message.rows for message, _ in second.batches] == [[b"b"]]
        second.answer()
        await settle()
        assert house.labels(stays) == ["b"]
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    asyncio.run(scenario())


def test_rows_of_a_call_that_ended_while_it_waited_for_room_do_not_run_again() -> None:
    async def scenario() -> None:
        first = FakeWorker("w0")
        house = House(first, rows=4)
        await settle()
        lost = house.ask(*"abcd")
        await settle()
        running = house.ask(*"efgh")
        await settle()
        waiting = house.ask(*"ijkl")
        second = FakeWorker("w1")
        house.residency.worker_up(second)
        house.lose(first)  # its rows find the queue full, and are queued again a little later
        for pending in (lost, running, waiting):
            house.dispatcher.end(pending)
        await asyncio.sleep(0.1)  # longer than that
        assert second.batches == []
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "refused"])
def test_lost_rows_of_a_version_that_is_gone_say_so(lost: bool) -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        house.dispatcher.remove(house.function)
        assert not pending.done, "it is on a worker, and may still be answered"
        if lost:
            house.residency.worker_down(worker)
        worker.fail("worker_lost" if lost else "cancelled")
        await settle()
        with pytest.raises(VersionGone, match="version 1 of f is no longer served"):
            pending.future.result()

    asyncio.run(scenario())


def test_rows_of_a_removed_version_that_are_on_a_worker_are_answered_and_counted_nowhere() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        house.dispatcher.remove(house.function)
        worker.answer()
        await settle()
        assert house.labels(pending) == ["a"]
        assert list(house.metrics.items()) == []

    asyncio.run(scenario())


def test_a_bug_in_learning_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, expected_callback_errors: list[dict[str, Any]]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug in learning")

    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        monkeypatch.setattr("server.scheduling.lanes.Lane.teach", broken)
        worker.answer()  # where a socket's callback would be: what it raises would close the socket
        assert house.labels(pending) == ["a"]

    asyncio.run(scenario())
    (context,) = expected_callback_errors
    assert "a bug in learning" in str(context["exception"])
    expected_callback_errors.clear()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(1, [], []),
        Answer(1, [classified("nobody/1", ["a"], [1.0])], []),
        Answer(1, [classified("net/1", ["a", "b"], [1.0, 1.0])], []),
        Answer(1, [MemberAnswer("net/1", None)], []),  # type: ignore[arg-type]  # a broken worker
        Answer(1, [MemberAnswer("net/1", [])], []),
        Answer(1, [MemberAnswer("net/1", [Column("label", "FP31", (), b"abcd")])], []),
    ],
)
def test_an_answer_that_cannot_be_used_fails_its_rows_and_no_others(answer: Answer) -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        _, on_reply = worker.batches.pop(0)
        on_reply(answer)
        with pytest.raises(ServiceError, match="for f"):
            pending.future.result()
        house.dispatcher.end(pending)
        good = house.ask("b")
        await settle()
        worker.answer()
        await settle()
        assert house.labels(good) == ["b"]

    asyncio.run(scenario())


def test_reading_may_rest_while_rows_wait_that_are_not_to_be_sent_yet() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        assert house.dispatcher.rest_s(is_busy=False) == 0.0
        asked = [house.ask(*"abcd") for _ in range(4)]
        assert house.dispatcher.rest_s(is_busy=False) == 0.0  # it was not decided yet what leaves
        await settle()
        assert len(worker.batches) == worker.info.in_flight
        assert house.dispatcher.rest_s(is_busy=False) == pytest.approx(0.04 * 0.05)
        while worker.batches:
            worker.answer()
            await settle()
        assert house.dispatcher.rest_s(is_busy=False) == 0.0
        for one in asked:
            house.labels(one)

    asyncio.run(scenario())


def test_a_busy_server_reads_several_at_a_time_where_the_least_goal_allows_it() -> None:
    async def scenario() -> None:
        house = House(FakeWorker())
        await settle()
        assert house.dispatcher.rest_s(is_busy=True) == 0.001
        hasty = replace(house.function, name="hasty", slo_ms=10.0)
        house.dispatcher.configure(hasty)
        assert house.dispatcher.rest_s(is_busy=True) == pytest.approx(0.04 * 0.01)
        house.dispatcher.remove(hasty)
        assert house.dispatcher.rest_s(is_busy=True) == 0.001
        assert house.dispatcher.rest_s(is_busy=False) == 0.0

    asyncio.run(scenario())


def test_reading_does_not_rest_for_workers_that_have_cores_of_their_own() -> None:
    async def scenario() -> None:
        worker = FakeWorker(info=WorkerInfo("cuda:0", "fake", 0))
        house = House(worker)
        await settle()
        for _ in range(4):
            house.ask(*"abcd")
        await settle()
        assert house.dispatcher.queue_depth()["f", 1][0] > 0
        assert house.dispatcher.rest_s(is_busy=False) == 0.0

    asyncio.run(scenario())
