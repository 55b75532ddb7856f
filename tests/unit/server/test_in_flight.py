"""Batches in flight: the message that each becomes, who may cancel it, and that each is answered once."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from gpu_worker.wire.protocol import Answer, Message
from server.catalog.functions import Function
from server.scheduling.core import RunBatch, Slice
from server.serving.calls import Call, PendingReply
from server.serving.in_flight import BatchInFlight, InFlight
from server.serving.outcomes import Outcomes
from tests.unit.server.fake_worker import FakeWorker
from tests.unit.server.served import function, text_model


class Airport:
    """InFlight with one worker, and calls of ten rows each: `1-0`, `1-1`, …"""

    def __init__(self, served: Function | None = None) -> None:
        self.returned: list[tuple[BatchInFlight, Message]] = []
        self.in_flight = InFlight(lambda sent, reply: self.returned.append((sent, reply)))
        self.worker = FakeWorker()
        self.served = served or function()
        self.calls: dict[int, PendingReply] = {}

    def call(self, request_id: int, **fields: Any) -> None:
        rows = [f"{request_id}-{row}".encode() for row in range(10)]
        call = Call(self.served, "text", rows, 30, **fields)
        self.calls[request_id] = PendingReply(Outcomes(), request_id, call, 0.0)

    def send(self, batch_id: int, *slices: tuple[int, int, int], now_s: float = 1.0) -> None:
        parts = tuple(Slice(*part) for part in slices)
        members = tuple(model.key for model in self.served.members)
        rows = sum(part.rows for part in parts)
        batch = RunBatch(batch_id, self.served.key, "w0", members, parts, rows)
        self.in_flight.send(now_s, batch, self.worker, self.served, self.calls)


def run(scenario: Any) -> None:  # a coroutine function
    asyncio.run(scenario())


def test_a_batch_carries_the_rows_of_its_slices_in_their_order() -> None:
    async def scenario() -> None:
        airport = Airport()
        airport.call(1)
        airport.call(2)
        airport.send(7, (1, 8, 2), (2, 0, 10), (1, 0, 1), now_s=3.0)
        ((message, _),) = airport.worker.batches
        assert message.rows == [b"1-8", b"1-9", *(f"2-{row}".encode() for row in range(10)), b"1-0"]
        assert (message.models, message.form) == (["net/1"], "text")
        assert airport.calls[1].batches == airport.calls[2].batches == {7}
        assert airport.calls[1].first_sent_s == 3.0

    run(scenario)


@pytest.mark.security
@pytest.mark.parametrize(("named", "sent"), [(None, None), ((), []), (("/photos/team",), ["/photos/team"])])
def test_a_batch_carries_the_folders_that_its_function_may_read(
    named: tuple[str, ...] | None, sent: list[str] | None
) -> None:
    async def scenario() -> None:
        airport = Airport(function(media_roots=named))
        airport.call(1)
        airport.send(1, (1, 0, 10))
        ((message, _),) = airport.worker.batches
        assert message.media_roots == sent

    run(scenario)


def test_a_calls_first_batch_says_when_it_left_the_queue() -> None:
    async def scenario() -> None:
        airport = Airport()
        airport.call(1)
        assert airport.calls[1].first_sent_s == math.inf
        airport.send(1, (1, 0, 5), now_s=3.0)
        airport.send(2, (1, 5, 5), now_s=4.0)
        assert airport.calls[1].first_sent_s == 3.0

    run(scenario)


@pytest.mark.parametrize(
    ("members", "combine", "asked", "sent"),
    [
        (1, "majority_vote", False, False),
        (1, "majority_vote", True, True),
        (1, "mean", False, False),  # of one member the mean is its label
        (2, "mean", False, True),
        (2, "majority_vote", False, False),
    ],
)
def test_scores_travel_only_where_somebody_needs_them(
    members: int, combine: str, asked: bool, sent: bool
) -> None:
    async def scenario() -> None:
        models = [text_model(f"net{number}") for number in range(members)]
        airport = Airport(function(*models, combine=combine))
        airport.call(1)
        airport.call(2, outputs=("scores",) if asked else ())
        airport.send(1, (1, 0, 10), (2, 0, 10))
        ((message, _),) = airport.worker.batches
        assert ("scores" in message.outputs) is sent

    run(scenario)


def test_only_a_batch_that_nobody_waits_for_is_cancelled() -> None:
    async def scenario() -> None:
        airport = Airport()
        for request in (1, 2):
            airport.call(request)
        airport.send(1, (1, 0, 5))
        airport.send(2, (1, 5, 5), (2, 0, 5))
        ours = [message.id for message, _ in airport.worker.batches]
        airport.in_flight.cancel_unwanted({1, 2}, {2})
        assert airport.worker.cancelled == ours[:1]
        airport.in_flight.cancel_unwanted({2}, set())
        assert airport.worker.cancelled == ours

    run(scenario)


def test_a_cancelled_batch_stays_in_flight_until_the_worker_says_that_it_is_over() -> None:
    async def scenario() -> None:
        airport = Airport()
        airport.call(1)
        airport.send(1, (1, 0, 10))
        airport.in_flight.cancel_unwanted({1}, set())
        assert airport.returned == []
        assert airport.in_flight.on(airport.worker) == ["10 rows of f"]
        airport.worker.fail("cancelled")
        ((sent, _),) = airport.returned
        assert sent.batch.batch_id == 1
        assert airport.in_flight.on(airport.worker) == []

    run(scenario)


def test_a_landed_batch_is_told_once_and_is_gone_from_its_calls() -> None:
    async def scenario() -> None:
        airport = Airport()
        airport.call(1)
        airport.call(2)
        airport.send(1, (1, 0, 10), (2, 0, 10))
        airport.send(2, (1, 0, 10))
        del airport.calls[2]  # its client went
        airport.worker.answer()
        ((sent, reply),) = airport.returned
        assert sent.batch.batch_id == 1
        assert isinstance(reply, Answer)
        assert airport.calls[1].batches == {2}
        assert airport.in_flight.on(airport.worker) == ["10 rows of f"]

    run(scenario)
