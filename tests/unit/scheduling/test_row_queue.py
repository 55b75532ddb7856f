"""The queue against a list that is sorted anew after every step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduling.policy import RowRun
from server.scheduling.row_queue import RowQueue
from server.scheduling.terms import Slice


def run(request_id: int, rows: int, due_s: float = 0.0, priority: int = 0) -> RowRun:
    return RowRun(request_id, rows, 0.0, priority=priority, due_s=due_s, row_bytes=10.0)


def flat(runs: object) -> list[tuple[int, int]]:
    """(request, row) of each row."""
    assert isinstance(runs, list)
    return [(part.request_id, part.offset + row) for part in runs for row in range(part.rows)]


added = st.tuples(st.just("add"), st.integers(1, 6), st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 1))
taken = st.tuples(st.just("take"), st.integers(1, 8), st.integers(0, 5), st.just(0))
removed = st.tuples(st.just("remove"), st.integers(0, 30), st.just(0), st.just(0))
left = st.tuples(st.just("leave"), st.integers(0, 8), st.integers(0, 6), st.integers(1, 4))


@given(st.lists(st.one_of(added, taken, removed, left), max_size=40))
@settings(max_examples=300, deadline=None)
def test_it_is_a_list_of_rows_in_order_of_priority_goal_and_arrival(
    steps: list[tuple[str, int, float, int]],
) -> None:
    queue, naive = RowQueue(), list[tuple[int, float, int, int]]()  # -priority, due, request, row
    requests = 0
    for verb, first, second, priority in steps:
        if verb == "add":
            queue.add(run(requests, first, second, priority))
            naive = sorted(naive + [(-priority, second, requests, row) for row in range(first)])
            requests += 1
        elif verb == "take":
            skip = int(second)
            if skip + first > len(naive):
                with pytest.raises(ValueError, match="cannot take"):
                    queue.take(first, skip)
                continue
            assert flat(queue.take(first, skip)) == [row[2:] for row in naive[skip : skip + first]]
            del naive[skip : skip + first]
        elif verb == "leave":
            part = Slice(first, int(second), priority)
            gone = {(first, row) for row in range(part.offset, part.offset + part.rows)}
            here = [row[2:] for row in naive if row[2:] in gone]
            assert sorted(flat(queue.remove_part(part))) == sorted(here)
            naive = [row for row in naive if row[2:] not in gone]
        else:
            assert flat(queue.remove(first)) == [row[2:] for row in naive if row[2] == first]
            naive = [row for row in naive if row[2] != first]
        assert flat(list(queue.runs)) == [row[2:] for row in naive]
        assert queue.rows == len(naive)
        assert queue.nbytes == pytest.approx(10 * len(naive))
        assert all(
            (request in queue) == any(row[2] == request for row in naive) for request in range(requests)
        )


def test_a_large_request_is_cut_where_a_batch_ends() -> None:
    queue = RowQueue()
    queue.add(run(1, 100))
    assert [(part.offset, part.rows) for part in queue.take(64)] == [(0, 64)]
    assert [(part.offset, part.rows) for part in queue.take(30, skip=2)] == [(66, 30)]
    assert [(part.offset, part.rows) for part in queue.runs] == [(64, 2), (96, 4)]
    assert queue.after(0).offset == 64
    assert queue.after(3).offset == 96
    with pytest.raises(IndexError):
        queue.after(6)


@pytest.mark.parametrize(("count", "skip"), [(0, 0), (-1, 0), (1, -1), (4, 0), (1, 3), (3, 1)])
def test_what_cannot_be_taken_is_refused_and_nothing_moves(count: int, skip: int) -> None:
    queue = RowQueue()
    queue.add(run(1, 3))
    with pytest.raises(ValueError, match=f"cannot take {count} rows after {skip} of a queue of 3"):
        queue.take(count, skip)
    assert flat(queue.take(3)) == [(1, 0), (1, 1), (1, 2)]


def test_the_run_after_so_many_rows_is_the_one_that_holds_the_next() -> None:
    queue = RowQueue()
    queue.add(run(1, 2))
    queue.add(run(2, 3))
    assert [queue.after(skip).request_id for skip in range(5)] == [1, 1, 2, 2, 2]
    with pytest.raises(IndexError):
        queue.after(5)


def test_what_is_left_of_a_cut_request_keeps_its_place_and_no_empty_run_is_left() -> None:
    queue = RowQueue()
    queue.add(run(1, 10, due_s=5.0))
    queue.take(4)
    queue.add(run(2, 2, due_s=2.0))
    assert [(part.request_id, part.rows) for part in queue.runs] == [(2, 2), (1, 6)]
    taken = queue.take(3, skip=2)
    assert flat(taken) == [(1, 4), (1, 5), (1, 6)]
    assert len(taken) == 1
    assert [(part.request_id, part.rows) for part in queue.runs] == [(2, 2), (1, 3)]
