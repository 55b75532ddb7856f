"""Rows of several functions that go through one network first share its passes, and make nobody late."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from server.scheduling.core import FunctionSpec, RunBatch, Scheduler, WorkerView
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import FunctionLoad, SimulationResult, Workload, simulate
from tests.unit.scheduling.cores import batches, core, parts, rows, spec, worker
from tests.unit.scheduling.views import affine


def head(name: str, **fields: Any) -> FunctionSpec:
    return spec(name, **{"prefix": "eyes", "max_batch": 16} | fields)


def house(*heads: FunctionSpec, in_flight_limit: int = 1, **fields: Any) -> Scheduler:
    held = worker("w", *(each.name for each in heads), in_flight_limit=in_flight_limit)
    return core(*heads, workers=(held,), **fields)


def aboard(batch: RunBatch) -> dict[str, int]:
    """How many rows of each function."""
    return {each.function: each.rows for each in (batch, *batch.riders)}


def busy(scheduler: Scheduler, *waiting: tuple[str, int], **fields: Any) -> RunBatch:
    """The batch that leaves when the worker is free of one of `a`, under which these rows came."""
    scheduler.submit(0.0, rows(1, 1, "a"))
    (first,) = batches(scheduler, 0.0)
    for number, (function, count) in enumerate(waiting, 2):
        scheduler.submit(0.001, rows(number, count, function, **fields))
    scheduler.finished(0.006, first.batch_id)
    return batches(scheduler, 0.006)[0]


def test_rows_that_wait_for_other_heads_leave_in_the_same_batch() -> None:
    scheduler = house(head("a"), head("b"), head("c"))
    batch = busy(scheduler, ("a", 3), ("b", 2), ("c", 4))
    assert aboard(batch) == {"a": 3, "b": 2, "c": 4}
    assert [parts(each) for each in batch.riders] == [[(3, 0, 2)], [(4, 0, 4)]]
    assert [each.members for each in batch.riders] == [("b-m",), ("c-m",)]
    assert {each.worker for each in batch.riders} == {"w"}
    assert len({batch.batch_id, *(each.batch_id for each in batch.riders)}) == 3
    assert scheduler.waiting() == {}
    scheduler.finished(0.02, batch.batch_id)
    scheduler.submit(0.03, rows(9, 1, "b"))
    assert [aboard(each) for each in batches(scheduler, 0.03)] == [{"b": 1}], "the worker is free again"


def test_a_batch_is_no_larger_for_it_than_its_function_allows() -> None:
    scheduler = house(head("a", slo_s=1.0), head("b", slo_s=1.0), head("c", slo_s=1.0))
    batch = busy(scheduler, ("a", 3), ("b", 30), ("c", 4))
    assert aboard(batch) == {"a": 3, "b": 13}
    assert scheduler.waiting()["b"].rows == 17


def test_who_is_due_first_rides_first() -> None:
    scheduler = house(head("a", slo_s=0.9), head("b", slo_s=2.0), head("c", slo_s=1.0))
    assert list(aboard(busy(scheduler, ("a", 3), ("b", 5), ("c", 30)))) == ["a", "c"]


@pytest.mark.parametrize(
    "other",
    [head("b", prefix="ears"), head("b", prefix=""), spec("b")],
    ids=["another network", "none", "no head"],
)
def test_rows_of_other_networks_have_batches_of_their_own(other: FunctionSpec) -> None:
    assert aboard(busy(house(head("a"), other), ("a", 3), ("b", 2))) == {"a": 3}


def test_rows_of_another_form_do_not_ride() -> None:
    scheduler = house(head("a"), head("b"))
    scheduler.submit(0.0, rows(1, 1, "a"))
    (first,) = batches(scheduler, 0.0)
    scheduler.submit(0.0, rows(2, 1, "a", bucket="path"))
    scheduler.submit(0.0, rows(3, 1, "b", bucket="image"))
    scheduler.finished(0.006, first.batch_id)
    assert not batches(scheduler, 0.006)[0].riders


def test_a_head_that_the_worker_does_not_hold_is_not_asked_there() -> None:
    heads = head("a"), head("b")
    scheduler = core(*heads, workers=(worker("w", "a", in_flight_limit=1),))
    assert aboard(busy(scheduler, ("a", 1), ("b", 2))) == {"a": 1}


def test_it_can_be_left_out() -> None:
    scheduler = house(head("a"), head("b"), prefix_batching=False)
    assert aboard(busy(scheduler, ("a", 3), ("b", 2))) == {"a": 3}


def test_no_row_misses_its_goal_for_those_that_ride() -> None:
    goal_s = 0.006 + affine(5)
    scheduler = house(head("a", slo_s=goal_s + 1e-9 - 0.001), head("b", slo_s=1.0))
    batch = busy(scheduler, ("a", 3), ("b", 9))
    assert aboard(batch) == {"a": 3, "b": 2}


def test_no_row_of_another_model_misses_its_goal_for_those_that_ride() -> None:
    scheduler = house(head("a", slo_s=0.5), head("b", slo_s=1.0), spec("other", slo_s=0.9))
    scheduler.submit(0.0, rows(1, 1, "a"))
    (first,) = batches(scheduler, 0.0)
    scheduler.submit(0.001, rows(2, 3, "a"))
    scheduler.submit(0.001, rows(3, 9, "b"))
    spare_s = 0.005 + affine(6) + affine(2)  # of the batch that begins at 0.006, and of its own
    scheduler.submit(0.001, rows(4, 2, "other", slo_s=spare_s + 1e-9))
    scheduler.finished(0.006, first.batch_id)
    sent = batches(scheduler, 0.006)[0]
    if sent.function == "other":  # whose goal is the nearest
        scheduler.finished(0.012, sent.batch_id)
        sent = batches(scheduler, 0.012)[0]
        assert aboard(sent) == {"a": 3, "b": 9}
    else:
        assert aboard(sent) == {"a": 3, "b": 3}


def test_bulk_rows_of_several_functions_fill_one_batch() -> None:
    scheduler = house(head("a"), head("b"), head("c"))
    for number, (name, count) in enumerate((("a", 3), ("b", 2), ("c", 100)), 1):
        scheduler.submit(0.0, rows(number, count, name, row_class="bulk"))
    (batch,) = batches(scheduler, 0.0)
    assert sum(aboard(batch).values()) == 16
    assert {"a": 3, "b": 2}.items() <= aboard(batch).items() or aboard(batch) == {"c": 16}


def test_after_a_batch_of_several_that_failed_each_is_asked_alone_for_a_while() -> None:
    scheduler = house(head("a", slo_s=100.0), head("b", slo_s=100.0))
    batch = busy(scheduler, ("a", 3), ("b", 2))
    assert batch.riders
    scheduler.finished(0.02, batch.batch_id, failed=True)

    def next_one(now_s: float) -> RunBatch:
        scheduler.submit(now_s, rows(int(now_s * 1000), 3, "a"))
        scheduler.submit(now_s, rows(int(now_s * 1000) + 1, 2, "b"))
        sent = batches(scheduler, now_s)
        assert len(sent) == 1
        return sent[0]

    alone = next_one(1.0)
    assert not alone.riders
    scheduler.finished(1.01, alone.batch_id)
    (other,) = batches(scheduler, 1.01)
    assert not other.riders
    scheduler.finished(1.02, other.batch_id)
    assert next_one(40.0).riders


def test_a_worker_that_dies_takes_a_batch_of_several_with_it() -> None:
    scheduler = house(head("a"), head("b"))
    batch = busy(scheduler, ("a", 3), ("b", 2))
    scheduler.set_worker(0.01, WorkerView("w", alive=False, resident=frozenset()))
    scheduler.finished(0.01, batch.batch_id, failed=True)  # the shell hears of it once more
    scheduler.set_worker(0.02, worker("w2", "a", "b"))
    scheduler.submit(0.02, rows(20, 3, "a"))
    assert len(batches(scheduler, 0.02)) == 1


def test_what_a_batch_of_several_takes_is_learned_of_each() -> None:
    seen: dict[str, list[tuple[int, float]]] = {"a": [], "b": []}

    class Learned:
        def __init__(self, name: str) -> None:
            self._name = name

        def __call__(self, count: int) -> float:
            return affine(count)

        def observe(self, count: int, seconds: float) -> None:
            seen[self._name].append((count, seconds))

    scheduler = house(head("a", latency=Learned("a")), head("b", latency=Learned("b")))
    batch = busy(scheduler, ("a", 3), ("b", 2))
    scheduler.finished(0.016, batch.batch_id)
    for learned in seen.values():
        count, seconds = learned[-1]
        assert (count, round(seconds, 9)) == (5, 0.01)


def simulated(*, prefix_batching: bool, functions: int = 4, rate: float = 1200.0) -> SimulationResult:
    """One device, 5 ms a batch and 0.25 ms a row, heads that ask `rate` rows a second in all."""
    loads = tuple(
        FunctionLoad(
            f"f{number}",
            poisson(Random(f"{number}"), rate / functions, 4.0),
            0.03,
            32,
            affine,
            prefix="eyes",
        )
        for number in range(functions)
    )
    return simulate(Workload(loads, prefix_batching=prefix_batching))


def test_simulated_heads_answer_more_rows_in_time_together() -> None:
    together, apart = simulated(prefix_batching=True), simulated(prefix_batching=False)
    assert together.total.offered == apart.total.offered
    for result in (together, apart):
        total = result.total
        assert total.good + total.late + total.refused == total.offered, "nothing is lost"
    assert together.total.goodput > apart.total.goodput + 0.1
    assert together.busy_s < apart.busy_s
