"""Late rows: sent to another worker too, or rebuilt; each is answered once, whoever comes first."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from gpu_worker.model_files.parity_spec import ParitySpec
from gpu_worker.wire.protocol import Answer, Failed
from gpu_worker.wire.row_groups import rows_in
from server.catalog.late_rows import LateRows, late_rows_from
from server.errors import BadOption, ServiceError
from server.scheduling.core import Slice
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import PendingReply
from tests.answers import classified, confidences_of, labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import CLASSES, text_model
from tests.unit.server.test_members_apart import House
from tests.waiting import until

NET = text_model("net")
PARITY = text_model("net~parity-2", accuracy=0.6, parity=ParitySpec(2, "sum"))


def house_of(late_rows: LateRows) -> House:
    parity = PARITY if late_rows.by == "parity" else None
    return House((NET,), max_batch=2, batch_sizes=(1, 2), slo_ms=1000.0, late_rows=late_rows, parity=parity)


def hedging(after_ms: float = 5.0) -> House:
    return house_of(LateRows("hedge", after_ms))


def coding(after_ms: float = 5.0) -> House:
    return house_of(LateRows("parity", after_ms, 2))


def say(worker: FakeWorker, place: int = 0) -> None:
    """The batch at that place is answered: of a row the class that it names, of a group their sum."""
    message, on_reply = worker.batches.pop(place)
    logs = [
        np.sum([np.log(shares(row)) for row in parts(message.models, row)], axis=0) for row in message.rows
    ]
    scores = [np.exp(each - each.max()) / np.exp(each - each.max()).sum() for each in logs]
    labels = [CLASSES[int(each.argmax())] for each in scores]
    data = b"".join(each.astype("<f4").tobytes() for each in scores)
    member = classified(message.models[0], labels, [float(each.max()) for each in scores], data)
    on_reply(Answer(message.id, [member], []))


def parts(models: list[str], row: bytes) -> list[bytes]:
    return rows_in(row, 2) if "parity" in models[0] else [row]


def shares(row: bytes) -> Any:
    found = np.full(3, 0.1)
    found[int(row)] = 0.8
    return found


async def sent(house: House, *names: str) -> None:
    await until(lambda: all(house.workers[name].batches for name in names))


def labels(pending: PendingReply) -> list[str]:
    return labels_of(pending.future.result())


def test_a_late_batch_is_sent_to_another_worker_and_the_first_answer_counts() -> None:
    async def scenario() -> None:
        house = hedging()
        house.place(w0="net", w1="net")
        pending = house.ask("1")
        await until(lambda: any(worker.batches for worker in house.workers.values()))
        slow = next(name for name, worker in house.workers.items() if worker.batches)
        other = "w1" if slow == "w0" else "w0"
        await sent(house, slow, other)
        say(house.workers[other])
        assert labels(pending) == [CLASSES[1]]
        assert house.metrics.of(house.function).resent_rows >= 1
        house.dispatcher.end(pending)
        assert house.workers[slow].cancelled  # nobody wants it any more
        message, on_reply = house.workers[slow].batches.pop(0)
        on_reply(Failed(message.id, "cancelled", "given up"))
        await settle()
        assert house.dispatcher.at_rest()

    asyncio.run(scenario())


def test_a_copy_that_fails_costs_nothing_where_its_rows_are_answered() -> None:
    async def scenario() -> None:
        house = hedging()
        house.place(w0="net", w1="net")
        pending = house.ask("0", "1", "2")
        workers = house.workers.values()
        await until(lambda: any(len(worker.batches) == 2 for worker in workers))
        (busy,) = (worker for worker in workers if len(worker.batches) == 2)
        (other,) = (worker for worker in workers if worker is not busy)
        say(other)
        busy.batches.reverse()  # the copy of what the other had is there since last
        assert busy.batches[0][0].rows == [b"0", b"1"]
        busy.fail("internal", "out of luck")
        say(busy)
        assert labels(pending) == [CLASSES[int(row)] for row in "012"]

    asyncio.run(scenario())


def test_a_copy_that_there_is_no_time_for_costs_nothing() -> None:
    async def scenario() -> None:
        house = hedging(after_ms=60_000.0)
        house.latencies[NET.key] = LatencyModel({1: 0.05, 64: 0.1})
        house.dispatcher.configure(house.function)
        house.place(w0="net")
        pending = house.ask("1", deadline_s=time.monotonic() + 5.0)
        await settle()
        house.ask(*["0"] * 900, priority=1)
        await settle()
        house.dispatcher.resend(pending, Slice(pending.request_id, 0, 1))
        assert not pending.done
        say(house.workers["w0"])
        assert labels(pending) == [CLASSES[1]]

    asyncio.run(scenario())


@pytest.mark.parametrize("fails_too", [False, True])
def test_a_copy_that_fails_leaves_its_rows_to_the_other_worker_that_has_them(fails_too: bool) -> None:
    async def scenario() -> None:
        house = hedging(after_ms=60_000.0)
        house.place(w0="net")
        pending = house.ask("1")
        await sent(house, "w0")
        house.place(w1="net")
        house.dispatcher.resend(pending, Slice(pending.request_id, 0, 1))
        await sent(house, "w1")
        house.workers["w1"].fail("internal", "out of luck")
        assert not pending.done
        if fails_too:
            house.workers["w0"].fail("internal", "out of luck")
            with pytest.raises(ServiceError, match="out of luck"):
                pending.future.result()
        else:
            say(house.workers["w0"])
            assert labels(pending) == [CLASSES[1]]

    asyncio.run(scenario())


def test_a_version_that_goes_answers_what_a_worker_has_though_copies_wait() -> None:
    async def scenario() -> None:
        house = hedging(after_ms=60_000.0)
        house.place(w0="net")
        pending = house.ask("1")
        await sent(house, "w0")
        house.dispatcher.retire("w0")
        house.dispatcher.resend(pending, Slice(pending.request_id, 0, 1))
        house.dispatcher.remove(house.function)
        assert not pending.done
        say(house.workers["w0"])
        assert labels(pending) == [CLASSES[1]]

    asyncio.run(scenario())


def test_a_copy_that_comes_too_late_leaves_its_rows_to_the_worker_that_has_them() -> None:
    async def scenario() -> None:
        house = hedging()
        house.latencies[NET.key] = LatencyModel({1: 0.1, 64: 0.2})
        house.dispatcher.configure(house.function)
        house.place(w0="net")
        house.ask("0", "0")
        await settle()
        ends_s = time.monotonic() + 0.4
        pending = house.ask("1", deadline_s=ends_s)
        stats = house.metrics.of(house.function)
        await until(lambda: stats.resent_rows >= 4)  # copies wait behind what the worker has
        await until(lambda: time.monotonic() > ends_s - 0.05)  # a copy would take longer
        say(house.workers["w0"])
        await settle()
        say(house.workers["w0"])
        assert labels(pending) == [CLASSES[1]]

    asyncio.run(scenario())


def test_of_a_long_call_only_the_rows_that_are_late_are_sent_anew() -> None:
    async def scenario() -> None:
        house = hedging(after_ms=30.0)
        house.place(w0="net", w1="net")
        pending = house.ask("0", "1", "2", "0")
        await sent(house, "w0", "w1")
        (_, kept), (_, quick) = house.on("w0")[0], house.on("w1")[0]
        say(house.workers["w1"])
        await until(lambda: bool(house.on("w1")))
        assert house.on("w1")[0][1] == kept
        say(house.workers["w1"])
        say(house.workers["w0"])  # its answers come after all, and change nothing
        assert labels(pending) == [CLASSES[int(row)] for row in "0120"]
        assert sorted(kept + quick) == [b"0", b"0", b"1", b"2"]

    asyncio.run(scenario())


def test_rows_that_are_answered_in_time_are_sent_once() -> None:
    async def scenario() -> None:
        house = hedging(after_ms=60_000.0)
        house.place(w0="net", w1="net")
        pending = house.ask("1")
        await until(lambda: any(worker.batches for worker in house.workers.values()))
        say(next(worker for worker in house.workers.values() if worker.batches))
        assert labels(pending) == [CLASSES[1]]
        house.dispatcher.end(pending)
        assert house.metrics.of(house.function).resent_rows == 0

    asyncio.run(scenario())


def test_a_worker_that_dies_with_late_rows_costs_no_answer() -> None:
    async def scenario() -> None:
        house = hedging()
        house.place(w0="net", w1="net")
        pending = house.ask("1", "2")
        await until(lambda: all(worker.batches for worker in house.workers.values()))
        house.lose("w0")
        await settle()
        while not pending.done:
            for worker in house.workers.values():
                if worker.batches:
                    say(worker)
            await asyncio.sleep(0.001)
        assert labels(pending) == [CLASSES[1], CLASSES[2]]

    asyncio.run(scenario())


def test_a_row_that_a_copy_answers_is_told_once_and_runs_alone_no_more() -> None:
    async def scenario() -> None:
        house = hedging(after_ms=60_000.0)
        house.place(w0="net")
        pending = house.ask("1", "2", "0", with_members=True)
        await until(lambda: len(house.on("w0")) == 2)
        house.place(w1="net")
        house.dispatcher.resend(pending, Slice(pending.request_id, 0, 2))
        await sent(house, "w1")
        house.place(w2="net")
        house.lose("w0")
        await sent(house, "w2")
        assert house.on("w2") == [(["net/1"], [b"1"])]
        say(house.workers["w1"])
        say(house.workers["w2"])
        await sent(house, "w2")
        assert house.on("w2") == [(["net/1"], [b"0"])]
        say(house.workers["w2"])
        reply = pending.future.result()
        assert labels_of(reply) == [CLASSES[int(row)] for row in "120"]
        told = [first + at for first, answer in reply.told for at in range(answer.members[0].columns[0].rows)]
        assert sorted(told) == [0, 1, 2]

    asyncio.run(scenario())


def test_bulk_rows_are_never_sent_twice() -> None:
    async def scenario() -> None:
        house = hedging(after_ms=1.0)
        house.place(w0="net", w1="net")
        pending = house.ask("1", row_class="bulk")
        await until(lambda: any(worker.batches for worker in house.workers.values()))
        began_s = time.monotonic()
        await until(lambda: time.monotonic() > began_s + 0.02)
        assert sum(len(worker.batches) for worker in house.workers.values()) == 1
        say(next(worker for worker in house.workers.values() if worker.batches))
        assert labels(pending) == [CLASSES[1]]

    asyncio.run(scenario())


async def two_rows_and_their_sum(house: House) -> tuple[PendingReply, PendingReply]:
    """w0 has the first call's row, w1 the second's, w2 their sum."""
    house.place(w0="net", w1="net", w2="net~parity-2")
    first = house.ask("1")
    await sent(house, "w0")
    second = house.ask("2")
    await sent(house, "w1", "w2")
    return first, second


def test_a_late_row_is_rebuilt_and_says_who_answered_it() -> None:
    async def scenario() -> None:
        house = coding()
        first, second = await two_rows_and_their_sum(house)
        (models, (group,)) = house.on("w2")[0]
        assert models == ["net~parity-2/1"]
        assert rows_in(group, 2) == [b"1", b"2"]
        say(house.workers["w2"])
        say(house.workers["w1"])
        await until(lambda: first.done)
        reply = first.future.result()
        assert labels_of(reply) == [CLASSES[1]]
        assert confidences_of(reply) == pytest.approx([0.8], rel=1e-3)
        assert reply.answered_by == [(0, 1, "net~parity-2")]
        assert second.future.result().answered_by == [(0, 1, "net")]
        stats = house.metrics.of(house.function)
        assert (stats.parity_rows, stats.rebuilt_rows) == (1, 1)
        house.dispatcher.end(first)
        house.dispatcher.end(second)
        await settle()
        assert house.dispatcher.at_rest()

    asyncio.run(scenario())


def test_where_both_are_in_time_the_parity_models_rows_are_taken_back() -> None:
    async def scenario() -> None:
        house = coding(after_ms=60_000.0)
        first, second = await two_rows_and_their_sum(house)
        say(house.workers["w0"])
        say(house.workers["w1"])
        assert first.future.result().answered_by == [(0, 1, "net")]
        assert labels(second) == [CLASSES[2]]
        house.dispatcher.end(first)
        house.dispatcher.end(second)
        await settle()
        assert house.workers["w2"].cancelled
        message, on_reply = house.workers["w2"].batches.pop(0)
        on_reply(Failed(message.id, "cancelled", "given up"))
        await settle()
        assert house.dispatcher.at_rest()
        assert house.metrics.of(house.function).rebuilt_rows == 0

    asyncio.run(scenario())


def test_a_row_that_its_own_batch_answers_after_it_was_rebuilt_stays_as_it_was_told() -> None:
    async def scenario() -> None:
        house = coding()
        first, second = await two_rows_and_their_sum(house)
        say(house.workers["w2"])
        say(house.workers["w1"])
        await until(lambda: first.done)
        say(house.workers["w0"])
        await settle()
        assert first.future.result().answered_by == [(0, 1, "net~parity-2")]
        assert second.done

    asyncio.run(scenario())


def test_a_parity_model_that_fails_costs_no_answer() -> None:
    async def scenario() -> None:
        house = coding()
        first, second = await two_rows_and_their_sum(house)
        message, on_reply = house.workers["w2"].batches.pop(0)
        on_reply(Failed(message.id, "internal", "out of luck"))
        await settle()
        say(house.workers["w1"])
        say(house.workers["w0"])
        assert labels(first) + labels(second) == [CLASSES[1], CLASSES[2]]

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_leaves_its_group() -> None:
    async def scenario() -> None:
        house = coding()
        first, second = await two_rows_and_their_sum(house)
        house.dispatcher.end(first)
        say(house.workers["w1"])
        await settle()
        assert labels(second) == [CLASSES[2]]

    asyncio.run(scenario())


def test_rows_that_may_read_different_folders_share_no_group() -> None:
    async def scenario() -> None:
        house = coding()
        house.place(w0="net", w1="net", w2="net~parity-2")
        house.ask("1", media_roots=("/a",))
        await sent(house, "w0")
        house.ask("2", media_roots=("/b",))
        await sent(house, "w1")
        await settle()
        assert house.on("w2") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (7, "late_rows"),
        ({"by": "luck"}, "by"),
        ({"by": "hedge", "k": 2}, "'late_rows.k'"),
        ({"by": "parity", "k": 5}, "'late_rows.k'"),
        ({"by": "parity", "k": True}, "'late_rows.k'"),
        ({"by": "hedge", "after_ms": 0}, "after_ms"),
        ({"by": "hedge", "after_ms": "soon"}, "after_ms"),
        ({"by": "hedge", "often": 2}, "often"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field(raw: object, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        late_rows_from("f", raw)


def test_what_is_said_is_read_back() -> None:
    assert late_rows_from("f", None) is None
    assert late_rows_from("f", "hedge") == LateRows("hedge")
    for told in ({"by": "hedge", "after_ms": 5.0}, {"by": "parity", "after_ms": None, "k": 3}):
        found = late_rows_from("f", told)
        assert found is not None
        assert found.to_json() == told
