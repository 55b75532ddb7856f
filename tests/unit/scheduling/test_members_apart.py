"""Members on different workers: who runs what, and what must hold whatever happens, in whatever order."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.scheduling.core import (
    BatchTimes,
    FunctionSpec,
    Idle,
    MemberSpec,
    MemberTime,
    RunBatch,
    Scheduler,
    Submission,
    WorkerView,
)
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.by_name import POLICIES
from server.scheduling.policy import BatchOutcome, RowClass
from tests.unit.scheduling.views import affine

NAMES = ("a", "b", "c")


def spec(**fields: float) -> FunctionSpec:
    """Three members: a batch of each takes 5 ms and 0.25 ms a row, times the number given."""
    members = tuple(
        MemberSpec(name, 0.9, LatencyModel({rows: fields.get(name, 1.0) * affine(rows) for rows in (1, 8)}))
        for name in NAMES
    )
    return FunctionSpec("f", 0.1, 8, (1, 2, 4, 8), members, "goodput")


def core(function: FunctionSpec, **held: str) -> Scheduler:
    """Workers and what each holds, `w0="ab"`."""
    scheduler = Scheduler()
    scheduler.configure(0.0, function)
    for name, models in held.items():
        scheduler.set_worker(0.0, WorkerView(name, True, frozenset(models)))
    return scheduler


def sent(scheduler: Scheduler, now_s: float = 0.0) -> list[RunBatch]:
    """All batches that the core wants sent now."""
    found: list[RunBatch] = []
    while isinstance(action := scheduler.next_action(now_s), RunBatch):
        found += (action, *action.beside)
    return found


def routes(scheduler: Scheduler, now_s: float = 0.0) -> list[tuple[str, str]]:
    return [(batch.worker, "".join(batch.members)) for batch in sent(scheduler, now_s)]


def test_each_worker_runs_its_members_on_the_same_rows() -> None:
    scheduler = core(spec(), w0="ab", w1="c")
    scheduler.submit(0.0, Submission(1, "f", 3, 30))
    batches = sent(scheduler)
    assert [(batch.worker, batch.members) for batch in batches] == [("w0", ("a", "b")), ("w1", ("c",))]
    assert batches[0].slices == batches[1].slices
    assert [batch.rows for batch in batches] == [3, 3]


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({"w0": "ab", "w1": "c", "w2": "abc"}, [("w2", "abc")]),
        ({"w0": "a", "w1": "b", "w2": "bc"}, [("w2", "bc"), ("w0", "a")]),
        ({"w0": "ab", "w1": "bc"}, [("w0", "ab"), ("w1", "c")]),
        ({"w0": "a", "w1": "b", "w2": "c"}, [("w0", "a"), ("w1", "b"), ("w2", "c")]),
        ({"w0": "ab", "w1": "b"}, []),
    ],
)
def test_as_few_workers_as_hold_all_members_run_them(
    held: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    scheduler = core(spec(), **held)
    scheduler.submit(0.0, Submission(1, "f", 1, 10))
    assert routes(scheduler) == expected


def test_rows_that_wait_for_one_member_run_on_that_alone() -> None:
    scheduler = core(spec(), w0="ab", w1="c")
    scheduler.submit(0.0, Submission(1, "f", 2, 20, members=("c",)))
    assert routes(scheduler) == [("w1", "c")]


def test_a_batch_side_by_side_takes_as_long_as_its_slowest_part() -> None:
    # 100 ms are left: one after the other members would take 112, side by side 75.
    scheduler = core(spec(a=10.0, b=4.0, c=4.0), w0="a", w1="bc")
    assert scheduler.submit(0.0, Submission(1, "f", 8, 80, deadline_s=0.1)) is None
    assert [batch.rows for batch in sent(scheduler)] == [8, 8]


def test_a_deadline_that_no_member_can_meet_is_refused_at_once() -> None:
    scheduler = core(spec(c=20.0), w0="ab", w1="c")
    scheduler.submit(0.0, Submission(1, "f", 1, 10))
    sent(scheduler)
    rejection = scheduler.submit(0.001, Submission(2, "f", 1, 10, deadline_s=0.05))
    assert rejection is not None
    assert rejection.code == "deadline_exceeded"


def test_a_request_that_waits_for_different_members_is_cancelled_and_expires_as_one() -> None:
    for cancels in (True, False):
        scheduler = core(spec())
        for members in (("a",), ("b", "c")):
            scheduler.submit(0.0, Submission(1, "f", 2, 20, members=members, deadline_s=1.0))
        if cancels:
            assert scheduler.cancel(0.5, 1) == 4
        else:
            refused = scheduler.next_action(1.0)
            assert not isinstance(refused, RunBatch | Idle)
            assert sum(part.rows for part in refused.slices) == 4
        assert scheduler.queue_depth() == {"f": (0, 0)}
        assert scheduler.next_action(1.0) == Idle(math.inf)


def test_each_members_own_time_is_learned_wherever_it_runs() -> None:
    function = replace(spec(a=0.2, b=0.2, c=0.2), slo_s=10.0)
    scheduler = core(function, w0="ab", w1="c")
    now_s = 0.0
    for number in range(60):
        scheduler.submit(now_s, Submission(number, "f", 8, 80))
        first, second = sent(scheduler, now_s)
        times = (MemberTime(0.010, 0.004), MemberTime(0.020, 0.004))
        scheduler.finished(now_s + 0.05, second.batch_id, worked=BatchTimes(0.05, 0.05))
        scheduler.finished(now_s + 0.034, first.batch_id, worked=BatchTimes(0.034, 0.034, times))
        now_s += 0.2
    learned = {member.name: member.latency(8) for member in function.members}
    assert learned == pytest.approx({"a": 0.014, "b": 0.024, "c": 0.05}, rel=0.1)


def test_what_each_further_member_saves_is_known_once_it_was_seen() -> None:
    scheduler = core(spec(), w0="abc")
    assert scheduler.saved_s("f", "", 8) == 0.0
    times = tuple(MemberTime(0.010, 0.004) for _ in NAMES)
    for number in range(10):
        scheduler.submit(0.1 * number, Submission(number, "f", 8, 80))
        (batch,) = sent(scheduler, 0.1 * number)
        scheduler.finished(0.1 * number + 0.034, batch.batch_id, worked=BatchTimes(0.034, 0.034, times))
    assert scheduler.saved_s("f", "", 8) == pytest.approx(0.004)
    assert scheduler.saved_s("f", "path", 8) == 0.0


def test_a_policy_hears_once_of_rows_that_ran_in_several_parts_and_of_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = core(spec(), w0="ab", w1="c")
    heard: list[BatchOutcome] = []
    lane = scheduler._queues.lane_for(0.0, Submission(1, "f", 1, 1))
    monkeypatch.setattr(lane.policy, "observe", heard.append)
    scheduler.submit(0.0, Submission(1, "f", 1, 10))
    first, second = sent(scheduler)
    scheduler.finished(0.3, first.batch_id, worked=BatchTimes(0.01, 0.01))
    assert heard == []
    scheduler.finished(0.3, second.batch_id, worked=BatchTimes(0.25, 0.25))
    assert [(seen.members, seen.overdue_rows) for seen in heard] == [(NAMES, 1)]
    assert heard[0].latency_s >= 0.25


class Apart(RuleBasedStateMachine):
    """A function of three members, on workers that hold some of them, driven as the live shell does.

    A row is answered when all its members have run; of a worker that dies, its members' rows run again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = Scheduler()
        self.now_s = 0.0
        self.requests = 0
        self.held: dict[str, frozenset[str]] = {}
        self.flying: dict[int, RunBatch] = {}
        self.waits: dict[tuple[int, int], set[str]] = {}  # row → members that it waits for
        self.queued: Counter[tuple[int, int, str]] = Counter()  # (request, row, member) in the queue
        self.on_worker: Counter[tuple[int, int, str]] = Counter()
        self.ran: Counter[tuple[int, int, str]] = Counter()
        self.answered: Counter[tuple[int, int]] = Counter()
        self.refused: set[int] = set()

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        members = tuple(
            MemberSpec(name, 0.9, LatencyModel({1: affine(1), 8: affine(8)}, measured=False))
            for name in NAMES
        )
        self.core.configure(0.0, FunctionSpec("f", 0.1, 8, (1, 2, 4, 8), members, policy))

    @rule(
        name=st.sampled_from(["w0", "w1", "w2"]),
        held=st.frozensets(st.sampled_from(NAMES)),
        limit=st.sampled_from([0, 1, 2]),
    )
    def place(self, name: str, held: frozenset[str], limit: int) -> None:
        self.held[name] = held
        self.core.set_worker(self.now_s, WorkerView(name, True, held, limit))

    @rule(
        rows=st.integers(1, 20),
        within_s=st.sampled_from([math.inf, math.inf, 0.02, 0.2]),
        row_class=st.sampled_from(["interactive", "bulk"]),
    )
    def submit(self, rows: int, within_s: float, row_class: RowClass) -> None:
        self.requests += 1
        submission = Submission(self.requests, "f", rows, rows, self.now_s + within_s, row_class)
        if self.core.submit(self.now_s, submission) is None:
            for row in range(rows):
                self.waits[self.requests, row] = set(NAMES)
                self.queued.update((self.requests, row, member) for member in NAMES)

    @rule(request=st.integers(1, 20))
    def cancel(self, request: int) -> None:
        self.forget(request)
        self.core.cancel(self.now_s, request)

    def forget(self, request: int) -> None:
        self.waits = {row: left for row, left in self.waits.items() if row[0] != request}
        self.queued = Counter({key: count for key, count in self.queued.items() if key[0] != request})

    @rule(later_s=st.sampled_from([0.0, 0.001, 0.02, 2.0]))
    def act(self, later_s: float) -> None:
        self.now_s += later_s
        for _ in range(1000):
            action = self.core.next_action(self.now_s)
            if isinstance(action, Idle):
                assert action.until_s > self.now_s
                return
            if isinstance(action, RunBatch):
                self.run(action)
            else:
                for request in {part.request_id for part in action.slices}:
                    self.refused.add(request)
                    self.forget(request)
                    self.core.cancel(self.now_s, request)
        raise AssertionError("the core never became idle")

    def run(self, action: RunBatch) -> None:
        batches = (action, *action.beside)
        assert len({batch.worker for batch in batches}) == len(batches)
        assert all(batch.slices == action.slices for batch in batches)
        for batch in batches:
            assert set(batch.members) <= self.held[batch.worker]
            assert batch.members
            self.flying[batch.batch_id] = batch
            for key in self.keys(batch):
                assert self.queued[key] == 1, "a member that a row does not wait for, or has run already"
                self.queued[key] -= 1
                self.on_worker[key] += 1
        members = [member for batch in batches for member in batch.members]
        assert len(set(members)) == len(members)
        for part in action.slices:  # the rows are in one queue only: all their members left it
            for row in range(part.offset, part.offset + part.rows):
                assert all(self.on_worker[part.request_id, row, member] for member in members)

    def keys(self, batch: RunBatch) -> list[tuple[int, int, str]]:
        return [
            (part.request_id, row, member)
            for part in batch.slices
            for row in range(part.offset, part.offset + part.rows)
            for member in batch.members
        ]

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 9), later_s=st.sampled_from([0.0, 0.004, 0.05]), cancelled=st.booleans())
    def finish(self, which: int, later_s: float, cancelled: bool) -> None:
        self.now_s += later_s
        batch = self.flying.pop(sorted(self.flying)[which % len(self.flying)])
        self.core.finished(self.now_s, batch.batch_id, cancelled=cancelled)
        if cancelled:
            self.again(batch)
        else:
            self.take(batch)

    def take(self, batch: RunBatch) -> None:
        for request, row, member in self.keys(batch):
            self.on_worker[request, row, member] -= 1
            self.ran[request, row, member] += 1
            assert self.ran[request, row, member] == 1, "it ran twice, and its worker did not die"
            left = self.waits.get((request, row))
            if left is not None:
                left.discard(member)
                if not left:
                    del self.waits[request, row]
                    self.answered[request, row] += 1

    def again(self, batch: RunBatch) -> None:
        for key in self.keys(batch):
            self.on_worker[key] -= 1
        for part in batch.slices:
            if (part.request_id, part.offset) not in self.waits:
                continue  # its client has gone
            submission = Submission(
                part.request_id, "f", part.rows, part.rows, members=batch.members, offset=part.offset
            )
            if self.core.submit(self.now_s, submission) is not None:
                self.forget(part.request_id)
                self.core.cancel(self.now_s, part.request_id)
                continue
            for row in range(part.offset, part.offset + part.rows):
                self.queued.update((part.request_id, row, member) for member in batch.members)

    @rule(name=st.sampled_from(["w0", "w1", "w2"]))
    def die(self, name: str) -> None:
        if self.held.pop(name, None) is None:
            return
        self.core.set_worker(self.now_s, WorkerView(name, False, frozenset()))
        lost = [batch for batch in self.flying.values() if batch.worker == name]
        for batch in lost:
            del self.flying[batch.batch_id]
            self.again(batch)

    @invariant()
    def every_row_is_somewhere_for_each_member_that_it_waits_for(self) -> None:
        for (request, row), left in self.waits.items():
            for member in left:
                key = (request, row, member)
                assert self.queued[key] + self.on_worker[key] == 1
        assert all(count == 1 for count in self.answered.values())

    def teardown(self) -> None:
        """Left alone with all members on two workers, every row is answered in the end."""
        self.place("w0", frozenset("ab"), 2)
        self.place("w1", frozenset("c"), 2)
        self.place("w2", frozenset(), 2)
        for _ in range(2000):
            action = self.core.next_action(self.now_s)
            if isinstance(action, RunBatch):
                self.run(action)
            elif not isinstance(action, Idle):
                for request in {part.request_id for part in action.slices}:
                    self.forget(request)
                    self.core.cancel(self.now_s, request)
            elif self.flying:
                self.now_s += 0.01
                batch = self.flying.pop(min(self.flying))
                self.core.finished(self.now_s, batch.batch_id)
                self.take(batch)
            elif action.until_s < math.inf:
                self.now_s = action.until_s
            else:
                break
        assert self.waits == {}
        assert self.core.queue_depth()["f"] == (0, 0)


Apart.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_every_row_is_answered_once_and_no_member_runs_twice_unless_its_worker_died = Apart.TestCase
