"""What was done about capacity: the last actions with their reasons, and how each came out.

Plain additions, on the event loop. Knows no policy and no worker.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["REMEMBERED", "Done", "Entry", "Outcome", "Timeline"]

REMEMBERED = 500  # actions

Outcome = Literal["done", "failed", "given up", "refused"]


@dataclass(frozen=True, slots=True)
class Done:
    """An action that is over. at_unix_s: its beginning. error: why, where it was not done; "" else.

    by: the name of the policy that decided it, or of the token whose bearer asked for it; "" = an operator on
    a server without tokens. model: the key of the one that it is about; "" for none.
    """

    at_unix_s: float
    action: str
    worker: str
    model: str
    reason: str
    by: str
    outcome: Outcome
    took_s: float
    error: str = ""


class Entry:
    """An action under way."""

    def __init__(
        self, timeline: Timeline, action: str, worker: str, model: str, reason: str, by: str
    ) -> None:
        self._timeline = timeline
        self.action, self.worker, self.model, self.reason, self.by = action, worker, model, reason, by
        self.at_unix_s = time.time()
        self._began_s = time.monotonic()

    def over(self, outcome: Outcome, error: str = "") -> None:
        """How it came out."""
        took_s = time.monotonic() - self._began_s
        self._timeline.add(
            Done(
                self.at_unix_s,
                self.action,
                self.worker,
                self.model,
                self.reason,
                self.by,
                outcome,
                took_s,
                error,
            )
        )


class Timeline:
    """The last `REMEMBERED` actions, the newest first, and counts of all since the start."""

    def __init__(self) -> None:
        self._last: deque[Done] = deque(maxlen=REMEMBERED)
        self.counts: Counter[tuple[str, str]] = Counter()  # by action and outcome

    def begin(self, action: str, worker: str, reason: str, by: str, model: str = "") -> Entry:
        """An action begins."""
        return Entry(self, action, worker, model, reason, by)

    def add(self, done: Done) -> None:
        """An action is over."""
        self._last.append(done)
        self.counts[done.action, done.outcome] += 1

    def last(self) -> Sequence[Done]:
        """The newest first."""
        return tuple(reversed(self._last))
