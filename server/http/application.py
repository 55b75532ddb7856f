"""What connections and the application behind them say to each other; no behaviour.

    a head → `Application.admit` → `Admitted` | `Refused`
    a request for rows, whole → `Application.answer` → its `Reply`, called once
    many that are alike → `Application.answer_alike` → `AlikeRequests.reply`, called for each

Knows HTTP; neither sockets nor what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ml_udf.oip import InferRequest
from server.access.caller import NOBODY, Caller
from server.http.request_head import Head

__all__ = [
    "Admitted",
    "AlikeInProgress",
    "AlikeRequests",
    "Application",
    "Filled",
    "Refused",
    "Reply",
    "RequestInProgress",
    "Shut",
    "WholeRequest",
]


# For how many seconds, the reply, and who is told how many requests got it.
Shut = Callable[[float, int, bytes, Mapping[str, str], Callable[[int], None]], None]


@dataclass(slots=True)  # not frozen: that would make it three times as dear to make
class WholeRequest:
    """A request for rows that is here to its end; names of `headers` are in lower case.

    came_s: when, on the clock of `time.monotonic` · request: what the body says, where it was read already
    alike: one object for requests that differ in their rows, their size and their deadline alone
    shut: has requests that differ from this one in their rows and size alone refused before they are read;
    None = whoever holds the connection cannot
    """

    path: str
    headers: Mapping[bytes, bytes]
    body: bytes
    came_s: float
    caller: Caller = NOBODY
    request: InferRequest | None = None
    alike: object = None
    shut: Shut | None = None


Reply = Callable[[int, bytes, Mapping[str, str]], None]  # status, body, headers
Filled = tuple[bytes, Mapping[str, str]]  # body, headers


@dataclass(frozen=True, slots=True)
class Admitted:
    """A head may be followed by its body, of at most `limit_bytes`. `whole`: goes to `answer`."""

    path: str
    query: bytes
    whole: bool
    limit_bytes: int
    caller: Caller


@dataclass(frozen=True, slots=True)
class Refused:
    """The reply that a head gets instead."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class RequestInProgress(Protocol):
    """A request under way."""

    def leave(self) -> None:
        """Its client has gone."""


class AlikeInProgress(Protocol):
    """Requests that are under way together."""

    def leave(self, place: int) -> None:
        """The client of that one has gone."""


class AlikeRequests(Protocol):
    """Requests for one row each that came in one turn, and differ in that row and its size alone."""

    @property
    def first(self) -> WholeRequest:
        """One of them."""

    @property
    def rows(self) -> Sequence[bytes]:
        """What each asks about."""

    def whole(self, place: int) -> WholeRequest:
        """The request that has this place among them, as it would have come by itself."""

    def reply(self, place: int, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """The reply to that one; each gets one."""

    def reply_filled(self, places: Sequence[int], filled: Sequence[Filled | None]) -> None:
        """Status 200 to those of these places; None = that one's reply comes by `reply`."""


class Application(Protocol):
    """What stands behind the connections: it looks at heads, answers rows, and is an ASGI application."""

    def admit(self, head: Head, address: str) -> Admitted | Refused:
        """Whether a request may come in: decided by its head alone."""

    def still_admits(self, admitted: Admitted) -> bool:
        """Whether a head that came again would be admitted as it was, so that it need not be looked at."""

    def refusal(self, status: int, message: str) -> Refused:
        """What a client gets to read whose bytes, size or pace are refused."""

    def answer(self, request: WholeRequest, reply: Reply) -> RequestInProgress | None:
        """Call `reply` once: now, and return None, or later."""

    def answer_alike(self, alike: AlikeRequests) -> AlikeInProgress:
        """Reply to each of them once, now or later, as `answer` would."""

    def rest_s(self, *, is_busy: bool) -> float:
        """How long reading may rest; 0 = not.

        Requests for rows that came meanwhile would wait anyway, or are better read several at a time, as the
        thread that reads is busy.
        """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI's own
        """Answer one request of the framework's."""
