"""The scheduler: queues, workers, and the policies asked in turn. Pure: no I/O, no clock, no locks.

A shell (the live dispatcher, the simulator) reports what happens and asks `next_action` until it is told
to be idle. The same code therefore decides in a simulation and on a device.

    configure, set_worker        what there is
    follow                       which members rows are asked of, where that is not all
    submit → Rejection | None    rows arrive        cancel    their client has gone
    next_action                  RunBatch | AnswerKnown | RefuseRows | Idle
    finished                     a batch came back
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from server.ensemble.cascade import Cascade
from server.ensemble.gearing import FollowedPlans
from server.ensemble.selection import Choice, Ensemble, SelectionPolicy, State
from server.scheduling.admission import admit, room, soonest_after_load_s, soonest_finish_s
from server.scheduling.arbitration import Arbitration, MostInTime, ReadyBatch
from server.scheduling.bulk_sharing import BULK_SHARING, BulkSharing
from server.scheduling.cascade_lane import CascadeLane, LaneOfPlan, PlannedLane
from server.scheduling.filling import (
    FillerLimits,
    Filling,
    fill_rows,
    filler_batch_rows,
    filler_limits,
    is_starving,
)
from server.scheduling.lanes import Lane
from server.scheduling.policies.guarded import PolicyFault
from server.scheduling.policy import BatchOutcome, Dispatch, Refuse, RowClass, RowRun, Wait
from server.scheduling.pool import Offer
from server.scheduling.pooled_lane import PooledLane
from server.scheduling.prefixes import Riders, filler_riders, interactive_riders, kin_of
from server.scheduling.queues import Queues
from server.scheduling.roster import Roster
from server.scheduling.routing import Backlog, runner_for
from server.scheduling.sharing import Need, shares_of
from server.scheduling.team import Runner
from server.scheduling.tenancy import (
    LONGEST,
    Asked,
    asked_of,
    joining,
    limits_for_light,
    rows_for_head,
    rows_for_light,
)
from server.scheduling.terms import (
    MOST_DUES,
    Action,
    AnswerKnown,
    BatchTimes,
    FunctionSpec,
    Idle,
    MemberSpec,
    MemberTime,
    RefuseRows,
    Rejection,
    RunBatch,
    Slice,
    Submission,
    Waiting,
    WorkerView,
)
from server.scheduling.worker_state import SentBatch, WorkerState

__all__ = [
    "Action",
    "AnswerKnown",
    "BatchTimes",
    "FunctionSpec",
    "Idle",
    "MemberSpec",
    "MemberTime",
    "RefuseRows",
    "Rejection",
    "RunBatch",
    "Scheduler",
    "Slice",
    "Submission",
    "Waiting",
    "WorkerView",
]


_NOBODY_HEAVY = Asked()
_SHARES_HOLD_S = 0.005  # as long as the shares of workers hold
_APART_S = 30.0  # after a batch of several functions that failed: it may be one of them


@dataclass(slots=True)
class _Survey:
    """What the lanes want of the workers now."""

    wake_s: float  # when to ask again, if nothing happens
    candidates: list[ReadyBatch] = field(default_factory=list)
    fillers: list[tuple[Lane, Runner]] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)  # busy workers that interactive rows wait for
    spare_until_s: float = math.inf  # when an interactive row will want a worker again


@dataclass(slots=True)
class _Cut:
    """Rows that a policy cut, on their way: one batch, or one for each worker that holds some members."""

    lane: Lane
    members: tuple[str, ...]
    batches: int  # of which nothing has been heard yet
    predicted_s: float
    took_s: float = 0.0  # the longest of its batches
    spoilt: bool = False  # what it took is not known
    pooled: PooledLane | None = None  # whose rows need not go to all members
    cascade: Cascade | None = None  # says of its rows whom they are asked of next
    runs: Sequence[RowRun] = ()  # of a cascade, in the batch's order
    gone: set[int] = field(default_factory=set)  # requests that left while they were on their way
    riders: Sequence[Lane] = ()  # whose rows are in it too


class Scheduler:
    """Rows in, batches out.

    `lead_s`: how long before a worker is free a batch that is not full may be sent to it, so that its rows
    are decoded under the forward pass of the one before. A full batch is sent as soon as there is room.
    `prefix_batching`: whether rows of functions that go through one network first share its passes.
    """

    def __init__(
        self,
        *,
        arbitration: Arbitration = MostInTime(),  # noqa: B008 - immutable
        filling: Filling = Filling(),  # noqa: B008 - immutable
        bulk_sharing: BulkSharing = BULK_SHARING["backfill"],
        lead_s: float = 0.002,
        first_batch_id: int = 1,
        prefix_batching: bool = True,
    ) -> None:
        self._arbitrate = arbitration
        self._filling = filling
        self._bulk_sharing = bulk_sharing
        self._lead_s = lead_s
        self._prefix_batching = prefix_batching
        self._next_batch_id = first_batch_id
        self._epoch = 0  # counts changes of the workers
        self._queues = Queues()
        self._workers = Roster()
        self._in_flight: dict[int, tuple[WorkerState, _Cut]] = {}
        self._to_tell: deque[AnswerKnown | RefuseRows] = deque()  # of rows that have left their pools
        self._shared_until_s = -math.inf

    def configure(self, now_s: float, spec: FunctionSpec) -> None:
        """Add a function, or replace its specification; rows that wait stay, if their members do.

        Raises ValueError for an unknown policy or a bad option, and then changes nothing.
        """
        self._queues.configure(spec)
        self._workers.forget()

    def follow(
        self, now_s: float, function: str, bucket: str, ensemble: Ensemble, policy: SelectionPolicy
    ) -> None:
        """From now on interactive rows of a pooled function go to the members that the policy says.

        May be said again while rows wait: of another policy, or of one by other costs. Rows that already wait
        for all members still do. Raises KeyError for an unknown function, ValueError for one that is not
        pooled and for other members than its own.
        """
        self._queues.pool(now_s, function, bucket).follow(now_s, ensemble, policy, self._workers.all)

    def policy_of(self, function: str, bucket: str) -> tuple[SelectionPolicy, State] | None:
        """The policy that rows of that bucket follow, and its state; None where they follow none yet."""
        for lane in self._queues.pooled.values():
            if (lane.key[0], lane.key[2]) == (function, bucket) and lane.pool is not None:
                return lane.pool.policy, lane.pool.state
        return None

    def teach(self, function: str, policy: str, state: State) -> None:
        """What a policy has learned from feedback is its state from now on, in every bucket."""
        for lane in self._queues.pooled.values():
            if lane.key[0] == function and lane.pool is not None and lane.pool.policy.name == policy:
                lane.pool.learn(state)

    def remove(self, now_s: float, function: str) -> tuple[Slice, ...]:
        """Forget a function: the rows that were waiting for it. What is known of others is told still."""
        self._hear(now_s)  # else what its pool has decided would go with it
        gone = _slices(self._queues.remove(function))
        for told in list(self._to_tell):
            if isinstance(told, RefuseRows) and told.function == function:
                self._to_tell.remove(told)
                gone += told.slices
        self._workers.forget()
        return gone

    def set_worker(self, now_s: float, worker: WorkerView) -> None:
        """Add or update a worker. Not alive: its batches are lost; the shell resubmits their rows."""
        self._epoch += 1
        state = self._workers.show(worker)
        if not worker.alive:
            for batch_id in state.in_flight:
                _, cut = self._in_flight.pop(batch_id, (None, None))
                if cut is not None and cut.pooled is not None:
                    self._queues.settle(cut.pooled, cut.pooled.drop(now_s, batch_id))
        for lane in self._queues.pooled.values():
            lane.set_worker(now_s, state)

    def submit(self, now_s: float, submission: Submission) -> Rejection | None:
        """Queue rows, or say why not. Raises KeyError for a function or a member that is not configured."""
        lane = self._lane_for(now_s, submission)
        lanes = self._queues.of(submission.function)
        self._came(now_s, lane, submission)
        if submission.row_class == "interactive":
            lane.rhythm.came(now_s)  # also if refused: that they keep coming is why fillers must make room
            if self._queues.pooled:
                lane.pace.came(now_s, submission.rows, lane.spec.slo_s)
        rejection = admit(now_s, submission, lane, lanes, self._workers)
        if rejection is None:
            self._queues.add(now_s, lane, submission)
        return rejection

    def cancel(self, now_s: float, request_id: int) -> int:
        """Take a request's waiting rows out of the queue: how many. Rows in a batch already run on."""
        for _, cut in self._in_flight.values():
            if cut.cascade is not None:
                cut.gone.add(request_id)
        return sum(run.rows for run in self._queues.withdraw(request_id))

    def take_back(self, now_s: float, request_id: int) -> tuple[Slice, ...]:
        """Take a request's waiting rows out of the queue, to be submitted otherwise: which."""
        return _slices(self._queues.withdraw(request_id))

    def cancel_part(self, now_s: float, part: Slice) -> int:
        """Take these rows of a request out of the queue, if they wait there: how many.

        For a submission that stands for several clients. Rows in a batch run on.
        """
        return sum(run.rows for run in self._queues.withdraw_part(part))

    def room(self, function: str) -> tuple[float, float]:
        """How many more rows and bytes of the interactive class may wait for a function, beside others."""
        return room(self._queues.spec(function), self._queues.of(function))

    def next_action(self, now_s: float) -> Action:
        """What to do now; to be asked again until it is `Idle`."""
        if self._queues.pooled:
            self._hear(now_s)
        if self._to_tell:
            return self._to_tell.popleft()
        expired = self._queues.expire(now_s)
        if expired is not None:
            return self._expired(now_s, *expired)
        if not self._queues.lanes or not any(worker.has_room(now_s) for worker in self._workers):
            return Idle(self._next_due_s() if self._queues.pooled else self._queues.next_deadline_s)
        while (survey := self._survey(now_s)) is None:
            pass  # rows were put aside: look again
        if not isinstance(survey, _Survey):
            return survey
        filler = self._filler(now_s, survey)
        if filler is not None:
            return filler
        if survey.candidates:
            return self._run(now_s, self._arbitrate(now_s, self._in_turn(now_s, survey.candidates)))
        return Idle(survey.wake_s)

    def finished(
        self,
        now_s: float,
        batch_id: int,
        *,
        failed: bool = False,
        cancelled: bool = False,
        worked: BatchTimes | None = None,
        sure: Sequence[float] = (),
    ) -> None:
        """A batch is over: its worker has room again, and what it took is learned unless it failed.

        `worked` is what the worker says that it took; without it, batches are taken to end as they were sent.
        Of a cancelled one it is known that it would have taken longer. If batches that are in time alone
        taught l̂, one that is too low would stay so: what it lets run too late is cancelled at the deadline.
        sure: of each row of a batch with `choices`, in its order, how probable the answer is by all members
        that have answered the row. If such a batch failed, its rows are forgotten: the shell resubmits them.
        """
        worker, cut = self._in_flight.pop(batch_id, (None, None))
        if worker is None or cut is None:
            return
        self._epoch += 1
        sent, service_s = worker.finish(now_s, batch_id, worked)
        cut.batches -= 1
        if cut.pooled is not None:
            if failed or cancelled:
                self._queues.settle(cut.pooled, cut.pooled.drop(now_s, batch_id))
            else:
                cut.pooled.finished(now_s, batch_id, sure, service_s)
        if failed and cut.riders:
            for each in (cut.lane, *cut.riders):
                each.rides_from_s = now_s + _APART_S
        if cut.cascade is not None and not failed and not cancelled:
            self._go_on(now_s, cut, cut.cascade, sure)
        if failed or (cancelled and service_s <= sent.predicted_s):
            cut.spoilt = True
            return
        lane = cut.lane
        lane.teach(sent.rows, sent.members, service_s, worker.view.device, worked, worker.name)
        for rider in cut.riders:  # so many rows would have taken it as long
            rider.teach(sent.rows, rider.names, service_s, worker.view.device, None, worker.name)
        pooled = lane.pooled if isinstance(lane, LaneOfPlan) else lane
        if isinstance(pooled, PooledLane) and worked is not None:
            pooled.learn_shared(sent.rows, sent.members, worked)
        cut.took_s = max(cut.took_s, service_s)
        if cut.batches or cut.spoilt or cut.pooled is not None:
            return
        late = sum(rows for due_s, rows in sent.dues if due_s < now_s)
        lane.ended(sum(rows for _, rows in sent.dues), late)
        lane.policy.observe(
            BatchOutcome(
                now_s=now_s,
                rows=sent.rows,
                members=cut.members,
                latency_s=cut.took_s,
                slo_s=lane.spec.slo_s,
                overdue_rows=late,
                predicted_s=cut.predicted_s,
            )
        )

    def saved_s(self, function: str, bucket: str, rows: int) -> float:
        """What each member of a batch after the first saves, at least, by what it shares; 0 if not known."""
        lanes = [lane for lane in self._queues.of(function) if lane.key[2] == bucket]
        return min((s for lane in lanes if (s := lane.saved_s(rows)) > 0), default=0.0)

    def hung(self, now_s: float, most_s: float) -> list[tuple[str, float]]:
        """The workers that hang, as far as that can be told, and for how long they have said nothing.

        `most_s`: how long a batch may take of which nothing is known.
        """
        return [
            (worker.name, worker.silent_s(now_s)) for worker in self._workers if worker.hangs(now_s, most_s)
        ]

    def doubtful(self, now_s: float) -> frozenset[str]:
        """The workers that may well hang."""
        return frozenset(worker.name for worker in self._workers if worker.is_doubtful(now_s))

    def shares(self, now_s: float) -> dict[str, float]:
        """Worker → the share of its time that interactive rows took in the last second or so."""
        return {worker.name: worker.share(now_s) for worker in self._workers}

    def take_faults(self) -> list[PolicyFault]:
        """The policies that were put aside since the last call, because one of their methods faulted."""
        return self._queues.take_faults()

    def waiting(self, most_dues: int = MOST_DUES) -> dict[str, Waiting]:
        """Function → what waits for it, of those for which anything does."""
        found: dict[str, Waiting] = {}
        for lane in self._queues.lanes:
            dues_s, deadlines_s = lane.dues_s(most_dues), lane.deadlines_s(most_dues)
            one = Waiting(lane.rows, lane.filler_rows, dues_s, deadlines_s)
            other = found.get(lane.key[0])
            found[lane.key[0]] = one if other is None else other.with_others(one, most_dues)
        return found

    def backlog_s(self, now_s: float) -> dict[str, float]:
        """By worker, how long an interactive row that came now would wait there, as far as that is known.

        What was sent, and its part of the interactive rows that wait, in full batches: the workers that can
        run them share them evenly.
        """
        workers = self._workers
        found = {worker.name: worker.starts_at_s(now_s) - now_s for worker in workers}
        for lane in self._queues.lanes:
            rows = lane.rows - lane.filler_rows
            able = [worker for worker in workers if lane.may_use(worker)] if rows else []
            for worker in able:
                found[worker.name] += rows * lane.least_row_s(worker) / len(able)
        return found

    def least_goal_waiting_s(self) -> float:
        """The least goal of the functions of which interactive rows wait; inf = there are none."""
        goals_s = [lane.spec.slo_s for lane in self._queues.lanes if lane.rows > lane.filler_rows]
        return min(goals_s, default=math.inf)

    def followed(self, function: str, bucket: str) -> FollowedPlans | None:
        """The plans that rows of a function follow, of that bucket or else of another one; None for none."""
        pools = {lane.key[2]: lane.pool for lane in self._queues.pooled.values() if lane.key[0] == function}
        pool = pools.get(bucket) or next(iter(pools.values()), None)
        return None if pool is None else pool.followed

    def queue_depth(self) -> dict[str, tuple[int, int]]:
        """Function → rows and bytes that wait."""
        return self._queues.depth()

    def _came(self, now_s: float, lane: Lane, submission: Submission) -> None:
        """Rows of a tenant came, or would have."""
        row_class, tenant = submission.row_class, submission.tenant
        turns = self._queues.turns[row_class]
        alone = None if turns.is_shared else turns.first
        turns.came(now_s, tenant, submission.weight)
        if not turns.is_shared:
            if row_class == "bulk":
                lane.bulk_rhythm.came(now_s)
            return
        if alone is not None:
            self._queues.tell_apart(row_class, alone)
        lane.streams.came(now_s, row_class, tenant, submission.rows, lane.rows_of)

    def _hear(self, now_s: float) -> bool:
        """Take what the pools have decided of rows: whether anything was. What is to be said of it waits."""
        heard = False
        for lane in self._queues.pooled.values():
            if lane.pool is None or not lane.pool.has_news(now_s):
                continue
            answered, lost = lane.tell(now_s)
            if not answered and not lost:
                continue
            heard = True
            refused: list[RowRun] = []
            for run in lost:
                if run.deadline_s <= max(now_s, run.due_s):
                    refused.append(run)
                else:
                    self._queues.put_aside(now_s, run, lane)
            self._queues.settle(lane, [*[part for part, _ in answered], *lost])
            if answered:
                self._to_tell.append(AnswerKnown(lane.key[0], tuple(answered), *lane.take_cut_short()))
            if refused:
                reason = f"{lane.key[0]} is too busy to answer before the deadline"
                self._to_tell.append(RefuseRows(_slices(refused), lane.key[0], now_s, reason))
        return heard

    def _next_due_s(self) -> float:
        """When something is to be done, even if nothing happens and no worker has room."""
        due_s = self._queues.next_deadline_s
        for lane in self._queues.pooled.values():
            if lane.pool is not None and (pool_s := lane.pool.next_due_s) < due_s:
                due_s = pool_s
        return due_s

    def _offers(self, now_s: float, survey: _Survey) -> None:
        """Ask every pool what it would have run by workers that are free, or nearly."""
        survey.wake_s = min(survey.wake_s, self._next_due_s())
        self._share_out(now_s)
        found: list[tuple[PooledLane, WorkerState, Offer]] = []
        for lane in self._queues.pooled.values():
            pool = lane.pool
            if pool is None or not pool.is_asking:
                continue
            for worker in self._workers:
                if worker.is_reserved or not pool.is_held_by(worker.name):
                    continue
                early_s = self._too_early_s(now_s, worker, False, self._lead_s)
                has_room = worker.has_room(now_s)
                if early_s > now_s or not has_room:
                    if has_room:
                        survey.wake_s = min(survey.wake_s, early_s)
                    survey.awaited.add(worker.name)
                    continue
                offer = pool.offer(now_s, worker.name)
                if isinstance(offer, Offer):
                    found.append((lane, worker, offer))
                else:
                    survey.wake_s = min(survey.wake_s, offer)
                    survey.spare_until_s = min(survey.spare_until_s, offer)
        is_alone = len(found) == 1 and not survey.candidates
        survey.candidates += [self._offered(*each, is_alone=is_alone) for each in found]

    def _share_out(self, now_s: float) -> None:
        """Tell the pools how much of each worker they may count on, where they do not have it to themselves.

        Functions that share a worker have smaller batches than plans reckon with, and so get less done in it.
        """
        if now_s < self._shared_until_s:
            return
        self._shared_until_s = now_s + _SHARES_HOLD_S
        lanes = [lane for lane in self._queues.all() if lane.pace.rate(now_s, lane.spec.slo_s) > 0]
        if len(lanes) < 2:
            lanes = []  # one alone has all of them
        shares = shares_of([(lane, self._need(now_s, lane)) for lane in lanes])
        for lane in self._queues.pooled.values():
            if lane.pool is not None:
                of_workers = shares.get(lane, {}).items()
                lane.pool.count_on({name: share * lane.fullness for name, share in of_workers if share < 1})

    def _need(self, now_s: float, lane: Lane) -> Need:
        able = [worker for worker in self._workers if lane.may_use(worker)]
        row_s = min((lane.least_row_s(worker) for worker in able), default=0.0)
        has_choice = isinstance(lane, PooledLane) and lane.pool is not None
        rate = lane.pace.rate(now_s, lane.spec.slo_s)
        return Need(rate * row_s, [worker.name for worker in able], has_choice)

    def _offered(self, lane: PooledLane, worker: WorkerState, offer: Offer, *, is_alone: bool) -> ReadyBatch:
        """is_alone: nobody else has a batch ready, with which it would be compared."""
        member = lane.names[offer.member]
        workers, right = 1, None
        if not is_alone:
            workers = max(1, sum(member in other.view.resident for other in self._workers))
            right = lane.right_of(offer)
        return ReadyBatch(
            lane=lane,
            worker=worker,
            decision=Dispatch((member,), offer.rows, expected_s=offer.takes_s),
            takes_s=offer.takes_s,
            due_s=offer.due_s,
            priority=offer.priority,
            workers=workers,
            offer=offer,
            right=right,
        )

    def _survey(self, now_s: float) -> _Survey | RefuseRows | AnswerKnown | None:
        """Ask every lane that could have a worker; refusals come first. None: rows were only put aside."""
        survey = _Survey(wake_s=self._queues.next_deadline_s)
        lanes = self._queues.lanes
        backlog: Backlog | None = None
        for lane in lanes:
            lane.holds_bulk = False
            if not lane.interactive.rows and not lane.filler_rows:
                continue  # what waits is in its pool, which is asked below
            if backlog is None:
                backlog = Backlog(lanes, self._workers)
            worker = runner_for(now_s, lane, self._workers, backlog)
            if worker is None:
                continue
            if lane.bulk.rows and self._bulk_sharing.busy_below < math.inf:
                self._hold_bulk(now_s, lane, worker, survey)
            if lane.filler_rows:
                survey.fillers.append((lane, worker))
            if not lane.interactive.rows:
                continue
            full, lead_s, most = lane.interactive.rows >= lane.spec.max_batch, self._lead_s, None
            asked = self._asked(now_s, worker, "interactive")
            if asked.light_s < math.inf and lane.is_crowded(now_s, worker):
                share = self._queues.turns["interactive"].share(lane.interactive.tenant)
                most = rows_for_light(lane, worker, asked.light_s, share)
                full, lead_s = False, 0.0
            early_s = self._too_early_s(now_s, worker, full, lead_s)
            if early_s > now_s:
                survey.wake_s = min(survey.wake_s, early_s)
                survey.awaited.update(each.name for each, _ in worker.running(()))
                continue
            decision = lane.decide(now_s, worker, self._epoch, most, asked.heavy)
            if isinstance(decision, Refuse) and lane.is_silent(now_s) and worker.is_idle:
                decision = lane.probe()
            if isinstance(decision, Refuse):
                return self._refuse(now_s, lane, decision)
            if isinstance(decision, Wait):
                survey.wake_s = min(survey.wake_s, decision.until_s)
                survey.spare_until_s = min(survey.spare_until_s, decision.until_s)
            else:
                survey.candidates.append(self._candidate(lane, worker, decision))
        if self._queues.pooled:
            self._offers(now_s, survey)
            if self._hear(now_s):
                return self._to_tell.popleft() if self._to_tell else None
        return survey

    def _hold_bulk(self, now_s: float, lane: Lane, runner: Runner, survey: _Survey) -> None:
        """Hold the lane's bulk rows back while a worker that would run them is too busy for that."""
        below = self._bulk_sharing.busy_below
        workers = [each for each, _ in runner.running(())]
        if any(self._bulk_sharing.holds(each.used.at(now_s)) for each in workers):
            lane.holds_bulk = True
            survey.wake_s = min(survey.wake_s, max(each.used.falls_at_s(now_s, below) for each in workers))

    def _filler(self, now_s: float, survey: _Survey) -> RunBatch | None:
        """A batch of fillers alone, if it is their turn."""
        starving = [pair for pair in survey.fillers if is_starving(self._filling, now_s, *pair)]
        if starving and self._queues.is_shared:
            starving = [pair for pair in starving if not self._is_another_first(pair[0])]
        fillers = starving or [
            pair
            for pair in survey.fillers
            if survey.awaited.isdisjoint(each.name for each, _ in pair[1].running(()))
        ]
        if not fillers or (survey.candidates and not starving):
            return None
        # A batch that is not full waits for those that are: its rows come from them.
        lane, worker = min(
            fillers,
            key=lambda pair: (
                isinstance(pair[0], CascadeLane) and pair[0].is_partial,
                self._filler_turn_s(pair[0]),
                pair[0].served_s,
            ),
        )
        limits = self._filler_limits(now_s, worker)
        light_s = self._asked(now_s, worker, "bulk").light_s
        limits = limits_for_light(light_s, limits)
        # Those that starve do not wait for the worker to be free: interactive rows would always be sooner.
        full = bool(starving) or (not limits.is_limited and lane.filler_rows >= lane.spec.max_batch)
        lead_s = 0.0 if limits.is_limited else self._lead_s
        if starving and limits.is_limited and self._queues.is_shared and lane.is_crowded(now_s, worker):
            full, lead_s = False, self._lead_s  # those that they would wait for are held back too
        early_s = self._too_early_s(now_s, worker, full, lead_s)
        if early_s > now_s:
            survey.wake_s = min(survey.wake_s, early_s)
            return None
        spare_s = math.inf if starving else survey.spare_until_s - now_s
        longest = self._filling.longest if light_s == math.inf else LONGEST
        kin = [each for each in self._kin(now_s, lane, worker) if each.filler_rows]
        more = sum(each.filler_rows for each in kin)
        rows = filler_batch_rows(longest, lane, worker, limits.alone_s, spare_s, more)
        if light_s < math.inf:
            rows = rows_for_head(now_s, lane, worker, rows)
        takes_s = lane.takes_s(rows, worker)
        if takes_s > spare_s:
            return None
        row_s, own = takes_s / rows, min(rows, lane.filler_rows)
        riders = filler_riders(now_s, kin, rows - own, row_s)
        return self._send(now_s, lane, worker, lane.take_fillers(now_s, own, row_s), 0, (), riders)

    def _kin(self, now_s: float, lane: Lane, runner: Runner) -> list[Lane]:
        """The lanes whose rows may be in a batch of that one."""
        if not self._prefix_batching or not lane.spec.prefix or not isinstance(runner, WorkerState):
            return []
        return kin_of(now_s, lane, runner, self._queues.lanes)

    def _asked(self, now_s: float, runner: Runner, row_class: RowClass) -> Asked:
        turns = self._queues.turns[row_class]
        if not turns.is_shared:
            return _NOBODY_HEAVY
        lanes, workers = self._queues.all(), len(self._workers)
        return asked_of(now_s, lanes, runner, row_class, workers)

    def _filler_limits(self, now_s: float, runner: Runner) -> FillerLimits:
        """How long batches with fillers may be, for interactive rows."""
        limits = filler_limits(self._filling, now_s, self._queues.all(), runner)
        return limits_for_light(self._asked(now_s, runner, "interactive").light_s, limits)

    def _is_another_first(self, lane: Lane) -> bool:
        """Whether interactive rows wait of a tenant who has had less than that of the lane's late rows."""
        if lane.bulk.rows:
            return False
        lanes = self._queues.lanes
        return any(one.interactive.begins_s < lane.aside.begins_s for one in lanes if one.interactive.rows)

    def _filler_turn_s(self, lane: Lane) -> float:
        """Where the tenant begins whose turn it is among its fillers; the same for all if there is one."""
        if not self._queues.is_shared:
            return 0.0
        return lane.fillers.begins_s

    def _in_turn(self, now_s: float, candidates: list[ReadyBatch]) -> Sequence[ReadyBatch]:
        """Of several tenants' batches, where more is asked than can be done, those of who has had least."""
        if len(candidates) == 1 or not self._queues.is_shared:
            return candidates
        top = max(one.priority for one in candidates)
        rivals = [one for one in candidates if one.priority == top]
        if not any(one.lane.is_crowded(now_s, one.worker) for one in rivals):
            return candidates
        begins_s = [self._begins_s(one) for one in rivals]
        least_s = min(begins_s)
        return [one for one, begin_s in zip(rivals, begins_s, strict=True) if begin_s <= least_s]

    def _begins_s(self, candidate: ReadyBatch) -> float:
        return candidate.lane.interactive.begins_s

    def _candidate(self, lane: Lane, worker: Runner, decision: Dispatch) -> ReadyBatch:
        head = lane.after(decision.skip)
        takes_s = decision.expected_s
        if takes_s is None:
            takes_s = lane.takes_s(decision.rows, worker, decision.members)
        return ReadyBatch(
            lane=lane,
            worker=worker,
            decision=decision,
            takes_s=takes_s,
            due_s=head.due_s,
            priority=head.priority,
            workers=max(1, len(self._workers.holders(lane))),
            right=decision.rows * lane.right_share(decision.members),
        )

    def _run(self, now_s: float, chosen: ReadyBatch) -> RunBatch:
        """Send what the policy decided, with fillers in the empty places if nobody interactive waits."""
        lane, worker, decision = chosen.lane, chosen.worker, chosen.decision
        if chosen.offer is not None:
            return self._send_offer(now_s, chosen, chosen.offer)
        runs = lane.take(decision.rows, decision.skip)
        lane.policy.carried_out()
        rows = decision.rows
        if self._queues.is_shared and lane.interactive.rows and rows < lane.spec.max_batch:
            joined = self._joined(now_s, lane, worker, runs)
            rows += sum(run.rows for run in joined)
            runs += joined
        riders: Riders = []
        if isinstance(worker, WorkerState) and (kin := self._kin(now_s, lane, worker)):
            light_s = self._asked(now_s, worker, "interactive").light_s
            most_s = light_s if lane.is_crowded(now_s, worker) else math.inf
            riders = interactive_riders(now_s, lane, worker, runs, kin, self._queues.lanes, most_s)
        lane.holds_bulk = lane.holds_bulk or not self._bulk_sharing.joins
        is_alone = lane.filler_rows and not riders
        if is_alone and not any(other.interactive.rows for other in self._queues.lanes):
            start_s = worker.free_at_s(now_s)
            limits = self._filler_limits(now_s, worker)
            oldest_s = min(run.arrived_s for run in runs)
            limit_s = min(
                limits.filled_s,
                oldest_s + limits.latency_s - start_s,
                min(run.due_s for run in runs) - start_s,
            )
            fill = fill_rows(lane, worker, rows, limit_s, decision.members)
            if fill:
                row_s = lane.takes_s(rows + fill, worker, decision.members) / (rows + fill)
                runs += lane.take_fillers(now_s, fill, row_s)
        return self._send(now_s, lane, worker, runs, rows, decision.members, riders)

    def _joined(self, now_s: float, lane: Lane, worker: Runner, runs: Sequence[RowRun]) -> list[RowRun]:
        """Interactive rows of other tenants that leave with a batch of one."""
        chosen_of = lane.decided_of
        if chosen_of is None:
            return []  # everybody's rows were there to choose from
        most = lane.spec.max_batch
        light_s = math.inf
        if lane.is_crowded(now_s, worker):
            light_s = self._asked(now_s, worker, "interactive").light_s
        return lane.interactive.take_in_turn(
            most - sum(run.rows for run in runs),
            lane.takes_s(most, worker) / most,
            without=chosen_of,
            joins=joining(now_s, lane, worker, runs, light_s),
        )

    def _send(
        self,
        now_s: float,
        lane: Lane,
        worker: Runner,
        runs: list[RowRun],
        cut: int,
        members: tuple[str, ...],
        riders: Riders = (),
    ) -> RunBatch:
        """Send `runs`, of which the first `cut` rows are what the policy decided and the rest fillers.

        riders: rows of other lanes that are in the same batch, on a worker that holds them all.
        """
        self._epoch += 1
        own_rows = sum(run.rows for run in runs)
        slices = _slices(runs)
        members = members or lane.names
        aboard = [*runs, *(run for _, more in riders for run in more)]
        rows = sum(run.rows for run in aboard)
        dues = tuple((run.due_s, run.rows) for run in aboard if run.row_class == "interactive")
        parts = worker.running(members)
        each_s = [lane.takes_s(rows, each, part) for each, part in parts]
        whole = _Cut(lane, members, len(parts), max(each_s, default=0.0))
        whole.riders = [rider for rider, _ in riders]
        choices: tuple[str, ...] = ()
        if isinstance(lane, CascadeLane):
            whole.cascade, whole.runs, choices = lane.pooled.cascade, runs, lane.pooled.names
        # Where the members live apart by now, all of them answer.
        plan = lane.plan if isinstance(lane, PlannedLane) and len(parts) == 1 else None
        batches: list[RunBatch] = []
        for (each, part), predicted_s in zip(parts, each_s, strict=True):
            batch_id = self._next_batch_id
            self._next_batch_id += 1
            sent = SentBatch(
                batch_id=batch_id,
                members=part,
                rows=rows,
                sent_s=now_s,
                predicted_s=predicted_s,
                dues=dues,
                is_guess=not lane.is_known(each.view.device, part),
                alone=each.is_idle,
            )
            each.send(sent)
            each.used.add(now_s, predicted_s)
            self._in_flight[batch_id] = (each, whole)
            batches.append(
                RunBatch(batch_id, lane.key[0], each.name, part, slices, own_rows, choices=choices, plan=plan)
            )
        lane.sent(now_s, cut + _interactive(riders), worker, members)
        self._charge(((run, run.rows) for run in aboard), sum(each_s))
        self._queues.settle(lane, runs)
        first, *others = batches
        if riders:
            return replace(first, riders=self._ride(now_s, first.worker, riders))
        return replace(first, beside=tuple(others)) if others else first

    def _ride(self, now_s: float, worker: str, riders: Riders) -> tuple[RunBatch, ...]:
        """The parts of a batch that are other lanes' rows; what becomes of it is said of its first part."""
        found: list[RunBatch] = []
        for lane, runs in riders:
            rows = sum(run.rows for run in runs)
            found.append(RunBatch(self._next_batch_id, lane.key[0], worker, lane.names, _slices(runs), rows))
            self._next_batch_id += 1
            lane.served_s = now_s
            self._queues.settle(lane, runs)
        return tuple(found)

    def _charge(self, parts: Iterator[tuple[RowRun, int]], seconds: float) -> None:
        """Charge a batch to the tenants whose rows it holds: of each run so many."""
        if not self._queues.is_shared:
            first, _ = next(parts)
            self._queues.turns[first.row_class].charge({first.tenant: 1}, seconds)
            return
        rows: dict[RowClass, dict[str, int]] = {}
        total = 0
        for run, count in parts:
            theirs = rows.setdefault(run.row_class, {})
            theirs[run.tenant] = theirs.get(run.tenant, 0) + count
            total += count
        for row_class, theirs in rows.items():
            count = sum(theirs.values())
            self._queues.turns[row_class].charge(theirs, seconds * count / total)

    def _lane_for(self, now_s: float, submission: Submission) -> Lane:
        """Where rows wait; bulk ones of a function with plans for the first member that they are asked of."""
        lane = self._queues.lane_for(now_s, submission)
        if isinstance(lane, PooledLane) and lane.is_planned(submission):
            planned = self._queues.planned_lane(now_s, lane)
            return lane if any(planned.is_slower(device) for device in lane.devices) else planned
        first = lane.asked_first(submission) if isinstance(lane, PooledLane) else None
        if first is None:
            return lane
        assert isinstance(lane, PooledLane), "others ask all members"
        names = tuple(lane.names[member] for member in first.ask)
        if first.beside:  # these answer, whatever they say
            return self._queues.lane_for(now_s, replace(submission, members=names))
        return self._queues.cascade_lane(now_s, lane, self._there(names) or names[0]) or lane

    def _there(self, names: Sequence[str]) -> str | None:
        """The first of these members that a worker holds."""
        workers = self._workers
        return next((name for name in names if any(name in each.view.resident for each in workers)), None)

    def _go_on(self, now_s: float, cut: _Cut, cascade: Cascade, sure: Sequence[float]) -> None:
        """Rows of a cascade that a member has answered: that is enough, or they wait for the next one."""
        assert isinstance(cut.lane, CascadeLane), "only its rows are asked of one member after the other"
        pooled = cut.lane.pooled
        mine = 1 << pooled.names.index(cut.members[0])
        answered: list[tuple[Slice, tuple[str, ...]]] = []
        first = 0
        for run in cut.runs:
            told, offset = sure[first : first + run.rows], run.offset
            first += run.rows
            if run.request_id in cut.gone:
                continue
            subset = run.answered | mine
            for rows, choice in cascade.following(subset, told, run.min_accuracy):
                part = replace(run, offset=offset, rows=rows, answered=subset)
                offset += rows
                lane = self._next_lane(now_s, pooled, choice)
                if lane is None:
                    answered.append((Slice(run.request_id, part.offset, rows), pooled.names_of(subset)))
                else:
                    self._queues.go_on(now_s, lane, part)
        if answered:
            self._to_tell.append(AnswerKnown(pooled.key[0], tuple(answered)))

    def _next_lane(self, now_s: float, pooled: PooledLane, choice: Choice) -> Lane | None:
        """Where rows wait for those that are asked next; None for nobody, or nobody who is there.

        What was promised is waited for.
        """
        names = [pooled.names[member] for member in choice.ask]
        if choice.beside and len(names) > 1:
            return self._queues.lane_beside(now_s, pooled, names)
        member = self._there(names)
        if member is None and names and pooled.promised is not None:
            member = names[0]
        return None if member is None else self._queues.cascade_lane(now_s, pooled, member)

    def _send_offer(self, now_s: float, chosen: ReadyBatch, offer: Offer) -> RunBatch:
        """Send rows of a pool to the one member that they were offered for."""
        lane, worker, members = chosen.lane, chosen.worker, chosen.decision.members
        assert isinstance(lane, PooledLane), "only its rows are offered"
        assert isinstance(worker, WorkerState), "rows of a pool are offered to one worker"
        self._epoch += 1
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        alone = worker.is_idle
        dues = tuple([(group.order[1], rows) for group, rows in offer.parts])
        sent = lane.send(now_s, worker.name, offer, batch_id)
        worker.send(
            SentBatch(
                batch_id=batch_id,
                members=members,
                rows=sent.rows,
                sent_s=now_s,
                predicted_s=sent.predicted_s,
                dues=dues,
                is_guess=not lane.is_known(worker.view.device, members),
                alone=alone,
            )
        )
        worker.used.add(now_s, sent.predicted_s)
        cut = _Cut(lane, members, 1, sent.predicted_s, pooled=lane)
        self._in_flight[batch_id] = (worker, cut)
        lane.sent(now_s, sent.rows, worker, members)
        self._charge(((group.request.run, rows) for group, rows in offer.parts), sent.predicted_s)
        return RunBatch(
            batch_id, lane.key[0], worker.name, members, sent.slices, sent.rows, choices=lane.names
        )

    def _refuse(self, now_s: float, lane: Lane, decision: Refuse) -> RefuseRows | None:
        """Refuse rows that will miss their deadline; those that only miss their goal are put aside."""
        refused: list[RowRun] = []
        for run in lane.take(decision.rows):
            if run.deadline_s < decision.predicted_finish_s:
                refused.append(run)
            else:
                lane.put_aside(now_s, run)
        self._queues.settle(lane, refused)
        if not refused:
            return None
        _ended_late(lane, refused)
        if self._queues.is_shared:
            lane.lost(now_s)
        reason = f"{lane.key[0]} is too busy to answer before the deadline"
        return RefuseRows(_slices(refused), lane.key[0], decision.predicted_finish_s, reason)

    def _expired(self, now_s: float, lane: Lane, runs: list[RowRun]) -> RefuseRows:
        _ended_late(lane, runs)
        finish_s = soonest_finish_s(now_s, lane, self._workers)
        if finish_s is None:
            finish_s = soonest_after_load_s(now_s, lane, self._workers.all)
        reason = f"{lane.key[0]} could not start before the deadline"
        return RefuseRows(_slices(runs), lane.key[0], now_s if finish_s is None else finish_s, reason)

    def _too_early_s(self, now_s: float, worker: Runner, full: bool, lead_s: float) -> float:
        """When a batch may be sent: a busy worker gets one that is not full only just before it is free."""
        if full or worker.is_idle:
            return now_s
        return worker.free_at_s(now_s) - lead_s


def _interactive(riders: Riders) -> int:
    return sum(run.rows for _, runs in riders for run in runs if run.row_class == "interactive")


def _ended_late(lane: Lane, refused: Sequence[RowRun]) -> None:
    rows = sum(run.rows for run in refused if run.row_class == "interactive")
    lane.ended(rows, rows)


def _slices(runs: Sequence[RowRun]) -> tuple[Slice, ...]:
    return tuple(Slice(run.request_id, run.offset, run.rows) for run in runs)
