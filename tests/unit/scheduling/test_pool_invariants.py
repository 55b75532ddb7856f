"""What must hold of a pool whatever happens, in whatever order: no row lost, none answered twice."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.ensemble.evidence import members_of
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble
from server.scheduling.policy import RowRun
from server.scheduling.pool import AnswerRows, MemberPool, RunOn, Sleep
from server.scheduling.terms import Slice
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of

GOAL_S, MOST = 0.05, 8
OUTCOMES = outcomes_of(*drawn([0.6, 0.75, 0.9]))
FEWER = outcomes_of(*drawn([0.9, 0.5, 0.6], rows=100))
POLICIES = ["value", "gear", "slackfit", "async", "all", "best", "exp3", "exp4"]
LAYOUTS: dict[
    str, tuple[list[int] | None, dict[str, tuple[int, ...]]]
] = {  # which members the workers hold, and on which devices these are
    "one": (None, {"a": (0, 1, 2)}),
    "two alike": (None, {"a": (0, 1, 2), "b": (0, 1, 2)}),
    "apart": ([0, 1, 2], {"a": (0,), "b": (1,), "c": (2,)}),
    "mixed": ([0, 0, 1], {"a": (0, 1), "b": (2,)}),
}
ENSEMBLES = {layout: ensemble_of(OUTCOMES, [0.1, 0.2, 0.6], LAYOUTS[layout][0]) for layout in LAYOUTS}
# By evidence of other rows, and fewer: other states, and fewer of them.
COUNTED_ANEW = {layout: ensemble_of(FEWER, [0.1, 0.2, 0.6], LAYOUTS[layout][0]) for layout in LAYOUTS}

SAYS = ["some", "one", "none", "nan"]

Row = tuple[int, int]  # request, row


def latencies(of: Ensemble):
    return [lambda rows, member=member: member.fixed_s + rows * member.per_row_s for member in of.members]


def pool_of(layout: str, policy: str) -> MemberPool:
    of = ENSEMBLES[layout]
    return MemberPool(of, selection_policy(policy, of), latencies(of), slo_s=GOAL_S, max_batch=MOST)


def rows_in(runs) -> list[Row]:
    return [(run.request_id, row) for run in runs for row in range(run.offset, run.offset + run.rows)]


class Pooled(RuleBasedStateMachine):
    """A pool of three members on one to three workers, driven at random."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.requests = 0
        self.next_row = 0  # of the last request: no row comes twice
        self.run_of: dict[Row, RowRun] = {}  # of the rows that wait
        self.answered_by: dict[Row, int] = {}  # the same, which members have
        self.under_way: dict[int, tuple[RunOn, list[Row]]] = {}
        self.alive: dict[str, bool] = {}

    @initialize(layout=st.sampled_from(sorted(LAYOUTS)), policy=st.sampled_from(POLICIES))
    def begin(self, layout: str, policy: str) -> None:
        self.layout = layout
        self.pool = pool_of(layout, policy)
        for name, members in LAYOUTS[layout][1].items():
            self.pool.set_worker(0.0, name, members)
            self.alive[name] = True

    @rule(
        rows=st.sampled_from([1, 1, 2, 7, 30]),
        priority=st.sampled_from([0, 0, 1]),
        within_s=st.sampled_from([0.01, GOAL_S, 0.2]),
        late_s=st.sampled_from([0.0, 0.1, math.inf]),
        draw=st.floats(0, 1, exclude_max=True),
        more=st.booleans(),
    )
    def submit(
        self, rows: int, priority: int, within_s: float, late_s: float, draw: float, more: bool
    ) -> None:
        first = 0
        if more and self.requests:  # of a request that has rows here already, or had
            first = self.next_row
        else:
            self.requests += 1
        self.next_row = first + rows + 1
        due_s = self.now_s + within_s
        run = RowRun(
            self.requests, rows, self.now_s, due_s + late_s, priority=priority, due_s=due_s, offset=first
        )
        self.pool.submit(self.now_s, run, draw)
        for row in rows_in([run]):
            self.run_of[row], self.answered_by[row] = run, 0

    @rule(later_s=st.sampled_from([0.0, 0.0005, 0.005, 0.03, 0.3]))
    def act(self, later_s: float) -> None:
        self.now_s += later_s
        for _ in range(1000):
            action = self.pool.next_action(self.now_s)
            if isinstance(action, Sleep):
                assert action.until_s > self.now_s
                break
            if isinstance(action, RunOn):
                self.sent(action)
            elif isinstance(action, AnswerRows):
                for part, subset in action.parts:
                    for row in rows_in([part]):
                        assert subset == self.answered_by[row] > 0
                        self.left(row)
            else:
                for row in rows_in(action.runs):
                    assert not self.answered_by[row], "what is known is an answer"
                    self.left(row)
        else:
            pytest.fail("it does not come to rest")
        for row, run in self.run_of.items():
            if run.due_s <= self.now_s:
                assert run.deadline_s > run.due_s
                assert any(row in rows for _, rows in self.under_way.values()), "nobody is at it"

    def sent(self, action: RunOn) -> None:
        rows = rows_in(action.slices)
        assert self.alive[action.worker]
        assert action.member in LAYOUTS[self.layout][1][action.worker]
        assert action.rows == len(rows) == len(set(rows)) <= MOST
        for row in rows:
            assert not self.answered_by[row] >> action.member & 1, "it has answered"
            for other, theirs in self.under_way.values():
                assert other.member != action.member or row not in theirs, "it is at it"
        orders = [(-self.run_of[row].priority, self.run_of[row].due_s) for row in rows]
        assert orders == sorted(orders)
        self.under_way[action.batch_id] = action, rows

    def decided(self) -> set[Row]:
        """Rows that have left the pool, which is yet to say so."""
        told = {(request.run.request_id, row) for request, rows, _ in self.pool._answers for row in rows}
        return told | set(rows_in(self.pool._given_up))

    def left(self, row: Row) -> None:
        del self.run_of[row], self.answered_by[row]

    @precondition(lambda self: self.under_way)
    @rule(
        seed=st.integers(0, 9), which=st.integers(0, 9), says=st.sampled_from(["some", "one", "none", "nan"])
    )
    def finish(self, seed: int, which: int, says: str) -> None:
        batch_id = sorted(self.under_way)[which % len(self.under_way)]
        action, rows = self.under_way.pop(batch_id)
        draw = Random(seed)
        sure = {
            "some": [draw.random() for _ in rows],
            "one": [0.7] * len(rows),
            "nan": [math.nan] * len(rows),
            "none": [],
        }[says]
        decided = self.decided()  # a late row has its first answer, and is yet to be told it
        self.pool.finished(self.now_s, batch_id, sure)
        for row in rows:
            if row in self.answered_by and row not in decided:
                self.answered_by[row] |= 1 << action.member
        self.pool.finished(self.now_s, batch_id, sure)  # a second report changes nothing

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 9))
    def drop(self, which: int) -> None:
        batch_id = sorted(self.under_way)[which % len(self.under_way)]
        _, rows = self.under_way.pop(batch_id)
        gone = rows_in(self.pool.drop(self.now_s, batch_id))
        assert sorted(gone) == sorted((set(rows) & self.run_of.keys()) - self.decided())
        for row in gone:
            self.left(row)

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        request = max(0, self.requests - which)
        gone = rows_in(self.pool.cancel(request))
        assert sorted(gone) == sorted({row for row in self.run_of if row[0] == request} - self.decided())
        for row in gone:
            self.left(row)
        assert not self.pool.holds(request)

    @rule(which=st.integers(0, 9), first=st.integers(0, 12), rows=st.sampled_from([1, 1, 3]))
    def cancel_part(self, which: int, first: int, rows: int) -> None:
        request = max(0, self.requests - which)
        part = Slice(request, first, rows)
        gone = rows_in(self.pool.cancel_part(part))
        there = (set(rows_in([part])) & self.run_of.keys()) - self.decided()
        assert len(gone) == len(set(gone))
        assert set(gone) <= there
        for row in there.difference(gone):
            assert any(row in theirs for _, theirs in self.under_way.values()), "nobody is at it"
        for row in gone:
            self.left(row)

    @rule(name=st.sampled_from("abc"))
    def worker(self, name: str) -> None:
        """It is lost, with what it runs, or comes back."""
        members = LAYOUTS[self.layout][1].get(name)
        if members is None:
            return
        self.alive[name] = not self.alive[name]
        self.pool.set_worker(self.now_s, name, members if self.alive[name] else ())
        for batch_id, (action, _) in list(self.under_way.items()):
            if action.worker == name:
                del self.under_way[batch_id]

    @rule(policy=st.sampled_from(POLICIES), anew=st.booleans())
    def follow(self, policy: str, anew: bool) -> None:
        of = (COUNTED_ANEW if anew else ENSEMBLES)[self.layout]
        self.pool.follow(of, selection_policy(policy, of))

    @invariant()
    def every_row_is_counted_once(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.rows + len(self.decided()) == len(self.run_of)
        assert sum(self.pool._waiting.counts) == sum(bucket.rows for bucket in self.pool._waiting)
        for bucket in self.pool._waiting:
            assert bucket.rows == sum(group.count for group in bucket.groups) > 0
            for group in bucket.groups:
                assert group.bucket is bucket
                assert group.count == len(group.rows) == len(set(group.rows))
                assert group.states is None or len(group.states) == group.count
                assert (group.subset, group.under_way, group.state) == bucket.key[:3]
                assert group in group.request.groups


TestPooled = Pooled.TestCase
TestPooled.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=25, deadline=None)
@example(layout="mixed", policy="gear", rows=9, goal_s=0.01, seed=0)
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    policy=st.sampled_from(POLICIES),
    rows=st.integers(1, 40),
    goal_s=st.sampled_from([0.004, 0.01, GOAL_S]),
    seed=st.integers(0, 50),
)
def test_a_request_of_many_rows_is_scheduled_as_so_many_requests_of_one(layout, policy, rows, goal_s, seed):
    """The same batches at the same times, of as many rows; of the same, where rows have drawn lots.

    Rows of which the same is known are alike, and which of them go first is nobody's concern. So how sure
    their answers are is by turns, and not by the row.
    """
    alike = policy != "exp3"

    def batches(number_of, runs):
        pool = pool_of(layout, policy)
        for name, members in LAYOUTS[layout][1].items():
            pool.set_worker(0.0, name, members)
        for run in runs:
            pool.submit(0.0, run, 0.6180339887498949 * number_of(run.request_id, run.offset) % 1)
        seen: list[tuple[Any, ...]] = []
        ends, now_s = [], 0.0
        known = [0] * rows
        sure = [Random(f"{seed} {subset}") for subset in range(8)]
        while now_s < math.inf:
            while not isinstance(action := pool.next_action(now_s), Sleep):
                if isinstance(action, RunOn):
                    ran = [number_of(*row) for row in rows_in(action.slices)]
                    seen.append((now_s, action.worker, action.member, sorted(ran)))
                    ends.append((now_s + action.predicted_s, action.batch_id, action.member, ran))
                elif isinstance(action, AnswerRows):
                    for part, subset in action.parts:
                        seen += ((now_s, number_of(*row), members_of(subset)) for row in rows_in([part]))
                else:
                    seen += ((now_s, number_of(*row), ()) for row in rows_in(action.runs))
            now_s = min([action.until_s, *(end[0] for end in ends)])
            for end in sorted(end for end in ends if end[0] <= now_s):
                ends.remove(end)
                for row in end[3]:
                    known[row] |= 1 << end[2]
                pool.finished(now_s, end[1], [sure[known[row]].random() for row in end[3]])
        if alike:
            seen = [(*each[:-1], len(each[-1])) if len(each) == 4 else (each[0], each[2]) for each in seen]
        return sorted(seen, key=repr)

    together = batches(lambda _, row: row, [RowRun(7, rows, 0.0, goal_s, due_s=goal_s)])
    apart = batches(
        lambda number, _: number, [RowRun(number, 1, 0.0, goal_s, due_s=goal_s) for number in range(rows)]
    )
    assert together == apart
