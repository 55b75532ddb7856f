"""How many infer requests get in during one turn of the event loop, in which order, and who is turned away.

A turn of the loop reads every socket that has something. A thousand requests that came together would all
be parsed and queued before the first batch leaves and before anything that workers answered is read; by then
most of them are late. So a turn lets in some, and between two turns batches leave and answers go out.

A request that has to wait is queued by its function and class. Between queues the earliest goal goes first,
so that a flood for one function does not delay another's. A request with a deadline that finds its own queue
moving so slowly that a quarter of its time would pass there is refused at once, without a look at its rows:
it would be late. Bulk rows, and rows without a deadline, have the time to wait; but of the latter, once
somebody has waited for as long as a goal without a pause, those that have waited for a quarter of theirs
stand aside, for those that can still be answered in time: else, while more come than can be read, all of them
would be late. Of those aside the last that came get in first, as they have most of their goals left; but of
each turn's the first one, too, so that none waits for ever. A burst that passes sooner keeps its order.

Requests that are alike and came in one turn stand in line together, and get in together, as many as a turn
has time for: together they take a part of the time that they would take one by one.

Owns the queues. Knows the event loop, and of a route what `Route` says.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from server.http.application import (
    AlikeInProgress,
    AlikeRequests,
    Reply,
    RequestInProgress,
    WholeRequest,
)

__all__ = ["Backpressure", "RequestHint", "Route"]

_MOST = 32  # in one turn: a few milliseconds of work, so that answers of workers are soon read
_LEAST_SHUT_S = 0.002  # for requests alike, once one is refused: some hundred of them at the most
_SHARE = 0.25  # of a request's time, or of its goal, that may pass in a queue
_ASIDE = 16  # one of so many that get in stood aside, if any do
_ALIKE = 8  # requests that are let in together take as long as one by itself


@dataclass(frozen=True, slots=True)
class RequestHint:
    """What a request says of itself without its rows being read.

    queue: of its function and class · goal_s: within which it should be answered, which orders the queues
    time_s: until its deadline; inf = none, or one that does not matter
    can_wait: its goal orders the queues, and nothing else
    """

    queue: tuple[str, str]
    goal_s: float
    time_s: float
    can_wait: bool = False


class Route(Protocol):
    """Where requests go once they are in."""

    def takes(self, path: str) -> bool:
        """Whether a path, percent-decoded, is the route's."""

    def answer(self, whole: WholeRequest, reply: Reply) -> RequestInProgress | None:
        """As `server.http.application.Application` has it."""

    def answer_alike(self, alike: AlikeRequests, places: Sequence[int]) -> AlikeInProgress | None:
        """Answer those of these places together, later; None where each is to come by itself."""

    def hint(self, whole: WholeRequest) -> RequestHint:
        """What it is for, and how much time it has."""

    def rest_s(self, *, is_busy: bool) -> float:
        """As `server.http.application.Application` has it."""

    def refuse(self, whole: WholeRequest, reply: Reply, alike_s: float) -> None:
        """Answer that there is no room, nor for the likes of it within the next `alike_s` seconds."""


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A request that is queued, or, once it was let in, the request in progress."""

    whole: WholeRequest
    reply: Reply
    goal_s: float = math.inf  # for whose sake it may stand aside; inf = it never does
    inside: RequestInProgress | None = None
    waits: bool = True

    def leave(self) -> None:
        """Its client has gone."""
        self.waits = False
        if self.inside is not None:
            self.inside.leave()

    def let_in(self, route: Route, most: int) -> int:
        """To the route; how many of a turn's requests that makes."""
        self.waits = False
        self.inside = route.answer(self.whole, self.reply)
        return 1


class _QueuedGroup:
    """Requests that are alike, of which those of some places are in and the others queued.

    goal_s: as a request's
    """

    __slots__ = ("_alike", "_alone", "_left", "_next", "_together", "goal_s", "whole")

    def __init__(self, alike: AlikeRequests) -> None:
        self.whole = alike.first
        self.goal_s = math.inf
        self._alike = alike
        self._next = 0  # the first that is queued
        self._left: set[int] = set()  # of those that are queued, whose clients have gone
        self._together: dict[int, AlikeInProgress] = {}
        self._alone: dict[int, RequestInProgress | None] = {}

    @property
    def waits(self) -> bool:
        """Whether some are queued yet."""
        return self._next < len(self._alike.rows)

    def take(self, most: int) -> list[int]:
        """The places of the next ones, so many at the most, which are queued no longer."""
        first, end = self._next, min(len(self._alike.rows), self._next + most)
        self._next = end
        return [place for place in range(first, end) if place not in self._left]

    def leave(self, place: int) -> None:
        """See `application.AlikeInProgress`."""
        if place >= self._next:
            self._left.add(place)
        elif (together := self._together.get(place)) is not None:
            together.leave(place)
        elif (alone := self._alone.get(place)) is not None:
            alone.leave()

    def let_in(self, route: Route, most: int) -> int:
        """As many as there is room for, together if they may; how many of a turn's requests that makes."""
        alike, before = self._alike, self._next
        places = self.take(most * _ALIKE)
        together = route.answer_alike(alike, places) if len(places) > 1 else None
        if together is not None:
            self._together.update(dict.fromkeys(places, together))
            return -(-len(places) // _ALIKE)
        self._next = before
        places = self.take(most)
        for place in places:
            self._alone[place] = route.answer(alike.whole(place), partial(alike.reply, place))
        return len(places)


_Queued = _QueuedRequest | _QueuedGroup


@dataclass(slots=True)
class _Queue:
    """The requests of one function and class that wait, by goal; `aside` as they came to stand there."""

    waiting: list[tuple[float, int, _Queued]] = field(default_factory=list)
    aside: deque[_Queued] = field(default_factory=deque)

    def first(self) -> tuple[float, int, _Queued] | None:
        """The next to get in; None if nobody waits."""
        while self.waiting and not self.waiting[0][2].waits:
            heappop(self.waiting)
        return self.waiting[0] if self.waiting else None

    def fresh(self, now_s: float, since_s: float) -> tuple[float, int, _Queued] | None:
        """The same, those left out that stand aside from now on, as somebody has waited since then."""
        while (first := self.first()) is not None:
            inline = first[2]
            if now_s - inline.whole.came_s <= _SHARE * inline.goal_s or now_s - since_s <= inline.goal_s:
                break
            heappop(self.waiting)
            self.aside.append(inline)
        return first

    def first_aside(self, *, last: bool) -> _Queued | None:
        """The one that came there first, or last; None if there is none."""
        while self.aside:
            if (inline := self.aside[-1 if last else 0]).waits:
                return inline
            self.aside.pop() if last else self.aside.popleft()
        return None


class Backpressure:
    """Before `route`, lets in `most` requests a turn. On one event loop."""

    def __init__(self, route: Route, most: int = _MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._route = route
        self._most = most
        self._clock = clock
        self._left = most  # that may still get in during this turn
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._since_s = 0.0  # somebody has waited all the time, if anybody waits
        self._arrivals = 0
        self._turning = False

    def answer(self, whole: WholeRequest, reply: Reply) -> RequestInProgress | None:
        """Let a request in, queue it, or refuse it."""
        self._turn_soon()
        if self._left and not self._queues:
            self._left -= 1
            return self._route.answer(whole, reply)
        hint = self._route.hint(whole)
        too_long_s = self._too_long_s(whole, hint)
        if too_long_s > 0:
            self._route.refuse(whole, reply, max(_LEAST_SHUT_S, too_long_s))
            return None
        inline = _QueuedRequest(whole, reply)
        self._queue(inline, hint)
        return inline

    def answer_alike(self, alike: AlikeRequests) -> AlikeInProgress:
        """The same with each of them; those that get in in one turn do so together."""
        self._turn_soon()
        group = _QueuedGroup(alike)
        if self._left and not self._queues:
            self._let_in(group)
        if not group.waits:
            return group
        hint = self._route.hint(alike.first)
        too_long_s = self._too_long_s(alike.first, hint)
        if too_long_s > 0:
            for place in group.take(len(alike.rows)):
                reply = partial(alike.reply, place)
                self._route.refuse(alike.whole(place), reply, max(_LEAST_SHUT_S, too_long_s))
        else:
            self._queue(group, hint)
        return group

    def _too_long_s(self, whole: WholeRequest, hint: RequestHint) -> float:
        """By how much its queue takes more than a request's share of its time; at most 0: it may wait."""
        queue = self._queues.get(hint.queue)
        first = None if queue is None else queue.first()
        if first is None or first[0] > whole.came_s + hint.goal_s or hint.time_s == math.inf:
            return 0.0
        return whole.came_s - first[2].whole.came_s - _SHARE * hint.time_s

    def _queue(self, inline: _Queued, hint: RequestHint) -> None:
        if not self._queues:
            self._since_s = self._clock()
        queue = self._queues.setdefault(hint.queue, _Queue())
        if hint.time_s == math.inf and not hint.can_wait:
            inline.goal_s = hint.goal_s
        self._arrivals += 1
        heappush(queue.waiting, (inline.whole.came_s + hint.goal_s, self._arrivals, inline))

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._left = self._most
        now_s = self._clock()
        for _ in range(self._most // _ASIDE):
            if (late := self._next_aside(last=False)) is not None:
                self._let_in(late, most=1)
        while self._left and (inline := self._next(now_s) or self._next_aside(last=True)) is not None:
            self._let_in(inline)
        if self._queues:
            self._turn_soon()

    def _let_in(self, inline: _Queued, most: int | None = None) -> None:
        self._left -= inline.let_in(self._route, self._left if most is None else most)

    def _next(self, now_s: float) -> _Queued | None:
        """The earliest goal of all queues. Who is in by then leaves its queue when that is looked at next."""
        best: tuple[float, int, _Queued] | None = None
        for key, queue in list(self._queues.items()):
            first = queue.fresh(now_s, self._since_s)
            if first is None:
                if queue.first_aside(last=True) is None:
                    del self._queues[key]
            elif best is None or first < best:
                best = first
        return None if best is None else best[2]

    def _next_aside(self, *, last: bool) -> _Queued | None:
        """The one that came first of those who stand aside, of all queues; or the one that came last."""
        found = [
            each for queue in self._queues.values() if (each := queue.first_aside(last=last)) is not None
        ]
        if not found:
            return None
        return (max if last else min)(found, key=lambda each: each.whole.came_s)
