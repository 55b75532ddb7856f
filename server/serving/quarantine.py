"""Rows that were on a worker when it died: which of them killed it, nobody knows, so each runs by itself.

A row at a time, on a worker on which nothing else is, which the scheduler leaves alone meanwhile. The row
under which a worker dies again is the one, and gets an error; all others get their answers. So a row that
kills workers never takes others with it twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gpu_worker.wire.protocol import Answer, Failed, Infer, Message, RowError
from server.catalog.functions import Function
from server.ensemble.answer import FunctionAnswer
from server.errors import Overloaded, ServiceError, WorkerLost
from server.scheduling.core import Slice
from server.serving.absent import faulty_rows
from server.serving.answers import check_members
from server.serving.calls import PendingReply
from server.workers.pool import Worker

__all__ = ["REFUSALS", "REFUSED_S", "Quarantine", "QuarantineHost"]

_TURN_S = 0.1  # then other rows have a turn on that worker
REFUSALS = 20  # of one row by workers
REFUSED_S = 0.05  # until a worker that had no room is asked again


class QuarantineHost(Protocol):
    """What the rows in quarantine need of the dispatcher."""

    def holders(self, function: Function, members: Sequence[str]) -> list[tuple[Worker, tuple[str, ...]]]:
        """The workers that hold most of these members, with those that each holds.

        None until each member is somewhere; then they are asked for.
        """
        ...

    def collect(self, pending: PendingReply, part: Slice, first: int, reply: Answer) -> None:
        """Take what some members say of rows. Raises `ServiceError`."""
        ...

    def is_idle(self, worker: Worker) -> bool:
        """Whether no batch is on it."""
        ...

    def told_of_models(self, worker: Worker, members: Sequence[str], reply: Failed) -> None:
        """What a worker that took no rows says of the models that it holds, or has room for."""
        ...

    def after(self, delay_s: float, callback: Callable[[], object]) -> object:
        """Have something called later."""
        ...

    def set_aside(self, worker: Worker, aside: bool) -> None:
        """The scheduler sends it nothing from now on, or may again."""
        ...

    def is_wanted(self, pending: PendingReply) -> bool:
        """Whether somebody waits for it, and its function is served."""
        ...

    def wake(self) -> None:
        """Have the scheduler asked again, and then `Quarantine.step`."""
        ...


@dataclass(slots=True, eq=False)
class _Suspect:
    """One row of a call, and the members that it has yet to run on; not before a time, if it was refused."""

    pending: PendingReply
    row: int
    members: tuple[str, ...]
    refusals: int = 0
    rests_until_s: float = 0.0

    @property
    def part(self) -> Slice:
        return Slice(self.pending.request_id, self.row, 1)


@dataclass(slots=True, eq=False)
class _Isolation:
    """The worker that is set aside, since when, and the row on it."""

    worker: Worker
    since_s: float
    suspect: _Suspect | None = None
    message_id: int = 0
    sent_s: float = 0.0


_Holders: TypeAlias = Sequence[tuple[Worker, tuple[str, ...]]]  # workers, and which members each holds


class Quarantine:
    """Rows wait here in the order in which they came; one runs at a time.

    Those whose members are nowhere yet hold up no others.
    """

    def __init__(self, host: QuarantineHost, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._clock = clock
        self._suspects: deque[_Suspect] = deque()
        self._isolation: _Isolation | None = None

    @property
    def functions(self) -> set[str]:
        """Keys of those for which rows wait here."""
        return {suspect.pending.call.function.key for suspect in self._suspects}

    def keeps(self, worker: Worker) -> bool:
        """Whether the worker is set aside."""
        return self._isolation is not None and self._isolation.worker is worker

    def add(self, pending: PendingReply, part: Slice, members: tuple[str, ...] | None = None) -> None:
        """Rows under which a worker died, running these members; None: all that the call asks for."""
        members = members or members_of(pending)
        pending.expect(part, members)
        rows = range(part.offset, part.offset + part.rows)
        self._suspects += [_Suspect(pending, row, members) for row in rows]
        self._host.wake()

    def leave(self, pending: PendingReply) -> None:
        """Nobody waits for the call any more: if a row of it is on a worker, that is told."""
        isolation = self._isolation
        if isolation is not None and isolation.suspect is not None and isolation.suspect.pending is pending:
            isolation.worker.cancel(isolation.message_id)

    def worker_lost(self, worker: Worker) -> None:
        """A worker is gone; the reply for what was on it still comes."""
        if self.keeps(worker):
            self._isolation = None

    def hung(self, patience_s: float) -> Worker | None:
        """The worker that has been on one row for longer than that."""
        isolation = self._isolation
        if isolation is None or isolation.suspect is None or self._clock() - isolation.sent_s <= patience_s:
            return None
        return isolation.worker

    def step(self) -> None:
        """Send the next row, if its worker is there and idle."""
        while self._suspects and not self._is_wanted(self._suspects[0]):
            self._suspects.popleft()
        isolation = self._isolation
        if isolation is not None and isolation.suspect is not None:
            return
        found = self._next()
        if found is None:
            self._release()
            return
        suspect, holders = found
        kept = [(worker, held) for worker, held in holders if isolation and isolation.worker is worker]
        if isolation is None or not kept:
            self._release()
            kept = [min(holders, key=lambda holder: not self._host.is_idle(holder[0]))]
            isolation = self._isolation = _Isolation(kept[0][0], self._clock())
            self._host.set_aside(isolation.worker, True)
        if self._host.is_idle(isolation.worker):
            self._suspects.remove(suspect)
            self._send(isolation, suspect, kept[0][1])

    def _next(self) -> tuple[_Suspect, _Holders] | None:
        """The first row that somebody waits for and some worker can be asked of, and who can."""
        known: dict[tuple[str, tuple[str, ...]], _Holders] = {}
        now_s = self._clock()
        for suspect in tuple(self._suspects):
            function = suspect.pending.call.function
            kind = function.key, suspect.members
            rests = suspect.rests_until_s > now_s
            if (kind in known and (rests or not known[kind])) or not self._is_wanted(suspect):
                continue
            if kind not in known:  # asked of one that rests, too: a model that is nowhere is loaded meanwhile
                known[kind] = self._host.holders(function, suspect.members)
            if known[kind] and not rests:
                return suspect, known[kind]
        return None

    def _is_wanted(self, suspect: _Suspect) -> bool:
        is_wanted = self._host.is_wanted(suspect.pending)
        return is_wanted and suspect.pending.waits_for(suspect.part, suspect.members)

    def _send(self, isolation: _Isolation, suspect: _Suspect, members: tuple[str, ...]) -> None:
        call = suspect.pending.call
        function = call.function
        outputs = function.outputs_of(call.outputs, len(members_of(suspect.pending)))
        roots = None if function.media_roots is None else list(function.media_roots)
        isolation.suspect, isolation.sent_s = suspect, self._clock()
        suspect.pending.sent(isolation.sent_s, suspect.part)
        message = Infer(
            0,
            list(members),
            call.form,
            [call.rows[suspect.row]],
            outputs,
            roots,
            function.asked_task,
            narrowed=[] if call.media_roots is None else [(0, call.media_roots)],
        )
        isolation.message_id = isolation.worker.send(
            message, lambda reply: self._returned(isolation, suspect, members, reply)
        )

    def _returned(
        self, isolation: _Isolation, suspect: _Suspect, members: tuple[str, ...], reply: Message
    ) -> None:
        isolation.suspect = None
        if self._isolation is isolation and self._clock() - isolation.since_s > _TURN_S:
            self._release()
        self._host.wake()
        pending = suspect.pending
        if pending.done:
            return
        try:
            self._take(isolation.worker, suspect, members, reply)
        except ServiceError as error:
            pending.fail_part(suspect.part, error)
        else:
            if suspect.members:
                self._suspects.append(suspect)

    def _take(self, worker: Worker, suspect: _Suspect, members: tuple[str, ...], reply: Message) -> None:
        """Take the reply of these members; the suspect's others are to run yet, or the same again.

        Raises `ServiceError`, for its whole call.
        """
        pending = suspect.pending
        function = pending.call.function
        if isinstance(reply, Answer):
            check_members(function, reply, members, 1)
            suspect.members = tuple(member for member in suspect.members if member not in members)
            self._host.collect(pending, suspect.part, 0, reply)
            return
        if not isinstance(reply, Failed):
            raise ServiceError(f"{function.name}: the worker answered a batch with {reply.kind!r}")
        if reply.code == WorkerLost.code:
            suspect.members = ()
            if pending.evidence is not None and pending.evidence.close(suspect.part):
                pending.answer(suspect.part, 0, _fatal_row(suspect, reply))
            return
        if reply.code not in {"unknown_function", "overloaded", "cancelled"}:
            raise ServiceError(f"{function.name}: {reply.message}")
        self._host.told_of_models(worker, members, reply)
        suspect.refusals += 1
        if suspect.refusals > REFUSALS:
            raise Overloaded(f"workers refused rows of {function.name} again and again: {reply.message}", 1.0)
        suspect.rests_until_s = self._clock() + REFUSED_S
        self._host.after(REFUSED_S, self._host.wake)

    def _release(self) -> None:
        if self._isolation is not None:
            worker, self._isolation = self._isolation.worker, None
            self._host.set_aside(worker, False)


def members_of(pending: PendingReply) -> tuple[str, ...]:
    """The members that a call's rows run on."""
    call = pending.call
    return call.members or tuple(model.key for model in call.function.members)


def _fatal_row(suspect: _Suspect, reply: Failed) -> FunctionAnswer:
    call = suspect.pending.call
    message = f"the worker died twice under rows of {call.function.name}, of this one alone: {reply.message}"
    return faulty_rows(call.function, 1, RowError(0, WorkerLost.code, message))
