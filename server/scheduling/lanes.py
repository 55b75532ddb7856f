"""A lane: rows that may share a batch. One function, one set of members, one shape bucket.

Three queues: `interactive` rows, which the policy sees and cuts into batches; `aside`, interactive rows
whose goal is lost though their deadline is not; `bulk` rows. The last two are fillers: they run in what the
first leaves (filling.py). Knows nothing of other lanes.
"""

from __future__ import annotations

from collections.abc import Collection

from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    MemberView,
    RowRun,
    Wait,
)
from server.scheduling.rhythm import Rhythm
from server.scheduling.row_queue import RowQueue
from server.scheduling.terms import (
    FunctionSpec,
    Latency,
    LatencyByKind,
    LearnedLatency,
    MemberSpec,
    Submission,
    WorkerView,
)
from server.scheduling.worker_state import WorkerState

__all__ = ["Lane", "LaneKey"]

_SHORTEST_WAIT_S = 1e-4  # a policy that waits for a time gone by must not spin its shell
_SILENCE_S = 1.0
LaneKey = tuple[str, tuple[str, ...], str]  # function, members, bucket


class Lane:
    """Rows that may share a batch, and the policy that cuts them into batches."""

    def __init__(self, now_s: float, key: LaneKey, spec: FunctionSpec, policy: GuardedPolicy) -> None:
        self.key = key
        self.interactive, self.aside, self.bulk = self.queues = (RowQueue(), RowQueue(), RowQueue())
        self.served_s = now_s  # when it last got a worker, or came to be
        self.filler_served_s = now_s  # when its fillers last did, or began to wait
        self.rhythm = Rhythm()  # of its interactive rows
        self.typical_s = 0.0  # moving average of what its interactive batches are predicted to take
        self._waiting: tuple[str, int, Wait] | None = None  # worker, epoch, answer
        self.reconfigure(spec, policy)

    def reconfigure(self, spec: FunctionSpec, policy: GuardedPolicy) -> None:
        """A new specification; the rows stay, the policy starts anew."""
        self.spec = spec
        self.members: tuple[MemberSpec, ...] = tuple(m for m in spec.members if m.name in self.key[1])
        self.policy = policy
        self._latencies: dict[str, tuple[Latency, ...]] = {}
        self._learners: dict[
            str, tuple[LearnedLatency | None, ...]
        ] = {}  # the same, where they can be taught
        self._swaps: dict[str, tuple[WorkerView, float]] = {}
        self._waiting = None

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self.interactive.rows + self.aside.rows + self.bulk.rows

    @property
    def filler_rows(self) -> int:
        """Rows waiting for what interactive rows leave."""
        return self.aside.rows + self.bulk.rows

    @property
    def nbytes(self) -> float:
        """Bytes waiting."""
        return self.interactive.nbytes + self.aside.nbytes + self.bulk.nbytes

    def is_silent(self, now_s: float) -> bool:
        """Whether nothing ran for so long that what l̂ says may be stale: worth a try, whatever it says."""
        return now_s - self.served_s > _SILENCE_S

    def holds(self, request_id: int) -> bool:
        """Whether rows of the request wait here."""
        return any(request_id in queue for queue in self.queues)

    def add(self, now_s: float, submission: Submission) -> None:
        """Queue a submission."""
        bulk = submission.row_class == "bulk"
        slo_s = self.spec.slo_s if submission.slo_s is None else submission.slo_s
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
        if bulk:
            self._add_filler(now_s, self.bulk, run)
        else:
            self.interactive.add(run)
            self._waiting = None

    def put_aside(self, now_s: float, run: RowRun) -> None:
        """Keep a row whose goal is lost, to be answered late."""
        self._add_filler(now_s, self.aside, run)

    def take(self, rows: int, skip: int = 0) -> list[RowRun]:
        """Take interactive rows."""
        self._waiting = None
        return self.interactive.take(rows, skip)

    def take_fillers(self, now_s: float, rows: int) -> list[RowRun]:
        """Take up to `rows` fillers; where both wait, half of them late interactive rows and half bulk."""
        late = min(self.aside.rows, max(rows - rows // 2, rows - self.bulk.rows))
        more = min(rows - late, self.bulk.rows)
        self.filler_served_s = now_s
        return (self.aside.take(late) if late else []) + (self.bulk.take(more) if more else [])

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out a request's rows."""
        self._waiting = None
        return [run for queue in self.queues for run in queue.remove(request_id)]

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        self._waiting = None
        return [run for queue in self.queues for run in queue.clear()]

    def latencies(self, device: str) -> tuple[Latency, ...]:
        """Each member's l̂ for that kind of device."""
        found = self._latencies.get(device)
        if found is None:
            kinds = (_latency_on(member, device, self.key[2]) for member in self.members)
            found = self._latencies[device] = tuple(kinds)
            self._learners[device] = tuple(
                each if isinstance(each, LearnedLatency) else None for each in found
            )
        return found

    def predicted_s(self, rows: int, device: str, members: Collection[str] = ()) -> float:
        """l̂ of a batch on these members, one after the other; on all of them if none is named."""
        latencies = self.latencies(device)
        if members and len(members) < len(latencies):
            pairs = zip(self.members, latencies, strict=True)
            return sum(latency(rows) for member, latency in pairs if member.name in members)
        return latencies[0](rows) if len(latencies) == 1 else sum(latency(rows) for latency in latencies)

    def is_known(self, device: str) -> bool:
        """Whether l̂ of every member is more than a guess there."""
        return all(getattr(latency, "is_known", True) for latency in self.latencies(device))

    def swap_s(self, worker: WorkerState) -> float:
        """What it costs to make the missing members resident there; inf if they may not be."""
        known = self._swaps.get(worker.name)
        if known is None or known[0] is not worker.view:  # a view is replaced, never changed
            resident = worker.view.resident
            swap_s = sum(member.swap_s for member in self.members if member.name not in resident)
            known = self._swaps[worker.name] = (worker.view, swap_s)
        return known[1]

    def decide(self, now_s: float, worker: WorkerState, epoch: int) -> Decision:
        """The policy's answer for this worker; a wait holds until rows come or workers change (`epoch`)."""
        if self._waiting is not None:
            name, since, wait = self._waiting
            if name == worker.name and since == epoch and now_s < wait.until_s:
                return wait
        decision = self.policy.decide(self._view(now_s, worker))
        if isinstance(decision, Wait) and decision.until_s < now_s + _SHORTEST_WAIT_S:
            decision = Wait(now_s + _SHORTEST_WAIT_S)
        self._waiting = (worker.name, epoch, decision) if isinstance(decision, Wait) else None
        return decision

    def probe(self) -> Dispatch:
        """The head of the queue as a batch, to learn what it takes."""
        rows = min(self.interactive.runs[0].rows, self.spec.max_batch)
        return Dispatch(tuple(member.name for member in self.members), rows)

    def learn(self, outcome: BatchOutcome, device: str) -> None:
        """Teach l̂ of each member that ran its share of what the batch took, and the policy the outcome."""
        latencies = self.latencies(device)
        ran_s = self.predicted_s(outcome.rows, device, outcome.members)
        if outcome.latency_s > 0 and ran_s > 0:  # 0: its members are the function's no longer
            scale = outcome.latency_s / ran_s
            taught = zip(self.members, self._learners[device], latencies, strict=True)
            for member, learner, latency in taught:
                if learner is not None and member.name in outcome.members:
                    learner.observe(outcome.rows, scale * latency(outcome.rows))
        self.policy.observe(outcome)

    def sent(self, now_s: float, rows: int, worker: WorkerState, members: Collection[str] = ()) -> None:
        """A batch of this lane left for a worker, `rows` of it interactive."""
        self.served_s = now_s
        if rows:
            takes_s = self.predicted_s(rows, worker.view.device, members)
            worker.work(now_s, takes_s)
            self.typical_s += (0.1 if self.typical_s else 1.0) * (takes_s - self.typical_s)

    def _add_filler(self, now_s: float, queue: RowQueue, run: RowRun) -> None:
        if not self.filler_rows:
            self.filler_served_s = now_s
        queue.add(run)

    def _view(self, now_s: float, worker: WorkerState) -> FunctionView:
        free_at_s = worker.free_at_s(now_s)
        resident = worker.view.resident
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
                    resident=member.name in resident,
                    swap_s=0.0 if member.name in resident else member.swap_s,
                )
                for member, latency in zip(self.members, self.latencies(worker.view.device), strict=True)
            ),
        )


def _latency_on(member: MemberSpec, device: str, bucket: str) -> Latency:
    latency = member.latency
    return latency.on(device, bucket) if isinstance(latency, LatencyByKind) else latency
