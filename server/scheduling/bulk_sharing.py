"""When bulk rows run beside interactive ones, by name.

    backfill    they fill what interactive rows leave, in their batches too (filling.py): ours
    threshold   they run by themselves, while a worker was busy less than 40 % of the last two seconds
                (INFaaS, "Thresholds Configurability": 40 %, recorded every two seconds); to compare. Its
                second condition, that online latency is as profiled, is not part of it.

Pure; knows one number of a worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BULK_SHARING", "BulkSharing", "Utilization", "bulk_sharing_named"]


@dataclass(frozen=True, slots=True)
class BulkSharing:
    """busy_below: bulk rows are sent to a worker whose utilization is less; inf = whatever it is.

    joins: whether they share batches with interactive rows
    """

    busy_below: float = math.inf
    joins: bool = True

    def holds(self, used: float) -> bool:
        """Whether bulk rows wait for a worker of that utilization."""
        return used >= self.busy_below


BULK_SHARING: Mapping[str, BulkSharing] = {
    "backfill": BulkSharing(),
    "threshold": BulkSharing(busy_below=0.4, joins=False),
}


def bulk_sharing_named(name: str) -> BulkSharing:
    """The rule of that name. Raises ValueError, which lists them."""
    found = BULK_SHARING.get(name)
    if found is None:
        raise ValueError(f"bulk sharing {name!r} is not known; known: {', '.join(BULK_SHARING)}")
    return found


class Utilization:
    """The share of its time that a worker was busy of late: two seconds ago counts for a third of now."""

    __slots__ = ("_at_s", "_used")

    _WINDOW_S = 2.0

    def __init__(self) -> None:
        self._used = 0.0
        self._at_s = -math.inf

    def add(self, now_s: float, seconds: float) -> None:
        """A batch was sent that takes so long."""
        self._used = self.at(now_s) + seconds / self._WINDOW_S
        self._at_s = now_s

    def at(self, now_s: float) -> float:
        """By now; 1 may be exceeded."""
        return self._used * math.exp((self._at_s - now_s) / self._WINDOW_S) if self._used else 0.0

    def falls_at_s(self, now_s: float, below: float) -> float:
        """When it is less than that, if nothing more is sent."""
        used = self.at(now_s)
        return now_s if used < below else now_s + self._WINDOW_S * math.log(used / below) + 1e-6
