"""The live shell, where calls end early: vanished clients, full queues, deadlines, drains, faults."""

from __future__ import annotations

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

from gpu_worker.wire.protocol import Answer
from server.errors import BadOption, DeadlineExceeded, Overloaded, ServiceError, VersionGone
from server.scheduling.core import Action, Scheduler
from server.serving.calls import PendingReply
from tests.answers import classified, confidences_of, labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until


def test_a_vanished_clients_rows_leave_the_queue_at_once() -> None:
    async def scenario() -> None:
        house = House()
        gone, stays = house.ask("a", "b"), house.ask("c")
        assert house.dispatcher.queue_depth() == {("f", 1): (3, 3)}
        house.dispatcher.end(gone)
        assert house.dispatcher.queue_depth() == {("f", 1): (1, 1)}
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await settle()
        worker.answer()
        await settle()
        assert house.labels(stays) == ["c"]

    asyncio.run(scenario())


def test_rows_behind_those_of_a_vanished_client_are_looked_at_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        house = House(FakeWorker())
        await settle()
        gone = house.ask("a")
        await settle()
        asked: list[float] = []
        next_action = Scheduler.next_action

        def ask(core: Scheduler, now_s: float) -> Action:
            asked.append(now_s)
            return next_action(core, now_s)

        monkeypatch.setattr(Scheduler, "next_action", ask)
        house.dispatcher.end(gone)
        await settle()
        assert asked

    asyncio.run(scenario())


def test_a_batch_that_nobody_waits_for_is_cancelled_on_its_worker_and_one_with_others_is_not() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        first, second = house.ask("a"), house.ask("b")
        await settle()
        house.dispatcher.end(first)
        assert worker.cancelled == []
        house.dispatcher.end(second)
        assert worker.cancelled == [worker.batches[0][0].id]
        worker.fail("cancelled")
        await settle()
        assert worker.batches == []

    asyncio.run(scenario())


def test_a_full_queue_refuses_rows_and_says_when_to_come_back() -> None:
    async def scenario() -> None:
        house = House(rows=5)
        house.ask(*"abcd")
        with pytest.raises(Overloaded) as refused:
            house.ask("e", "f")
        assert int(refused.value.headers()["Retry-After"]) >= 1
        assert house.dispatcher.queue_depth() == {("f", 1): (4, 4)}
        house.ask("e")

    asyncio.run(scenario())


def test_rows_of_a_dead_worker_find_their_way_back_even_into_a_full_queue() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1", answers=True)
        house = House(first, rows=4)
        await settle()
        lost = house.ask(*"abcd")
        await settle()
        waiting = house.ask(*"efgh")
        house.residency.worker_down(first)
        while first.batches:
            first.fail()
        house.residency.worker_up(second)
        await asyncio.wait_for(asyncio.gather(lost.future, waiting.future), 10)
        assert (house.labels(lost), house.labels(waiting)) == (list("abcd"), list("efgh"))

    asyncio.run(scenario())


def test_a_deadline_that_passes_in_the_queue_or_on_a_worker_is_told() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        running = house.ask("a", deadline_s=time.monotonic() + 0.1)
        with pytest.raises(DeadlineExceeded, match="deadline"):
            await asyncio.wait_for(running.future, 5)
        house.dispatcher.end(running)
        assert worker.cancelled

    asyncio.run(scenario())


def test_a_call_that_ended_before_its_deadline_leaves_no_timer_behind() -> None:
    async def scenario() -> None:
        worker = FakeWorker(answers=True)
        house = House(worker)
        await settle()
        pending = house.ask("a", deadline_s=time.monotonic() + 3600)
        await asyncio.wait_for(pending.future, 5)
        assert house.labels(pending) == ["a"]
        assert [timer.cancelled() for timer in pending.timers] == [True]
        assert house.ask("b").timers == (), "no deadline"

    asyncio.run(scenario())


def test_rows_that_no_worker_takes_are_refused_at_their_deadline() -> None:
    async def scenario() -> None:
        house = House()
        waiting = house.ask("a", deadline_s=time.monotonic() + 0.05)
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(waiting.future, 5)
        house.dispatcher.end(waiting)
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    asyncio.run(scenario())


def test_a_model_that_cannot_be_loaded_fails_the_rows_that_wait_for_it() -> None:
    async def scenario() -> None:
        house = House(FakeWorker(unloadable={"net/1": "bad_option"}))
        pending = house.ask("a")
        with pytest.raises(BadOption, match="net/1 cannot be loaded"):
            await asyncio.wait_for(pending.future, 5)

    asyncio.run(scenario())


def test_rows_that_came_before_any_worker_fail_with_the_load_that_the_first_one_tries() -> None:
    async def scenario() -> None:
        house = House()
        pending = house.ask("a")
        await settle()  # nobody is there to load what it wants
        worker = FakeWorker(unloadable={"net/1": "bad_option"})
        house.residency.worker_up(worker)
        with pytest.raises(BadOption, match="net/1 cannot be loaded"):
            await asyncio.wait_for(pending.future, 5)
        await settle()
        assert len(worker.loads) < 5  # it is not tried for ever

    asyncio.run(scenario())


def test_the_waiting_rows_of_a_removed_version_fail_and_new_ones_are_refused() -> None:
    async def scenario() -> None:
        house = House()
        pending = house.ask("a")
        house.dispatcher.remove(house.function)
        with pytest.raises(VersionGone):
            pending.future.result()
        house.dispatcher.end(pending)
        with pytest.raises(VersionGone):
            house.ask("b")

    asyncio.run(scenario())


def test_versions_do_not_share_batches() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        newer = function(text_model("net"), version=2, max_batch=4, batch_sizes=(1, 4), policy="goodput")
        house.dispatcher.configure(newer)
        await settle()
        house.ask("a")
        house.ask("b", function=newer)
        await settle()
        assert sorted(message.rows for message, _ in worker.batches) == [[b"a"], [b"b"]]

    asyncio.run(scenario())


def test_a_drain_ends_with_the_last_call_and_takes_no_new_one() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        house.dispatcher.drain()
        drained = asyncio.ensure_future(house.dispatcher.drained())
        await settle()
        assert not drained.done()
        with pytest.raises(Overloaded, match="shutting down"):
            house.ask("b")
        worker.answer()
        await settle()
        house.labels(pending)
        await asyncio.wait_for(drained, 5)

    asyncio.run(scenario())


def test_a_deadline_that_passed_is_told_with_how_long_the_call_waited() -> None:
    async def scenario() -> None:
        house = House(FakeWorker())
        await settle()
        pending = house.ask("a", deadline_s=time.monotonic() + 0.1)
        (timer,) = pending.timers
        assert timer.when() - asyncio.get_running_loop().time() < 0.2
        with pytest.raises(DeadlineExceeded) as told:
            await asyncio.wait_for(pending.future, 30)
        waited = re.search(r"no answer of f after (\d+) ms", told.value.message)
        assert waited is not None
        assert 100 <= int(waited[1]) < 30_000

    asyncio.run(scenario())


def test_a_bug_in_scheduling_fails_the_rows_that_wait_and_not_those_on_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug in scheduling")

    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        running = house.ask("a")
        await settle()
        monkeypatch.setattr("server.scheduling.core.Scheduler.next_action", broken)
        waiting = house.ask("b")
        await settle()
        with pytest.raises(ServiceError, match="a bug in scheduling"):
            waiting.future.result()
        worker.answer()
        await settle()
        assert house.labels(running) == ["a"]

    asyncio.run(scenario())


def test_rows_of_a_version_that_is_gone_count_as_nobodys() -> None:
    async def scenario() -> None:
        house = House(FakeWorker())
        await settle()
        in_this_turn = house.ask("a")
        house.dispatcher.remove(house.function)
        with pytest.raises(VersionGone):
            house.ask("b")
        await settle()
        house.dispatcher.end(in_this_turn)
        assert house.residency.came(house.function.asked) == 0

    asyncio.run(scenario())


def test_a_drain_before_the_first_call_ends_at_once() -> None:
    async def scenario() -> None:
        await asyncio.wait_for(House().dispatcher.drained(), 5)

    asyncio.run(scenario())


def test_a_worker_that_hangs_is_killed_and_one_that_works_is_not() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        house.ask("a")
        await settle()
        house.dispatcher.end_hung_workers(10.0)
        assert worker.killed == []

        def is_killed() -> bool:
            house.dispatcher.end_hung_workers(0.01)
            return bool(worker.killed)

        await until(is_killed)
        assert len(worker.killed) == 1

    asyncio.run(scenario())


def test_what_rows_wait_for_on_a_worker_that_may_hang_is_loaded_on_another_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        silent, other = FakeWorker("w0"), FakeWorker("w1")
        house = House(silent)
        await settle()
        house.ask("warm")
        await settle()
        silent.answer()
        house.residency.worker_up(other)
        await settle()
        house.ask(*"abcdefghijkl")  # two batches on their way, four rows wait
        await settle()
        house.dispatcher.end_hung_workers(1000.0)
        await settle()
        assert other.loads == []
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 10.0)
        monkeypatch.setattr("server.serving.dispatcher.time", later)
        house.dispatcher.end_hung_workers(1000.0)
        await settle()
        assert other.loads == ["net/1"]
        assert [message.rows for message, _ in other.batches] == [[b"i", b"j", b"k", b"l"]]
        assert silent.killed == []

    asyncio.run(scenario())


def test_answers_below_the_threshold_become_the_default_or_an_error() -> None:
    async def scenario(default: str | None) -> PendingReply:
        members = (text_model("net", accuracy=0.9), text_model("other", accuracy=0.5))
        worker = FakeWorker()
        house = House(worker)
        unsure = function(
            *members,
            name="g",
            max_batch=4,
            batch_sizes=(1, 4),
            policy="goodput",
            min_confidence=0.6,
            default=default,
        )
        house.dispatcher.configure(unsure)
        pending = house.ask("laksa", "x", function=unsure)
        await settle()
        message, on_reply = worker.batches.pop(0)
        answered = [
            classified(message.models[0], ["laksa", "pizza"], [0.9, 0.9]),
            classified(message.models[1], ["laksa", "satay"], [0.9, 0.9]),
        ]
        on_reply(Answer(message.id, answered, []))
        await settle()
        return pending

    reply = asyncio.run(scenario("unknown")).future.result()
    assert list(labels_of(reply)) == ["laksa", "unknown"]
    assert confidences_of(reply) == [1.0, 0.5]
    assert (reply.defaulted, reply.errors) == ({1}, {})
    reply = asyncio.run(scenario(None)).future.result()
    assert reply.errors[1].code == "no_confident_answer"
    assert "confidence 0.500 is below the 0.6" in reply.errors[1].message


def test_a_batch_that_cannot_be_sent_fails_its_own_rows_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug, such as a row in the queue whose call is over: no row hangs, and the worker has room again."""

    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        with monkeypatch.context() as patch:
            patch.setattr(house.dispatcher._in_flight, "send", broken)
            pending = house.ask("a")
            await settle()
        with pytest.raises(ServiceError, match="could not be sent: KeyError"):
            pending.future.result()
        house.dispatcher.end(pending)
        worker.answers = True
        after = house.ask("b")
        await asyncio.wait_for(after.future, 5)
        assert house.labels(after) == ["b"]
        assert set(house.dispatcher.queue_depth().values()) == {(0, 0)}

    def broken(*_: object) -> None:
        raise KeyError(7)

    asyncio.run(scenario())


def test_nothing_is_left_of_a_batch_that_cannot_be_sent() -> None:
    """Its rows came in one turn and are alike, so they stood in the queue as one call; each is told."""

    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await house.residency.load(house.function.members)
        calls = [house.ask(row) for row in "abcd"]
        for call in calls:
            call.listen(lambda over, _: house.dispatcher.end(over), None)
        send, worker.send = worker.send, broken  # type: ignore[method-assign, assignment]
        await settle()
        worker.send = send  # type: ignore[method-assign]
        for call in calls:
            with pytest.raises(ServiceError, match="could not be sent: KeyError"):
                call.future.result()
        assert house.dispatcher.at_rest()
        assert house.dispatcher.has_finished(worker.name)
        worker.answers = True
        assert house.labels_of(await asyncio.wait_for(house.ask("e").future, 5)) == ["e"]
        await house.residency.unload(["net/1"])
        assert worker.resident == []

    def broken(*_: object) -> int:
        raise KeyError(7)

    asyncio.run(scenario())


def test_a_row_whose_call_is_over_costs_those_beside_it_their_answer_and_no_more() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await house.residency.load(house.function.members)
        first, second = house.ask("a", priority=1), house.ask("b")
        second.listen(lambda over, _: house.dispatcher.end(over), None)
        first.listen(lambda over, _: house.dispatcher.end(over), None)
        del house.dispatcher._pending[second.request_id]
        await settle()
        with pytest.raises(ServiceError, match="could not be sent"):
            first.future.result()
        assert house.dispatcher.at_rest()

    asyncio.run(scenario())
