"""Batches on their way through workers: what was sent where, and since when.

Knows how a batch becomes a message; not why it was cut so, nor what happens when it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpu_worker.wire.protocol import Infer, Message
from server.catalog.functions import Function
from server.scheduling.core import RunBatch
from server.serving.calls import Pending
from server.workers.pool import Worker

__all__ = ["Flight", "Flights"]


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on a worker."""

    batch: RunBatch
    worker: Worker
    function: Function
    sent_s: float
    message_id: int = 0


class Flights:
    """`landed` is called once for each flight with the worker's reply."""

    def __init__(self, landed: Callable[[Flight, Message], None]) -> None:
        self._landed = landed
        self._flying: dict[int, Flight] = {}

    def send(
        self, now_s: float, batch: RunBatch, worker: Worker, function: Function, calls: Mapping[int, Pending]
    ) -> None:
        """Send a batch; `calls` holds the request of each of its slices."""
        rows: list[bytes] = []
        scores = function.combine == "mean" and len(batch.members) > 1
        form: str = function.form
        for part in batch.slices:
            pending = calls[part.request_id]
            call = pending.call
            pending.batches.add(batch.batch_id)
            pending.first_sent_s = min(pending.first_sent_s, now_s)
            form = call.form  # the same for all: it is the bucket
            scores = scores or call.scores
            whole = part.rows == len(call.rows)
            rows += call.rows if whole else call.rows[part.offset : part.offset + part.rows]
        flight = Flight(batch, worker, function, now_s)
        self._flying[batch.batch_id] = flight
        roots = None if function.media_roots is None else list(function.media_roots)
        message = Infer(0, list(batch.members), form, rows, scores, roots)
        flight.message_id = worker.send(message, lambda reply: self._land(flight, reply, calls))

    def cancel_unwanted(self, batch_ids: Collection[int], wanted: Collection[int]) -> None:
        """Tell the workers of those batches of which no request is `wanted` any more."""
        for batch_id in batch_ids:
            flight = self._flying[batch_id]
            if not any(part.request_id in wanted for part in flight.batch.slices):
                flight.worker.cancel(flight.message_id)

    def on(self, worker: Worker) -> list[str]:
        """What is on a worker, in words."""
        flights = [flight for flight in self._flying.values() if flight.worker is worker]
        return [f"{flight.batch.rows} rows of {flight.function.name}" for flight in flights]

    def _land(self, flight: Flight, reply: Message, calls: Mapping[int, Pending]) -> None:
        del self._flying[flight.batch.batch_id]
        for part in flight.batch.slices:
            pending = calls.get(part.request_id)
            if pending is not None:
                pending.batches.discard(flight.batch.batch_id)
        self._landed(flight, reply)
