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

Owns the queues. Knows the event loop, and of a route what `Route` says.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
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

    def answer_alike(self, alike: AlikeRequests, most: int) -> tuple[int, AlikeInProgress | None]:
        """The same; of the first `most`."""

    def hint(self, whole: WholeRequest) -> RequestHint:
        """What it is for, and how much time it has."""

    def refuse(self, whole: WholeRequest, reply: Reply, alike_s: float) -> None:
        """Answer that there is no room, nor for the likes of it within the next `alike_s` seconds."""


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A request that is queued, or, once it was let in, the request in progress."""

    whole: WholeRequest
    reply: Reply
    goal_s: float  # for whose sake it may stand aside; inf = it never does
    inside: RequestInProgress | None = None
    gone: bool = False

    def leave(self) -> None:
        """Its client has gone."""
        self.gone = True
        if self.inside is not None:
            self.inside.leave()


@dataclass(slots=True)
class _Queue:
    """The requests of one function and class that wait, by goal; `aside` as they came to stand there."""

    waiting: list[tuple[float, int, _QueuedRequest]] = field(default_factory=list)
    aside: deque[_QueuedRequest] = field(default_factory=deque)

    def first(self) -> tuple[float, int, _QueuedRequest] | None:
        """The next to get in, those that have gone left out; None if there is none."""
        while self.waiting and self.waiting[0][2].gone:
            heappop(self.waiting)
        return self.waiting[0] if self.waiting else None

    def fresh(self, now_s: float, since_s: float) -> tuple[float, int, _QueuedRequest] | None:
        """The same, those left out that stand aside from now on, as somebody has waited since then."""
        while (first := self.first()) is not None:
            inline = first[2]
            if now_s - inline.whole.came_s <= _SHARE * inline.goal_s or now_s - since_s <= inline.goal_s:
                break
            heappop(self.waiting)
            self.aside.append(inline)
        return first

    def take_aside(self, *, last: bool) -> _QueuedRequest | None:
        """Take out the one that came there first, or last; None if there is none."""
        while self.aside:
            if not (inline := self.aside.pop() if last else self.aside.popleft()).gone:
                return inline
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
        queue = self._queues.get(hint.queue)
        first = None if queue is None else queue.first()
        due_s = whole.came_s + hint.goal_s
        if first is not None and first[0] <= due_s and hint.time_s < math.inf:
            too_long_s = whole.came_s - first[2].whole.came_s - _SHARE * hint.time_s
            if too_long_s > 0:
                self._route.refuse(whole, reply, max(_LEAST_SHUT_S, too_long_s))
                return None
        if not self._queues:
            self._since_s = self._clock()
        if queue is None:
            queue = self._queues[hint.queue] = _Queue()
        self._arrivals += 1
        steps_aside = hint.time_s == math.inf and not hint.can_wait
        inline = _QueuedRequest(whole, reply, hint.goal_s if steps_aside else math.inf)
        heappush(queue.waiting, (due_s, self._arrivals, inline))
        return inline

    def answer_alike(self, alike: AlikeRequests) -> tuple[int, AlikeInProgress | None]:
        """Let in as many of them together as there is room for in this turn; none where others wait."""
        self._turn_soon()
        if self._queues or not self._left:
            return 0, None
        taken, inside = self._route.answer_alike(alike, self._left * _ALIKE)
        self._left -= -(-taken // _ALIKE)
        return taken, inside

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
                self._let_in(late)
        while self._left and (inline := self._next(now_s) or self._next_aside(last=True)) is not None:
            self._let_in(inline)
        if self._queues:
            self._turn_soon()

    def _let_in(self, inline: _QueuedRequest) -> None:
        self._left -= 1
        inline.inside = self._route.answer(inline.whole, inline.reply)

    def _next(self, now_s: float) -> _QueuedRequest | None:
        """Take the earliest goal of all queues out of its queue."""
        best: tuple[float, int, _QueuedRequest] | None = None
        of: _Queue | None = None
        for key, queue in list(self._queues.items()):
            first = queue.fresh(now_s, self._since_s)
            if first is None:
                if not queue.aside:
                    del self._queues[key]
            elif best is None or first < best:
                best, of = first, queue
        if best is None or of is None:
            return None
        heappop(of.waiting)
        return best[2]

    def _next_aside(self, *, last: bool) -> _QueuedRequest | None:
        """Take the one that came first of those who stand aside, of all queues; or the one that came last."""
        queues = [queue for queue in self._queues.values() if queue.aside]
        if not queues:
            return None
        if last:
            return max(queues, key=lambda queue: queue.aside[-1].whole.came_s).take_aside(last=True)
        return min(queues, key=lambda queue: queue.aside[0].whole.came_s).take_aside(last=False)
