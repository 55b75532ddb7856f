"""Requests that come in one turn and ask alike share a call, and each is answered as if it were alone."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from gpu_worker.wire.protocol import Column, RowError
from ml_udf.oip import HEADER_LENGTH, RequestTemplate, decode_response
from server.access.caller import NOBODY, Caller, Shares
from server.cache.files import FileStamps
from server.cache.stores import new_store
from server.ensemble.answer import FunctionAnswer
from server.errors import DeadlineExceeded, Overloaded
from server.http.application import Filled, WholeRequest
from server.http.body import ClientGone
from server.scheduling.core import Slice
from server.serving.cached_calls import CachedCalls
from server.serving.calls import Call, reply_of_rows
from server.serving.shared_calls import SharedCall, may_share
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.unit.server.test_infer_route import PATH, Station, leaves_no_circles, pieces, shaped
from tests.waiting import until

RAW = {HEADER_LENGTH.lower().encode(): b"0"}


class Alike:
    """Requests for these rows, and what each got. template: of their JSON; None = they are raw."""

    def __init__(
        self,
        *rows: str,
        template: RequestTemplate | None = None,
        timeout_us: int = 0,
        caller: Caller = NOBODY,
        path: str = PATH,
    ) -> None:
        self.rows = [row.encode() for row in rows]
        self.replies: dict[int, tuple[int, bytes, Mapping[str, str]]] = {}
        self._template, self._timeout_us, self._caller, self._path = template, timeout_us, caller, path
        self._came_s = time.monotonic()
        self.first = self.whole(0)

    def whole(self, place: int) -> WholeRequest:
        row = self.rows[place]
        if self._template is None:
            return WholeRequest(self._path, RAW, row, self._came_s, self._caller)
        whole = shaped(self._template, row, self._timeout_us, self._caller)
        whole.came_s, whole.path = self._came_s, self._path
        return whole

    def reply(self, place: int, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        assert place not in self.replies, "each gets one reply"
        self.replies[place] = status, body, headers

    def reply_filled(self, places: Sequence[int], filled: Sequence[Filled | None]) -> None:
        for place, one in zip(places, filled, strict=True):
            if one is not None:
                self.reply(place, 200, *one)

    @property
    def answers(self) -> dict[int, str | int]:
        """The label that each got, or its status."""
        return {
            place: _label(body, headers) if status == 200 else status
            for place, (status, body, headers) in sorted(self.replies.items())
        }


def _label(body: bytes, headers: Mapping[str, str]) -> str:
    (label,) = decode_response(body, headers.get(HEADER_LENGTH)).outputs[0].elements
    return label.decode()


def run(scene: Callable[[Station, FakeWorker], Coroutine[Any, Any, None]], **fields: Any) -> None:
    async def body() -> None:
        worker = FakeWorker(answers=fields.pop("answers", True))
        station = Station(worker, **fields)
        try:
            await settle()
            for path in (PATH, "/v2/models/f/versions/1/infer"):
                station.ask(b"taught", {HEADER_LENGTH: "0"}, path=path)
            if not worker.answers:
                await settle(8)
                while worker.batches:
                    worker.answer()
                    await settle()
            await station.replied(2)
            await settle(8)
            await scene(station, worker)
        finally:
            station.large.close()

    asyncio.run(body())


def taken(station: Station, alike: Alike, most: int = 1000) -> Any:
    """All of them get in together: what is under way."""
    inside = station.route.answer_alike(alike, range(min(most, len(alike.rows))))
    assert inside is not None
    return inside


def alone(station: Station, alike: Alike) -> bool:
    """Whether each is to come by itself."""
    return station.route.answer_alike(alike, range(len(alike.rows))) is None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────


def test_each_gets_to_the_byte_what_it_would_get_by_itself() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        rows = ["a", "bc", "", "ü", "a"]
        alike = Alike(*rows)
        taken(station, alike)
        station.replies.clear()
        for row in rows:
            station.ask(row.encode(), {HEADER_LENGTH: "0"})
        await station.replied(5)
        await settle(8)
        assert [alike.replies[place] for place in range(5)] == station.replies
        assert alike.answers == dict(enumerate(rows))
        stats = station.house.metrics.of(station.house.function)
        assert (stats.rows, stats.success.count, sum(stats.latency.counts)) == (12, 12, 12)
        assert station.house.dispatcher.at_rest()

    run(scene)


def test_what_is_kept_says_so_to_each_as_it_would_by_itself() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        house = station.house
        cached = CachedCalls(house.dispatcher, new_store("python", 1 << 20), FileStamps([]), house.metrics)
        station.calls._cached = cached
        for _ in range(2):
            station.replies.clear()
            for row in (b"a", b"bc"):
                station.ask(row, {HEADER_LENGTH: "0"})
            await station.replied(2)
        kept = station.replies
        alike = Alike("a", "new", "bc")
        taken(station, alike)
        await settle(20)
        assert [alike.replies[place] for place in (0, 2)] == kept
        assert all(b"ml_udf_cached_rows" in body for _, body, _ in kept)
        assert b"ml_udf_cached_rows" not in alike.replies[1][1]
        assert alike.answers == {0: "a", 1: "new", 2: "bc"}

    run(scene)


def test_requests_with_json_share_its_outputs_and_their_deadline() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        template = RequestTemplate(pieces(), ["binary_data_size", "timeout"])
        alike = Alike("a", "b", template=template, timeout_us=9_000_000)
        assert alone(station, alike)  # nobody has read such a one yet
        station.route.answer(alike.whole(0), lambda *reply: station.replies.append(reply))
        taken(station, alike)
        await settle(20)
        assert alike.answers == {0: "a", 1: "b"}

    run(scene)


def test_only_as_many_as_there_is_time_for_are_taken() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"abcdef")
        taken(station, alike, 4)
        await settle(20)
        assert alike.answers == {0: "a", 1: "b", 2: "c", 3: "d"}

    run(scene)


def test_each_is_answered_when_its_own_batch_is() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"abcdefgh")
        taken(station, alike)
        await settle(8)
        assert [len(message.rows) for message, _ in worker.batches] == [4, 4]
        worker.answer()
        await settle()
        assert alike.answers == dict(enumerate("abcd"))
        worker.answer()
        await settle()
        assert alike.answers == dict(enumerate("abcdefgh"))

    run(scene, answers=False)


def test_a_row_at_fault_is_told_to_its_own_client_alone() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"abcd")
        taken(station, alike)
        await settle(8)
        worker.answer(errors=(1, 2))
        await settle()
        station.ask(b"b", {HEADER_LENGTH: "0"})
        await settle(8)
        worker.answer(errors=(0,))
        await station.replied(3)
        assert {place: alike.answers[place] for place in (0, 3)} == {0: "a", 3: "d"}
        assert alike.replies[1] == alike.replies[2] == station.replies[-1]
        stats = station.house.metrics.of(station.house.function)
        assert stats.row_errors == 3

    run(scene, answers=False)


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_that_goes_takes_its_row_out_of_the_queue_and_no_other() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        dispatcher = station.house.dispatcher
        station.house.residency.worker_down(worker)
        alike = Alike(*"abcdef")
        inside = taken(station, alike)
        await settle()
        for place in (1, 3, 3):
            inside.leave(place)
        assert dispatcher.queue_depth()["f", 1] == (4, 4)
        await settle()
        again = FakeWorker("w1", answers=True)
        station.house.residency.worker_up(again)
        await settle(20)
        assert alike.answers == {0: "a", 2: "c", 4: "e", 5: "f"}
        assert station.house.metrics.of(station.house.function).errors["cancelled"] == 2
        assert dispatcher.at_rest()

    run(scene, answers=False)


def test_with_the_last_client_its_batch_is_called_off() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"ab")
        inside = taken(station, alike)
        await settle(8)
        assert len(worker.batches) == 1
        inside.leave(0)
        await settle()
        assert worker.cancelled == []
        inside.leave(1)
        await settle()
        assert worker.cancelled == [worker.batches[0][0].id]
        assert station.house.dispatcher.at_rest()
        worker.answer()
        await settle()
        assert alike.replies == {}

    run(scene, answers=False)


def test_a_batch_that_fails_costs_its_own_rows_alone() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"abcdefgh")
        taken(station, alike)
        await settle(8)
        worker.fail(code="internal", message="its network broke")
        worker.answer()
        await settle()
        assert alike.answers == {**dict.fromkeys(range(4), 500), 4: "e", 5: "f", 6: "g", 7: "h"}
        assert b"its network broke" in alike.replies[0][1]
        assert station.house.dispatcher.at_rest()

    run(scene, answers=False)


def test_rows_of_a_worker_that_dies_run_again_each_by_itself() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"abc")
        taken(station, alike)
        await settle(8)
        station.house.lose(worker)
        station.house.residency.worker_up(FakeWorker("w1", answers=True))
        await settle(60)
        assert alike.answers == {0: "a", 1: "b", 2: "c"}

    run(scene, answers=False)


def test_who_cannot_keep_the_deadline_is_told_so_and_the_others_are_answered() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        template = RequestTemplate(pieces(), ["binary_data_size", "timeout"])
        alike = Alike(*"abcdefgh", template=template, timeout_us=150_000)
        station.route.answer(alike.whole(0), lambda *reply: station.replies.append(reply))
        await settle(8)
        worker.answer()
        await settle()
        taken(station, alike)
        await settle(8)
        worker.answer()
        await until(lambda: len(alike.replies) == 8)
        assert alike.answers == {**dict(enumerate("abcd")), **dict.fromkeys(range(4, 8), 504)}

    run(scene, answers=False)


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_when_their_version_goes_each_goes_on_with_the_next_unless_it_named_one(version: str) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        alike = Alike(*"abc", path=f"/v2/models/f{version}/infer")
        inside = taken(station, alike)
        for number in (2, 3):
            station.deploy(number)
        await settle()
        inside.leave(1)
        station.house.residency.worker_up(FakeWorker("w1", answers=True))
        await settle(40)
        expected = dict.fromkeys(range(3), 410) if version else {0: "a", 2: "c"}
        await until(lambda: len(alike.replies) == len(expected))
        assert alike.answers == expected

    run(scene, answers=False)


def test_a_raw_request_has_its_row_still_when_its_version_has_gone() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        station.replies.clear()
        station.ask(b"mine", {HEADER_LENGTH: "0"})
        for number in (2, 3):
            station.deploy(number)
        await settle()
        station.house.residency.worker_up(FakeWorker("w1", answers=True))
        await station.replied()
        ((status, body, headers),) = station.replies
        assert (status, _label(body, headers)) == (200, "mine")

    run(scene, answers=False)


def test_they_leave_no_circles_for_the_collector() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        async def asked() -> None:
            alike = Alike(*"abcdef")
            taken(station, alike).leave(2)
            while len(alike.replies) < 5:
                await settle()
            await settle(8)

        await leaves_no_circles(asked, SharedCall, WholeRequest, Call, Alike)

    run(scene)


# ── who does not share ──────────────────────────────────────────────────────────────────────────────


def test_where_there_is_no_room_for_all_each_comes_by_itself() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        stats = station.house.metrics.of(station.house.function)
        assert alone(station, Alike(*"abcdef"))
        assert (sum(stats.errors.values()), stats.over_goal_rows) == (0, 0)
        taken(station, Alike(*"abcd"))
        assert alone(station, Alike("e", "f"))
        await settle(20)
        taken(station, Alike(*"abcd"))  # what was taken was given back

    run(scene, rows=4)


def test_where_the_first_would_be_late_all_are_told_so_at_once_and_those_like_them_are_shut_out() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        template = RequestTemplate(pieces(), ["binary_data_size", "timeout"])
        station.route.answer(
            Alike("a", template=template).first, lambda *reply: station.replies.append(reply)
        )
        await settle(8)
        worker.answer()
        stats = station.house.metrics.of(station.house.function)
        shut: list[Any] = []
        for _ in range(100):
            alike = Alike("b", "c", "d", template=template, timeout_us=20_000)
            alike.first.shut = lambda *told: shut.append(told)
            taken(station, alike).leave(1)
            if alike.replies:
                break
            assert not shut
        assert alike.answers == dict.fromkeys(range(3), 504)
        assert b"rows wait for f before it" in alike.replies[0][1]
        assert len({body for _, body, _ in alike.replies.values()}) == 1
        assert (stats.errors["deadline_exceeded"], stats.over_goal_rows) == (3, 3)
        ((for_s, *same, count),) = shut
        assert for_s > 0
        assert tuple(same) == alike.replies[0]
        count(5)
        assert stats.errors["deadline_exceeded"] == 8

    run(scene, answers=False)


def test_who_may_not_ask_or_is_capped_or_large_comes_by_himself() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        capped = Caller("capped", "10.0.0.1", frozenset(), shares=Shares(rows_per_s=5.0))
        station.ask(b"taught", {HEADER_LENGTH: "0"}, caller=capped)
        assert alone(station, Alike("a", "b", caller=capped))
        assert alone(station, Alike("a", "b", path="/v2/models/none/infer"))
        assert alone(station, Alike("a", "b" * (1 << 20)))
        unheard_of = Caller("new", "10.0.0.1", frozenset())
        assert alone(station, Alike("a", "b", caller=unheard_of))

    run(scene)


def test_what_goes_wrong_in_taking_them_together_costs_none_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        def broken(*_: Any) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(station.house.dispatcher, "begin_shared", broken)
        assert alone(station, Alike("a", "b"))
        assert "on purpose" in caplog.text
        monkeypatch.undo()
        taken(station, Alike(*"abcd"))  # what was taken was given back

    run(scene, rows=4)


def test_rows_that_are_watched_one_by_one_are_not_shared() -> None:
    plain = function(text_model())
    call = Call(plain, "text", [b"a"], 1)
    assert may_share(call)
    urgent = function(text_model("one"), text_model("two"), late_members="leave_out")
    for other in (
        Call(urgent, "text", [b"a"], 1),
        Call(plain, "text", [b"a"], 1, row_class="bulk"),
        Call(plain, "text", [b"a"], 1, with_members=True),
        Call(plain, "text", [b"a"], 1, context="user:17"),
        Call(plain, "text", [b"a"], 1, shares=Shares(queued_rows=10)),
    ):
        assert not may_share(other)


def test_a_server_that_stops_takes_no_more() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        alike = Alike(*"abc")
        taken(station, alike)
        station.house.dispatcher.drain()
        assert alone(station, Alike("d", "e"))
        await settle(20)
        assert alike.answers == dict(enumerate("abc"))

    run(scene)


# ── the call itself ─────────────────────────────────────────────────────────────────────────────────


def test_how_long_rows_waited_is_by_the_batch_that_they_left_in() -> None:
    async def scene() -> None:
        house = House(FakeWorker())
        await settle()
        pending = house.dispatcher.begin_shared(Call(house.function, "text", [b"a", b"b", b"c"], 3))
        assert pending is not None
        heard: list[tuple[list[int], float]] = []

        def listener(one: Any, _: Any) -> None:
            heard.extend((list(over.places), over.sent_s) for over in one.take_over())

        pending.listen(listener, None)
        pending.sent(1.0, Slice(pending.request_id, 0, 2))
        pending.sent(2.0, Slice(pending.request_id, 2, 1))
        pending.fail_part(Slice(pending.request_id, 2, 1), Overloaded("full"))
        pending.fail_part(Slice(pending.request_id, 0, 2), Overloaded("full"))
        pending.fail_part(Slice(pending.request_id, 0, 3), DeadlineExceeded("late"))
        await settle()
        assert heard == [([2], 2.0), ([0, 1], 1.0)]
        assert pending.done

    asyncio.run(scene())


def test_a_row_whose_client_goes_while_a_worker_has_no_room_for_it_is_not_queued_again() -> None:
    async def scene() -> None:
        worker = FakeWorker()
        house = House(worker)
        await settle()
        pending = house.dispatcher.begin_shared(Call(house.function, "text", [b"a", b"b", b"c", b"d"], 4))
        assert pending is not None
        heard: dict[int, object] = {}

        def listener(one: Any, _: Any) -> None:
            for over in one.take_over():
                heard.update(dict.fromkeys(over.places, over.outcome))

        pending.listen(listener, None)
        await until(lambda: worker.batches)
        while worker.batches:
            worker.fail("overloaded", "no room")
        house.dispatcher.leave_shared(pending, 1)
        asked: list[bytes] = []

        def answered() -> bool:
            while worker.batches:
                asked.extend(map(bytes, worker.batches[0][0].rows))
                worker.answer()
            return pending.done

        await until(answered)
        assert sorted(asked) == [b"a", b"c", b"d"]
        assert isinstance(heard[1], ClientGone)
        house.dispatcher.end_shared(pending)
        assert house.dispatcher.at_rest()
        assert set(house.dispatcher.queue_depth().values()) == {(0, 0)}

    asyncio.run(scene())


def test_rows_of_a_call_that_has_failed_are_told_so_once_whatever_comes_after() -> None:
    """Its last client goes, or its deadline passes, and in the same turn its version does."""

    async def scene() -> None:
        house = House()
        pending = house.dispatcher.begin_shared(Call(house.function, "text", [b"a", b"b"], 2))
        assert pending is not None
        told: list[int] = []
        pending.listen(
            lambda one, _: told.extend(row for over in one.take_over() for row in over.places), None
        )
        house.dispatcher.leave_shared(pending, 0)
        house.dispatcher.leave_shared(pending, 1)
        house.dispatcher.remove(house.function)
        await settle()
        assert told == [0, 1]
        assert isinstance(pending.outcome, ClientGone)
        house.dispatcher.end_shared(pending)
        assert house.dispatcher.at_rest()

    asyncio.run(scene())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_row_has_its_own_answer_or_its_error(seed: int) -> None:
    """Rows together and alone, ends of clients, answers, faults and deaths of workers, in any order."""

    async def scene() -> None:
        chance, number = random.Random(seed), 0
        workers = {name: FakeWorker(name) for name in ("w0", "w1")}
        station = Station(workers["w0"], rows=60)
        station.house.residency.worker_up(workers["w1"])
        station.ask(b"taught", {HEADER_LENGTH: "0"})
        asked: list[tuple[Alike, Any, set[int]]] = []
        for _ in range(120):
            rows = [str(number + place) for place in range(chance.randint(2, 12))]
            number += len(rows)
            alike = Alike(*rows)
            places = sorted(chance.sample(range(len(rows)), chance.randint(1, len(rows))))
            if (inside := station.route.answer_alike(alike, places)) is not None:
                asked.append((alike, inside, set(places)))
            elif chance.random() < 0.5:
                station.ask(rows[0].encode(), {HEADER_LENGTH: "0"})
            for alike, inside, there in chance.sample(asked, min(len(asked), chance.randint(0, 2))):
                waiting = sorted(there - alike.replies.keys())
                if waiting:
                    gone = chance.choice(waiting)
                    inside.leave(gone)
                    there.discard(gone)
            if chance.random() < 0.7:
                await settle(chance.randint(1, 3))
            for name, worker in workers.items():
                if worker.batches and chance.random() < 0.6:
                    worker.answer()
                elif worker.batches and chance.random() < 0.1:
                    station.house.residency.worker_down(worker)
                    while worker.batches:
                        worker.fail()
                    workers[name] = FakeWorker(name)
                    station.house.residency.worker_up(workers[name])
        for _ in range(300):
            for worker in workers.values():
                while worker.batches:
                    worker.answer()
            await settle()
        for alike, _, there in asked:
            assert alike.replies.keys() >= there
            for place in there:
                status, body, _ = alike.replies[place]
                died_twice = b"of this one alone" in body
                assert died_twice or alike.answers[place] == alike.rows[place].decode(), status
        assert station.house.dispatcher.at_rest()
        assert station.house.dispatcher.queue_depth() == {("f", 1): (0, 0)}
        taken(station, Alike(*map(str, range(60))))  # all was given back
        station.large.close()

    asyncio.run(scene())


@pytest.mark.parametrize("by_row", [(), ("a", "a,b", "a", "a", "b")])
def test_rows_that_lie_scattered_are_one_reply_of_their_own(by_row: Sequence[str]) -> None:
    labels = Column("label", "BYTES", (), list("abcde"))
    vectors = Column("embedding", "FP32", (2,), struct.pack("<10f", *range(10)))
    errors = [RowError(1, "input_invalid", "no"), RowError(3, "input_invalid", "nor that")]
    answers = FunctionAnswer(
        5, {"label": labels, "embedding": vectors}, errors, "all", frozenset((2, 4)), by_row
    )
    reply = reply_of_rows(function(text_model()), [0, 2, 3], answers)
    assert reply.rows == 3
    assert reply.columns["label"].data == ["a", "c", "d"]
    assert list(reply.columns["embedding"].values) == [0, 1, 4, 5, 6, 7]
    assert reply.errors == {2: errors[1]}
    assert reply.defaulted == {1}
    assert reply.answered_by == ([(0, 3, "a")] if by_row else [(0, 3, "all")])
    turned = reply_of_rows(function(text_model()), [0, 4, 2], answers)
    assert turned.columns["label"].data == ["a", "e", "c"]
    together = reply_of_rows(function(text_model()), [1, 2, 3], answers)
    for at, row in enumerate([1, 2, 3]):
        assert together.row(at) == reply_of_rows(function(text_model()), [row], answers)
