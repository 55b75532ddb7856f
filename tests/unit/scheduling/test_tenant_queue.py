"""Rows of several tenants in one queue: in turn among them, by goal within each, none lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.scheduling.policy import RowRun
from server.scheduling.row_queue import RowQueue
from server.scheduling.tenant_queue import TenantQueue
from server.scheduling.terms import Slice
from server.scheduling.turns import Turns


def run(request_id: int, rows: int, tenant: str = "", due_s: float = 1.0, priority: int = 0) -> RowRun:
    return RowRun(request_id, rows, 0.0, priority=priority, due_s=due_s, row_bytes=10.0, tenant=tenant)


def queue_of(*runs: RowRun, weights: dict[str, float] | None = None) -> TenantQueue:
    turns = Turns()
    queue = TenantQueue(turns)
    for each in runs:
        turns.came(0.0, each.tenant, (weights or {}).get(each.tenant, 1.0))
        queue.add(each)
    return queue


def counted(runs: list[RowRun]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in runs:
        found[each.tenant] = found.get(each.tenant, 0) + each.rows
    return found


def test_a_batch_is_shared_by_weight() -> None:
    queue = queue_of(run(1, 1000, "a"), run(2, 1000, "b"), weights={"a": 2.0})
    assert counted(queue.take_in_turn(63, 0.001)) == pytest.approx({"a": 42, "b": 21}, abs=1)


def test_what_one_does_not_want_the_others_have() -> None:
    queue = queue_of(run(1, 1000, "a"), run(2, 3, "b"), run(3, 1000, "c"))
    found = counted(queue.take_in_turn(63, 0.001))
    assert found["b"] == 3
    assert abs(found["a"] - found["c"]) <= 1
    assert sum(found.values()) == 63


def test_higher_priority_goes_first_whoever_has_had_less() -> None:
    queue = queue_of(run(1, 10, "a"), run(2, 10, "b", priority=1))
    assert queue.tenant == "b"
    assert counted(queue.take_in_turn(12, 0.001)) == {"b": 10, "a": 2}


def test_of_those_who_have_had_as_much_the_soonest_goal_goes_first() -> None:
    queue = queue_of(run(1, 1, "a", due_s=2.0), run(2, 1, "b", due_s=1.0))
    assert queue.tenant == "b"
    assert queue.first.request_id == 2


def test_who_has_had_more_elsewhere_is_ranked_anew() -> None:
    turns = Turns()
    queue = TenantQueue(turns)
    for tenant in "ab":
        turns.came(0.0, tenant)
        queue.add(run(ord(tenant), 5, tenant))
    assert queue.tenant == "a"
    turns.charge({"a": 1}, 0.5)
    assert queue.tenant == "b"


def test_a_tenant_whose_rows_may_not_join_keeps_them() -> None:
    queue = queue_of(run(1, 5, "a"), run(2, 5, "b"), run(3, 5, "c"))
    taken = queue.take_in_turn(
        8, 0.001, without=["a"], joins=lambda each, beside: 0 if each.tenant == "b" else 5 - beside
    )
    assert counted(taken) == {"c": 5}
    assert queue.rows == 10
    assert queue.rows_of("b") == 5


def test_of_all_means_by_goal() -> None:
    queue = queue_of(run(1, 2, "a", due_s=3.0), run(2, 2, "b", due_s=1.0), run(3, 2, "a", due_s=2.0))
    assert queue.after(3).request_id == 3
    taken = queue.take(3, 1)
    assert sorted((each.request_id, each.rows) for each in taken) == [(2, 1), (3, 2)]
    with pytest.raises(ValueError, match="cannot take"):
        queue.take(9)


def test_ten_thousand_tenants_each_get_a_row_in_turn() -> None:
    queue = queue_of(*(run(number, 2, f"t{number}") for number in range(10_000)))
    taken = queue.take_in_turn(64, 0.001)
    assert len({each.tenant for each in taken}) == 64
    queue.clear()
    assert (queue.rows, queue.nbytes, queue.is_shared) == (0, 0.0, False)


@dataclass(frozen=True)
class Came:
    tenant: str
    rows: int
    due_s: float
    priority: int


CAME = st.builds(
    Came,
    tenant=st.sampled_from("abc"),
    rows=st.integers(1, 5),
    due_s=st.sampled_from([1.0, 2.0, 3.0]),
    priority=st.sampled_from([0, 0, 1]),
)
STEPS = st.lists(
    st.one_of(
        CAME,
        st.tuples(st.just("turn"), st.integers(1, 9)),
        st.tuples(st.just("head"), st.integers(1, 3)),
        st.tuples(st.just("all"), st.integers(1, 9)),
        st.tuples(st.just("gone"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_row_is_lost_or_taken_twice_and_each_tenants_go_by_goal(steps: list[object]) -> None:
    turns = Turns()
    queue = TenantQueue(turns)
    waiting: dict[int, RowRun] = {}
    left: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Came):
            one = run(number, step.rows, step.tenant, step.due_s, step.priority)
            turns.came(0.0, step.tenant)
            queue.add(one)
            waiting[number], left[number] = one, one.rows
        else:
            assert isinstance(step, tuple)
            how, most = step
            total = sum(left.values())
            if how == "turn":
                taken = queue.take_in_turn(most, 0.001)
                assert sum(each.rows for each in taken) == min(most, total), "it conserves work"
            elif how == "gone":
                taken = queue.remove(most)
                assert sum(each.rows for each in taken) == left.get(most, 0)
            elif not total:
                continue
            elif how == "all":
                taken = queue.take(min(most, total))
            else:
                taken = queue.take(min(most, queue.rows_in_turn), 0, [queue.tenant])
                assert len({each.tenant for each in taken}) == 1
            for each in taken:
                left[each.request_id] -= each.rows
            for each in taken if how != "gone" else ():
                sooner = [
                    other
                    for request, other in waiting.items()
                    if other.tenant == each.tenant
                    and (-other.priority, other.due_s) < (-each.priority, each.due_s)
                ]
                assert not any(left[other.request_id] for other in sooner), "its sooner rows still wait"
            if taken:
                turns.charge(counted(taken), 0.001 * len(taken))
        assert queue.rows == sum(left.values())
        assert queue.nbytes == pytest.approx(10.0 * queue.rows)
        for request, rows in left.items():
            assert (request in queue) == (rows > 0)
        assert all(
            queue.rows_of(tenant) == sum(left[r] for r, each in waiting.items() if each.tenant == tenant)
            for tenant in "abc"
        )
        if queue.rows:
            assert queue.rows_in_turn > 0
        assert sum(each.rows for each in queue.by_goal()) == queue.rows


@given(st.lists(CAME, min_size=1, max_size=20), st.lists(st.integers(1, 6), max_size=20))
def test_one_tenant_alone_has_an_ordinary_queue(came: list[Came], takes: list[int]) -> None:
    queue, plain = queue_of(), RowQueue()
    for number, step in enumerate(came):
        one = run(number, step.rows, "a", step.due_s, step.priority)
        queue.add(one)
        plain.add(one)
    for rows in takes:
        rows = min(rows, plain.rows)
        if rows:
            assert queue.take_in_turn(rows, 0.001) == plain.take(rows)
        assert list(queue.view()[0]) == list(plain.runs)
        assert (queue.rows, queue.nbytes) == (plain.rows, plain.nbytes)


@pytest.mark.parametrize("tenants", ["a", "ab"])
def test_some_rows_of_a_request_leave_and_the_others_wait_on(tenants: str) -> None:
    queue = queue_of(*(run(number, 5, tenant, 1.0, 0) for number, tenant in enumerate(tenants)))
    (gone,) = queue.remove_part(Slice(0, 1, 2))
    assert (gone.offset, gone.rows) == (1, 2)
    assert queue.remove_part(Slice(0, 1, 2)) == queue.remove_part(Slice(7, 0, 9)) == []
    assert (queue.rows, queue.nbytes) == (5 * len(tenants) - 2, (5 * len(tenants) - 2) * gone.row_bytes)
    assert 0 in queue
    assert [(each.offset, each.rows) for each in queue.remove(0)] == [(0, 1), (3, 2)]
    assert 0 not in queue
    assert queue.rows == 5 * (len(tenants) - 1)
