"""Rows that were on a worker when it died: which of them killed it, nobody knows, so each runs by itself.

A row at a time, on a worker on which nothing else is, which the scheduler leaves alone meanwhile. The row
under which a worker dies again is the one, and gets an error; all others get their answers. So a row that
kills workers never takes others with it twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpu_worker.wire.protocol import Answer, Failed, Infer, Message, RowError
from server.catalog.functions import Function
from server.errors import Overloaded, ServiceError, WorkerLost
from server.scheduling.core import Slice
from server.serving.answers import answers_of
from server.serving.calls import Answers, Pending
from server.workers.pool import Worker

__all__ = ["Quarantine", "Ward"]

_TURN_S = 0.1  # then other rows have a turn on that worker
_REFUSALS = 20  # of one row by workers


class Ward(Protocol):
    """What the rows in quarantine need of the dispatcher."""

    def holders(self, function: Function) -> list[Worker]:
        """The workers that hold the function's members; if there are none, one is asked to load them."""
        ...

    def is_idle(self, worker: Worker) -> bool:
        """Whether no batch is on it."""
        ...

    def set_aside(self, worker: Worker, aside: bool) -> None:
        """The scheduler sends it nothing from now on, or may again."""
        ...

    def is_wanted(self, pending: Pending) -> bool:
        """Whether somebody waits for it, and its function is served."""
        ...

    def wake(self) -> None:
        """Have the scheduler asked again, and then `Quarantine.step`."""
        ...


@dataclass(slots=True, eq=False)
class _Suspect:
    """One row of a call."""

    pending: Pending
    row: int
    refusals: int = 0


@dataclass(slots=True, eq=False)
class _Cell:
    """The worker that is set aside, since when, and the row on it."""

    worker: Worker
    since_s: float
    suspect: _Suspect | None = None
    message_id: int = 0
    sent_s: float = 0.0


class Quarantine:
    """Rows wait here in the order in which they came; one runs at a time."""

    def __init__(self, ward: Ward, clock: Callable[[], float] = time.monotonic) -> None:
        self._ward = ward
        self._clock = clock
        self._suspects: deque[_Suspect] = deque()
        self._cell: _Cell | None = None

    @property
    def functions(self) -> set[str]:
        """Keys of those for which rows wait here."""
        return {suspect.pending.call.function.key for suspect in self._suspects}

    def keeps(self, worker: Worker) -> bool:
        """Whether the worker is set aside."""
        return self._cell is not None and self._cell.worker is worker

    def add(self, pending: Pending, part: Slice) -> None:
        """Rows under which a worker died."""
        rows = range(part.offset, part.offset + part.rows)
        self._suspects += [_Suspect(pending, row) for row in rows]
        self._ward.wake()

    def leave(self, pending: Pending) -> None:
        """Nobody waits for the call any more: if a row of it is on a worker, that is told."""
        cell = self._cell
        if cell is not None and cell.suspect is not None and cell.suspect.pending is pending:
            cell.worker.cancel(cell.message_id)

    def worker_lost(self, worker: Worker) -> None:
        """A worker is gone; the reply for what was on it still comes."""
        if self.keeps(worker):
            self._cell = None

    def hung(self, patience_s: float) -> Worker | None:
        """The worker that has been on one row for longer than that."""
        cell = self._cell
        if cell is None or cell.suspect is None or self._clock() - cell.sent_s <= patience_s:
            return None
        return cell.worker

    def step(self) -> None:
        """Send the next row, if its worker is there and idle."""
        while self._suspects and not self._ward.is_wanted(self._suspects[0].pending):
            self._suspects.popleft()
        cell = self._cell
        if cell is not None and cell.suspect is not None:
            return
        if not self._suspects:
            self._release()
            return
        holders = self._ward.holders(self._suspects[0].pending.call.function)
        if cell is None or cell.worker not in holders:
            self._release()
            if not holders:
                return
            worker = min(holders, key=lambda each: not self._ward.is_idle(each))
            cell = self._cell = _Cell(worker, self._clock())
            self._ward.set_aside(worker, True)
        if self._ward.is_idle(cell.worker):
            self._send(cell, self._suspects.popleft())

    def _send(self, cell: _Cell, suspect: _Suspect) -> None:
        call = suspect.pending.call
        function = call.function
        members = list(call.members or [model.key for model in function.members])
        scores = call.scores or (function.combine == "mean" and len(members) > 1)
        cell.suspect, cell.sent_s = suspect, self._clock()
        suspect.pending.first_sent_s = min(suspect.pending.first_sent_s, cell.sent_s)
        message = Infer(0, members, call.form, [call.rows[suspect.row]], scores)
        cell.message_id = cell.worker.send(message, lambda reply: self._landed(cell, suspect, reply))

    def _landed(self, cell: _Cell, suspect: _Suspect, reply: Message) -> None:
        cell.suspect = None
        if self._cell is cell and self._clock() - cell.since_s > _TURN_S:
            self._release()
        self._ward.wake()
        pending = suspect.pending
        if pending.done:
            return
        try:
            answers = self._answers(suspect, reply)
        except ServiceError as error:
            pending.fail(error)
            return
        if answers is None:
            self._suspects.append(suspect)
        else:
            pending.answer(Slice(pending.request_id, suspect.row, 1), 0, answers)

    def _answers(self, suspect: _Suspect, reply: Message) -> Answers | None:
        """What the row gets; None: it is to run again. Raises `ServiceError`, for its whole call."""
        function = suspect.pending.call.function
        if isinstance(reply, Answer):
            return answers_of(function, reply, 1)
        if not isinstance(reply, Failed):
            raise ServiceError(f"{function.name}: the worker answered a batch with {reply.kind!r}")
        if reply.code == WorkerLost.code:
            return _conviction(suspect, reply)
        if reply.code not in {"unknown_function", "overloaded", "cancelled"}:
            raise ServiceError(f"{function.name}: {reply.message}")
        suspect.refusals += 1
        if suspect.refusals > _REFUSALS:
            raise Overloaded(f"workers refused rows of {function.name} again and again: {reply.message}", 1.0)
        return None

    def _release(self) -> None:
        if self._cell is not None:
            worker, self._cell = self._cell.worker, None
            self._ward.set_aside(worker, False)


def _conviction(suspect: _Suspect, reply: Failed) -> Answers:
    call = suspect.pending.call
    message = f"the worker died twice under rows of {call.function.name}, of this one alone: {reply.message}"
    scores = bytes(4 * len(call.function.classes)) if call.scores else b""
    return Answers([""], [0.0], scores, [RowError(0, WorkerLost.code, message)], "")
