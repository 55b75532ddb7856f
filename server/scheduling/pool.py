"""One pool of rows for a function of several members: which rows an idle device runs next, on which member.

A row is bound to a member only when a device is idle, so the plan may change while it waits. Which members a
row wants is the selection policy's (server/ensemble); how many rows a batch takes is the batching policy's,
`goodput` by default. At its goal a row is answered from what is known of it; a member that is still at it is
dropped. Where nobody answered, it is refused. Pure: no I/O, no clock.

    submit → next_action (RunOn | AnswerRows | RefuseRow | Sleep) → finished → next_action …
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from server.ensemble.selection import Choice, Ensemble, Load, RowEvidence, SelectionPolicy
from server.scheduling.policies.by_name import policy_named
from server.scheduling.policy import BatchOutcome, Dispatch, FunctionView, MemberView, Refuse, RowRun, Wait

__all__ = ["AnswerRows", "MemberPool", "RefuseRow", "RunOn", "Sleep"]

_FILL_ROWS = 32
_FILL_GAIN = 1e-3
_IN_VIEW = 6  # batches of waiting rows that a decision looks at


@dataclass(frozen=True, slots=True)
class RunOn:
    """Run these rows on a member, on its device; report back with `finished`."""

    batch_id: int
    device: int
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
class _Row:
    number: int
    run: RowRun
    evidence: RowEvidence
    choice: Choice
    waits: bool = True  # in a bucket


@dataclass(slots=True, eq=False)
class _Device:
    number: int
    members: tuple[int, ...]
    free_s: float = -math.inf  # when what it runs is predicted to end
    batch_id: int | None = None
    asleep_s: float = -math.inf  # until when nothing that it could run changes by itself


@dataclass(slots=True, eq=False)
class _Batch:
    device: _Device
    member: int
    rows: list[_Row]
    sent_s: float
    predicted_s: float


@dataclass(slots=True, eq=False)
class _Candidate:
    """Rows that an idle device could run next on a member."""

    member: int
    rows: list[_Row]
    takes_s: float
    state: dict[str, Any] | None = None  # of the batching policy, once it is carried out

    @property
    def due_s(self) -> float:
        return min(row.run.due_s for row in self.rows)

    @property
    def density(self) -> float:
        """What its rows gain per second; a row that nobody has answered counts for one more."""
        worth = sum(row.choice.worth[self.member] if row.choice.worth else 0.0 for row in self.rows) + sum(
            not row.evidence.subset for row in self.rows
        )
        return worth / self.takes_s


@dataclass(slots=True)
class _Member:
    latency_s: Callable[[int], float]  # l̂(b)
    batching: dict[str, Any] = field(default_factory=dict)  # the batching policy's state


class MemberPool:
    """Rows of one function. `latencies`: l̂(b) of each member, in the ensemble's order.

    refuses: whether rows are answered, or refused, at their goal; otherwise they are answered late.
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
        self._members = [_Member(latency, self._batching.initial({})) for latency in latencies]
        self._devices = [
            _Device(device, tuple(n for n, m in enumerate(ensemble.members) if m.device == device))
            for device in range(ensemble.devices)
        ]
        self._refuses = refuses
        self._rows: dict[int, _Row] = {}
        self._buckets: dict[Choice, list[_Row]] = {}  # by goal, within one choice
        self._counts = [0] * ensemble.evidence.states  # waiting rows, by state of evidence
        self._dues: list[tuple[float, int]] = []
        self._arrivals: deque[tuple[float, int]] = deque()  # within one goal
        self._answers: list[tuple[int, int]] = []
        self._batches: dict[int, _Batch] = {}
        self._next_batch_id = 1
        self._stirred = True  # something happened since the devices were last asked

    @property
    def waiting(self) -> int:
        """Rows that have neither been answered nor refused."""
        return len(self._rows)

    def submit(self, now_s: float, number: int, due_s: float, draw: float = 0.0) -> None:
        """A row arrives. `draw`: a number in [0, 1) of its own."""
        evidence = RowEvidence(draw=draw)
        run = RowRun(number, 1, now_s, deadline_s=due_s, due_s=due_s)
        row = _Row(number, run, evidence, self._policy.select(self.state, evidence))
        self._rows[number] = row
        self._put(row)
        if self._refuses:
            heappush(self._dues, (due_s, number))
        self._arrivals.append((now_s, 1))
        self._stirred = True

    def finished(
        self,
        now_s: float,
        batch_id: int,
        confidence: Callable[[int, int], float],
        took_s: float | None = None,
    ) -> None:
        """A batch is back. `confidence(row, subset)`: the combined top probability of its answers so far."""
        batch = self._batches.pop(batch_id)
        device = batch.device
        device.batch_id, device.free_s = None, now_s
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
                self._take_out(row)
            evidence = row.evidence
            evidence.under_way &= ~mine
            evidence.subset |= mine
            evidence.state = evidence_of.state_of(evidence.subset, confidence(row.number, evidence.subset))
            self._decide(row)
        self._stirred = True

    def next_action(self, now_s: float) -> RunOn | AnswerRows | RefuseRow | Sleep:
        """What to do now; to be asked again until it is `Sleep`."""
        if self._answers:
            told, self._answers = tuple(self._answers), []
            return AnswerRows(told)
        while self._dues and self._dues[0][0] <= now_s:
            _, number = heappop(self._dues)
            row = self._rows.get(number)
            if row is not None:
                return self._end(row)
        wake_s = self._dues[0][0] if self._dues else math.inf
        idle = [device for device in self._devices if device.batch_id is None]
        if idle and self._rows:
            if self._stirred:
                self._steer(now_s)
                for device in idle:
                    device.asleep_s = -math.inf
            for device in idle:
                if device.asleep_s > now_s:
                    wake_s = min(wake_s, device.asleep_s)
                    continue
                found = self._batch_for(now_s, device)
                if isinstance(found, _Candidate):
                    return self._send(now_s, device, found)
                if isinstance(found, RefuseRow):
                    return found
                if self._answers:
                    return self.next_action(now_s)
                device.asleep_s = found
                wake_s = min(wake_s, found)
        self._stirred = False
        return Sleep(wake_s)

    def _steer(self, now_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] < now_s - self._slo_s:
            self._arrivals.popleft()
        first = next(iter(self._rows.values()))
        load = Load(
            now_s=now_s,
            slo_s=self._slo_s,
            rate=len(self._arrivals) / self._slo_s,
            waiting=np.array(self._counts, np.float64),
            busy_s=[max(0.0, d.free_s - now_s) if d.batch_id is not None else 0.0 for d in self._devices],
            slack_s=first.run.due_s - now_s,
        )
        state = self._policy.steer(self.state, load)
        if state is self.state:
            return
        self.state = state
        waiting = [row for rows in self._buckets.values() for row in rows]
        self._buckets.clear()
        for row in waiting:
            row.waits = False
            self._counts[row.evidence.state] -= 1
            self._decide(row)

    def _decide(self, row: _Row) -> None:
        """Ask the policy what the row needs next."""
        choice = row.choice = self._policy.select(self.state, row.evidence)
        if choice.ask:
            self._put(row)
        elif not choice.waits and row.evidence.subset:
            self._answers.append((row.number, row.evidence.subset))
            del self._rows[row.number]

    def _batch_for(self, now_s: float, device: _Device) -> _Candidate | RefuseRow | float:
        """What an idle device runs next, or until when it has nothing to do."""
        candidates: list[_Candidate] = []
        until_s = math.inf
        for member in device.members:
            rows = self._asking(member, strays=self._is_cheapest(member), now_s=now_s)
            while rows:
                found = self._cut(now_s, member, rows)
                if isinstance(found, _Candidate):
                    candidates.append(found)
                    break
                if isinstance(found, float):
                    until_s = min(until_s, found)
                    break
                lost, rows = rows[:found], rows[found:]
                for row in lost:
                    refused = self._give_up(now_s, row, member)
                    if refused is not None:
                        return refused
        if not candidates and len(self._devices) > 1 and until_s == math.inf:
            candidates = self._stolen(now_s, device) or self._filling(now_s, device)
        return self._chosen(now_s, candidates) if candidates else until_s

    def _cut(self, now_s: float, member: int, rows: list[_Row]) -> _Candidate | float | int:
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
            members=(MemberView(about.name, about.accuracy, known.latency_s, now_s),),
        )
        state, decision = self._batching.decide(known.batching, view)
        if isinstance(decision, Dispatch):
            taken = rows[decision.skip : decision.skip + decision.rows]
            takes_s = decision.expected_s or known.latency_s(len(taken))
            return _Candidate(member, taken, takes_s, state)
        known.batching = state
        if isinstance(decision, Wait):
            return max(decision.until_s, now_s + 1e-4)
        assert isinstance(decision, Refuse)
        return min(decision.rows, len(rows))

    def _give_up(self, now_s: float, row: _Row, member: int) -> RefuseRow | None:
        """A row that this member cannot answer in time: answered, refused, or left to others."""
        if not self._refuses:
            return None
        able = row.choice.ask if row.choice.only else range(len(self._members))
        others = [m for m in able if m != member and self._fits(now_s, m, row)]
        if row.evidence.subset:
            if any(other in row.choice.ask for other in others) or row.evidence.under_way:
                return None
            self._take_out(row)
            self._answers.append((row.number, row.evidence.subset))
            del self._rows[row.number]
            return None
        if others or row.evidence.under_way:
            return None
        refused = self._end(row)
        assert isinstance(refused, RefuseRow)
        return refused

    def _asking(self, member: int, *, strays: bool, now_s: float) -> list[_Row]:
        """Waiting rows that want the member, the soonest goal first; with `strays` those too."""
        most = _IN_VIEW * self._max_batch
        lists = [rows[:most] for choice, rows in self._buckets.items() if rows and member in choice.ask]
        if strays and self._refuses:
            for choice, rows in self._buckets.items():
                if rows and member not in choice.ask and not choice.only and not rows[0].evidence.subset:
                    lists.append(self._strays(now_s, member, rows[:most]))
        if not lists:
            return []
        if len(lists) == 1:
            return lists[0]
        merged = [row for rows in lists for row in rows]
        merged.sort(key=_goal)
        return merged

    def _strays(self, now_s: float, member: int, rows: list[_Row]) -> list[_Row]:
        """Of these fresh rows those that are too late for the members that they ask, but not for this one."""
        strays = []
        for row in rows:
            if any(self._fits(now_s, asked, row) for asked in row.choice.ask):
                break  # those behind have more time
            if not row.evidence.subset and self._fits(now_s, member, row):
                strays.append(row)
        return strays

    def _is_cheapest(self, member: int) -> bool:
        """Whether it is its device's cheapest."""
        about = self._ensemble.members[member]
        return all(
            each.cost_s >= about.cost_s for each in self._ensemble.members if each.device == about.device
        )

    def _fits(self, now_s: float, member: int, row: _Row) -> bool:
        """Whether the member could still answer the row, alone, after what its device is at."""
        device = self._devices[self._ensemble.members[member].device]
        start_s = max(now_s, device.free_s)
        return start_s + self._members[member].latency_s(1) <= row.run.due_s

    def _stolen(self, now_s: float, device: _Device) -> list[_Candidate]:
        """Fresh rows of other devices that this one would finish sooner."""
        found: list[_Candidate] = []
        for choice, rows in self._buckets.items():
            fresh = [row for row in rows[: self._max_batch] if not row.evidence.subset]
            if not fresh or choice.beside or choice.only:
                continue
            theirs_s = min(
                max(now_s, self._devices[self._ensemble.members[asked].device].free_s)
                + self._members[asked].latency_s(len(fresh))
                for asked in choice.ask
            )
            for member in device.members:
                cut = self._cut(now_s, member, fresh)
                if isinstance(cut, _Candidate) and now_s + cut.takes_s < theirs_s:
                    found.append(cut)
        return found

    def _filling(self, now_s: float, device: _Device) -> list[_Candidate]:
        """Rows that wait for others, and would gain by a member of this idle device."""
        found: list[_Candidate] = []
        for member in device.members:
            mine = 1 << member
            rows = [
                row
                for choice, bucket in self._buckets.items()
                if choice.worth and not choice.beside and choice.worth[member] > _FILL_GAIN
                for row in bucket[:_FILL_ROWS]
                if not (row.evidence.subset | row.evidence.under_way) & mine
            ]
            rows.sort(key=_goal)
            cut = self._cut(now_s, member, rows[:_FILL_ROWS]) if rows else 0
            if isinstance(cut, _Candidate):
                found.append(cut)
        return found

    def _chosen(self, now_s: float, candidates: list[_Candidate]) -> _Candidate:
        """The fullest batch, if all others can still start after it; else by Moore and Hodgson's rule."""
        if len(candidates) == 1:
            return candidates[0]
        fullest = max(candidates, key=self._fullness)
        after_s = now_s + fullest.takes_s
        if all(after_s + each.takes_s <= each.due_s for each in candidates if each is not fullest):
            return fullest
        kept: list[_Candidate] = []
        for candidate in sorted(candidates, key=lambda each: each.due_s):
            kept.append(candidate)
            if now_s + sum(each.takes_s for each in kept) > candidate.due_s:
                kept.remove(min(kept, key=lambda each: each.density))
        return kept[0] if kept else max(candidates, key=lambda each: each.density)

    def _fullness(self, candidate: _Candidate) -> float:
        whole_s = self._members[candidate.member].latency_s(self._max_batch)
        return len(candidate.rows) * whole_s / candidate.takes_s

    def _send(self, now_s: float, device: _Device, chosen: _Candidate) -> RunOn:
        member = self._members[chosen.member]
        if chosen.state is not None:
            member.batching = chosen.state
        mine = 1 << chosen.member
        self._take_out_all(chosen.rows)
        for row in chosen.rows:
            row.evidence.under_way |= mine
            if row.choice.beside:
                self._decide(row)
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        device.batch_id = batch_id
        device.free_s = now_s + chosen.takes_s
        predicted_s = member.latency_s(len(chosen.rows))
        self._batches[batch_id] = _Batch(device, chosen.member, chosen.rows, now_s, predicted_s)
        numbers = tuple(row.number for row in chosen.rows)
        self._stirred = True
        return RunOn(batch_id, device.number, chosen.member, numbers, predicted_s)

    def _end(self, row: _Row) -> AnswerRows | RefuseRow:
        """The row's time is up."""
        if row.waits:
            self._take_out(row)
        del self._rows[row.number]
        subset = row.evidence.subset
        return AnswerRows(((row.number, subset),)) if subset else RefuseRow(row.number)

    def _put(self, row: _Row) -> None:
        bucket = self._buckets.get(row.choice)
        if bucket is None:
            bucket = self._buckets[row.choice] = []
        if not bucket or bucket[-1].run.due_s <= row.run.due_s:
            bucket.append(row)
        else:
            insort(bucket, row, key=_goal)
        row.waits = True
        self._counts[row.evidence.state] += 1

    def _take_out(self, row: _Row) -> None:
        self._buckets[row.choice].remove(row)
        self._counts[row.evidence.state] -= 1
        row.waits = False

    def _take_out_all(self, rows: Iterable[_Row]) -> None:
        touched: dict[Choice, None] = {}
        for row in rows:
            row.waits = False
            self._counts[row.evidence.state] -= 1
            touched[row.choice] = None
        for choice in touched:
            self._buckets[choice] = [row for row in self._buckets[choice] if row.waits]


def _goal(row: _Row) -> float:
    return row.run.due_s
