"""A lane: rows that may share a batch. One function, one set of members that they wait for, one shape bucket.

Three queues: `interactive` rows, which the policy sees and cuts into batches; `aside`, interactive rows
whose goal is lost though their deadline is not; `bulk` rows. The last two are fillers: they run in what the
first leaves (filling.py). In each the tenants take turns (tenant_queue.py). Knows nothing of other lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import (
    SHORTEST_WAIT_S,
    SILENCE_S,
    Decision,
    Dispatch,
    FunctionView,
    MemberView,
    RowClass,
    RowRun,
    Wait,
)
from server.scheduling.rhythm import Rhythm
from server.scheduling.safety_margin import SafetyMargin
from server.scheduling.sharing import Pace
from server.scheduling.streams import Streams
from server.scheduling.team import Runner, Team
from server.scheduling.tenant_queue import TenantQueue
from server.scheduling.terms import (
    BatchTimes,
    FunctionSpec,
    Latency,
    LatencyByKind,
    LatencyByWorker,
    LearnedLatency,
    MemberSpec,
    Slice,
    Submission,
    WorkerView,
)
from server.scheduling.turns import Turns
from server.scheduling.worker_state import WorkerState

__all__ = ["Lane", "LaneKey", "run_of"]

_ROW_GAIN = 0.2  # of what a batch's rows took
_CROWDED = 0.5  # of a goal; short batches do about 0.6 of what full ones do
_CROWDED_S = 30.0
_LATE = 2.0  # goals' work
_LEAST_SAVED_S = 1e-6  # by a row that members share; so little is as good as nothing
# Function, members, bucket; and, of rows that may be asked of others after these, "cascade", or that need not
# be asked of all, "planned".
LaneKey = tuple[str, tuple[str, ...], str] | tuple[str, tuple[str, ...], str, str]


class Lane:
    """Rows that may share a batch, and the policy that cuts them into batches."""

    def __init__(
        self,
        now_s: float,
        key: LaneKey,
        spec: FunctionSpec,
        policy: GuardedPolicy,
        turns: Mapping[RowClass, Turns] | None = None,
    ) -> None:
        """turns: of tenants, by class, with whom other lanes share the workers."""
        turns = turns or {"interactive": Turns(), "bulk": Turns()}
        self.key = key
        self.interactive, self.aside, self.bulk = self.queues = (
            TenantQueue(turns["interactive"]),
            TenantQueue(turns["interactive"]),
            TenantQueue(turns["bulk"]),
        )
        self.streams = Streams()  # while there is more than one tenant
        self._crowded_until_s = -math.inf
        self.decided_of: Collection[str] | None = None  # tenants that the last decision was about; None: all
        self.served_s = now_s  # when it last got a worker, or came to be
        self.filler_served_s = now_s  # when its fillers last did, or began to wait
        self.rhythm = Rhythm()  # of its interactive rows
        self.bulk_rhythm = Rhythm()
        self.holds_bulk = False  # until the core looks again: bulk rows may not run where it looked
        self.pace = Pace()  # of the same, where pools have to know what others need
        self.rides_from_s = -math.inf  # when its rows may share a batch with other functions' again
        self.margin = SafetyMargin()  # of rows that come while others wait
        self.typical_s = 0.0  # moving average of what its interactive batches are predicted to take
        self._waiting: tuple[str, int, Wait] | None = None  # worker, epoch, answer
        self.reconfigure(spec, policy)

    def reconfigure(self, spec: FunctionSpec, policy: GuardedPolicy) -> None:
        """A new specification; the rows stay, the policy starts anew."""
        self.spec = spec
        self.members: tuple[MemberSpec, ...] = tuple(m for m in spec.members if m.name in self.key[1])
        self._saved: dict[tuple[str, tuple[str, ...]], LatencyModel] = {}  # by device and members
        self.row_s: dict[str, float] = {}  # by device: of batches of all members, at least half full, of late
        self.names = tuple(member.name for member in self.members)
        self.policy = policy
        self._latencies: dict[tuple[str, str], tuple[Latency, ...]] = {}  # by device and worker
        # The same, where they can be taught.
        self._learners: dict[tuple[str, str], tuple[LearnedLatency | None, ...]] = {}
        self._lacks: dict[str, tuple[WorkerView, tuple[MemberSpec, ...]]] = {}
        self._compared: tuple[Sequence[WorkerState], bool] = ((), True)  # workers, and whether of one kind
        self._waiting = None

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self.interactive.rows + self.aside.rows + self.bulk.rows

    @property
    def filler_rows(self) -> int:
        """Rows that may run in what interactive rows leave."""
        return self.aside.rows + (0 if self.holds_bulk else self.bulk.rows)

    @property
    def fillers(self) -> TenantQueue:
        """Of the rows that wait for what interactive rows leave, those that go first."""
        return self.bulk if self.bulk.rows and not self.holds_bulk else self.aside

    @property
    def nbytes(self) -> float:
        """Bytes waiting."""
        return self.interactive.nbytes + self.aside.nbytes + self.bulk.nbytes

    def dues_s(self, most: int) -> tuple[float, ...]:
        """When the first of its interactive rows miss their goals, of so many rows at most."""
        return self._times_s(most, lambda run: run.due_s)

    def deadlines_s(self, most: int) -> tuple[float, ...]:
        """When the deadlines of the same rows pass, soonest first."""
        return tuple(sorted(self._times_s(most, lambda run: run.deadline_s)))

    def _times_s(self, most: int, time_of: Callable[[RowRun], float]) -> tuple[float, ...]:
        found: list[float] = []
        for run in self.interactive.by_goal():
            found += [time_of(run)] * min(run.rows, most - len(found))
            if len(found) == most:
                break
        return tuple(found)

    def is_silent(self, now_s: float) -> bool:
        """Whether nothing ran for so long that what l̂ says may be stale: worth a try, whatever it says."""
        return now_s - self.served_s > SILENCE_S

    def rows_of(self, row_class: RowClass, tenant: str) -> int:
        """Rows waiting of a tenant."""
        if row_class == "bulk":
            return self.bulk.rows_of(tenant)
        return self.interactive.rows_of(tenant) + self.aside.rows_of(tenant)

    def is_crowded(self, now_s: float, runner: Runner) -> bool:
        """Whether more interactive rows wait than a batch takes, and batches there had better be short.

        They had not where long ones answer all in time, and short ones perhaps not. They had where rows are
        late for more than some goals' work. Where rows were refused they are short for half a minute; then
        long ones are tried again.
        """
        if now_s < self._crowded_until_s:
            return True
        most, rows, late = self.spec.max_batch, self.interactive.rows, self.aside.rows
        if rows <= most and late <= most:
            return False
        row_goals = self.takes_s(most, runner) / (most * self.spec.slo_s)
        goals = rows * row_goals
        return late * row_goals > _LATE or (rows > most and (goals < _CROWDED or goals > 1))

    def ended(self, rows: int, late: int) -> None:
        """Interactive rows that were let in were answered or refused, `late` of them after their time."""
        self.margin.ended(rows, late, self.spec.max_batch)

    def lost(self, now_s: float) -> None:
        """Interactive rows could not be answered by their deadline."""
        if now_s >= self._crowded_until_s:
            self._crowded_until_s = now_s + _CROWDED_S

    def holds(self, request_id: int) -> bool:
        """Whether rows of the request wait here."""
        return any(request_id in queue for queue in self.queues)

    def add(self, now_s: float, submission: Submission) -> None:
        """Queue a submission."""
        if submission.row_class == "bulk":
            self._add_filler(now_s, self.bulk, run_of(now_s, submission, submission.deadline_s))
        else:
            self.interactive.add(run_of(now_s, submission, self.goal_s(now_s, submission)))
            self._waiting = None

    def goal_s(self, now_s: float, submission: Submission) -> float:
        """When interactive rows that come now are to be answered, at the latest at their deadline."""
        slo_s = self.spec.slo_s if submission.slo_s is None else submission.slo_s
        return min(submission.deadline_s, now_s + slo_s)

    def put_aside(self, now_s: float, run: RowRun) -> None:
        """Keep a row whose goal is lost, to be answered late."""
        self._add_filler(now_s, self.aside, run)

    def add_bulk(self, now_s: float, run: RowRun) -> None:
        """Queue bulk rows that have waited elsewhere before."""
        self._add_filler(now_s, self.bulk, run)

    def after(self, skip: int) -> RowRun:
        """The interactive run after so many rows that the last decision was about."""
        return self.interactive.after(skip, self.decided_of)

    def take(self, rows: int, skip: int = 0) -> list[RowRun]:
        """Take interactive rows that the last decision was about."""
        self._waiting = None
        return self.interactive.take(rows, skip, self.decided_of)

    def take_along(self, rows: int, row_s: float) -> list[RowRun]:
        """Take up to `rows` interactive rows that leave in a batch of another lane; tenants take turns.

        row_s: as in `take_fillers`.
        """
        self._waiting = None
        return self.interactive.take_in_turn(rows, row_s)

    def take_fillers(self, now_s: float, rows: int, row_s: float = 0.0) -> list[RowRun]:
        """Take up to `rows` fillers; where both wait, half of them late interactive rows and half bulk.

        row_s: what a row takes, by which tenants are due so many.
        """
        bulk_rows = 0 if self.holds_bulk else self.bulk.rows
        late = min(self.aside.rows, max(rows - rows // 2, rows - bulk_rows))
        more = min(rows - late, bulk_rows)
        self.filler_served_s = now_s
        return (self.aside.take_in_turn(late, row_s) if late else []) + (
            self.bulk.take_in_turn(more, row_s) if more else []
        )

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out a request's rows."""
        self._waiting = None
        return [run for queue in self.queues for run in queue.remove(request_id)]

    def remove_part(self, part: Slice) -> list[RowRun]:
        """Take out those of these rows of a request that wait here."""
        self._waiting = None
        return [run for queue in self.queues for run in queue.remove_part(part)]

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        self._waiting = None
        return [run for queue in self.queues for run in queue.clear()]

    def latencies(self, device: str, worker: str = "") -> tuple[Latency, ...]:
        """Each member's l̂ on that worker, of that kind of device; "" for one of the kind."""
        place = (device, worker)
        found = self._latencies.get(place)
        if found is None:
            each = (_latency_on(member, device, self.key[2], worker) for member in self.members)
            found = self._latencies[place] = tuple(each)
            self._learners[place] = tuple(
                each if isinstance(each, LearnedLatency) else None for each in found
            )
        return found

    def takes_s(self, rows: int, runner: Runner, members: Collection[str] = ()) -> float:
        """l̂ of a batch there on these members, or on all: that of the slowest part, if it is of several."""
        if isinstance(runner, WorkerState):
            return self.predicted_s(rows, runner.view.device, members, runner.name)
        parts = runner.running(members)
        return max((self.takes_s(rows, worker, part) for worker, part in parts), default=0.0)

    def predicted_s(self, rows: int, device: str, members: Collection[str] = (), worker: str = "") -> float:
        """l̂ of a batch on these members, one after the other on one worker; on all if none is named.

        What they share (the decoding) is done once: of the sum of what each would take alone, as much less as
        their batches have been seen to save; but a batch never takes less than its slowest member.
        """
        latencies = self.latencies(device, worker)
        if len(latencies) == 1:
            return latencies[0](rows)
        if len(members) == 1:
            (name,) = members
            return latencies[self.names.index(name)](rows) if name in self.names else 0.0
        names, each_s = self.names, [latency(rows) for latency in latencies]
        if members and len(members) < len(names):
            pairs = [pair for pair in zip(names, each_s, strict=True) if pair[0] in members]
            names, each_s = tuple(name for name, _ in pairs), [takes_s for _, takes_s in pairs]
        saved = self._saved.get((device, names))
        all_s = sum(each_s)
        return all_s if saved is None else max(all_s - saved.typical_s(rows), *each_s)

    def least_row_s(self, worker: WorkerState) -> float:
        """What a row takes there at the least, in a full batch."""
        return self.takes_s(self.spec.max_batch, worker) / self.spec.max_batch

    def right_share(self, members: Collection[str] = ()) -> float:
        """How many of a batch's answers are right, as far as that is known; the best member's share."""
        known = [one.accuracy for one in self.members if not members or one.name in members]
        return max(known, default=0.0) or 1.0

    def saved_s(self, rows: int) -> float:
        """What each member after the first of a batch saves by what it shares, as far as that was seen."""
        seen = [saved.typical_s(rows) / (len(names) - 1) for (_, names), saved in self._saved.items()]
        return min(seen, default=0.0)

    def is_known(self, device: str, members: Collection[str] = ()) -> bool:
        """Whether l̂ of each of these members, or of every one, is more than a guess there."""
        if len(members) == 1:
            (name,) = members
            known = self.latencies(device)[self.names.index(name)] if name in self.names else None
            return bool(getattr(known, "is_known", True))
        pairs = zip(self.names, self.latencies(device), strict=True)
        return all(getattr(each, "is_known", True) for name, each in pairs if not members or name in members)

    def may_use(self, worker: WorkerState) -> bool:
        """Whether a member of it is there."""
        return self.can_run_on(worker) or not worker.view.resident.isdisjoint(self.names)

    def can_run_on(self, worker: WorkerState) -> bool:
        """Whether all members of it are there."""
        return not self._missing(worker)

    def are_alike(self, workers: Sequence[WorkerState]) -> bool:
        """Whether a batch surely takes each of them as long as any other. False: that is to be looked at."""
        first = workers[0].view.device
        if self._compared[0] is not workers:  # the same sequence for as long as views are
            self._compared = workers, all(worker.view.device == first for worker in workers)
        latencies = self.latencies(first, workers[0].name)
        return self._compared[1] and all(
            getattr(each, "are_alike", not hasattr(each, "of_worker")) for each in latencies
        )

    def swap_s(self, worker: WorkerState) -> float:
        """What loading the missing members there should take; inf if that is not known."""
        device = worker.view.device
        return sum(
            math.inf if member.swap_s is None else member.swap_s(device) for member in self._missing(worker)
        )

    def shares_pass(self, now_s: float) -> bool:
        """Whether rows of other functions may be in a batch with its own."""
        return self.spec.prefix != "" and now_s >= self.rides_from_s and type(self) is Lane

    def decide(
        self,
        now_s: float,
        worker: Runner,
        epoch: int,
        most: int | None = None,
        heavy: Collection[str] = (),
    ) -> Decision:
        """The policy's answer for this worker; a wait holds until rows come or workers change (`epoch`).

        Where tenants are `heavy`, it is asked about the one whose turn it is, or about all who are not, if it
        is the turn of one of these; about everybody if there is room, or it would wait for more. most: rows
        of a batch, where that is fewer than the function's.
        """
        if self._waiting is not None:
            name, since, wait = self._waiting
            if name == worker.name and since == epoch and now_s < wait.until_s:
                return wait
        self.decided_of = None
        is_full = self.interactive.rows > self.spec.max_batch
        if heavy and self.interactive.is_shared and (is_full or self.is_crowded(now_s, worker)):
            self.decided_of = self.interactive.in_turn(heavy)
        decision = self.policy.decide(self._view(now_s, worker, most))
        if isinstance(decision, Wait) and self.decided_of is not None:
            self.decided_of = None
            decision = self.policy.decide(self._view(now_s, worker, most))
        if isinstance(decision, Wait) and decision.until_s < now_s + SHORTEST_WAIT_S:
            decision = Wait(now_s + SHORTEST_WAIT_S)
        self._waiting = (worker.name, epoch, decision) if isinstance(decision, Wait) else None
        return decision

    def probe(self) -> Dispatch:
        """The head of the queue as a batch, to learn what it takes."""
        rows = min(self.after(0).rows, self.spec.max_batch)
        return Dispatch(self.names, rows)

    def teach(
        self,
        rows: int,
        members: tuple[str, ...],
        took_s: float,
        device: str,
        worked: BatchTimes | None = None,
        worker: str = "",
    ) -> None:
        """Teach l̂ of each of these members what it would have taken alone; a batch of them took `took_s`.

        Where `worked` does not say what each took, each is taken to be off by as much as all of them.
        """
        if len(members) == 1:
            self._teach_one(rows, members[0], took_s, device, worker)
            return
        latencies = self.latencies(device, worker)
        there = set(members).intersection(self.names)  # the function may have others by now
        if not there or took_s <= 0:
            return
        asked = dict.fromkeys(members, rows)
        if worked is not None and len(members) == len(worked.members) > 1:
            # The way there and back is shared too.
            around_s = max(0.0, took_s - worked.work_s)
            told = list(zip(members, worked.members, strict=True))
            asked = {name: rows if time.rows is None else time.rows for name, time in told}
            alone_s = {
                name: time.own_s + time.shared_s * asked[name] / rows + around_s for name, time in told
            }
            if len(members) == len(self.names) and 2 * rows >= self.spec.max_batch:
                before_s = self.row_s.setdefault(device, took_s / rows)
                self.row_s[device] = before_s + _ROW_GAIN * (took_s / rows - before_s)
            if len(there) == len(members):
                each_s = alone_s
                if min(asked.values()) < rows:  # beside what all would take of all rows
                    each_s = {
                        name: latency(rows) for name, latency in zip(self.names, latencies, strict=True)
                    }
                self._learn_saved(rows, device, members, sum(each_s.values()) - took_s)
        else:
            ran_s = self.predicted_s(rows, device, members, worker)
            scale = took_s / ran_s if ran_s > 0 else 0.0
            pairs = zip(self.names, latencies, strict=True)
            alone_s = {name: scale * latency(rows) for name, latency in pairs if name in there}
        for name, learner in zip(self.names, self._learners_on(device, worker), strict=True):
            if learner is not None and name in there and asked[name] and alone_s[name] > 0:
                learner.observe(asked[name], alone_s[name])

    def _teach_one(self, rows: int, member: str, took_s: float, device: str, worker: str) -> None:
        """A batch of one member took as long as that one."""
        if member not in self.names or took_s <= 0:
            return
        number = self.names.index(member)
        learner = self._learners_on(device, worker)[number]
        if learner is not None:
            learner.observe(rows, took_s)

    def sent(self, now_s: float, rows: int, worker: Runner, members: Collection[str] = ()) -> None:
        """A batch of this lane left for a worker, or its parts for several, `rows` of it interactive."""
        self.served_s = now_s
        if rows:
            takes_s = 0.0
            for each, part in worker.running(members):
                part_s = self.takes_s(rows, each, part)
                each.work(now_s, part_s)
                takes_s = max(takes_s, part_s)
            self.typical_s += (0.1 if self.typical_s else 1.0) * (takes_s - self.typical_s)

    def _learners_on(self, device: str, worker: str) -> tuple[LearnedLatency | None, ...]:
        self.latencies(device, worker)
        return self._learners[device, worker]

    def _missing(self, worker: WorkerState) -> tuple[MemberSpec, ...]:
        known = self._lacks.get(worker.name)
        if known is None or known[0] is not worker.view:  # a view is replaced, never changed
            resident = worker.view.resident
            missing = tuple(member for member in self.members if member.name not in resident)
            known = self._lacks[worker.name] = (worker.view, missing)
        return known[1]

    def _add_filler(self, now_s: float, queue: TenantQueue, run: RowRun) -> None:
        if not self.filler_rows:
            self.filler_served_s = now_s
        queue.add(run)

    def _learn_saved(self, rows: int, device: str, members: Sequence[str], saved_s: float) -> None:
        names = tuple(name for name in self.names if name in members)
        saved = self._saved.get((device, names))
        if saved is None:
            guess = {1: _LEAST_SAVED_S, 64: 64 * _LEAST_SAVED_S}
            saved = self._saved[device, names] = LatencyModel(guess, measured=False)
        saved.observe(rows, max(saved_s, rows * _LEAST_SAVED_S))

    def _view(self, now_s: float, runner: Runner, most: int | None) -> FunctionView:
        queue, max_batch, sizes = self.interactive, self.spec.max_batch, self.spec.batch_sizes
        if most is not None and most < max_batch:
            max_batch, sizes = most, (*(size for size in sizes if size < most), most)
        runs, rows = queue.view(self.decided_of)
        together: Callable[[int], float] | None = None
        if isinstance(runner, WorkerState):
            pairs = zip(self.members, self.latencies(runner.view.device, runner.name), strict=True)
            members = self._members_on(runner, now_s, pairs)
        else:
            members = self._members_of(runner, now_s)
        if len(members) > 1:
            together = partial(self._together_s, runner)
        return FunctionView(
            now_s=now_s,
            slo_s=self.spec.slo_s,
            max_batch=max_batch,
            batch_sizes=sizes,
            queue=runs,
            queued_rows=rows,
            members=members,
            together_s=together,
        )

    def _together_s(self, runner: Runner, rows: int) -> float:
        return self.takes_s(rows, runner)

    def _members_on(
        self, worker: WorkerState, now_s: float, members: Iterable[tuple[MemberSpec, Latency]]
    ) -> tuple[MemberView, ...]:
        free_at_s = worker.free_at_s(now_s)
        return tuple(
            MemberView(
                name=member.name,
                accuracy=member.accuracy,
                latency_s=latency,
                free_at_s=free_at_s,
            )
            for member, latency in members
        )

    def _members_of(self, team: Team, now_s: float) -> tuple[MemberView, ...]:
        """Each where it would run, in the function's order."""
        found: dict[str, MemberView] = {}
        for worker, part in team.parts:
            pairs = zip(self.members, self.latencies(worker.view.device, worker.name), strict=True)
            theirs = [(member, latency) for member, latency in pairs if member.name in part]
            found.update((view.name, view) for view in self._members_on(worker, now_s, theirs))
        return tuple(found[name] for name in self.names)


def run_of(now_s: float, submission: Submission, due_s: float) -> RowRun:
    """The rows of a submission that came now, all of them in one run."""
    return RowRun(
        request_id=submission.request_id,
        rows=submission.rows,
        arrived_s=now_s,
        deadline_s=submission.deadline_s,
        row_class=submission.row_class,
        priority=submission.priority,
        due_s=due_s,
        offset=submission.offset,
        row_bytes=submission.nbytes / submission.rows,
        min_accuracy=submission.min_accuracy,
        tenant=submission.tenant,
    )


def _latency_on(member: MemberSpec, device: str, bucket: str, worker: str) -> Latency:
    latency = member.latency
    if isinstance(latency, LatencyByKind):
        latency = latency.on(device, bucket)
    return latency.of_worker(worker) if worker and isinstance(latency, LatencyByWorker) else latency
