"""Calls of one row that come in one turn and are alike to the scheduler: one submission of n rows.

    begin ─→ the first of its kind: a submission of its own, which says at once whether there is room
         └─→ those like it: `join` ─→ at the end of the turn `due` ─→ one submission, under an id of its own

Row i of it is the i-th call's. What the core says of it, in slices, is told apart again by
`own_slices`; a call whose client goes leaves it alone. Knows calls and slices; nothing of queues or time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from server.scheduling.core import Slice
from server.serving.calls import Call, PendingReply

__all__ = ["LikeCalls", "LikeRows", "is_like"]

_DEADLINE_S = 0.001  # that deadlines may differ by: timers count milliseconds


@dataclass(slots=True, eq=False)
class LikeCalls:
    """Calls that are one submission, in its order, or will be.

    first: that they are like, which is none of them · rows, nbytes: that may still join
    """

    request_id: int
    first: Call
    rows: float = 0.0
    nbytes: float = 0.0
    calls: list[PendingReply | None] = field(default_factory=list)  # None: it has left
    left: int = 0  # of those that are queued, how many still wait


class LikeRows:
    """Of one dispatcher. room: how many interactive rows and bytes may still wait for a function's key."""

    def __init__(self, next_id: Callable[[], int], room: Callable[[str], tuple[float, float]]) -> None:
        self._next_id = next_id
        self._room = room
        self._open: dict[tuple[str, str], LikeCalls] = {}  # by function's key and caller, of this turn
        self._queued: dict[int, LikeCalls] = {}
        self.is_full = False  # what has joined leaves a call no room; the scheduler does not know of it yet

    def begin(self, call: Call) -> None:
        """A call was queued: those like it that come in this turn may join."""
        key = call.function.key, call.caller
        before = self._open.get(key)
        if before is None or not before.calls:  # else what has joined waits for the end of the turn
            self._open[key] = LikeCalls(0, call)

    def join(self, pending: PendingReply) -> bool:
        """Whether the call waits for the end of the turn, with those like it."""
        call = pending.call
        group = self._open.get((call.function.key, call.caller))
        if group is None or not is_like(call, group.first):
            return False
        if not group.calls:
            group.rows, group.nbytes = self._room(call.function.key)
        if group.rows < 1 or group.nbytes < call.nbytes:
            self.is_full = True
            return False
        group.rows -= 1
        group.nbytes -= call.nbytes
        pending.place = (group, len(group.calls))
        group.calls.append(pending)
        return True

    def forget(self, function: str) -> list[PendingReply]:
        """A function's key is served no more: the calls that waited for the end of the turn."""
        gone = [self._open.pop(key) for key in list(self._open) if key[0] == function]
        return [pending for group in gone for pending in self.dissolve(group)]

    def due(self) -> list[LikeCalls]:
        """The turn ends: what is to be submitted, each under its `request_id`, in the order of `calls`."""
        groups, self._open, self.is_full = self._open, {}, False
        found: list[LikeCalls] = []
        for group in groups.values():
            there = [pending for pending in group.calls if pending is not None]
            if not there:
                continue
            group.calls[:] = there
            for place, pending in enumerate(there):
                pending.place = (group, place)
            group.request_id, group.left = self._next_id(), len(there)
            found.append(group)
        return found

    def queued(self, group: LikeCalls) -> None:
        """It was submitted."""
        self._queued[group.request_id] = group

    def dissolve(self, group: LikeCalls) -> list[PendingReply]:
        """It is not to be submitted: its calls, which are by themselves again."""
        found = [pending for pending in group.calls if pending is not None]
        for pending in found:
            pending.place = None
        return found

    def leave(self, pending: PendingReply) -> Slice | None:
        """The call waits no longer with others: the rows to take out of the queue, where it was queued so."""
        if pending.place is None:
            return None
        group, place = pending.place
        pending.place = None
        group.calls[place] = None
        if not group.request_id:
            return None
        self._gone(group, 1)
        return Slice(group.request_id, place, 1)

    def own_slices(self, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        """Rows that left the queue, each as a part of its own call; the same where none was with others."""
        if not self._queued:
            return slices
        found: list[Slice] = []
        for part in slices:
            group = self._queued.get(part.request_id)
            if group is None:
                found.append(part)
                continue
            for pending in group.calls[part.offset : part.offset + part.rows]:
                if pending is not None:
                    pending.place = None
                    found.append(Slice(pending.request_id, 0, 1))
            self._gone(group, part.rows)
        return tuple(found)

    def _gone(self, group: LikeCalls, rows: int) -> None:
        group.left -= rows
        if not group.left:
            self._queued.pop(group.request_id, None)


def is_like(call: Call, other: Call) -> bool:
    """Whether the scheduler would treat two calls of one function and caller as one: both of one row."""
    function = call.function
    return (
        len(call.rows) == 1
        and call.row_class == "interactive" == other.row_class
        and call.form == other.form
        and call.members == other.members
        and call.slo_s == other.slo_s
        and call.priority == other.priority
        and call.turn == other.turn
        and call.turn_weight == other.turn_weight
        and call.shares.weight == other.shares.weight
        and (call.deadline_s == other.deadline_s or abs(call.deadline_s - other.deadline_s) <= _DEADLINE_S)
        and not function.follows_plans  # whose rows are asked of one member after the other, each by itself
    )
