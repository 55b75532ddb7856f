"""Between functions: whose batch the free worker runs next.

Each rule is a pure function of the candidates. Knows nothing of how a batch was cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.record import record
from server.scheduling.lanes import Lane
from server.scheduling.policy import Dispatch
from server.scheduling.pool import Offer
from server.scheduling.team import Runner, Team

__all__ = [
    "Arbitration",
    "MostInTime",
    "ReadyBatch",
    "earliest_start",
    "least_recently_served",
    "papers_turns",
]


@record
class ReadyBatch:
    """A lane whose policy would run this batch on this worker now."""

    lane: Lane
    worker: Runner
    decision: Dispatch
    takes_s: float  # the batch, as predicted
    due_s: float  # the goal of its first row
    priority: int = 0
    workers: int = 1  # how many may run it
    offer: Offer | None = None  # where its rows wait in a pool
    right: float | None = None  # answers that it makes right, in expectation; None: every row's is


Arbitration = Callable[[float, Sequence[ReadyBatch]], ReadyBatch]


def least_recently_served(now_s: float, candidates: Sequence[ReadyBatch]) -> ReadyBatch:
    """Round robin by time: the least recently used order of Rafiqi §3.2."""
    return min(candidates, key=lambda candidate: candidate.lane.served_s)


def earliest_start(now_s: float, candidates: Sequence[ReadyBatch]) -> ReadyBatch:
    """Clockwork's order: the batch that must start soonest to meet its goal."""
    return min(candidates, key=lambda candidate: candidate.due_s - candidate.takes_s)


@dataclass(frozen=True, slots=True)
class MostInTime:
    """The most right answers within their goals, in expectation: Moore and Hodgson's rule, weighted.

    Line the batches up by goal. Whenever one would miss its goal, give up the one of those lined up so far
    that brings the fewest right answers per second of the worker. Of what is left, the first runs. So nothing
    is lost as long as all can be met (earliest deadline first), and under overload the worker's time goes
    where it brings most. (J. M. Moore, An n job, one machine sequencing algorithm for minimizing the number
    of late jobs, Management Science 15, 1968.)

    Higher priority goes first. `floor`: the share of a worker's time within which no function starves; a lane
    that was not served for (its batch · lanes / floor) goes before everything.
    """

    floor: float = 0.05

    def __call__(self, now_s: float, candidates: Sequence[ReadyBatch]) -> ReadyBatch:
        """The candidate to run."""
        if len(candidates) == 1:
            return candidates[0]
        starving = [one for one in candidates if self._is_starving(now_s, one, len(candidates))]
        if starving:
            return least_recently_served(now_s, starving)
        top = max(candidate.priority for candidate in candidates)
        worker = next(candidate.worker for candidate in candidates if candidate.priority == top)
        rivals = [one for one in candidates if one.priority == top and _share_a_worker(one.worker, worker)]
        kept = _in_time(now_s, rivals)
        return kept[0] if kept else max(rivals, key=_rate)

    def _is_starving(self, now_s: float, candidate: ReadyBatch, lanes: int) -> bool:
        if self.floor <= 0:
            return False
        return now_s - candidate.lane.served_s > candidate.takes_s * lanes / self.floor


def papers_turns(policy: str) -> Arbitration:
    """How functions take turns where all of them follow that policy, as its paper has it."""
    rules: dict[str, Arbitration] = {"goodput": MostInTime(), "clockwork": earliest_start}
    return rules.get(policy, least_recently_served)


def _share_a_worker(one: Runner, other: Runner) -> bool:
    if isinstance(one, Team) or isinstance(other, Team):
        return any(worker is same for worker, _ in one.running(()) for same, _ in other.running(()))
    return one is other


def _in_time(now_s: float, candidates: Sequence[ReadyBatch]) -> list[ReadyBatch]:
    savable = [one for one in candidates if now_s + one.takes_s <= one.due_s]
    kept: list[ReadyBatch] = []
    end_s = now_s
    for candidate in sorted(savable, key=lambda one: one.due_s):
        kept.append(candidate)
        end_s += candidate.takes_s / candidate.workers
        if end_s > candidate.due_s:
            worst = min(kept, key=_rate)
            kept.remove(worst)
            end_s -= worst.takes_s / worst.workers
    return kept


def _rate(candidate: ReadyBatch) -> float:
    """Right answers per second: of another member for rows that are answered already, what it adds."""
    right = candidate.decision.rows if candidate.right is None else candidate.right
    return right / candidate.takes_s if candidate.takes_s > 0 else math.inf
