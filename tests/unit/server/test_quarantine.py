"""Rows under which a worker died run by themselves: who kills is found, and costs the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from gpu_worker.wire.columns import JSON
from gpu_worker.wire.protocol import Column, Infer, Message, RowError
from server.errors import Overloaded, ServiceError, VersionGone, WorkerLost
from server.serving.absent import faulty_rows
from server.serving.calls import PendingReply, Reply, reply_of
from server.serving.reply_rows import GatheredRows, ReplyRows
from server.workers.pool import OnReply
from tests.answers import labels_of, scores_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until


class Mortal(FakeWorker):
    """Dies of any batch with the row `bomb` in it; answers all others at once."""

    house: House
    saw: list[list[bytes]]

    def send(self, message: Message, on_reply: OnReply) -> int:
        message_id = super().send(message, on_reply)
        if isinstance(message, Infer):
            self.saw.append(list(message.rows))
            fate = self._die if b"bomb" in message.rows else self._answer_one
            asyncio.get_running_loop().call_soon(fate)
        return message_id

    def _answer_one(self) -> None:
        if self.batches:
            self.answer()

    def _die(self) -> None:
        self.house.residency.worker_down(self)
        while self.batches:
            self.fail()
        successor = Mortal(self.name)
        successor.house, successor.saw = self.house, self.saw
        asyncio.get_running_loop().call_soon(self.house.residency.worker_up, successor)


def mortal_house(**fields: Any) -> tuple[House, list[list[bytes]]]:
    house = House(**fields)
    worker = Mortal()
    worker.house, worker.saw = house, []
    house.residency.worker_up(worker)
    return house, worker.saw


async def suspects(*rows: str, **fields: Any) -> tuple[House, FakeWorker, PendingReply]:
    """A call for rows under which their worker died; the first of them is alone on the other worker."""
    first, second = FakeWorker("w0"), FakeWorker("w1")
    house = House(first, **fields)
    await settle()
    pending = house.ask(*rows)
    await settle()
    house.lose(first)
    house.residency.worker_up(second)
    await settle()
    return house, second, pending


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.security
def test_the_row_that_kills_is_the_only_one_without_an_answer() -> None:
    async def scenario() -> None:
        house, saw = mortal_house()
        await settle()
        calls = [house.ask("a", "bomb", "b"), house.ask("c", "d"), house.ask("e")]
        replies = [await call.future for call in calls]
        assert [list(labels_of(reply)) for reply in replies] == [["a", "", "b"], ["c", "d"], ["e"]]
        assert [list(reply.errors) for reply in replies] == [[1], [], []]
        assert replies[0].errors[1].code == WorkerLost.code
        with_bomb = [rows for rows in saw if b"bomb" in rows]
        assert len(with_bomb) == 2
        assert with_bomb[1] == [b"bomb"], "never again with others"

    run(scenario)


@pytest.mark.security
def test_rows_of_others_are_served_meanwhile() -> None:
    async def scenario() -> None:
        house, _ = mortal_house()
        await settle()
        lost = house.ask(*"abcdefgh", "bomb")
        await settle()
        others = [house.ask(str(number)) for number in range(20)]
        for number, other in enumerate(others):
            assert house.labels_of(await other.future) == [str(number)]
        assert house.labels_of(await lost.future) == [*"abcdefgh", ""]

    run(scenario)


@pytest.mark.security
def test_a_suspects_paths_are_read_below_its_functions_own_folders_alone() -> None:
    async def scenario() -> None:
        _, second, _ = await suspects("a", "b", media_roots=("/photos/team",))
        for row in (b"a", b"b"):
            ((message, _),) = second.batches
            assert (message.rows, message.media_roots) == ([row], ["/photos/team"])
            second.answer()
            await settle()

    run(scenario)


def test_while_a_suspect_runs_nothing_else_is_on_its_worker() -> None:
    async def scenario() -> None:
        house, second, _ = await suspects("a", "b")
        house.ask("c")
        await settle()
        assert [message.rows for message, _ in second.batches] == [[b"a"]]
        second.answer()
        await settle()
        assert [message.rows for message, _ in second.batches] == [[b"b"]]
        second.answer()
        await settle()
        assert [message.rows for message, _ in second.batches] == [[b"c"]]

    run(scenario)


def test_what_a_worker_loads_while_a_suspect_has_it_gives_it_to_nobody_else() -> None:
    async def scenario() -> None:
        house, second, _ = await suspects("a")
        house.residency.want((text_model("other"),))
        await settle()
        assert "other/1" in second.resident
        waiting = house.ask("b")
        await settle()
        assert [message.rows for message, _ in second.batches] == [[b"a"]]
        second.answer()
        await settle()
        second.answer()
        await settle()
        assert house.labels(waiting) == ["b"]

    run(scenario)


def test_a_suspect_whose_model_no_other_worker_holds_has_it_loaded() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first)
        await settle()
        pending = house.ask("a")
        await settle()
        house.residency.worker_up(second)
        await settle()
        assert second.loads == [], "nothing is asked of it yet"
        house.lose(first)
        await settle()
        second.answer()
        await settle()
        assert house.labels(pending) == ["a"]

    run(scenario)


def test_of_a_call_that_failed_no_further_row_runs() -> None:
    async def scenario() -> None:
        _, second, pending = await suspects("a", "b")
        second.fail("internal", "a bug")
        await settle()
        with pytest.raises(ServiceError, match="a bug"):
            pending.future.result()
        assert second.batches == []

    run(scenario)


def test_a_suspect_waits_until_its_worker_is_idle() -> None:
    async def scenario() -> None:
        first, second = FakeWorker("w0"), FakeWorker("w1")
        house = House(first, second)
        await settle()
        house.ask("a")
        await settle()
        house.ask("b")
        await settle()
        dying, busy = (first, second) if first.batches else (second, first)
        assert len(busy.batches) == 1
        house.lose(dying)
        await settle()
        assert [message.rows for message, _ in busy.batches] == [[b"b"]]
        busy.answer()
        await settle()
        assert [message.rows for message, _ in busy.batches] == [[b"a"]]

    run(scenario)


def test_a_suspect_whose_caller_went_is_forgotten_and_the_worker_given_back() -> None:
    async def scenario() -> None:
        house, second, pending = await suspects("a", "b")
        house.dispatcher.end(pending)
        assert second.cancelled == [second.batches[0][0].id]
        second.fail("cancelled")
        await settle()
        assert second.batches == []
        other = house.ask("c")
        await settle()
        second.answer()
        await settle()
        assert house.labels(other) == ["c"]

    run(scenario)


def test_a_suspect_on_which_a_worker_hangs_has_it_killed() -> None:
    async def scenario() -> None:
        house, second, pending = await suspects("a")
        house.dispatcher.end_hung_workers(10.0)
        assert second.killed == []
        await asyncio.sleep(0.05)
        house.dispatcher.end_hung_workers(0.01)
        assert len(second.killed) == 1
        house.lose(second)
        assert (await pending.future).errors[0].code == WorkerLost.code

    run(scenario)


def test_rows_that_workers_refuse_are_not_blamed_for_deaths() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        for _ in range(3):
            worker.resident.clear()
            worker.fail("unknown_function", "not resident")
            await settle()
        worker.fail("overloaded", "64 batches wait")
        await until(lambda: worker.batches)
        house.lose(worker)
        successor = FakeWorker("w0", answers=True)
        house.residency.worker_up(successor)
        await settle()
        assert house.labels(pending) == ["a"], "one death, however many refusals"

    run(scenario)


@pytest.mark.parametrize("died", [False, True], ids=["before any death", "alone"])
def test_rows_that_workers_refuse_for_ever_fail_in_the_end(died: bool) -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        if died:
            house.lose(worker)
            worker = FakeWorker()
            house.residency.worker_up(worker)
            await settle()
        while not pending.future.done():
            if worker.batches:
                worker.fail("unknown_function", "not resident")
            await settle()
        with pytest.raises(Overloaded, match="again and again"):
            pending.future.result()

    run(scenario)


def test_rows_are_refused_each_by_itself_however_many_batches_a_call_has() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        rows = [str(number) for number in range(2_000)]
        pending = house.ask(*rows)
        await settle()
        refused = 0
        while refused < 40:  # the first time that each comes
            await until(lambda: worker.batches)
            worker.fail("unknown_function", "not resident")
            refused += 1
            await settle()
            if refused % 5 == 0:
                worker.answer()
                await settle()
        worker.answers = True
        await until(lambda: worker.batches or pending.done)
        while worker.batches:
            worker.answer()
        await until(lambda: pending.done)
        assert house.labels(pending) == rows

    run(scenario)


def test_the_suspects_of_a_version_that_is_gone_fail() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.ask("a")
        await settle()
        house.lose(worker)
        house.dispatcher.remove(house.function)
        house.residency.worker_up(FakeWorker("w1"))
        await settle()
        with pytest.raises(VersionGone):
            pending.future.result()

    run(scenario)


def test_a_convicted_row_of_a_call_that_wants_scores_has_zeros() -> None:
    async def scenario() -> None:
        house, _ = mortal_house()
        served = function(text_model("net"), name="g", max_batch=4, batch_sizes=(4,), policy="goodput")
        house.dispatcher.configure(served)
        await settle()
        reply = await house.ask("bomb", function=served, outputs=("scores",)).future
        assert scores_of(reply) == bytes(4 * len(served.classes))

    run(scenario)


def test_the_row_at_fault_spoils_no_text_that_was_gathered_beside_it() -> None:
    model = replace(text_model(), task="text-generation", content=JSON)
    served = function(model)
    said = Column("text", "BYTES", (), ['{"a": 1}'], JSON)
    sound = ReplyRows(Reply(served, 1, {"text": said}, {}, [(0, 1, "net")], set()), ["text"])
    fault = faulty_rows(served, 1, RowError(0, "worker_lost", "it died twice"))
    at_fault = ReplyRows(reply_of(served, 1, 0, fault), ["text"])
    gathered = GatheredRows(served, 2)
    gathered.take([(0, 0)], sound)
    gathered.take([(1, 0)], at_fault)
    reply = gathered.reply()
    assert (reply.columns["text"].data, reply.columns["text"].content) == (['{"a": 1}', ""], JSON)
    assert list(reply.errors) == [1]
