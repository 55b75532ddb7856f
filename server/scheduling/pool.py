"""One pool of rows for a function of several members: which rows a free worker runs next, on which member.

A row is bound to a member only when a worker is free, so the plan may change while it waits. Which members a
row wants is the selection policy's (server/ensemble); how many rows a batch takes is the batching policy's,
`goodput` by default. At its goal a row is answered from what is known of it; a member that is still at it is
dropped. Where nobody answered, it is given up; so it is where what is known is not enough, by a policy that
keeps its word. Pure: no I/O, no clock.

    set_worker                   who holds which members
    submit                       rows arrive
    next_action                  RunOn | AnswerRows | GiveUpRows | Sleep: for one that has its workers alone
    tell, offer, send            for one that shares them: what was decided of rows; what a worker could run
                                 next; and that it does
    finished, drop               a batch came back, or never will
    follow                       other plans from now on

Rows that are alike are one group (row_group.py) from when they come until they are answered: a batch cuts off
what it takes, and what it says parts them by how sure they are now. Those that wait stand in buckets by what
is known of them (row_buckets.py), so that another plan costs as much as there are buckets, not rows.
pool_offers.py says which rows a worker takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeVar

from server.ensemble.evidence import NOTHING, EvidenceStates, carried_over
from server.ensemble.gearing import FollowedPlans, accuracy_kept, followed_by, held_to
from server.ensemble.policies.base import heeds_load
from server.ensemble.selection import (
    Choice,
    Ensemble,
    LoadView,
    RowEvidence,
    SelectionPolicy,
    State,
    draws_lots,
    heeds_confidence,
    keeps_its_word,
    resumed,
)
from server.scheduling.policies.by_name import policy_named
from server.scheduling.policy import SILENCE_S, BatchOutcome, RowRun
from server.scheduling.pool_batches import PooledBatch
from server.scheduling.pool_offers import Offer, Offers
from server.scheduling.pool_terms import AnswerRows, GiveUpRows, RunOn, Sleep
from server.scheduling.pool_workers import PoolMember, PoolWorkers
from server.scheduling.row_buckets import RowBuckets
from server.scheduling.row_group import PooledRequest, RowGroup, in_one_piece, laid_out
from server.scheduling.terms import Slice
from server.scheduling.turns import Turns

__all__ = ["AnswerRows", "GiveUpRows", "MemberPool", "Offer", "RunOn", "Sleep"]

# Goals of requests that are gone are kept until there are so many more than of those that wait.
_STALE = 64
_Key = TypeVar("_Key")


class MemberPool:
    """Rows of one function. `latencies`: l̂(b) of each member, in the ensemble's order.

    refuses: whether rows are answered, or given up, at their goal; otherwise they are answered late
    turns: of the tenants whose rows come, with whom other functions share the workers
    state: the selection policy's · rows, nbytes: those that have neither been answered nor given up
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
        turns: Turns | None = None,
    ) -> None:
        self.state: State = {}
        self.rows = 0
        self.nbytes = 0.0
        self._ensemble = ensemble
        self._slo_s = slo_s
        self._batching = policy_named(batching)
        members = [PoolMember(each, self._batching.initial({})) for each in latencies]
        self._workers = PoolWorkers(ensemble, members)
        self._refuses = refuses
        self._requests: dict[int, list[PooledRequest]] = {}
        self._waiting = RowBuckets(ensemble.evidence.states)
        self._offers = Offers(
            self._waiting,
            self._workers,
            self._batching,
            self._end_all,
            slo_s=slo_s,
            max_batch=max_batch,
            batch_sizes=batch_sizes or (max_batch,),
            refuses=refuses,
            turns=Turns() if turns is None else turns,
        )
        self._dues: list[tuple[float, int, PooledRequest]] = []  # heap; the request may be gone
        self._requests_come = 0
        self._arrivals: deque[tuple[float, int]] = deque()  # within one goal: when, and how many rows
        self._arrived = 0  # how many rows those are
        self._answers: list[tuple[PooledRequest, Sequence[int], int]] = []
        self._given_up: list[RowRun] = []
        self._cut_short = (0, 0)
        self._batches: dict[int, PooledBatch] = {}
        self._next_batch_id = 1
        self._sent_s = -math.inf  # when a batch last left
        self._stirred = True  # something happened since the workers were last asked
        self._adopt(policy, policy.init())

    @property
    def policy(self) -> SelectionPolicy:
        """Which it follows."""
        return self._policy

    @property
    def evidence(self) -> EvidenceStates:
        """The states of evidence by which rows are told apart."""
        return self._ensemble.evidence

    @property
    def followed(self) -> FollowedPlans | None:
        """The plans that rows follow now; None by a policy that has none."""
        return followed_by(self._policy, self.state)

    @property
    def is_asking(self) -> bool:
        """Whether a row waits for a worker, and not only for a batch under way."""
        return bool(self._waiting)

    @property
    def next_due_s(self) -> float:
        """When a row may have to be answered next, whatever is known of it; inf if none has."""
        return self._dues[0][0] if self._dues else math.inf

    def holds(self, request_id: int) -> bool:
        """Whether rows of the request wait here."""
        return request_id in self._requests

    def is_held_by(self, worker: str) -> bool:
        """Whether the worker holds a member that may be asked."""
        return worker in self._workers.by_name

    def count_on(self, shares: Mapping[str, float]) -> None:
        """Of workers that other functions use too, how much of each is this one's; all of those not named."""
        self._workers.shares = shares

    def set_worker(
        self,
        now_s: float,
        name: str,
        members: Collection[int],
        free_at_s: Callable[[float], float] | None = None,
        *,
        lives: bool = False,
    ) -> None:
        """Add or update a worker, which holds these members; with none it is gone.

        free_at_s: now → when it can start a batch, where it runs others than this pool's. What one that is
        gone was running is lost: its rows are asked anew, of others. lives: it ends what it has, though it
        holds none of the members any more.
        """
        lost = self._workers.set(name, members, free_at_s, lives=lives)
        self._choices.clear()  # others may be held now
        for batch_id in sorted(lost):
            batch = self._batches.pop(batch_id)
            for group in batch.waiting():
                del group.places[batch_id]
                if group.bucket is not None:
                    self._waiting.take([group])
                group.under_way &= ~(1 << batch.member)
                for part in group.apart():
                    self._decide(part)
        self._decide_anew()

    def follow(self, ensemble: Ensemble, policy: SelectionPolicy) -> None:
        """Another policy from now on, or plans by other costs or by evidence that was counted anew.

        The members stay. Raises ValueError for other ones.
        """
        names = [each.name for each in ensemble.members]
        if names != [each.name for each in self._ensemble.members]:
            raise ValueError(f"a pool's members stay, and {names} are others")
        if ensemble.evidence is not self.evidence:
            self._tell_apart_by(ensemble.evidence)
        self._ensemble = ensemble
        self._workers.follow(ensemble)
        self._adopt(policy, resumed(policy, self.state, self._policy))
        if self._heeds_confidence:
            self._tell_apart()
        self._decide_anew()

    def learn(self, state: State) -> None:
        """The policy has learned that: it is what rows that come now, or come back, are decided by."""
        self.state = state
        self._choices.clear()

    def submit(self, now_s: float, run: RowRun, draw: float = 0.0) -> None:
        """Rows arrive. `draw`: a number in [0, 1) of the first row's own, from which the others' follow.

        Where their deadline is later than their goal they are not given up while a member is at them, but
        answered late. More rows of a request may come later, as a run of their own.
        """
        least = run.min_accuracy
        request = PooledRequest(run, draw, None if least is None else accuracy_kept(self._policy, least))
        self._requests.setdefault(run.request_id, []).append(request)
        self.rows += run.rows
        self.nbytes += run.rows * run.row_bytes
        self._requests_come += 1
        if self._refuses:
            heappush(self._dues, (run.due_s, self._requests_come, request))
            if len(self._dues) > 2 * len(self._requests) + _STALE:
                self._dues = [entry for entry in self._dues if entry[2].left]
                heapify(self._dues)
        self._arrivals.append((now_s, run.rows))
        self._arrived += run.rows
        self._decide(RowGroup.of(request))
        self._stirred = True

    def choice_of(self, evidence: RowEvidence) -> Choice:
        """What a row would need now."""
        return self._policy.select(self.state, evidence)

    def cancel(self, request_id: int) -> list[RowRun]:
        """Forget the rows of a request whose client has gone: those that had not been answered."""
        gone: list[RowRun] = []
        for request in self._requests.get(request_id, [])[:]:
            groups = list(request.groups)
            self._waiting.take([group for group in groups if group.bucket is not None])
            for group in groups:
                gone += group.runs()
                self._forget(group)
        return gone

    def cancel_part(self, part: Slice) -> list[RowRun]:
        """Forget these rows of a request, whose clients have gone: those that had not been answered.

        Those that a batch under way has put together with others of another state run on with it.
        """
        gone: list[RowRun] = []
        end = part.offset + part.rows
        for request in self._requests.get(part.request_id, [])[:]:
            for group in list(request.groups):
                leave_or_stay: dict[bool, list[int]] = {}
                for index, row in enumerate(group.rows):
                    leave_or_stay.setdefault(part.offset <= row < end, []).append(index)
                if True not in leave_or_stay or (group.parts and False in leave_or_stay):
                    continue
                bucket = group.bucket
                if bucket is not None:
                    self._waiting.take([group])
                for leaves, rows in self._parts(group, leave_or_stay):
                    if leaves:
                        gone += rows.runs()
                        self._forget(rows)
                    elif bucket is not None:
                        self._waiting.put(rows, bucket.choice, bucket.lot)
        return gone

    def clear(self) -> list[RowRun]:
        """Forget all rows: those that there were."""
        return [run for request_id in list(self._requests) for run in self.cancel(request_id)]

    def finished(
        self, now_s: float, batch_id: int, sure: Sequence[float] = (), took_s: float | None = None
    ) -> None:
        """A batch is back. sure: by row of it, the combined top probability of its answers so far.

        Not a number, or none at all: they are trusted least. Nothing happens for a batch that was lost with
        its worker.
        """
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return
        self._left_worker(now_s, batch)
        member = self._workers.members[batch.member]
        member.batching = self._batching.observe(
            member.batching,
            BatchOutcome(
                now_s=now_s,
                rows=batch.rows,
                members=(self._ensemble.members[batch.member].name,),
                latency_s=now_s - batch.sent_s if took_s is None else took_s,
                slo_s=self._slo_s,
                predicted_s=batch.predicted_s,
            ),
        )
        sure = sure or [math.nan] * batch.rows
        mine = 1 << batch.member
        states_of: dict[int, list[int]] = {}  # by subset: of every row of the batch, if that had answered it
        back = batch.waiting()
        self._waiting.take([group for group in back if group.bucket is not None])
        for group in back:
            places = group.places.pop(batch_id)
            group.under_way &= ~mine
            subset = group.subset = group.subset | mine
            states = states_of.get(subset)
            if states is None:
                states = states_of[subset] = self._ensemble.evidence.states_each(subset, sure)
            group.states, group.parts = None, ()
            if not self._heeds_confidence:
                group.states = _at(states, places)
                group.state = self._ensemble.evidence.first.get(subset, NOTHING)
                self._decide(group)
            elif group.count == 1:
                group.state = states[places[0]]
                self._decide(group)
            else:
                self._decide_by_state(group, _at(states, places))
        self._stirred = True

    def drop(self, now_s: float, batch_id: int) -> list[RowRun]:
        """A batch has failed: it is forgotten, and so are its rows, which others answer: those still here."""
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return []
        self._left_worker(now_s, batch)
        groups = batch.waiting()
        self._waiting.take([group for group in groups if group.bucket is not None])
        gone: list[RowRun] = []
        for group in groups:
            gone += group.runs()
            self._forget(group)
        self._stirred = True
        return gone

    def next_action(self, now_s: float) -> RunOn | AnswerRows | GiveUpRows | Sleep:
        """What to do now; to be asked again until it is `Sleep`."""
        if (told := self.tell(now_s)) is not None:
            return told
        wake_s = self.next_due_s
        idle = [worker for worker in self._workers.by_name.values() if not worker.batches]
        if idle and self._requests:
            if self._stirred:
                self._steer(now_s)
                for worker in idle:
                    worker.asleep_s = -math.inf
            for worker in idle:
                if worker.asleep_s <= now_s:
                    offer = self._offers.to(now_s, worker)
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
        known = self._workers.by_name[worker]
        if self._requests and self._stirred:
            self._steer(now_s)
            self._stirred = False
            self._workers.awake()
        if known.asleep_s > now_s:
            return known.asleep_s
        # Others keep the worker busy, and may have kept l̂ from being corrected.
        may_try = known.free_at_s is not None and now_s - self._sent_s > SILENCE_S
        found = self._offers.to(now_s, known, may_try=may_try)
        # One that is still at something is asked again when it is free: more rows fit then, or others.
        if not isinstance(found, Offer) and known.starts_s(now_s) <= now_s and not self._has_told:
            known.asleep_s = found
        return found

    def has_news(self, now_s: float) -> bool:
        """Whether something has been decided of rows, or may be due by now."""
        return bool(self._answers or self._given_up or (self._dues and self._dues[0][0] <= now_s))

    def tell(self, now_s: float) -> AnswerRows | GiveUpRows | None:
        """What has been decided of rows, or was due by now; to be asked again until it is None."""
        self._end_due(now_s)
        return self._told()

    def send(self, now_s: float, worker: str, offer: Offer, batch_id: int | None = None) -> RunOn:
        """The worker runs what was offered to it, just now: nothing may have happened to the pool since.

        batch_id: where others number the batches.
        """
        member = self._workers.members[offer.member]
        if offer.batching is not None:
            member.batching = offer.batching
        if batch_id is None:
            batch_id = self._next_batch_id
            self._next_batch_id += 1
        predicted_s = member.latency_s(offer.rows)
        batch = PooledBatch(batch_id, worker, offer.member, offer.rows, [], now_s, predicted_s)
        self._batches[batch_id] = batch
        mine = 1 << offer.member
        asked_more = [group.bucket is not None and group.bucket.choice.beside for group, _ in offer.parts]
        self._waiting.take([group for group, rows in offer.parts if rows == group.count])
        groups = batch.groups
        for group, rows in offer.parts:
            taken = group if rows == group.count else self._waiting.head(group, rows)
            for others in taken.places if taken is not group else ():
                self._batches[others].part(group, (taken, group))
            groups.append(taken)
        beside = [group for group, is_more in zip(groups, asked_more, strict=True) if is_more]
        if not beside and not self._by_lot:
            batch.groups = groups = _put_together(groups)
        for group in groups:
            group.under_way |= mine
        slices = laid_out(groups, batch_id)
        for group in beside:
            self._decide(group)
        self._sent_s = now_s
        state = self._workers.by_name[worker]
        state.end_s = state.starts_s(now_s) + offer.takes_s
        state.batches.add(batch_id)
        self._stirred = True
        return RunOn(batch_id, worker, offer.member, slices, offer.rows, predicted_s)

    def _told(self) -> AnswerRows | GiveUpRows | None:
        """What has been decided of rows, and not yet been told."""
        if self._answers:
            told, self._answers = self._answers, []
            rows_of: dict[tuple[int, int], Sequence[int]] = {}  # by request and subset
            for request, rows, subset in told:
                key = (request.run.request_id, subset)
                rows_of[key] = [*rows_of[key], *rows] if key in rows_of else rows
            return AnswerRows(
                tuple(
                    [
                        (Slice(request_id, first, count), subset)
                        for (request_id, subset), rows in rows_of.items()
                        for first, count in in_one_piece(rows if len(rows) == 1 else sorted(rows))
                    ]
                )
            )
        if self._given_up:
            runs, self._given_up = self._given_up, []
            return GiveUpRows(tuple(runs))
        return None

    @property
    def _has_told(self) -> bool:
        return bool(self._answers or self._given_up)

    def _left_worker(self, now_s: float, batch: PooledBatch) -> None:
        worker = self._workers.by_name.get(batch.worker)
        if worker is not None:  # else it holds none of the members any more
            worker.batches.discard(batch.batch_id)
            worker.end_s = now_s

    def _end_due(self, now_s: float) -> None:
        due: list[RowGroup] = []
        while self._dues and self._dues[0][0] <= now_s:
            due += heappop(self._dues)[2].groups
        if due:
            self._end_all(due)

    def _end_all(self, groups: Sequence[RowGroup]) -> None:
        """Answer rows from what is known, or give them up."""
        self._waiting.take([group for group in groups if group.bucket is not None])
        for group in groups:
            self._end(group)

    def take_cut_short(self) -> tuple[int, int]:
        """Since it was last asked: rows answered from a part of what they asked; members at them still."""
        cut_short, self._cut_short = self._cut_short, (0, 0)
        return cut_short

    def _end(self, group: RowGroup) -> None:
        run = group.request.run
        if self._keeps_its_word:
            if not group.under_way:  # else it is decided once more when that is back
                self._given_up += group.runs()
                self._forget(group)
        elif group.subset:
            if group.under_way or not group.is_late:  # else the first that came was all that was asked
                rows, late = self._cut_short
                self._cut_short = rows + group.count, late + group.count * group.under_way.bit_count()
            self._answer(group)
        elif group.under_way and run.deadline_s > run.due_s:
            group.is_late = True  # what comes first is its answer
        else:
            self._given_up += group.runs()
            self._forget(group)

    def _answer(self, group: RowGroup) -> None:
        self._answers.append((group.request, group.rows, group.subset))
        self._forget(group)

    def _forget(self, group: RowGroup) -> None:
        """Its rows have left the pool; a batch that they are in still runs on."""
        group.places.clear()
        del group.request.groups[group]
        self._left(group.request, group.count)

    def _left(self, request: PooledRequest, rows: int) -> None:
        run = request.run
        request.left -= rows
        self.rows -= rows
        self.nbytes -= rows * run.row_bytes
        if not request.left:
            others = self._requests[run.request_id]
            others.remove(request)
            if not others:
                del self._requests[run.request_id]
                if not self._requests:
                    self.nbytes = 0.0

    def _steer(self, now_s: float) -> None:
        """Fit the policy's state to the load; where that changes it, every row that waits is decided anew."""
        arrivals, since_s = self._arrivals, now_s - self._slo_s
        while arrivals and arrivals[0][0] < since_s:
            self._arrived -= arrivals.popleft()[1]
        if not self._heeds_load:
            return
        workers, busy_s = self._workers.busy_s(now_s)
        load = LoadView(
            now_s=now_s,
            slo_s=self._slo_s,
            rate=self._arrived / self._slo_s,
            waiting=self._waiting.counts,
            busy_s=busy_s,
            workers=workers,
            slack_s=next(iter(self._requests.values()))[0].run.due_s - now_s,
        )
        state = self._policy.steer(self.state, load)
        if state is not self.state:
            self.state = state
            self._choices.clear()
            self._decide_anew()

    def _adopt(self, policy: SelectionPolicy, state: State) -> None:
        self._policy = policy
        self._by_lot, self._heeds_confidence = draws_lots(policy), heeds_confidence(policy)
        self._keeps_its_word = keeps_its_word(policy)
        self._heeds_load = heeds_load(policy)
        # By evidence and by what is asked for, as the state has them: what is needed next, and whether rows
        # wait for it.
        self._choices: dict[tuple[int, int, int, float | None], tuple[Choice, bool]] = {}
        self.state = state

    def _tell_apart_by(self, evidence: EvidenceStates) -> None:
        """The rows that are here are as sure as before, by other evidence."""
        states = carried_over(self.evidence, evidence)
        waiting = [(group, each.choice, each.lot) for each in self._waiting for group in each.groups]
        self._waiting.take([group for group, _, _ in waiting])
        self._waiting.tell_apart(evidence.states)
        for requests in self._requests.values():
            for request in requests:
                for group in [part for each in request.groups for part in (each, *each.parts)]:
                    if group.states is None:
                        group.state = states[group.state]
                    else:
                        group.state = evidence.first.get(group.subset, NOTHING)
                        group.states = [states[state] for state in group.states]
        for group, choice, lot in waiting:
            self._waiting.put(group, choice, lot)

    def _choice(self, subset: int, under_way: int, state: int, least: float | None) -> tuple[Choice, bool]:
        """What rows of that evidence need next, where no lots are drawn, and whether they wait for it.

        least: the accuracy asked for.
        """
        key = (subset, under_way, state, least)
        found = self._choices.get(key)
        if found is None:
            choice = self._select(RowEvidence(subset, under_way, state), least)
            found = self._choices[key] = choice, self._asks(subset, choice)
        return found

    def _select(self, evidence: RowEvidence, least: float | None) -> Choice:
        if least is None:
            return self._policy.select(self.state, evidence)
        choice = self._policy.select(held_to(self._policy, self.state, least), evidence)
        return replace(choice, only=True)  # another member would be poorer than was asked for

    def _tell_apart(self) -> None:
        """Rows that nobody has told apart by how sure they are, since the policy before did not heed it."""
        for bucket in list(self._waiting):
            mixed = [group for group in bucket.groups if group.states is not None]
            self._waiting.take(mixed)
            for group in mixed:
                states, group.states = group.states, None
                self._decide_by_state(group, states or ())

    def _decide_anew(self) -> None:
        for bucket in list(self._waiting):
            if not self._by_lot and not bucket.lot:
                choice, asks = self._choice(bucket.subset, bucket.under_way, bucket.state, bucket.least)
                if asks:
                    bucket.choice = choice
                    continue
            groups = bucket.groups[:]
            self._waiting.take(groups)
            for group in groups:
                self._decide(group)
        self._stirred = True

    def _decide(self, group: RowGroup) -> None:
        """Ask the policy what the rows need next."""
        if group.is_late:
            self._end(group)
        elif self._by_lot:
            drawn: dict[Choice, list[int]] = {}
            for index, row in enumerate(group.rows):
                draw = group.request.draw_of(row)
                evidence = RowEvidence(group.subset, group.under_way, group.state, draw)
                drawn.setdefault(self._select(evidence, group.least), []).append(index)
            for choice, part in self._parts(group, drawn):
                self._go_on(part, choice, self._asks(part.subset, choice), lot=True)
        else:
            choice, asks = self._choice(group.subset, group.under_way, group.state, group.request.least)
            self._go_on(group, choice, asks)

    def _decide_by_state(self, group: RowGroup, states: Sequence[int]) -> None:
        """The same, where its rows are in these states now. Those that are done leave together."""
        if group.is_late:
            self._end(group)
            return
        alike: dict[int, list[int]] = {}
        done: list[int] = []
        for index, state in enumerate(states):
            rows = alike.get(state)
            if rows is None:
                rows = alike[state] = done if self._is_done(group, state) else []
            rows.append(index)
        if done:
            if len(done) == group.count:
                self._answer(group)
                return
            request, rows_of = group.request, group.rows
            self._answers.append((request, [rows_of[index] for index in done], group.subset))
            alike = {state: rows for state, rows in alike.items() if rows is not done}
        for state, part in self._parts(group, alike, len(done)):
            part.state = state
            self._decide(part)
        if done:
            self._left(request, len(done))

    def _parts(
        self, group: RowGroup, alike: Mapping[_Key, Sequence[int]], without: int = 0
    ) -> list[tuple[_Key, RowGroup]]:
        """The group in parts, which it is no longer one with: alike are rows by their place in it.

        without: how many of its rows are in none of them.
        """
        if len(alike) == 1 and not without:
            return [(key, group) for key in alike]
        parts = [(key, group.pick(indices)) for key, indices in alike.items()]
        for batch_id in group.places:
            self._batches[batch_id].part(group, [part for _, part in parts])
        group.places.clear()
        del group.request.groups[group]
        return parts

    def _go_on(self, group: RowGroup, choice: Choice, asks: bool, lot: bool = False) -> None:
        if asks:
            self._waiting.put(group, choice, lot)
        elif group.subset and not choice.waits and not group.under_way:
            self._answer(group)

    def _is_done(self, group: RowGroup, state: int) -> bool:
        """Whether its rows would be answered from what is known, were they in that state."""
        if self._by_lot or group.under_way:
            return False
        choice, asks = self._choice(group.subset, 0, state, group.least)
        return not asks and not choice.waits

    def _asks(self, subset: int, choice: Choice) -> bool:
        """Whether rows wait for those that the choice names; with an answer, only if somebody holds one, or
        that is not enough.
        """
        needs = not subset or self._keeps_its_word
        return bool(choice.ask) and (needs or self._workers.is_held(choice.ask))


def _put_together(groups: list[RowGroup]) -> list[RowGroup]:
    """Those of one request that stand beside each other, and that nobody is at, as one."""
    runs: list[list[RowGroup]] = []
    last: RowGroup | None = None
    for group in groups:
        if (
            last is not None
            and group.request is last.request
            and group.subset == last.subset
            and not (group.places or last.places)
            and not (group.parts or last.parts)
            and group.states is last.states is None
        ):
            runs[-1].append(group)
        else:
            runs.append([group])
        last = group
    return groups if len(runs) == len(groups) else [RowGroup.together(each) for each in runs]


def _at(states: Sequence[int], places: Sequence[int]) -> Sequence[int]:
    """The states of the rows that have these places in a batch."""
    if isinstance(places, range):
        return states[places.start : places.stop]
    return [states[place] for place in places]
