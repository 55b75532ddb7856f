"""A lane whose interactive rows wait in a pool: each for the members that a plan asks next, and not for all.

Rows for which the members are named, and those that come before there is a plan wait as in any lane and go to
all members at once, so that what they share is done once. So do rows of the bulk class, where that is cheaper
than to ask one member after the other (`cascade`), also within a batch (`planned`), and rows that come when
there is nothing to choose: time is worth nothing, a worker is idle, and all members would take half of its
time at most. Knows nothing of other lanes, nor of how plans are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from server.ensemble.cascade import Cascade, PlanOnWorker, cascade_of, plan_on_worker
from server.ensemble.evidence import members_of
from server.ensemble.one_by_one import may_ask_all
from server.ensemble.policies.proxied import Proxied
from server.ensemble.selection import GOLDEN, Choice, Ensemble, RowEvidence, SelectionPolicy
from server.scheduling.lanes import Lane, LaneKey, run_of
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import RowClass, RowRun
from server.scheduling.pool import AnswerRows, MemberPool, Offer, RunOn
from server.scheduling.sharing import Pace
from server.scheduling.terms import BatchTimes, FunctionSpec, Slice, Submission
from server.scheduling.turns import Turns
from server.scheduling.worker_state import WorkerState

__all__ = ["PooledLane"]

_FULLNESS_GAIN = 0.1  # of what a batch says, once there are as many
_SHARED_GAIN = 0.1  # of what a batch says
_MOVED = 0.1  # of what is shared: then how bulk rows go is decided anew
_FADE_S = 1.0  # by which their pace is known


class PooledLane(Lane):
    """Of all members of a function. It is an ordinary lane until it is told what to `follow`."""

    def __init__(
        self,
        now_s: float,
        key: LaneKey,
        spec: FunctionSpec,
        policy: GuardedPolicy,
        turns: Mapping[RowClass, Turns] | None = None,
    ) -> None:
        super().__init__(now_s, key, spec, policy, turns)
        self._turns = (turns or {}).get("interactive")
        self.pool: MemberPool | None = None
        self.cascade: Cascade | None = None  # of bulk rows: the last one
        self.planned: PlanOnWorker | None = None  # of bulk rows, where a worker holds all members
        self.is_cascading = False  # whether bulk rows that come now follow it; else they go to all members
        self._followed: tuple[Ensemble, SelectionPolicy] | None = None
        self._shared_s: dict[str, float] = {}  # of a row, by member: what others would need too
        self._cascaded_by_s = 0.0  # the least of it, when it was last decided
        self._kinds: dict[int, str] = {}  # of the device that holds a member; by its l̂ batches are cut
        self._names: dict[int, tuple[str, ...]] = {}  # by subset
        self._rows_come = 0  # to the pool, ever
        self._costs_s: list[float] = []  # of a row on each member, as plans reckon it
        self.fullness = 1.0  # what batches were to take by that, of what they take: less where they are small
        self._fullness_told = 0  # batches
        self._holders: dict[str, WorkerState] = {}  # of all members
        self._left_out: frozenset[str] = frozenset()  # members that are broken: asked only by name
        self._pooled_pace = Pace()  # of rows for the pool, whether they wait there or go to all at once

    @property
    def rows(self) -> int:
        """Rows waiting; those of the pool until they are answered."""
        return super().rows + (0 if self.pool is None else self.pool.rows)

    @property
    def nbytes(self) -> float:
        """Bytes waiting."""
        return super().nbytes + (0.0 if self.pool is None else self.pool.nbytes)

    def is_silent(self, now_s: float) -> bool:
        """Always, as far as it has a pool: that refuses by itself what no member can answer in time."""
        return self.pool is not None or super().is_silent(now_s)

    def holds(self, request_id: int) -> bool:
        """Whether rows of the request wait here."""
        return (self.pool is not None and self.pool.holds(request_id)) or super().holds(request_id)

    def add(self, now_s: float, submission: Submission) -> None:
        """Queue a submission."""
        if self.pool is None or submission.row_class == "bulk" or submission.members is not None:
            super().add(now_s, submission)
            return
        self._pooled_pace.came(now_s, submission.rows, _FADE_S)
        due_s = self.goal_s(now_s, submission)
        asks_little = submission.min_accuracy is None
        if asks_little and self._is_at_rest(now_s, self.pool, submission.rows, due_s - now_s):
            super().add(now_s, submission)
            return
        self.pool.submit(now_s, run_of(now_s, submission, due_s), self._rows_come * GOLDEN % 1)
        self._rows_come += submission.rows

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out a request's rows; also those under way, of which nobody will be told."""
        pooled = [] if self.pool is None else self.pool.cancel(request_id)
        return [*super().remove(request_id), *pooled]

    def remove_part(self, part: Slice) -> list[RowRun]:
        """Take out those of these rows of a request that wait here, or are under way."""
        pooled = [] if self.pool is None else self.pool.cancel_part(part)
        return [*super().remove_part(part), *pooled]

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        return [*super().clear(), *([] if self.pool is None else self.pool.clear())]

    def follow(
        self, now_s: float, ensemble: Ensemble, policy: SelectionPolicy, workers: Iterable[WorkerState]
    ) -> None:
        """Have rows asked of the members that the policy says. Raises ValueError for other members."""
        if [member.name for member in ensemble.members] != list(self.names):
            raise ValueError(f"a plan for {self.key[0]} is of other members")
        self._costs_s = [member.cost_s for member in ensemble.members]
        self._followed = ensemble, policy
        self._cascade_anew()
        left_out = frozenset(member.name for member in ensemble.members if member.is_broken)
        if len(left_out) == len(self.names):
            left_out = frozenset()  # there is nobody else
        is_other = left_out != self._left_out
        self._left_out = left_out
        if self.pool is not None:
            self.pool.follow(ensemble, policy)
            for worker in workers if is_other else ():
                self.set_worker(now_s, worker)
            return
        spec = self.spec
        self.pool = MemberPool(
            ensemble,
            policy,
            [self._latency_of(number) for number in range(len(self.names))],
            slo_s=spec.slo_s,
            max_batch=spec.max_batch,
            batch_sizes=spec.batch_sizes,
            turns=self._turns,
        )
        for worker in workers:
            self.set_worker(now_s, worker)

    def set_worker(self, now_s: float, worker: WorkerState) -> None:
        """Tell the pool what the worker holds. Of one that is gone the batches are to be dropped before."""
        if self.pool is None:
            return
        held = worker.view.resident if worker.view.alive else frozenset()
        members = [
            number for number, name in enumerate(self.names) if name in held and name not in self._left_out
        ]
        self._kinds.update(dict.fromkeys(members, worker.view.device))
        self._holders.pop(worker.name, None)
        if len(members) == len(self.names):
            self._holders[worker.name] = worker
        self.pool.set_worker(now_s, worker.name, members, worker.starts_at_s, lives=worker.view.alive)

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of the workers that hold all members."""
        return frozenset(worker.view.device for worker in self._holders.values())

    def is_planned(self, submission: Submission) -> bool:
        """Whether rows go to a worker that asks its members by a plan."""
        if self.planned is None or not self._holders:
            return False
        if submission.row_class != "bulk" or submission.members is not None:
            return False
        return submission.min_accuracy is None or self.planned.accuracy >= submission.min_accuracy

    @property
    def promised(self) -> tuple[str, ...] | None:
        """The members whose answer is what its rows were promised; None where nothing was."""
        policy = None if self._followed is None else self._followed[1]
        if not isinstance(policy, Proxied):
            return None
        return tuple(self.names[member] for member in policy.everyone.ask)

    def asked_first(self, submission: Submission) -> Choice | None:
        """Whom bulk rows are asked of first, of one member after the other; None for rows that are not."""
        if not self.is_cascading or self.cascade is None:
            return None
        if submission.row_class != "bulk" or submission.members is not None:
            return None
        return self.cascade.first_of(submission.min_accuracy)

    def first_member(self) -> str:
        """Who would answer a row that came now, or would be asked first."""
        assert self.pool is not None
        ask = self.pool.choice_of(RowEvidence()).ask
        return self.names[ask[0] if ask else 0]

    def least_row_s(self, worker: WorkerState) -> float:
        """What a row takes there at the least, in a full batch; of a pool, on the cheapest member."""
        if self.pool is None:
            return super().least_row_s(worker)
        most = self.spec.max_batch
        return min(latency(most) for latency in self.latencies(worker.view.device, worker.name)) / most

    def right_of(self, offer: Offer) -> float:
        """How many more answers are right for what is offered, in expectation."""
        assert self.pool is not None
        evidence, member, right = self.pool.evidence, offer.member, 0.0
        for group, rows in offer.parts:
            worth = group.bucket.choice.worth if group.bucket is not None else ()
            right += rows * (
                worth[member] if worth else evidence.gain(group.subset | group.under_way, member)
            )
        return right

    def tell(self, now_s: float) -> tuple[list[tuple[Slice, tuple[str, ...]]], list[RowRun]]:
        """The rows to be answered now, with the members that have answered each; and those that are lost.

        They have left the pool. Lost: nobody answers them by their goal.
        """
        answered: list[tuple[Slice, tuple[str, ...]]] = []
        lost: list[RowRun] = []
        assert self.pool is not None
        while (told := self.pool.tell(now_s)) is not None:
            if isinstance(told, AnswerRows):
                answered += [(part, self.names_of(subset)) for part, subset in told.parts]
            else:
                lost += told.runs
        return answered, lost

    def take_cut_short(self) -> tuple[int, int]:
        """Of the rows that were told: those answered from a part of their members; members still at them."""
        return (0, 0) if self.pool is None else self.pool.take_cut_short()

    def send(self, now_s: float, worker: str, offer: Offer, batch_id: int) -> RunOn:
        """The worker runs what was offered to it."""
        assert self.pool is not None
        self._learn_fullness(now_s, offer)
        return self.pool.send(now_s, worker, offer, batch_id)

    def _learn_fullness(self, now_s: float, offer: Offer) -> None:
        """A batch tells how much less is done in a second than plans reckon: the more, the less time it has.

        One that is small though its rows could wait shows that few came, and not that no more would fit in.
        """
        full = min(1.0, self._costs_s[offer.member] * offer.rows / offer.takes_s)
        spare_s = offer.due_s - now_s - offer.takes_s
        pressed = 1 - min(1.0, max(0.0, spare_s / self.spec.slo_s))
        # The mean of the first ones: of many functions that share a worker each has few batches a second.
        self._fullness_told += 1
        gain = max(_FULLNESS_GAIN, 1 / self._fullness_told)
        self.fullness += gain * (1 - pressed * (1 - full) - self.fullness)

    def finished(self, now_s: float, batch_id: int, sure: Sequence[float], took_s: float) -> None:
        """A batch is back. sure: of each of its rows, how probable its answer is by all that is known."""
        if self.pool is not None:
            self.pool.finished(now_s, batch_id, sure, took_s)

    def drop(self, now_s: float, batch_id: int) -> list[RowRun]:
        """A batch has failed: its rows have left, as far as they were here still."""
        return [] if self.pool is None else self.pool.drop(now_s, batch_id)

    def learn_shared(self, rows: int, members: Sequence[str], worked: BatchTimes) -> None:
        """Learn from a batch, of whichever members, what of a row's work they would do but once together."""
        for name, time in zip(members, worked.members, strict=False):
            row_s = time.shared_s / rows
            before_s = self._shared_s.setdefault(name, row_s)
            self._shared_s[name] = before_s + _SHARED_GAIN * (row_s - before_s)
        if abs(self._least_shared_s - self._cascaded_by_s) > _MOVED * self._cascaded_by_s:
            self._cascade_anew()

    @property
    def _least_shared_s(self) -> float:
        return min(self._shared_s.values(), default=0.0)

    def _cascade_anew(self) -> None:
        if self._followed is not None:
            self._cascaded_by_s = self._least_shared_s
            self.planned = plan_on_worker(*self._followed, self._cascaded_by_s)
            cascade = cascade_of(*self._followed, self._cascaded_by_s)
            self.is_cascading = cascade is not None
            self.cascade = cascade or self.cascade  # of rows that it has begun with

    def names_of(self, subset: int) -> tuple[str, ...]:
        """Its members, in their order."""
        names = self._names.get(subset)
        if names is None:
            names = self._names[subset] = tuple(self.names[member] for member in members_of(subset))
        return names

    def _is_at_rest(self, now_s: float, pool: MemberPool, rows: int, goal_s: float) -> bool:
        """Whether rows that come now may be asked of all members at once."""
        if pool.rows or self.interactive.rows or rows > self.spec.max_batch:
            return False
        idle = next((each for each in self._holders.values() if each.is_idle and each.has_room(now_s)), None)
        if idle is None or not pool.choice_of(RowEvidence()).is_free:
            return False
        all_s = self.takes_s(rows, idle)
        rate = self._pooled_pace.rate(now_s, _FADE_S)
        return may_ask_all(all_s, min(goal_s, len(self._holders) * rows / rate))

    def _latency_of(self, number: int) -> Callable[[int], float]:
        return lambda rows: self.latencies(self._kinds.get(number, ""))[number](rows)
