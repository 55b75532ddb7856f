"""Pipelines against simulated devices: how each split of the goal fares, by the scheduler that serves.

A call comes, its rows go through the first stage, each becomes some rows of the next, and so on; the call is
answered when the last of these is. What is simulated: arrivals, what batches take, how many rows a row
becomes. The split goes by what it knows live too: l̂, and how many rows a row became of late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from server.scheduling.core import (
    BatchTimes,
    FunctionSpec,
    Idle,
    MemberSpec,
    MemberTime,
    RefuseRows,
    RunBatch,
    Scheduler,
    Submission,
    WorkerView,
)
from server.scheduling.splitting import StageLoad, goals_s

__all__ = ["PipelineLoad", "PipelineResult", "SimulatedStage", "simulate_pipeline"]

_LEARNS = 0.1  # weight of a new call in what is known of fan-out, as live
_LEAST_GOAL_S = 0.001


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """latency_s: l(b) of a batch, which is l̂ too · fan_out: rows of the next stage that a row becomes."""

    name: str
    latency_s: Callable[[int], float]
    max_batch: int = 64
    fan_out: Callable[[Random], int] = lambda random: 1


@dataclass(frozen=True, slots=True)
class PipelineLoad:
    """All of a simulation. devices: so many, each of which holds every stage."""

    stages: tuple[SimulatedStage, ...]
    arrivals_s: Sequence[float]
    slo_s: float
    split: str
    devices: int = 1
    rows_per_call: int = 1
    jitter: float = 0.0  # standard deviation of ln(what a batch takes / l(b))
    seed: int = 0
    policy: str = "goodput"


@dataclass(slots=True)
class PipelineResult:
    """latencies_s: of all calls, in the order of their answers · busy_s: of all devices."""

    slo_s: float
    latencies_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    batches: int = 0
    ends_s: float = 0.0

    @property
    def in_goal(self) -> float:
        """The share of the calls that were answered within the goal."""
        kept = sum(latency_s <= self.slo_s + 1e-9 for latency_s in self.latencies_s)
        return kept / len(self.latencies_s) if self.latencies_s else 1.0

    def quantile_s(self, share: float) -> float:
        """Latency that `share` of the calls stay within; nan for none."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass(slots=True)
class _Call:
    """goals_s: of each stage, absolute · left: rows under way · next: rows that the next stage gets."""

    came_s: float
    goals_s: tuple[float, ...]
    stage: int = 0
    left: int = 0
    next: int = 0


def simulate_pipeline(load: PipelineLoad) -> PipelineResult:
    """Run a load to its end: every call is answered. Raises ValueError for a split that is none."""
    return _Simulation(load).run()


class _Simulation:
    """One run: the clock, the events, the calls under way."""

    def __init__(self, load: PipelineLoad) -> None:
        self._load = load
        self._pace, self._fans = Random(f"{load.seed} devices"), Random(f"{load.seed} rows")
        self._scheduler = Scheduler()
        self._gamma = [1.0] * len(load.stages)  # rows of each stage for a row of a call, of late
        self._calls: dict[int, _Call] = {}  # by request
        self._requests = 0
        self._events: list[tuple[float, int, object]] = []
        self._count = 0
        self._free_s = dict.fromkeys((f"device-{place}" for place in range(load.devices)), 0.0)
        self._result = PipelineResult(load.slo_s)

    def run(self) -> PipelineResult:
        self._configure()
        for at_s in self._load.arrivals_s:
            self._push(at_s, None)
        wake_s = math.inf
        while self._events or wake_s < math.inf:
            now_s = min(self._events[0][0] if self._events else math.inf, wake_s)
            while self._events and self._events[0][0] <= now_s:
                what = heappop(self._events)[2]
                if what is None:
                    self._arrive(now_s)
                else:
                    self._finish(now_s, *what)  # type: ignore[misc]  # a batch and its times
            wake_s = self._act(now_s)
            self._result.ends_s = now_s
        return self._result

    def _configure(self) -> None:
        for stage in self._load.stages:
            sizes = [
                1 << power for power in range(stage.max_batch.bit_length()) if 1 << power < stage.max_batch
            ]
            spec = FunctionSpec(
                stage.name,
                self._load.slo_s,
                stage.max_batch,
                (*sizes, stage.max_batch),
                (MemberSpec(stage.name, 1.0, stage.latency_s),),
                self._load.policy,
            )
            self._scheduler.configure(0.0, spec)
        held = frozenset(stage.name for stage in self._load.stages)
        for name in self._free_s:
            self._scheduler.set_worker(0.0, WorkerView(name, True, held, 1, device=name))

    def _push(self, at_s: float, what: object) -> None:
        self._count += 1
        heappush(self._events, (at_s, self._count, what))

    def _arrive(self, now_s: float) -> None:
        load, rows = self._load, self._load.rows_per_call
        known = [
            StageLoad(stage.latency_s, rows * gamma, stage.max_batch)
            for stage, gamma in zip(load.stages, self._gamma, strict=True)
        ]
        goals = tuple(now_s + goal_s for goal_s in goals_s(load.split, known, load.slo_s))
        self._ask(now_s, _Call(now_s, goals), rows)

    def _ask(self, now_s: float, call: _Call, rows: int) -> None:
        """Rows of a call for its stage; with none of them it is answered."""
        if not rows or call.stage == len(self._load.stages):
            self._result.latencies_s.append(now_s - call.came_s)
            return
        call.left, call.next = rows, 0
        self._requests += 1
        self._calls[self._requests] = call
        goal_s = max(_LEAST_GOAL_S, call.goals_s[call.stage] - now_s)
        name = self._load.stages[call.stage].name
        self._scheduler.submit(now_s, Submission(self._requests, name, rows, rows, slo_s=goal_s))

    def _act(self, now_s: float) -> float:
        while True:
            action = self._scheduler.next_action(now_s)
            if isinstance(action, Idle):
                return action.until_s
            if isinstance(action, RunBatch):
                self._start(now_s, action)
            elif isinstance(action, RefuseRows):
                raise AssertionError("rows without a deadline are not refused")

    def _start(self, now_s: float, batch: RunBatch) -> None:
        stage = next(stage for stage in self._load.stages if stage.name == batch.function)
        pace = math.exp(self._pace.gauss(0.0, self._load.jitter)) if self._load.jitter else 1.0
        took_s = stage.latency_s(batch.rows) * pace
        ends_s = max(now_s, self._free_s[batch.worker]) + took_s
        self._free_s[batch.worker] = ends_s
        self._result.busy_s += took_s
        self._result.batches += 1
        self._push(ends_s, (batch, BatchTimes(took_s, ends_s - now_s, (MemberTime(took_s, 0.0),))))

    def _finish(self, now_s: float, batch: RunBatch, worked: BatchTimes) -> None:
        self._scheduler.finished(now_s, batch.batch_id, worked=worked)
        for part in batch.slices:
            call = self._calls[part.request_id]
            fan_out = self._load.stages[call.stage].fan_out
            call.next += sum(fan_out(self._fans) for _ in range(part.rows))
            call.left -= part.rows
            if not call.left:
                del self._calls[part.request_id]
                self._go_on(now_s, call)

    def _go_on(self, now_s: float, call: _Call) -> None:
        call.stage += 1
        if call.stage < len(self._load.stages):
            seen = call.next / self._load.rows_per_call
            self._gamma[call.stage] += _LEARNS * (seen - self._gamma[call.stage])
        self._ask(now_s, call, call.next)
