"""Batches on their way through workers: what was sent where, and since when.

Knows how a batch becomes a message; not why it was cut so, nor what happens when it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_worker.wire.protocol import AskStep, Infer, Message
from server.catalog.functions import Function
from server.scheduling.core import RunBatch
from server.serving.calls import PendingReply
from server.workers.pool import Worker

__all__ = ["BatchInFlight", "InFlight"]


@dataclass(slots=True, eq=False)
class BatchInFlight:
    """A batch on a worker."""

    batch: RunBatch
    worker: Worker
    function: Function
    sent_s: float
    apart: frozenset[int] = frozenset()  # requests whose rows wait for other members too
    message_id: int = 0


class InFlight:
    """`returned` is called once for each batch with the worker's reply."""

    def __init__(self, returned: Callable[[BatchInFlight, Message], None]) -> None:
        self._returned = returned
        self._batches: dict[int, BatchInFlight] = {}

    def send(
        self,
        now_s: float,
        batch: RunBatch,
        worker: Worker,
        function: Function,
        calls: Mapping[int, PendingReply],
        together: tuple[str, ...] | None = None,
        steps: Sequence[AskStep] = (),
    ) -> BatchInFlight:
        """Send a batch, which is returned; `calls` holds the request of each of its slices.

        together: all members to which its rows are sent now, where others than the batch's are among them.
        steps: by which the worker asks them; whoever is not asked by these is not waited for.
        """
        rows: list[bytes] = []
        members = batch.members if together is None else together
        apart: list[int] = []
        wanted: set[str] = set()
        narrowed: list[tuple[int, Sequence[str] | None]] = []
        form: str = function.form
        ends_s = 0.0
        for part in batch.slices:
            pending = calls[part.request_id]
            call = pending.call
            pending.batches.add(batch.batch_id)
            pending.first_sent_s = min(pending.first_sent_s, now_s)
            form = call.form  # the same for all: it is the bucket
            wanted.update(call.outputs)
            ends_s = max(ends_s, call.deadline_s)
            if together is not None or (pending.evidence is not None and not steps):
                pending.expect(part, members)
                apart.append(part.request_id)
            if call.form == "path" and call.media_roots != (narrowed[-1][1] if narrowed else None):
                narrowed.append((len(rows), call.media_roots))
            whole = part.rows == len(call.rows)
            rows += call.rows if whole else call.rows[part.offset : part.offset + part.rows]
        if function.parity is not None:  # of which others' answers are rebuilt
            wanted.add("scores")
        sent = BatchInFlight(batch, worker, function, now_s, frozenset(apart))
        self._batches[batch.batch_id] = sent
        roots = None if function.media_roots is None else list(function.media_roots)
        together_with = max(len(members), 2) if apart else len(members)  # an average needs what one does not
        outputs = function.outputs_of(wanted, together_with)
        models, asked_task = list(batch.members), function.asked_task
        patience_s = max(0.001, ends_s - now_s) if ends_s < math.inf else 0.0
        message = Infer(0, models, form, rows, outputs, roots, asked_task, list(steps), patience_s, narrowed)
        sent.message_id = worker.send(message, lambda reply: self._take(sent, reply, calls))
        return sent

    def cancel_unwanted(self, batch_ids: Collection[int], wanted: Collection[int]) -> None:
        """Tell the workers of those batches of which no request is `wanted` any more."""
        for batch_id in batch_ids:
            sent = self._batches[batch_id]
            if not any(part.request_id in wanted for part in sent.batch.slices):
                sent.worker.cancel(sent.message_id)

    def on(self, worker: Worker) -> list[str]:
        """What is on a worker, in words."""
        in_flight = [sent for sent in self._batches.values() if sent.worker is worker]
        return [f"{sent.batch.rows} rows of {sent.function.name}" for sent in in_flight]

    def _take(self, sent: BatchInFlight, reply: Message, calls: Mapping[int, PendingReply]) -> None:
        del self._batches[sent.batch.batch_id]
        for part in sent.batch.slices:
            pending = calls.get(part.request_id)
            if pending is not None:
                pending.batches.discard(sent.batch.batch_id)
        self._returned(sent, reply)
