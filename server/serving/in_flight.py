"""Batches on their way through workers: what was sent where, and since when.

Knows how a batch becomes a message; not why it was cut so, nor what happens when it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_worker.wire.protocol import Answer, AskStep, BatchPart, Failed, Infer, Message
from server.catalog.functions import Function
from server.errors import ServiceError
from server.scheduling.core import RunBatch, Slice
from server.serving.answers import each_part
from server.serving.calls import PendingReply
from server.serving.stretches import clear_stretches
from server.workers.pool import Worker

__all__ = ["BatchInFlight", "InFlight"]


@dataclass(slots=True, eq=False)
class BatchInFlight:
    """A batch on a worker. beside: all parts, where it is one of a batch of several functions.

    is_rider: of such parts, one that is not the first: the scheduler hears of that alone.
    """

    batch: RunBatch
    worker: Worker
    function: Function
    sent_s: float
    apart: frozenset[int] = frozenset()  # requests whose rows wait for other members too
    message_id: int = 0
    is_rider: bool = False
    beside: Sequence[BatchInFlight] = ()


@dataclass(frozen=True, slots=True)
class _Rows:
    """What leaves in a batch. narrowed: as in `Infer`. ends_s: when nobody waits for it any more."""

    rows: list[bytes]
    form: str
    outputs: list[str]
    narrowed: list[tuple[int, Sequence[str] | None]]
    ends_s: float


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
        sent, rows = self._begun(now_s, batch, worker, function, calls, together, steps)
        models, asked_task = list(batch.members), function.asked_task
        roots, patience_s = _roots(function), _patience_s(now_s, rows.ends_s)
        message = Infer(
            *(0, models, rows.form, rows.rows, rows.outputs, roots, asked_task, list(steps)),
            *(patience_s, rows.narrowed),
        )
        sent.message_id = worker.send(message, lambda reply: self._take([sent], reply, calls))
        return sent

    def send_parts(
        self,
        now_s: float,
        parts: Sequence[tuple[RunBatch, Function]],
        worker: Worker,
        calls: Mapping[int, PendingReply],
    ) -> list[BatchInFlight]:
        """Send batches of one model each, of the same form and folders, as the parts of one batch.

        Each is returned by itself, with its own part of the reply.
        """
        begun = [self._begun(now_s, batch, worker, function, calls) for batch, function in parts]
        sents = [sent for sent, _ in begun]
        rows: list[bytes] = []
        narrowed: list[tuple[int, Sequence[str] | None]] = []
        for _, part in begun:
            if not part.narrowed or part.narrowed[0][0]:  # else what the part before says would hold on
                narrowed.append((len(rows), None))
            narrowed += [(len(rows) + row, roots) for row, roots in part.narrowed]
            rows += part.rows
        if all(roots is None for _, roots in narrowed):
            narrowed = []
        message = Infer(
            0,
            [batch.members[0] for batch, _ in parts],
            begun[0][1].form,
            rows,
            media_roots=_roots(parts[0][1]),
            patience_s=_patience_s(now_s, max(part.ends_s for _, part in begun)),
            narrowed=narrowed,
            parts=[
                BatchPart(len(part.rows), part.outputs, function.asked_task)
                for (_, part), (_, function) in zip(begun, parts, strict=True)
            ],
        )
        message_id = worker.send(message, lambda reply: self._take(sents, reply, calls))
        for place, sent in enumerate(sents):
            sent.message_id, sent.is_rider, sent.beside = message_id, place > 0, sents
        return sents

    def _begun(
        self,
        now_s: float,
        batch: RunBatch,
        worker: Worker,
        function: Function,
        calls: Mapping[int, PendingReply],
        together: tuple[str, ...] | None = None,
        steps: Sequence[AskStep] = (),
    ) -> tuple[BatchInFlight, _Rows]:
        """Notes that a batch leaves, and what is in it."""
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
            pending.sent(now_s, part)
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
        together_with = max(len(members), 2) if apart else len(members)  # an average needs what one does not
        outputs = function.outputs_of(wanted, together_with)
        return sent, _Rows(rows, form, outputs, narrowed, ends_s)

    def forget(self, batch: RunBatch, calls: Mapping[int, PendingReply]) -> bool:
        """It could not be sent, and nothing of it is under way; False where it has left: its reply comes."""
        sent = self._batches.get(batch.batch_id)
        if sent is not None and sent.message_id:
            return False
        self._batches.pop(batch.batch_id, None)
        for part in batch.slices:
            pending = calls.get(part.request_id)
            if pending is not None:
                pending.batches.discard(batch.batch_id)
        return True

    def cancel_unwanted(self, batch_ids: Collection[int], wanted: Collection[int]) -> None:
        """Tell the workers of those batches of which no request is `wanted` any more."""
        for batch_id in batch_ids:
            sent = self._batches[batch_id]
            aboard = [part for each in sent.beside or (sent,) for part in each.batch.slices]
            if not any(part.request_id in wanted for part in aboard):
                sent.worker.cancel(sent.message_id)

    def not_there(self, pending: PendingReply, part: Slice) -> list[Slice]:
        """The rows of a part that are in no batch under way."""
        there = bytearray(len(pending.call.rows))
        for batch_id in pending.batches:
            for other in self._batches[batch_id].batch.slices:
                if other.request_id == pending.request_id:
                    there[other.offset : other.offset + other.rows] = b"\1" * other.rows
        found = clear_stretches(there, part.offset, part.offset + part.rows)
        return [Slice(part.request_id, first, rows) for first, rows in found]

    def on(self, worker: Worker) -> list[str]:
        """What is on a worker, in words."""
        in_flight = [sent for sent in self._batches.values() if sent.worker is worker]
        return [f"{sent.batch.rows} rows of {sent.function.name}" for sent in in_flight]

    def _take(
        self, sents: Sequence[BatchInFlight], reply: Message, calls: Mapping[int, PendingReply]
    ) -> None:
        for sent in sents:
            del self._batches[sent.batch.batch_id]
            for part in sent.batch.slices:
                pending = calls.get(part.request_id)
                if pending is not None:
                    pending.batches.discard(sent.batch.batch_id)
        if len(sents) == 1 or not isinstance(reply, Answer):
            for sent in sents:
                self._returned(sent, reply)
            return
        try:
            replies: Sequence[Message] = each_part(reply, [sent.batch.rows for sent in sents])
        except ServiceError as error:
            replies = [Failed(reply.id, "internal", str(error), reply.work_s, reply.stay_s)] * len(sents)
        for sent, part_reply in zip(sents, replies, strict=True):
            self._returned(sent, part_reply)


def _roots(function: Function) -> list[str] | None:
    return None if function.media_roots is None else list(function.media_roots)


def _patience_s(now_s: float, ends_s: float) -> float:
    return max(0.001, ends_s - now_s) if ends_s < math.inf else 0.0
