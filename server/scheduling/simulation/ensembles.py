"""An ensemble under load: simulated devices and arrivals around the very pool and policies that decide live.

Every row is one of a set of held-out rows: which subset of the members would answer it rightly, and how
surely, is a table. One batch at a time runs on a device. Pure; the same load and seed give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from server.ensemble.selection import Ensemble, SelectionPolicy
from server.scheduling.policy import RowRun
from server.scheduling.pool import AnswerRows, GiveUpRows, MemberPool, RunOn, Sleep

__all__ = ["EnsembleLoad", "EnsembleResult", "MemberOutcomes", "PoolAction", "simulate_ensemble"]

PoolAction = RunOn | AnswerRows | GiveUpRows
_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True)
class MemberOutcomes:
    """By subset (a bit mask), of n rows: the combined top probability, and whether the answer is right."""

    confidence: Mapping[int, Sequence[float]]
    correct: Mapping[int, Sequence[bool]]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.correct.values())))


@dataclass(frozen=True, slots=True)
class EnsembleLoad:
    """What arrives, what is promised, and what batches really take.

    latencies: the truth, l(b) of each member · predicted: l̂(b), where it is not the truth
    """

    arrivals_s: Sequence[float]
    slo_s: float
    latencies: Sequence[Callable[[int], float]]
    outcomes: MemberOutcomes
    max_batch: int = 64
    batch_sizes: tuple[int, ...] = ()
    predicted: Sequence[Callable[[int], float]] | None = None
    jitter: float = 0.0  # standard deviation of ln(what a batch takes / l(b))
    seed: int = 0


@dataclass(slots=True)
class EnsembleResult:
    """offered = good + wrong + late + refused; `late_right` of the late ones are right."""

    offered: int = 0
    good: int = 0  # right and in time
    wrong: int = 0  # in time
    late: int = 0
    late_right: int = 0
    refused: int = 0
    busy_s: float = 0.0  # of all devices
    batches: int = 0
    asked: int = 0  # members that the answered rows rest on
    answered_at: list[tuple[float, float, bool]] = field(default_factory=list)  # arrival, latency, right
    members_of: list[int] = field(default_factory=list)  # by answered row: how many members it rests on
    refused_at_s: list[float] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """In time or not."""
        return self.good + self.wrong + self.late

    @property
    def goodput(self) -> float:
        """Share of the offered rows that are right and in time."""
        return self.good / self.offered if self.offered else 1.0

    @property
    def accuracy(self) -> float:
        """Of the answered rows."""
        return (self.good + self.late_right) / self.answered if self.answered else 0.0

    def reward(self, beta: float) -> float:
        """Rafiki's Eq. 7 per offered row, by the truth for a(v): right ones, those overdue less β.

        A refused row has no part in a batch, and brings nothing.
        """
        return (self.good + (1 - beta) * self.late_right) / self.offered if self.offered else 0.0


def simulate_ensemble(
    load: EnsembleLoad,
    ensemble: Ensemble,
    policy: SelectionPolicy,
    *,
    batching: str = "goodput",
    refuses: bool = True,
    watch: Callable[[float, PoolAction], None] = lambda now_s, action: None,
) -> EnsembleResult:
    """Run a load to its end: every row is answered or refused.

    watch: is told what the pool does, and when.
    """
    pool = MemberPool(
        ensemble,
        policy,
        load.predicted or load.latencies,
        slo_s=load.slo_s,
        max_batch=load.max_batch,
        batch_sizes=load.batch_sizes,
        batching=batching,
        refuses=refuses,
    )
    for device in range(ensemble.devices):
        held = [number for number, member in enumerate(ensemble.members) if member.device == device]
        pool.set_worker(0.0, f"device-{device}", held)
    draws, pace = Random(f"{load.seed} rows"), Random(f"{load.seed} devices")
    picks = [draws.randrange(load.outcomes.rows) for _ in load.arrivals_s]
    lots = [draws.random() for _ in load.arrivals_s]
    sure, correct = load.outcomes.confidence, load.outcomes.correct
    result = EnsembleResult(offered=len(picks))
    ends: list[tuple[float, int, RunOn]] = []
    answered = [0] * len(picks)  # by row, which members have
    arrived, wake_s, now_s = 0, 0.0, 0.0

    while arrived < len(picks) or ends or wake_s < math.inf:
        arrives_s = load.arrivals_s[arrived] if arrived < len(picks) else math.inf
        now_s = max(now_s, min(arrives_s, ends[0][0] if ends else math.inf, wake_s))
        while arrived < len(picks) and load.arrivals_s[arrived] <= now_s:
            due_s = load.arrivals_s[arrived] + load.slo_s
            pool.submit(now_s, RowRun(arrived, 1, now_s, due_s, due_s=due_s), lots[arrived])
            arrived += 1
        while ends and ends[0][0] <= now_s:
            _, batch_id, sent = heappop(ends)
            found: list[float] = []
            for part in sent.slices:
                subset = answered[part.request_id] = answered[part.request_id] | 1 << sent.member
                found.append(sure[subset][picks[part.request_id]])
            pool.finished(now_s, batch_id, found)
        while not isinstance(action := pool.next_action(now_s), Sleep):
            watch(now_s, action)
            if isinstance(action, RunOn):
                took_s = load.latencies[action.member](action.rows)
                if load.jitter:
                    took_s *= math.exp(pace.gauss(0.0, load.jitter))
                result.busy_s += took_s
                result.batches += 1
                heappush(ends, (now_s + took_s, action.batch_id, action))
            elif isinstance(action, AnswerRows):
                for part, subset in action.parts:
                    row = part.request_id
                    latency_s = now_s - load.arrivals_s[row]
                    _count(result, latency_s, load.slo_s, bool(correct[subset][picks[row]]))
                    result.asked += subset.bit_count()
                    result.members_of.append(subset.bit_count())
                    result.answered_at.append(
                        (load.arrivals_s[row], latency_s, bool(correct[subset][picks[row]]))
                    )
            else:
                result.refused += len(action.runs)
                result.refused_at_s += (load.arrivals_s[run.request_id] for run in action.runs)
        wake_s = action.until_s
    result.refused += pool.rows  # which a policy never got round to
    return result


def _count(result: EnsembleResult, latency_s: float, slo_s: float, right: bool) -> None:
    if latency_s > slo_s + _ROUNDING_S:
        result.late += 1
        result.late_right += right
    elif right:
        result.good += 1
    else:
        result.wrong += 1
