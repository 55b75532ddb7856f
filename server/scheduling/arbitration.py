"""Between functions: whose batch the free worker runs next.

Each rule is a pure function of the candidates. Knows nothing of how a batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.scheduling.lanes import Lane
from server.scheduling.policy import Dispatch
from server.scheduling.worker_state import WorkerState

__all__ = ["Arbitration", "Candidate", "least_recently_served"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lane whose policy would run this batch on this worker now."""

    lane: Lane
    worker: WorkerState
    decision: Dispatch


Arbitration = Callable[[float, Sequence[Candidate]], Candidate]


def least_recently_served(now_s: float, candidates: Sequence[Candidate]) -> Candidate:
    """Round robin by time: the least recently used order of Rafiqi §3.2."""
    return min(candidates, key=lambda candidate: candidate.lane.served_s)
