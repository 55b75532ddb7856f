"""One pool of rows for a function of several members: which rows a free worker runs next, on which member.

A row is bound to a member only when a worker is free, so the plan may change while it waits. Which members a
row wants is the selection policy's (server/ensemble); how many rows a batch takes is the batching policy's,
`goodput` by default. At its goal a row is answered from what is known of it; a member that is still at it is
dropped. Where nobody answered, it is refused. Pure: no I/O, no clock.

    set_worker                   who holds which members
    submit                       rows arrive
    next_action                  RunOn | AnswerRows | RefuseRow | Sleep, for a pool that has its workers alone
    tell, offer, send            for one that shares them: what was decided of rows; what a worker could run
                                 next; and that it does
    finished, drop               a batch came back, or never will
    follow                       other plans from now on

Which rows a worker takes: those whose plan asks for a member that it holds; fresh ones that are too late for
the members they ask, but not for this one; else, of several workers, fresh ones that it would finish sooner;
else up to 32 that would gain by it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from server.ensemble.evidence import EvidenceStates
from server.ensemble.selection import Ensemble, LoadView, RowEvidence, SelectionPolicy
from server.scheduling.policies.by_name import policy_named
from server.scheduling.policy import BatchOutcome, Dispatch, FunctionView, MemberView, Refuse, RowRun, Wait
from server.scheduling.row_buckets import PooledRow, RowBuckets, order_of

__all__ = ["AnswerRows", "MemberPool", "Offer", "RefuseRow", "RunOn", "Sleep"]

_FILL_ROWS = 32
_FILL_GAIN = 1e-3
_IN_VIEW = 6  # batches of waiting rows that a decision looks at
_SILENCE_S = 1.0  # nothing ran for so long that what l̂ says may be stale: worth a try, whatever it says
_SHORTEST_WAIT_S = 1e-4  # a batching policy that waits for a time gone by must not spin the shell


@dataclass(frozen=True, slots=True)
class RunOn:
    """Run these rows on a member, on that worker; report back with `finished`."""

    batch_id: int
    worker: str
    member: int
    rows: tuple[int, ...]
    predicted_s: float


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """Answer each row from the members that have answered it: (row, subset), the subset never empty."""

    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RefuseRow:
    """Nobody can answer the row by its goal."""

    row: int


@dataclass(frozen=True, slots=True)
class Sleep:
    """Nothing to do before `until_s`, unless something happens."""

    until_s: float


@dataclass(slots=True, eq=False)
class Offer:
    """Rows that a free worker could run next on a member."""

    member: int
    rows: list[PooledRow]
    takes_s: float
    batching: dict[str, Any] | None = None  # the batching policy's state, once it is sent

    @property
    def due_s(self) -> float:
        """The soonest goal of its rows."""
        return min(row.run.due_s for row in self.rows)

    @property
    def gain(self) -> float:
        """How many more of its rows will be right for it, in expectation."""
        return sum(row.choice.worth[self.member] if row.choice.worth else 0.0 for row in self.rows)

    @property
    def density(self) -> float:
        """What it brings per second; a row that nobody has answered counts for one more."""
        return (self.gain + sum(not row.evidence.subset for row in self.rows)) / self.takes_s


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    members: tuple[int, ...]
    cheapest: int  # of them
    free_at_s: Callable[[float], float] | None  # now → when it can start a batch, where others know that
    end_s: float = -math.inf  # when what it runs of this pool is predicted to end
    batches: set[int] = field(default_factory=set)
    asleep_s: float = -math.inf  # until when it has nothing to do, if nothing happens

    def starts_s(self, now_s: float) -> float:
        """When it can start a batch; never in the past."""
        return max(now_s, self.end_s) if self.free_at_s is None else max(now_s, self.free_at_s(now_s))


@dataclass(slots=True, eq=False)
class _Batch:
    worker: _Worker
    member: int
    rows: list[PooledRow]
    sent_s: float
    predicted_s: float


@dataclass(slots=True)
class _Member:
    latency_s: Callable[[int], float]  # l̂(b)
    holders: list[_Worker] = field(default_factory=list)
    batching: dict[str, Any] = field(default_factory=dict)  # the batching policy's state


class MemberPool:
    """Rows of one function. `latencies`: l̂(b) of each member, in the ensemble's order.

    refuses: whether rows are answered, or refused, at their goal; otherwise they are answered late
    state: the selection policy's.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        policy: SelectionPolicy,
        latencies: Sequence[Callable[[int], float]],
        *,
        slo_s: float,
        max_batch: int,
        batch_sizes: tuple[int, ...] = (),
        batching: str = "goodput",
        refuses: bool = True,
    ) -> None:
        self.state = policy.init()
        self._ensemble = ensemble
        self._policy = policy
        self._slo_s, self._max_batch = slo_s, max_batch
        self._batch_sizes = batch_sizes or (max_batch,)
        self._batching = policy_named(batching)
        self._members = [_Member(each, batching=self._batching.initial({})) for each in latencies]
        self._workers: dict[str, _Worker] = {}
        self._refuses = refuses
        self._rows: dict[int, PooledRow] = {}
        self._waiting = RowBuckets(ensemble.evidence.states)
        self._dues: list[tuple[float, int]] = []
        self._arrivals: deque[float] = deque()  # within one goal
        self._answers: list[tuple[int, int]] = []
        self._refusals: list[int] = []
        self._batches: dict[int, _Batch] = {}
        self._next_batch_id = 1
        self._sent_s = -math.inf  # when a batch last left
        self._stirred = True  # something happened since the workers were last asked

    @property
    def waiting(self) -> int:
        """Rows that have neither been answered nor refused."""
        return len(self._rows)

    @property
    def evidence(self) -> EvidenceStates:
        """The states of evidence by which rows are told apart."""
        return self._ensemble.evidence

    @property
    def is_asking(self) -> bool:
        """Whether a row waits for a worker, and not only for a batch under way."""
        return bool(self._waiting.items())

    @property
    def next_due_s(self) -> float:
        """When a row may have to be answered next, whatever is known of it; inf if none has."""
        return self._dues[0][0] if self._dues else math.inf

    def set_worker(
        self,
        now_s: float,
        name: str,
        members: Collection[int],
        free_at_s: Callable[[float], float] | None = None,
    ) -> None:
        """Add or update a worker, which holds these members; with none it is gone.

        free_at_s: now → when it can start a batch, where it runs others than this pool's. What one that is
        gone was running is lost: its rows are asked anew, of others.
        """
        old = self._workers.pop(name, None)
        if members:
            worker = _Worker(name, tuple(sorted(members)), self._cheapest(members), free_at_s)
            if old is not None:
                worker.end_s, worker.batches = old.end_s, old.batches
                for batch_id in old.batches:
                    self._batches[batch_id].worker = worker
            self._workers[name] = worker
        for number, member in enumerate(self._members):
            member.holders = [each for each in self._workers.values() if number in each.members]
        if old is not None and not members:
            for batch_id in sorted(old.batches):
                batch = self._batches.pop(batch_id)
                for row in batch.rows:
                    row.evidence.under_way &= ~(1 << batch.member)
                    if row.number in self._rows and not row.waits:
                        self._decide(row)
        self._decide_anew()

    def follow(self, ensemble: Ensemble, policy: SelectionPolicy) -> None:
        """Another policy from now on, or plans by other costs. The members and the evidence stay.

        Raises ValueError for other ones.
        """
        names = [each.name for each in ensemble.members]
        if names != [each.name for each in self._ensemble.members] or (
            ensemble.evidence is not self._ensemble.evidence
        ):
            raise ValueError(f"a pool's members and evidence stay, and {names} are others")
        self._ensemble, self._policy = ensemble, policy
        self.state = policy.init()
        for worker in self._workers.values():
            worker.cheapest = self._cheapest(worker.members)
        self._decide_anew()

    def submit(
        self, now_s: float, number: int, due_s: float, draw: float = 0.0, run: RowRun | None = None
    ) -> None:
        """A row arrives. `draw`: a number in [0, 1) of its own. run: the row as others know it.

        One whose deadline is later than `due_s` is not refused while a member is at it, but answered late.
        """
        evidence = RowEvidence(draw=draw)
        run = run or RowRun(number, 1, now_s, deadline_s=due_s, due_s=due_s)
        row = PooledRow(number, run, evidence, self._policy.select(self.state, evidence))
        self._rows[number] = row
        self._waiting.put(row)
        if self._refuses:
            heappush(self._dues, (due_s, number))
        self._arrivals.append(now_s)
        self._stirred = True

    def asked_of(self, evidence: RowEvidence) -> tuple[int, ...]:
        """The members that a row would be asked of now, the best first."""
        return self._policy.select(self.state, evidence).ask

    def cancel(self, *numbers: int) -> None:
        """Forget rows whose client has gone."""
        gone = [self._rows.pop(number) for number in numbers if number in self._rows]
        self._waiting.take_all([row for row in gone if row.waits])

    def finished(
        self,
        now_s: float,
        batch_id: int,
        confidence: Callable[[int, int], float],
        took_s: float | None = None,
    ) -> None:
        """A batch is back. `confidence(row, subset)`: the combined top probability of its answers so far.

        Nothing happens for a batch that was lost with its worker.
        """
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return
        worker = batch.worker
        worker.batches.discard(batch_id)
        worker.end_s = now_s
        member = self._members[batch.member]
        member.batching = self._batching.observe(
            member.batching,
            BatchOutcome(
                now_s=now_s,
                rows=len(batch.rows),
                members=(self._ensemble.members[batch.member].name,),
                latency_s=now_s - batch.sent_s if took_s is None else took_s,
                slo_s=self._slo_s,
                predicted_s=batch.predicted_s,
            ),
        )
        mine = 1 << batch.member
        evidence_of = self._ensemble.evidence
        for row in batch.rows:
            if row.number not in self._rows:
                continue  # answered at its goal, without this member
            if row.waits:
                self._waiting.take(row)
            evidence = row.evidence
            evidence.under_way &= ~mine
            evidence.subset |= mine
            evidence.state = evidence_of.state_of(evidence.subset, confidence(row.number, evidence.subset))
            self._decide(row)
        self._stirred = True

    def drop(self, now_s: float, batch_id: int) -> list[int]:
        """A batch has failed: it is forgotten, and so are its rows, which others answer: those still here."""
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return []
        batch.worker.batches.discard(batch_id)
        batch.worker.end_s = now_s
        gone = [row.number for row in batch.rows if row.number in self._rows]
        self.cancel(*gone)
        self._stirred = True
        return gone

    def next_action(self, now_s: float) -> RunOn | AnswerRows | RefuseRow | Sleep:
        """What to do now; to be asked again until it is `Sleep`."""
        if (told := self.tell(now_s)) is not None:
            return told
        wake_s = self.next_due_s
        idle = [worker for worker in self._workers.values() if not worker.batches]
        if idle and self._rows:
            if self._stirred:
                self._steer(now_s)
                for worker in idle:
                    worker.asleep_s = -math.inf
            for worker in idle:
                if worker.asleep_s <= now_s:
                    offer = self._offer(now_s, worker)
                    if isinstance(offer, Offer):
                        return self.send(now_s, worker.name, offer)
                    if (told := self._told()) is not None:
                        return told
                    worker.asleep_s = offer
                wake_s = min(wake_s, worker.asleep_s)
        self._stirred = False
        return Sleep(wake_s)

    def offer(self, now_s: float, worker: str) -> Offer | float:
        """What a worker could run next, or until when it has nothing to do here, if nothing happens.

        Rows that this shows to be lost are told by `tell`. Raises KeyError for an unknown worker.
        """
        known = self._workers[worker]
        if self._rows and self._stirred:
            self._steer(now_s)
            self._stirred = False
            for each in self._workers.values():
                each.asleep_s = -math.inf
        if known.asleep_s > now_s:
            return known.asleep_s
        found = self._offer(now_s, known)
        # One that is still at something is asked again when it is free: more rows fit then, or others.
        if not isinstance(found, Offer) and known.starts_s(now_s) <= now_s and not self._has_told:
            known.asleep_s = found
        return found

    def tell(self, now_s: float) -> AnswerRows | RefuseRow | None:
        """What has been decided of rows, or was due by now; to be asked again until it is None."""
        self._end_due(now_s)
        return self._told()

    def send(self, now_s: float, worker: str, offer: Offer, batch_id: int | None = None) -> RunOn:
        """The worker runs what was offered to it, just now: nothing may have happened to the pool since.

        batch_id: where others number the batches.
        """
        member = self._members[offer.member]
        if offer.batching is not None:
            member.batching = offer.batching
        mine = 1 << offer.member
        self._waiting.take_all(offer.rows)
        for row in offer.rows:
            row.evidence.under_way |= mine
            if row.choice.beside:
                self._decide(row)
        if batch_id is None:
            batch_id = self._next_batch_id
            self._next_batch_id += 1
        self._sent_s = now_s
        state = self._workers[worker]
        state.end_s = state.starts_s(now_s) + offer.takes_s
        state.batches.add(batch_id)
        predicted_s = member.latency_s(len(offer.rows))
        self._batches[batch_id] = _Batch(state, offer.member, offer.rows, now_s, predicted_s)
        self._stirred = True
        return RunOn(batch_id, worker, offer.member, tuple(row.number for row in offer.rows), predicted_s)

    def _told(self) -> AnswerRows | RefuseRow | None:
        """What has been decided of rows, and not yet been told."""
        if self._answers:
            told, self._answers = tuple(self._answers), []
            return AnswerRows(told)
        return RefuseRow(self._refusals.pop()) if self._refusals else None

    @property
    def _has_told(self) -> bool:
        return bool(self._answers or self._refusals)

    def _cheapest(self, members: Collection[int]) -> int:
        return min(members, key=lambda member: self._ensemble.members[member].cost_s)

    def _end_due(self, now_s: float) -> None:
        due: list[PooledRow] = []
        while self._dues and self._dues[0][0] <= now_s:
            row = self._rows.get(heappop(self._dues)[1])
            if row is not None:
                due.append(row)
        if due:
            self._end_all(due)

    def _end_all(self, rows: Sequence[PooledRow]) -> None:
        """As `_end`, of rows of which there may be thousands."""
        self._waiting.take_all([row for row in rows if row.waits])
        for row in rows:
            self._end(row)

    def _end(self, row: PooledRow) -> None:
        """Answer the row from what is known, or refuse it."""
        if row.waits:
            self._waiting.take(row)
        if row.evidence.under_way and not row.evidence.subset and row.run.deadline_s > row.run.due_s:
            row.is_late = True  # what comes first is its answer
            return
        del self._rows[row.number]
        if row.evidence.subset:
            self._answers.append((row.number, row.evidence.subset))
        else:
            self._refusals.append(row.number)

    def _steer(self, now_s: float) -> None:
        """Fit the policy's state to the load; where that changes it, every waiting row is decided anew."""
        while self._arrivals and self._arrivals[0] < now_s - self._slo_s:
            self._arrivals.popleft()
        workers, busy_s = self._busy_s(now_s)
        load = LoadView(
            now_s=now_s,
            slo_s=self._slo_s,
            rate=len(self._arrivals) / self._slo_s,
            waiting=np.array(self._waiting.counts, np.float64),
            busy_s=busy_s,
            workers=workers,
            slack_s=next(iter(self._rows.values())).run.due_s - now_s,
        )
        state = self._policy.steer(self.state, load)
        if state is not self.state:
            self.state = state
            self._decide_anew()

    def _busy_s(self, now_s: float) -> tuple[list[float], list[float]]:
        """By device of the ensemble: workers that hold its members, and seconds that they are at it still.

        One that holds members of several counts for each in part.
        """
        workers, busy_s = [0.0] * self._ensemble.devices, [0.0] * self._ensemble.devices
        for worker in self._workers.values():
            devices = {self._ensemble.members[member].device for member in worker.members}
            left_s = worker.starts_s(now_s) - now_s
            for device in devices:
                workers[device] += 1 / len(devices)
                busy_s[device] += left_s / len(devices)
        return workers, busy_s

    def _decide_anew(self) -> None:
        for row in self._waiting.drain():
            self._decide(row)
        self._stirred = True

    def _decide(self, row: PooledRow) -> None:
        """Ask the policy what the row needs next; what nobody holds is not waited for."""
        if row.is_late:
            self._end(row)
            return
        choice = row.choice = self._policy.select(self.state, row.evidence)
        if not row.evidence.subset:
            if choice.ask:
                self._waiting.put(row)
        elif choice.ask and any(self._members[member].holders for member in choice.ask):
            self._waiting.put(row)
        elif not choice.waits and not row.evidence.under_way:
            self._answers.append((row.number, row.evidence.subset))
            del self._rows[row.number]

    def _offer(self, now_s: float, worker: _Worker) -> Offer | float:
        offers: list[Offer] = []
        until_s = math.inf
        # Else a wrong l̂ could have all rows refused, and never learn that it is wrong.
        may_try = worker.free_at_s is not None and now_s - self._sent_s > _SILENCE_S
        tried: Offer | None = None
        for member in worker.members:
            rows = self._asking(now_s, member, strays=member == worker.cheapest)
            while rows:
                found = self._cut(now_s, worker, member, rows)
                if isinstance(found, Offer):
                    offers.append(found)
                    break
                if isinstance(found, float):
                    until_s = min(until_s, found)
                    break
                lost, rows = rows[:found], rows[found:]
                if may_try and worker.starts_s(now_s) <= now_s:
                    tried = Offer(member, lost[:1], self._members[member].latency_s(1))
                    break
                self._end_all([row for row in lost if self._is_lost(now_s, row, member)])
        if not offers and tried is not None:
            return tried
        if not offers and len(self._workers) > 1 and until_s == math.inf:
            offers = self._stolen(now_s, worker) or self._filling(now_s, worker)
        return self._chosen(worker.starts_s(now_s), offers) if offers else until_s

    def _cut(self, now_s: float, worker: _Worker, member: int, rows: list[PooledRow]) -> Offer | float | int:
        """A batch of these rows, until when to wait for it, or how many of the first are lost to it."""
        known = self._members[member]
        about = self._ensemble.members[member]
        view = FunctionView(
            now_s=now_s,
            slo_s=self._slo_s,
            max_batch=self._max_batch,
            batch_sizes=self._batch_sizes,
            queue=[row.run for row in rows],
            queued_rows=len(rows),
            members=(MemberView(about.name, about.accuracy, known.latency_s, worker.starts_s(now_s)),),
        )
        state, decision = self._batching.decide(known.batching, view)
        if isinstance(decision, Dispatch):
            taken = rows[decision.skip : decision.skip + decision.rows]
            takes_s = decision.expected_s or known.latency_s(len(taken))
            return Offer(member, taken, takes_s, state)
        known.batching = state
        if isinstance(decision, Wait):
            return max(decision.until_s, now_s + _SHORTEST_WAIT_S)
        assert isinstance(decision, Refuse)
        return min(decision.rows, len(rows))

    def _is_lost(self, now_s: float, row: PooledRow, member: int) -> bool:
        """Whether nobody else can answer the row in time, which this member cannot."""
        if not self._refuses or row.evidence.under_way:
            return False
        able = row.choice.ask if row.choice.only or row.evidence.subset else range(len(self._members))
        return not any(each != member and self._fits(now_s, each, row) for each in able)

    def _asking(self, now_s: float, member: int, *, strays: bool) -> list[PooledRow]:
        """Waiting rows that want the member, the soonest goal first; with `strays` those too."""
        most = _IN_VIEW * self._max_batch
        lists: list[list[PooledRow]] = []
        for choice, rows in self._waiting.items():
            if member in choice.ask:
                lists.append(rows[:most])
            elif strays and self._refuses and not choice.only and not rows[0].evidence.subset:
                lists.append(self._strays(now_s, member, rows[:most]))
        if len(lists) == 1:
            return lists[0]
        merged = [row for rows in lists for row in rows]
        merged.sort(key=order_of)
        return merged

    def _strays(self, now_s: float, member: int, rows: list[PooledRow]) -> list[PooledRow]:
        """Of these fresh rows those that are too late for the members that they ask, but not for this one."""
        strays = []
        for row in rows:
            if any(self._fits(now_s, asked, row) for asked in row.choice.ask):
                break  # those behind have more time
            if not row.evidence.subset and self._fits(now_s, member, row):
                strays.append(row)
        return strays

    def _fits(self, now_s: float, member: int, row: PooledRow) -> bool:
        """Whether the member could still answer the row, alone, after what its worker is at."""
        return self._finish_s(now_s, member, 1) <= row.run.due_s

    def _finish_s(self, now_s: float, member: int, rows: int) -> float:
        """When the member could have answered so many rows; inf if nobody holds it."""
        known = self._members[member]
        starts_s = min((worker.starts_s(now_s) for worker in known.holders), default=math.inf)
        return starts_s + known.latency_s(rows)

    def _stolen(self, now_s: float, worker: _Worker) -> list[Offer]:
        """Fresh rows that ask for others, and that this worker would finish sooner."""
        found: list[Offer] = []
        for choice, rows in self._waiting.items():
            fresh = [row for row in rows[: self._max_batch] if not row.evidence.subset]
            if not fresh or choice.beside or choice.only:
                continue
            theirs_s = min(self._finish_s(now_s, asked, len(fresh)) for asked in choice.ask)
            for member in worker.members:
                cut = self._cut(now_s, worker, member, fresh)
                if isinstance(cut, Offer) and worker.starts_s(now_s) + cut.takes_s < theirs_s:
                    found.append(cut)
        return found

    def _filling(self, now_s: float, worker: _Worker) -> list[Offer]:
        """Rows that wait for others, and would gain by a member of this idle worker."""
        found: list[Offer] = []
        for member in worker.members:
            mine = 1 << member
            rows = [
                row
                for choice, bucket in self._waiting.items()
                if choice.worth and not choice.beside and choice.worth[member] > _FILL_GAIN
                for row in bucket[:_FILL_ROWS]
                if not (row.evidence.subset | row.evidence.under_way) & mine
            ]
            rows.sort(key=order_of)
            cut = self._cut(now_s, worker, member, rows[:_FILL_ROWS]) if rows else 0
            if isinstance(cut, Offer):
                found.append(cut)
        return found

    def _chosen(self, start_s: float, offers: list[Offer]) -> Offer:
        """The fullest batch, if all others can still start after it; else by Moore and Hodgson's rule."""
        if len(offers) == 1:
            return offers[0]
        fullest = max(offers, key=self._fullness)
        after_s = start_s + fullest.takes_s
        if all(after_s + each.takes_s <= each.due_s for each in offers if each is not fullest):
            return fullest
        kept: list[Offer] = []
        for offer in sorted(offers, key=lambda each: each.due_s):
            kept.append(offer)
            if start_s + sum(each.takes_s for each in kept) > offer.due_s:
                kept.remove(min(kept, key=lambda each: each.density))
        return kept[0] if kept else max(offers, key=lambda each: each.density)

    def _fullness(self, offer: Offer) -> float:
        whole_s = self._members[offer.member].latency_s(self._max_batch)
        return len(offer.rows) * whole_s / offer.takes_s
