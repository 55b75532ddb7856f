"""The answer cache on the live path: what was asked before needs no worker, and no answer is a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from gpu_worker.wire.protocol import Answer
from server.cache.files import FileStamps
from server.cache.key import is_kept_of
from server.cache.keying import Keying
from server.cache.stores import new_store
from server.catalog.functions import Function
from server.errors import DeadlineExceeded, Overloaded, ServiceError, VersionGone
from server.http.body import ClientGone
from server.serving.cached_calls import CachedCall, CachedCalls
from server.serving.calls import Call, PendingReply
from tests.answers import classified, labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model

pytestmark = pytest.mark.usefixtures("store")


class CachedHouse(House):
    """A house whose calls ask a cache first. store_name: of what it keeps them in."""

    store_name = "python"

    def __init__(
        self, *workers: FakeWorker, nbytes: int = 1 << 20, keying: Keying | None = None, **fields: Any
    ) -> None:
        super().__init__(*workers, **fields)
        store = new_store(self.store_name, nbytes, keying)
        self.cached = CachedCalls(self.dispatcher, store, FileStamps([]), self.metrics)

    def call(self, *rows: str, **fields: Any) -> Call:
        data = [row.encode() for row in rows]
        served: Function = fields.pop("function", self.function)
        return Call(served, "text", data, sum(map(len, data)), **fields)

    def begin(self, *rows: str, **fields: Any) -> PendingReply | CachedCall:
        """As the call service does: a call that is over is ended."""
        pending = self.cached.begin(self.call(*rows, **fields))
        pending.listen(lambda ended, _: self.ended(ended), None)
        return pending

    def ended(self, pending: PendingReply | CachedCall) -> None:
        if isinstance(pending, CachedCall):
            self.cached.end(pending)
        else:
            self.dispatcher.end(pending)

    async def asked(self, *rows: str, **fields: Any) -> list[str]:
        reply = await asyncio.wait_for(self.begin(*rows, **fields).future, 5)
        await settle()
        return list(labels_of(reply))

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.metrics.of(self.function).cache
        return counts.hits, counts.coalesced, counts.misses


@pytest.fixture(params=["native", "python"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both stores, one after the other."""
    if request.param == "native":
        request.getfixturevalue("native_store")
    monkeypatch.setattr(CachedHouse, "store_name", request.param)
    return str(request.param)


def runs(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(scenario())

    run.__name__ = scenario.__name__
    return run


def rows_of(worker: FakeWorker) -> list[list[bytes]]:
    return [message.rows for message, _ in worker.batches]


@runs
async def test_rows_that_were_asked_before_are_not_sent_again() -> None:
    worker = FakeWorker(answers=True)
    house = CachedHouse(worker)
    await settle()
    assert await house.asked("a", "b", "c") == ["a", "b", "c"]
    worker.answers = False
    assert await house.asked("c", "a", "b") == ["c", "a", "b"]
    assert rows_of(worker) == []
    assert house.counts == (3, 0, 3)
    assert house.metrics.of(house.function).cache.stored == 3


@runs
async def test_only_the_rows_that_are_new_are_sent_and_all_come_back_in_order() -> None:
    worker = FakeWorker(answers=True)
    house = CachedHouse(worker)
    await settle()
    await house.asked("b", "d")
    worker.answers = False
    pending = house.begin("a", "b", "c", "d", "e")
    await settle()
    assert rows_of(worker) == [[b"a", b"c", b"e"]]
    worker.answer()
    await settle()
    reply = pending.future.result()
    assert list(labels_of(reply)) == ["a", "b", "c", "d", "e"]
    assert reply.answered_by == [(0, 5, "net")]


@runs
async def test_the_same_row_twice_in_a_call_is_computed_once() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    pending = house.begin("a", "b", "a", "a")
    await settle()
    assert rows_of(worker) == [[b"a", b"b"]]
    worker.answer()
    await settle()
    assert list(labels_of(pending.future.result())) == ["a", "b", "a", "a"]
    assert house.counts == (0, 2, 2)


@runs
async def test_a_thousand_rows_of_fifty_callers_at_once_are_one() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker, rows=100_000)
    await settle()
    pending = [house.begin(*["a"] * 20, caller=f"c{number}") for number in range(50)]
    await settle()
    assert rows_of(worker) == [[b"a"]]
    worker.answer()
    await settle()
    assert all(list(labels_of(each.future.result())) == ["a"] * 20 for each in pending)
    assert house.counts == (0, 999, 1)
    assert len(house.cached.store) == 1


@runs
async def test_who_waits_for_a_caller_that_goes_away_is_answered_all_the_same() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    leader, first, second = house.begin("a"), house.begin("a", "b"), house.begin("b", "a")
    await settle()
    assert rows_of(worker) == [[b"a", b"b"]]
    leader.fail(ClientGone())
    await settle()
    while worker.batches:
        worker.answer()
        await settle()
    assert list(labels_of(first.future.result())) == ["a", "b"]
    assert list(labels_of(second.future.result())) == ["b", "a"]


@runs
async def test_who_waits_for_a_call_that_fails_asks_for_itself() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    leader = house.begin("a")
    await settle()
    waiting = [house.begin("a"), house.begin("a")]
    worker.fail("internal", "a bug")
    await settle()
    with pytest.raises(ServiceError):
        leader.future.result()
    assert rows_of(worker) == [[b"a", b"a"]]
    worker.answer()
    await settle()
    assert [list(labels_of(each.future.result())) for each in waiting] == [["a"], ["a"]]


@runs
async def test_who_waits_keeps_the_deadline_that_it_has() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    leader = house.begin("a")
    await settle()
    waiting = house.begin("a", deadline_s=asyncio.get_running_loop().time() + 0.05)
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(waiting.future, 5)
    worker.answer()
    await settle()
    assert list(labels_of(leader.future.result())) == ["a"]


@runs
async def test_a_row_with_a_goal_does_not_wait_for_one_without() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    bulk = house.begin("a", row_class="bulk")
    await settle()
    urgent = house.begin("a")
    another = house.begin("a")
    await settle()
    sent = sum(len(rows) for rows in rows_of(worker))
    assert sent == 2
    while worker.batches:
        worker.answer()
        await settle()
    assert all(list(labels_of(each.future.result())) == ["a"] for each in (bulk, urgent, another))


@runs
async def test_a_fault_is_not_kept_and_who_waits_for_the_same_row_shares_it() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    first = house.begin("x", "b")
    await settle()
    second = house.begin("a", "x")
    await settle()
    worker.answer(errors=(0,))
    await settle()
    worker.answer()
    await settle()
    assert list(first.future.result().errors) == [0]
    assert list(second.future.result().errors) == [1]
    assert second.future.result().errors[1].index == 1
    assert next(iter(labels_of(second.future.result()))) == "a"
    house.begin("x")
    await settle()
    assert rows_of(worker) == [[b"x"]]


@runs
async def test_a_default_answer_is_not_kept() -> None:
    worker = FakeWorker(answers=True)
    house = CachedHouse(worker, min_confidence=1.0, default="unsure")
    await settle()
    worker.answers = False
    pending = house.begin("a")
    await settle()
    message, on_reply = worker.batches.pop(0)
    on_reply(Answer(message.id, [classified("net/1", ["a"], [0.4])], []))
    await settle()
    assert list(labels_of(pending.future.result())) == ["unsure"]
    assert pending.future.result().defaulted == {0}
    house.begin("a")
    await settle()
    assert rows_of(worker) == [[b"a"]]


@runs
async def test_a_new_version_gets_no_answer_of_the_one_before() -> None:
    worker = FakeWorker(answers=True)
    house = CachedHouse(worker)
    await settle()
    await house.asked("a")
    newer = replace(house.function, version=2)
    house.dispatcher.configure(newer)
    worker.answers = False
    house.begin("a", function=newer)
    await settle()
    assert rows_of(worker) == [[b"a"]]


@runs
async def test_a_version_that_is_served_no_longer_answers_nothing_it_knew() -> None:
    house = CachedHouse(FakeWorker(answers=True))
    await settle()
    await house.asked("a")
    house.dispatcher.remove(house.function)
    with pytest.raises(VersionGone):
        house.begin("a")


@runs
async def test_answers_of_a_version_that_is_gone_are_dropped_and_those_of_the_others_stay() -> None:
    house = CachedHouse(FakeWorker(answers=True))
    await settle()
    newer = replace(house.function, version=2)
    house.dispatcher.configure(newer)
    await house.asked("a", "b", "c")
    await house.asked("a", "b", function=newer)
    assert await house.cached.let_go() == 0
    gone, stays = (house.metrics.of(each).cache for each in (house.function, newer))
    assert (gone.entries, stays.entries) == (3, 2)
    house.dispatcher.remove(house.function)
    assert await house.cached.let_go() == 3
    assert (gone.entries, gone.nbytes, stays.entries, len(house.cached.store)) == (0, 0, 2, 2)
    await house.asked("b", "a", function=newer)
    assert stays.hits == 2


@runs
async def test_a_server_that_shuts_down_answers_nothing_it_knew() -> None:
    house = CachedHouse(FakeWorker(answers=True))
    await settle()
    await house.asked("a")
    house.dispatcher.drain()
    with pytest.raises(Overloaded):
        house.begin("a")


@runs
async def test_who_waits_for_somebody_elses_row_is_answered_though_the_server_shuts_down() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    leader, waiting = house.begin("a"), house.begin("a")
    await settle()
    house.dispatcher.drain()
    leader.fail(ClientGone())
    await settle()
    while worker.batches:
        worker.answer()
        await settle()
    assert list(labels_of(waiting.future.result())) == ["a"]


@runs
async def test_a_path_that_is_looked_at_is_answered_though_the_server_shuts_down() -> None:
    house = CachedHouse(FakeWorker(answers=True))
    await settle()
    pending = house.cached.begin(replace(house.call("a"), form="path"))
    house.dispatcher.drain()
    assert list(labels_of(await asyncio.wait_for(pending.future, 5))) == ["a"]
    house.ended(pending)
    await asyncio.wait_for(house.cached.drained(), 5)


@runs
async def test_what_is_learned_while_a_row_is_under_way_keeps_it_from_being_kept() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    pending = house.begin("a")
    await settle()
    house.dispatcher.answer_as(replace(house.function, min_confidence=0.1))
    worker.answer()
    await settle()
    assert list(labels_of(pending.future.result())) == ["a"]
    assert len(house.cached.store) == 0


@runs
async def test_other_columns_are_another_question() -> None:
    worker = FakeWorker(answers=True)
    house = CachedHouse(worker)
    await settle()
    await house.asked("a")
    worker.answers = False
    house.begin("a", outputs=("scores",))
    house.begin("a", members=("net/1",))  # all that there are: the same question
    await settle()
    assert rows_of(worker) == [[b"a"]]


@pytest.mark.parametrize(
    ("fields", "asks"),
    [
        ({"answer_cache": False}, 2),
        ({"is_traffic": False}, 2),
        ({}, 1),
    ],
)
def test_a_call_may_leave_the_cache_out(fields: dict[str, Any], asks: int) -> None:
    async def scenario() -> None:
        house = CachedHouse(FakeWorker(answers=True))
        await settle()
        for _ in range(2):
            assert await house.asked("a", **fields) == ["a"]
        assert house.metrics.of(house.function).batches == asks

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer_cache", "endpoint", "kept"),
    [(None, "", 1), (False, "", 0), (True, "http://other", 1), (None, "http://other", 0)],
)
def test_a_function_says_whether_its_answers_are_kept(
    answer_cache: bool | None, endpoint: str, kept: int
) -> None:
    async def scenario() -> None:
        house = CachedHouse(FakeWorker(answers=True), answer_cache=answer_cache)
        served = function(text_model(endpoint=endpoint), answer_cache=answer_cache)
        assert is_kept_of(served) == bool(kept)
        if not endpoint:
            await settle()
            await house.asked("a")
            assert len(house.cached.store) == kept

    asyncio.run(scenario())


@runs
async def test_the_bound_of_bytes_holds() -> None:
    house = CachedHouse(FakeWorker(answers=True), nbytes=10_000, rows=100_000)
    await settle()
    for first in range(0, 400, 40):
        await house.asked(*[f"row {number}" for number in range(first, first + 40)])
        assert house.cached.store.nbytes <= 10_000
    counts = house.metrics.of(house.function).cache
    assert counts.nbytes == house.cached.store.nbytes
    assert counts.entries == len(house.cached.store) > 10
    assert counts.evictions == counts.stored - counts.entries


@pytest.mark.parametrize("with_members", [False, True])
def test_a_reply_of_kept_answers_says_what_the_first_one_said(with_members: bool) -> None:
    async def scenario() -> None:
        house = CachedHouse(FakeWorker(answers=True), rows=1000)
        await settle()
        rows = [f"row {number % 7}" for number in range(40)]
        told = []
        for _ in range(3):
            reply = await asyncio.wait_for(house.begin(*rows, with_members=with_members).future, 5)
            await settle()
            columns = {name: (column.datatype, list(column.values)) for name, column in reply.columns.items()}
            said = {
                first + at: answer.members[0].columns[0].values[at]
                for first, answer in reply.told
                for at in range(answer.members[0].columns[0].rows)
            }
            told.append((columns, reply.answered_by, reply.errors, reply.defaulted, reply.rows, said))
        assert told[0] == told[1] == told[2]
        assert told[0][1] == [(0, 40, "net")]
        assert told[0][5] == (dict(enumerate(rows)) if with_members else {})

    asyncio.run(scenario())


@runs
async def test_rows_that_are_asked_anew_in_another_order_are_kept_as_they_were_answered() -> None:
    house = CachedHouse(worker := FakeWorker())
    await settle()
    first = house.begin("x", "y")
    bulk = house.begin("x", row_class="bulk")
    other = house.begin("y", "x")  # both wait for the first one's rows
    first.fail(ClientGone())
    while not (bulk.done and other.done):
        await settle()
        if worker.batches:
            worker.answer()
    assert labels_of(other.result) == ["y", "x"]
    assert await house.asked("x") + await house.asked("y") == ["x", "y"]
