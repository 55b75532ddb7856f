"""What must hold whatever happens, in whatever order: no row lost, none run twice, bounds kept."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.scheduling.core import (
    Action,
    FunctionSpec,
    Idle,
    MemberSpec,
    RefuseRows,
    RunBatch,
    Scheduler,
    Slice,
    Submission,
    WorkerView,
)
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.by_name import POLICIES
from server.scheduling.policy import RowClass
from tests.unit.scheduling.views import affine

MOST_ROWS, MOST_BYTES = 60, 900


class Served(RuleBasedStateMachine):
    """A server of two functions on two workers, driven at random."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Scheduler()
        self.now_s = 0.0
        self.requests = 0
        self.waiting: dict[int, set[int]] = {}  # request → rows that wait
        self.function_of: dict[int, str] = {}
        self.deadline_s: dict[int, float] = {}
        self.in_flight: dict[int, RunBatch] = {}
        self.alive = {"w0": True, "w1": True}

    @initialize(policies=st.tuples(st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(POLICIES))))
    def begin(self, policies: tuple[str, str]) -> None:
        for name, policy in zip(("f", "g"), policies, strict=True):
            self.configure(name, policy, 8)
        for name in self.alive:
            self.show(name)

    def configure(self, name: str, policy: str, max_batch: int) -> None:
        members = (
            MemberSpec(
                f"{name}-m", 0.9, LatencyModel({1: affine(1), 8: affine(8)}), swap_s=lambda device: 0.02
            ),
        )
        sizes = tuple(size for size in (1, 2, 4, 8) if size <= max_batch)
        spec = FunctionSpec(name, 0.05, max_batch, sizes, members, policy, {}, MOST_ROWS, MOST_BYTES)
        self.core.configure(self.now_s, spec)
        self.max_batch = {**getattr(self, "max_batch", {}), name: max_batch}

    def show(self, name: str) -> None:
        resident = frozenset({"f-m"} if name == "w0" else {"f-m", "g-m"})
        self.core.set_worker(self.now_s, WorkerView(name, self.alive[name], resident))

    @rule(
        function=st.sampled_from(["f", "g"]),
        rows=st.integers(1, 20),
        row_bytes=st.sampled_from([1, 30]),
        within_s=st.sampled_from([math.inf, 0.003, 0.02, 0.2]),
        row_class=st.sampled_from(["interactive", "bulk"]),
        priority=st.integers(0, 2),
        bucket=st.sampled_from(["", "path"]),
    )
    def submit(
        self,
        function: str,
        rows: int,
        row_bytes: int,
        within_s: float,
        row_class: RowClass,
        priority: int,
        bucket: str,
    ) -> None:
        self.requests += 1
        deadline_s = self.now_s + within_s
        submission = Submission(
            self.requests, function, rows, rows * row_bytes, deadline_s, row_class, priority, bucket=bucket
        )
        rejection = self.core.submit(self.now_s, submission)
        if rejection is None:
            self.waiting[self.requests] = set(range(rows))
            self.function_of[self.requests] = function
            self.deadline_s[self.requests] = deadline_s
        elif rejection.code == "overloaded":
            assert rejection.retry_after_s is not None
            assert 0 < rejection.retry_after_s <= 30
        else:
            assert rejection.predicted_finish_s is not None
            assert rejection.predicted_finish_s > deadline_s

    @rule(request=st.integers(1, 40))
    def cancel(self, request: int) -> None:
        assert self.core.cancel(self.now_s, request) == len(self.waiting.pop(request, set()))
        assert self.core.cancel(self.now_s, request) == 0

    @rule(later_s=st.sampled_from([0.0, 0.001, 0.005, 0.03, 2.0]))
    def act(self, later_s: float) -> None:
        self.now_s += later_s
        for _ in range(1000):
            action = self.core.next_action(self.now_s)
            if isinstance(action, Idle):
                assert action.until_s > self.now_s
                return
            self.carry_out(action)
        raise AssertionError("the core never became idle")

    def carry_out(self, action: Action) -> None:
        assert isinstance(action, RunBatch | RefuseRows)
        for part in action.slices:
            self.leave(part)
            assert self.function_of[part.request_id] == action.function
        if isinstance(action, RefuseRows):
            assert all(
                self.deadline_s[part.request_id] <= action.predicted_finish_s for part in action.slices
            )
            return
        assert action.rows == sum(part.rows for part in action.slices) <= self.max_batch[action.function]
        assert self.alive[action.worker]
        assert action.members == (f"{action.function}-m",)
        assert action.batch_id not in self.in_flight
        self.in_flight[action.batch_id] = action
        assert sum(batch.worker == action.worker for batch in self.in_flight.values()) <= 2

    def leave(self, part: Slice) -> None:
        rows = set(range(part.offset, part.offset + part.rows))
        assert rows <= self.waiting[part.request_id], "a row that does not wait was run or refused"
        self.waiting[part.request_id] -= rows

    @precondition(lambda self: self.in_flight)
    @rule(failed=st.booleans(), later_s=st.sampled_from([0.0, 0.004, 0.02]))
    def finish(self, failed: bool, later_s: float) -> None:
        self.now_s += later_s
        batch_id = min(self.in_flight)
        self.core.finished(self.now_s, batch_id, failed=failed)
        self.core.finished(self.now_s, batch_id)  # a second report changes nothing
        del self.in_flight[batch_id]

    @rule(name=st.sampled_from(["w0", "w1"]))
    def die_or_return(self, name: str) -> None:
        self.alive[name] = not self.alive[name]
        self.show(name)
        if not self.alive[name]:
            self.in_flight = {key: batch for key, batch in self.in_flight.items() if batch.worker != name}

    @rule(policy=st.sampled_from(sorted(POLICIES)), max_batch=st.sampled_from([4, 8]))
    def change(self, policy: str, max_batch: int) -> None:
        self.configure("f", policy, max_batch)

    @rule()
    def remove_and_return(self) -> None:
        for part in self.core.remove(self.now_s, "g"):
            self.leave(part)
        assert not any(rows for request, rows in self.waiting.items() if self.function_of[request] == "g")
        self.configure("g", "goodput", 8)

    @invariant()
    def the_core_counts_what_waits(self) -> None:
        depth = self.core.queue_depth()
        for name, (rows, nbytes) in depth.items():
            waiting = sum(
                len(left) for request, left in self.waiting.items() if self.function_of[request] == name
            )
            assert rows == waiting
            assert rows <= MOST_ROWS
            assert nbytes <= MOST_BYTES
            assert (nbytes > 0) == (rows > 0)

    def teardown(self) -> None:
        """Left alone with both workers, every row without a deadline runs in the end."""
        for name in self.alive:
            if not self.alive[name]:
                self.alive[name] = True
                self.show(name)
        self.configure("f", "goodput", 8)
        self.core.remove(self.now_s, "g")
        for _ in range(400):
            action = self.core.next_action(self.now_s)
            if isinstance(action, Idle):
                if self.in_flight:
                    self.now_s += 0.01
                    batch_id = min(self.in_flight)
                    self.core.finished(self.now_s, batch_id)
                    del self.in_flight[batch_id]
                elif action.until_s < math.inf:
                    self.now_s = action.until_s
                else:
                    break
            else:
                self.carry_out(action)
        assert self.core.queue_depth()["f"] == (0, 0)


Served.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_no_row_is_lost_or_run_twice_whatever_happens = Served.TestCase
