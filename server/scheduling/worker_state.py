"""What the core keeps of one worker: its batches in flight, and when it will be free.

Knows nothing of queues or policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from server.scheduling.terms import WorkerView

__all__ = ["Flight", "WorkerState"]

_FADE_S = 1.0


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch under way."""

    batch_id: int
    members: tuple[str, ...]
    rows: int
    sent_s: float
    predicted_s: float  # its own time on the worker, without the batches before it
    dues: tuple[tuple[float, int], ...]  # (goal, rows) of its interactive runs


class WorkerState:
    """A worker and its batches, which it runs in the order sent."""

    __slots__ = ("_worked_at_s", "_worked_s", "flights", "freed_s", "name", "view")

    def __init__(self, view: WorkerView) -> None:
        self.name = view.name
        self.view = view
        self.flights: dict[int, Flight] = {}
        self.freed_s = -math.inf  # when its last batch finished
        self._worked_s = 0.0  # seconds of interactive batches of late, fading
        self._worked_at_s = 0.0

    @property
    def has_room(self) -> bool:
        """Whether it may be sent another batch."""
        return self.view.alive and len(self.flights) < self.view.in_flight_limit

    def free_at_s(self, now_s: float) -> float:
        """When, by prediction, it has run all that was sent; never in the past."""
        end_s = self.freed_s
        for flight in self.flights.values():
            end_s = max(end_s, flight.sent_s) + flight.predicted_s
        return max(end_s, now_s)

    def work(self, now_s: float, seconds: float) -> None:
        """Interactive rows were sent that take it so long."""
        self._worked_s = self.share(now_s) * _FADE_S + seconds
        self._worked_at_s = now_s

    def share(self, now_s: float) -> float:
        """The share of its time that interactive rows took in the last second or so; 1 may be exceeded."""
        return self._worked_s / _FADE_S * math.exp((self._worked_at_s - now_s) / _FADE_S)

    def land(self, now_s: float, batch_id: int) -> tuple[Flight, float]:
        """A batch came back: its flight, and the time that it alone took. Raises KeyError if unknown."""
        flight = self.flights.pop(batch_id)
        service_s = now_s - max(flight.sent_s, self.freed_s)
        self.freed_s = now_s
        return flight, service_s
