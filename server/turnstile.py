"""How many infer requests get in during one turn of the event loop, and who is turned away at the door.

A turn of the loop reads every socket that has something. A thousand requests that came together would all
be parsed and queued before the first batch leaves and before anything that workers answered is read; by then
most of them are late. So a turn lets in some, in the order they came, and between two turns batches leave
and answers go out. Whoever comes while the first in line has waited for a quarter of the goal would be
answered late: it is refused at once, without a look at its body.

Owns the line. Knows the event loop, and of a route what `Route` says.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from server.shortcut import Reply, Waiting, WholeRequest

__all__ = ["Route", "Turnstile"]

_MOST = 32  # in one turn: a few milliseconds of work, so that answers of workers are soon read
_SHARE = 0.25  # of a request's goal that may pass in line


class Route(Protocol):
    """Where requests go once they are in."""

    def answer(self, whole: WholeRequest, reply: Reply) -> Waiting | None:
        """As `server.shortcut.Application` has it."""

    def goal_s(self, whole: WholeRequest) -> float:
        """The time within which it should be answered; inf where nobody knows."""

    def refuse(self, whole: WholeRequest, reply: Reply) -> None:
        """Answer that there is no room."""


@dataclass(slots=True, eq=False)
class _Inline:
    """A request in line, or, once it is in, what stands for it there."""

    whole: WholeRequest
    reply: Reply
    inside: Waiting | None = None
    gone: bool = False

    def leave(self) -> None:
        """Its client has gone."""
        self.gone = True
        if self.inside is not None:
            self.inside.leave()


class Turnstile:
    """Before `route`, lets in `most` requests a turn. On one event loop."""

    def __init__(self, route: Route, most: int = _MOST) -> None:
        self._route = route
        self._most = most
        self._left = most  # that may still get in during this turn
        self._line: deque[_Inline] = deque()
        self._turning = False

    def answer(self, whole: WholeRequest, reply: Reply) -> Waiting | None:
        """Let a request in, line it up, or refuse it."""
        self._turn_soon()
        if self._left and not self._line:
            self._left -= 1
            return self._route.answer(whole, reply)
        if self._line and whole.came_s - self._line[0].whole.came_s > _SHARE * self._route.goal_s(whole):
            self._route.refuse(whole, reply)
            return None
        inline = _Inline(whole, reply)
        self._line.append(inline)
        return inline

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._left = self._most
        while self._line and self._left:
            inline = self._line.popleft()
            if not inline.gone:
                self._left -= 1
                inline.inside = self._route.answer(inline.whole, inline.reply)
        if self._line:
            self._turn_soon()
