"""The scheduler: queues, workers, and the policies asked in turn. Pure: no I/O, no clock, no locks.

A shell (the live dispatcher, the simulator) reports what happens and asks `next_action` until it is told
to be idle. The same code therefore decides in a simulation and on a device.

    configure, set_worker        what there is
    submit → Rejection | None    rows arrive        cancel    their client has gone
    next_action                  RunBatch | RefuseRows | Idle
    finished                     a batch came back
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from server.scheduling.admission import admit
from server.scheduling.arbitration import Arbitration, Candidate, least_recently_served
from server.scheduling.lanes import Lane, LaneKey
from server.scheduling.policy import BatchOutcome, Dispatch, Refuse, RowRun
from server.scheduling.registry import policy_named
from server.scheduling.terms import (
    Action,
    FunctionSpec,
    Idle,
    MemberSpec,
    RefuseRows,
    Rejection,
    RunBatch,
    Slice,
    Submission,
    WorkerView,
)
from server.scheduling.worker_state import Flight, WorkerState

__all__ = [
    "Action",
    "FunctionSpec",
    "Idle",
    "MemberSpec",
    "RefuseRows",
    "Rejection",
    "RunBatch",
    "Scheduler",
    "Slice",
    "Submission",
    "WorkerView",
]


class Scheduler:
    """Rows in, batches out.

    `lead_s`: how long before a worker is free a batch that is not full may be sent to it, so that its rows
    are decoded under the forward pass of the one before. A full batch is sent as soon as there is room.
    """

    def __init__(
        self,
        *,
        arbitration: Arbitration = least_recently_served,
        lead_s: float = 0.002,
        first_batch_id: int = 1,
    ) -> None:
        self._arbitrate = arbitration
        self._lead_s = lead_s
        self._next_batch_id = first_batch_id
        self._specs: dict[str, FunctionSpec] = {}
        self._lanes: dict[LaneKey, Lane] = {}
        self._workers: dict[str, WorkerState] = {}
        self._lane_of: dict[int, Lane] = {}  # request → where its rows wait
        self._flying: dict[int, tuple[WorkerState, Lane]] = {}
        self._deadlines: list[
            tuple[float, int]
        ] = []  # heap of (deadline, request); stale entries are skipped

    def configure(self, now_s: float, spec: FunctionSpec) -> None:
        """Add a function, or replace its specification; rows that wait stay, if their members do.

        Raises ValueError for an unknown policy or a bad option, and then changes nothing.
        """
        _check(spec)
        policy_named(spec.policy).initial(dict(spec.policy_options))
        self._specs[spec.name] = spec
        for lane in self._lanes_of(spec.name):
            lane.reconfigure(spec, policy_named(spec.policy))

    def remove(self, now_s: float, function: str) -> tuple[Slice, ...]:
        """Forget a function: the rows that were waiting for it."""
        self._specs.pop(function, None)
        gone: list[RowRun] = []
        for lane in self._lanes_of(function):
            gone += lane.clear()
            del self._lanes[lane.key]
        for run in gone:
            self._lane_of.pop(run.request_id, None)
        return _slices(gone)

    def set_worker(self, now_s: float, worker: WorkerView) -> None:
        """Add or update a worker. Not alive: its batches are lost; the shell resubmits their rows."""
        state = self._workers.setdefault(worker.name, WorkerState(worker))
        state.view = worker
        if not worker.alive:
            for batch_id in state.flights:
                self._flying.pop(batch_id, None)
            del self._workers[worker.name]
        self._forget_decisions()

    def submit(self, now_s: float, submission: Submission) -> Rejection | None:
        """Queue rows, or say why not. Raises KeyError for a function or members that were not configured."""
        lane = self._lane_for(submission)
        rejection = admit(
            now_s, submission, lane, self._lanes_of(submission.function), self._workers.values()
        )
        if rejection is not None:
            return rejection
        lane.add(now_s, submission)
        self._lane_of[submission.request_id] = lane
        if submission.deadline_s < math.inf:
            heappush(self._deadlines, (submission.deadline_s, submission.request_id))
        return None

    def cancel(self, now_s: float, request_id: int) -> int:
        """Take a request's waiting rows out of the queue: how many. Rows in a batch already run on."""
        return sum(run.rows for run in self._withdraw(request_id))

    def next_action(self, now_s: float) -> Action:
        """What to do now; to be asked again until it is `Idle`."""
        expired = self._expired(now_s)
        if expired is not None:
            return expired
        wake_s = self._deadlines[0][0] if self._deadlines else math.inf
        candidates: list[Candidate] = []
        busy = [lane for lane in self._lanes.values() if lane.rows]
        for lane in busy:
            worker = self._worker_for(lane, now_s)
            if worker is None:
                continue
            if lane.interactive.rows:
                decision = lane.decide(now_s, worker)
                if isinstance(decision, Refuse):
                    return self._refuse(lane, decision)
                if isinstance(decision, Dispatch):
                    early_s = self._too_early_s(now_s, lane, worker, decision.rows)
                    if early_s is None:
                        candidates.append(Candidate(lane, worker, decision))
                    else:
                        wake_s = min(wake_s, early_s)
                    continue
                wake_s = min(wake_s, decision.until_s)
            if lane.bulk.rows:
                rows = min(lane.bulk.rows, lane.spec.max_batch)
                early_s = self._too_early_s(now_s, lane, worker, rows)
                if early_s is None:
                    candidates.append(Candidate(lane, worker, None))
                else:
                    wake_s = min(wake_s, early_s)
        if not candidates:
            return Idle(wake_s)
        return self._run(now_s, self._arbitrate(now_s, candidates))

    def finished(self, now_s: float, batch_id: int, *, failed: bool = False) -> None:
        """A batch came back: its worker has room again, and what it took is learned unless it failed."""
        worker, lane = self._flying.pop(batch_id, (None, None))
        if worker is None or lane is None:
            return
        landed = worker.land(now_s, batch_id)
        self._forget_decisions()
        if landed is None or failed:
            return
        flight, service_s = landed
        lane.learn(flight, service_s, worker.view.device)
        outcome = BatchOutcome(
            now_s=now_s,
            rows=flight.rows,
            members=flight.members,
            latency_s=service_s,
            slo_s=lane.spec.slo_s,
            overdue_rows=sum(rows for due_s, rows in flight.dues if due_s < now_s),
            predicted_s=flight.predicted_s,
        )
        lane.state = lane.policy.observe(lane.state, outcome)

    def queue_depth(self) -> dict[str, tuple[int, int]]:
        """Function → rows and bytes that wait."""
        depth = dict.fromkeys(self._specs, (0, 0))
        for lane in self._lanes.values():
            rows, nbytes = depth[lane.key[0]]
            depth[lane.key[0]] = (rows + lane.rows, nbytes + round(lane.nbytes))
        return depth

    def _run(self, now_s: float, chosen: Candidate) -> RunBatch:
        lane, worker, decision = chosen.lane, chosen.worker, chosen.decision
        if decision is None:
            members = tuple(member.name for member in lane.members)
            runs = lane.take_bulk(min(lane.bulk.rows, lane.spec.max_batch))
        else:
            members = decision.members
            runs = lane.take(decision.rows, decision.skip)
            room = lane.spec.max_batch - decision.rows
            if lane.bulk.rows and room:
                start_s = worker.free_at_s(now_s)
                budget_s = min(run.due_s for run in runs) - start_s
                fill = min(lane.bulk.rows, room)
                if lane.predicted_s(decision.rows + fill, worker.view.device) <= budget_s:
                    runs += lane.take_bulk(fill)
        lane.served_s = now_s
        rows = sum(run.rows for run in runs)
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        swap_s = lane.swap_s(worker)
        worker.flights[batch_id] = Flight(
            batch_id=batch_id,
            members=members,
            rows=rows,
            sent_s=now_s,
            predicted_s=lane.predicted_s(rows, worker.view.device) + (swap_s if swap_s < math.inf else 0.0),
            dues=tuple((run.due_s, run.rows) for run in runs if run.row_class == "interactive"),
        )
        self._flying[batch_id] = (worker, lane)
        self._settle(lane, runs)
        self._forget_decisions()
        return RunBatch(batch_id, lane.key[0], worker.name, members, _slices(runs), rows)

    def _refuse(self, lane: Lane, decision: Refuse) -> RefuseRows:
        runs = lane.take(decision.rows)
        self._settle(lane, runs)
        reason = f"{lane.key[0]} is too busy to answer before the deadline"
        return RefuseRows(_slices(runs), lane.key[0], decision.predicted_finish_s, reason)

    def _expired(self, now_s: float) -> RefuseRows | None:
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, request_id = heappop(self._deadlines)
            lane = self._lane_of.get(request_id)
            runs = self._withdraw(request_id)
            if lane is not None and runs:
                reason = f"{lane.key[0]} could not start before the deadline"
                return RefuseRows(_slices(runs), lane.key[0], now_s + lane.predicted_s(1, ""), reason)
        return None

    def _withdraw(self, request_id: int) -> list[RowRun]:
        lane = self._lane_of.pop(request_id, None)
        return lane.remove(request_id) if lane is not None else []

    def _settle(self, lane: Lane, runs: list[RowRun]) -> None:
        """Forget the requests of which nothing waits any more."""
        for run in runs:
            if run.request_id not in lane.interactive and run.request_id not in lane.bulk:
                self._lane_of.pop(run.request_id, None)

    def _lane_for(self, submission: Submission) -> Lane:
        spec = self._specs[submission.function]
        members = submission.members or tuple(member.name for member in spec.members)
        key = (submission.function, members, submission.bucket)
        lane = self._lanes.get(key)
        if lane is None:
            missing = set(members) - {member.name for member in spec.members}
            if missing:
                raise KeyError(f"{submission.function} has no member {', '.join(sorted(missing))}")
            lane = self._lanes[key] = Lane(key, spec, policy_named(spec.policy))
        return lane

    def _lanes_of(self, function: str) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.key[0] == function]

    def _worker_for(self, lane: Lane, now_s: float) -> WorkerState | None:
        """Of the workers with room that may run the lane: the one that would start it soonest."""
        best: WorkerState | None = None
        best_s = math.inf
        for worker in self._workers.values():
            if worker.has_room:
                start_s = worker.free_at_s(now_s) + lane.swap_s(worker)
                if start_s < best_s:
                    best, best_s = worker, start_s
        return best

    def _too_early_s(self, now_s: float, lane: Lane, worker: WorkerState, rows: int) -> float | None:
        """When a batch that is not full may be sent to a busy worker; None if now."""
        if not worker.flights or rows >= lane.spec.max_batch:
            return None
        ready_s = worker.free_at_s(now_s) - self._lead_s
        return ready_s if ready_s > now_s else None

    def _forget_decisions(self) -> None:
        for lane in self._lanes.values():
            lane.forget_decision()


def _slices(runs: list[RowRun]) -> tuple[Slice, ...]:
    return tuple(Slice(run.request_id, run.offset, run.rows) for run in runs)


def _check(spec: FunctionSpec) -> None:
    sizes = spec.batch_sizes
    if not spec.members:
        raise ValueError(f"function {spec.name!r} has no members")
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != spec.max_batch:
        raise ValueError(
            f"batch sizes of {spec.name!r} must ascend from at least 1 to its max_batch, not {sizes}"
        )
    if not spec.slo_s > 0:
        raise ValueError(f"the SLO of {spec.name!r} must be more than 0 s, not {spec.slo_s}")
