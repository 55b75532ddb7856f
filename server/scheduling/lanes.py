"""A lane: rows that may share a batch. One function, one set of members, one shape bucket.

Holds two queues, interactive and bulk, and the policy with its state. A policy sees interactive rows
only; bulk rows are the core's to fill in. Knows nothing of other lanes.
"""

from __future__ import annotations

import math
from typing import Any

from server.scheduling.policy import Decision, FunctionView, MemberView, Policy, RowRun
from server.scheduling.row_queue import RowQueue
from server.scheduling.terms import FunctionSpec, Latency, Learner, MemberSpec, PerDevice, Submission
from server.scheduling.worker_state import Flight, WorkerState

__all__ = ["Lane", "LaneKey"]

LaneKey = tuple[str, tuple[str, ...], str]  # function, members, bucket


class Lane:
    """Rows that may share a batch, and the policy that cuts them into batches."""

    def __init__(self, key: LaneKey, spec: FunctionSpec, policy: Policy) -> None:
        self.key = key
        self.interactive = RowQueue()
        self.bulk = RowQueue()
        self.served_s = -math.inf  # when it last got a worker
        self.bulk_served_s = -math.inf
        self._decided: tuple[str, float, Decision] | None = None  # worker, valid before, answer
        self.reconfigure(spec, policy)

    def reconfigure(self, spec: FunctionSpec, policy: Policy) -> None:
        """A new specification; the rows stay, the policy starts anew."""
        self.spec = spec
        self.members: tuple[MemberSpec, ...] = tuple(m for m in spec.members if m.name in self.key[1])
        self.policy = policy
        self.state: dict[str, Any] = policy.initial(dict(spec.policy_options))
        self._decided = None
        self._latencies: dict[str, tuple[Latency, ...]] = {}

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self.interactive.rows + self.bulk.rows

    @property
    def nbytes(self) -> float:
        """Bytes waiting."""
        return self.interactive.nbytes + self.bulk.nbytes

    def add(self, now_s: float, submission: Submission) -> RowRun:
        """Queue a submission."""
        slo_s = self.spec.slo_s if submission.slo_s is None else submission.slo_s
        bulk = submission.row_class == "bulk"
        run = RowRun(
            request_id=submission.request_id,
            rows=submission.rows,
            arrived_s=now_s,
            deadline_s=submission.deadline_s,
            row_class=submission.row_class,
            priority=submission.priority,
            due_s=submission.deadline_s if bulk else min(submission.deadline_s, now_s + slo_s),
            offset=submission.offset,
            row_bytes=submission.nbytes / submission.rows,
        )
        (self.bulk if bulk else self.interactive).add(run)
        self._decided = None
        return run

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out a request's rows."""
        gone = self.interactive.remove(request_id) + self.bulk.remove(request_id)
        if gone:
            self._decided = None
        return gone

    def take(self, rows: int, skip: int = 0) -> list[RowRun]:
        """Take interactive rows."""
        self._decided = None
        return self.interactive.take(rows, skip)

    def take_bulk(self, rows: int) -> list[RowRun]:
        """Take bulk rows."""
        return self.bulk.take(rows)

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        self._decided = None
        return self.interactive.clear() + self.bulk.clear()

    def predicted_s(self, rows: int, device: str) -> float:
        """l̂ of a batch on all members, one after the other."""
        return sum(latency(rows) for latency in self.latencies(device))

    def latencies(self, device: str) -> tuple[Latency, ...]:
        """Each member's l̂ for that kind of device."""
        found = self._latencies.get(device)
        if found is None:
            found = self._latencies[device] = tuple(_latency_on(member, device) for member in self.members)
        return found

    def learn(self, flight: Flight, service_s: float, device: str) -> None:
        """Teach each member's l̂ its share of what the batch took."""
        predicted_s = self.predicted_s(flight.rows, device)
        for latency in self.latencies(device):
            if isinstance(latency, Learner):
                latency.observe(flight.rows, service_s * latency(flight.rows) / predicted_s)

    def swap_s(self, worker: WorkerState) -> float:
        """What it costs to make the missing members resident there; inf if they may not be."""
        resident = worker.view.resident
        return sum(member.swap_s for member in self.members if member.name not in resident)

    def decide(self, now_s: float, worker: WorkerState) -> Decision:
        """The policy's answer for this worker; asked again only when something changed."""
        if self._decided is not None:
            name, valid_s, decision = self._decided
            if name == worker.name and now_s < valid_s:
                return decision
        self.state, decision = self.policy.decide(self.state, self._view(now_s, worker))
        valid_s = getattr(decision, "until_s", now_s)
        self._decided = (worker.name, valid_s, decision)
        return decision

    def forget_decision(self) -> None:
        """The workers changed: ask again."""
        self._decided = None

    def _view(self, now_s: float, worker: WorkerState) -> FunctionView:
        free_at_s = worker.free_at_s(now_s)
        return FunctionView(
            now_s=now_s,
            slo_s=self.spec.slo_s,
            max_batch=self.spec.max_batch,
            batch_sizes=self.spec.batch_sizes,
            queue=self.interactive.runs,
            queued_rows=self.interactive.rows,
            members=tuple(
                MemberView(
                    name=member.name,
                    accuracy=member.accuracy,
                    latency_s=latency,
                    free_at_s=free_at_s,
                    resident=(resident := member.name in worker.view.resident),
                    swap_s=0.0 if resident else member.swap_s,
                )
                for member, latency in zip(self.members, self.latencies(worker.view.device), strict=True)
            ),
        )


def _latency_on(member: MemberSpec, device: str) -> Latency:
    latency = member.latency
    return latency.for_device(device) if isinstance(latency, PerDevice) else latency
