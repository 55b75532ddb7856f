"""What has moved over the workers' links: the last loads and evictions with their reasons, and counts of all.

Plain additions, on the event loop. Knows no worker and no policy.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from server.observability.stats import Histogram

__all__ = ["LOAD_S", "REMEMBERED", "LinkUse", "Move", "MoveKind", "Moves", "Outcome", "seen_moves"]

LOAD_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REMEMBERED = 500  # moves
_REASONS = 32  # that are counted apart; a policy of somebody's own may say anything
_OTHER = "other"
_WINDOW_S = 60.0  # of which a link's use of late is told

MoveKind = Literal["load", "eviction"]
Outcome = Literal["done", "given up", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Move:
    """One load or eviction that is over.

    because_of: the model that the reason is about, as in "made room for" it or "successor of" it; "" = none.
    refused: the worker had no room. error: the code with which it failed, "" else.
    """

    at_unix_s: float
    worker: str
    model: str
    kind: MoveKind
    reason: str
    because_of: str = ""
    outcome: Outcome = "done"
    took_s: float = 0.0
    error: str = ""

    @property
    def why(self) -> str:
        """The reason with the model that it is about."""
        return f"{self.reason} {self.because_of}".strip()


def seen_moves(moves: Iterable[Move], sees: Callable[[str], bool]) -> list[Move]:
    """The moves of models that are seen, without the names of others. sees: by key, or ""."""
    return [
        move if sees(move.because_of) else replace(move, because_of="") for move in moves if sees(move.model)
    ]


class LinkUse:
    """When one worker's link was busy, by a monotonic clock.

    bytes_per_s: of its loads of late, in their whole time; None before the first.
    """

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self._busy_s = 0.0
        self._since_s: float | None = None
        self._late: deque[tuple[float, float]] = deque()  # (from, to), oldest first

    def began(self, now_s: float) -> None:
        """It is busy from now on."""
        if self._since_s is None:
            self._since_s = now_s

    def over(self, now_s: float) -> None:
        """It is idle from now on."""
        if self._since_s is None:
            return
        self._busy_s += now_s - self._since_s
        self._late.append((self._since_s, now_s))
        self._since_s = None
        while self._late and self._late[0][1] < now_s - _WINDOW_S:
            self._late.popleft()

    def busy_s(self, now_s: float) -> float:
        """Seconds in all."""
        return self._busy_s + (0.0 if self._since_s is None else now_s - self._since_s)

    def of_late(self, now_s: float) -> float:
        """The share of the last minute."""
        begins_s = now_s - _WINDOW_S
        spans = [*self._late, *([] if self._since_s is None else [(self._since_s, now_s)])]
        return sum(max(0.0, to_s - max(from_s, begins_s)) for from_s, to_s in spans) / _WINDOW_S


class Moves:
    """All moves of one server, since it started.

    differences: what a worker held other than was believed, by kind: "missing" or
    "unknown".
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._last: deque[Move] = deque(maxlen=REMEMBERED)
        self.loads: Counter[str] = Counter()  # by reason
        self.evictions: Counter[str] = Counter()  # by reason
        self.unfinished: Counter[tuple[str, str]] = Counter()  # by kind and outcome
        self.differences: Counter[str] = Counter()
        self.load_s = Histogram(LOAD_S)
        self.links: defaultdict[str, LinkUse] = defaultdict(LinkUse)  # by worker
        self._loads_of: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        worker: str,
        model: str,
        kind: MoveKind,
        reason: str,
        because_of: str = "",
        *,
        outcome: Outcome = "done",
        took_s: float = 0.0,
        error: str = "",
    ) -> None:
        """A load or an eviction is over."""
        self._last.append(
            Move(self._clock(), worker, model, kind, reason, because_of, outcome, took_s, error)
        )
        if outcome != "done":
            self.unfinished[kind, outcome] += 1
            return
        counted = self.loads if kind == "load" else self.evictions
        counted[reason if reason in counted or len(counted) < _REASONS else _OTHER] += 1
        if kind == "load":
            self.load_s.add(took_s)
            self._loads_of[worker, model] += 1

    def forget(self, model: str) -> None:
        """The model is no more: its loads are no longer counted apart."""
        for place in [place for place in self._loads_of if place[1] == model]:
            del self._loads_of[place]

    def last(self) -> Sequence[Move]:
        """The last ones, newest first."""
        return tuple(reversed(self._last))

    def loads_of(self, worker: str, model: str) -> int:
        """How often the worker has loaded the model."""
        return self._loads_of[worker, model]
