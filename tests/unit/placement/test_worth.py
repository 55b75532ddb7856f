"""What leaves first is what costs least, however few of the numbers were looked at to find it."""

from __future__ import annotations

from random import Random

import pytest

from server.placement.policies.worth import Worth
from server.placement.policy import (
    Capacity,
    GroupKeys,
    ModelState,
    PlacementState,
    Residence,
    WaitingRows,
    WorkerPlaces,
)

NOW_S = 100.0


def drawn(seed: int, workers: int) -> PlacementState:
    """Models of all sizes and rates, some of which rows wait for, some held twice."""
    random = Random(seed)
    keys = [f"m{number}" for number in range(30)]
    models = {
        key: ModelState(
            size_bytes=random.randrange(1, 50),
            load_s={"cpu": random.uniform(0.01, 0.4)},
            arrivals=random.choice((0.0, random.uniform(0.1, 50.0))),
            arrived_s=NOW_S - random.uniform(0.0, 20.0),
            rows=10,
            goal_s=random.choice((0.05, 0.5, 5.0)),
            fixed_s=0.01,
            row_s=0.001,
            max_batch=8,
            groups=((key,),),
        )
        for key in keys
    }
    places = {
        f"w{number}": WorkerPlaces(
            f"w{number}",
            Capacity(1000),
            "cpu",
            {key: Residence(0.0, 0.1) for key in random.sample(keys, 15)},
        )
        for number in range(workers)
    }
    waited_for: dict[GroupKeys, WaitingRows] = {
        (key,): WaitingRows(random.randrange(1, 5), (NOW_S + 1.0,)) for key in random.sample(keys, 8)
    }
    return PlacementState(places, models, waited_for=waited_for, demand=dict.fromkeys(places, 0.95))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_models_leave_in_the_order_of_what_that_costs_a_byte(seed: int, workers: int) -> None:
    state = drawn(seed, workers)
    worth = Worth(state, NOW_S)
    for worker in state.workers.values():
        for load_s in (0.02, 0.3):
            leaving = list(worth.may_leave(worker, load_s))
            assert {one.key for one in leaving} == set(worker.resident)
            costs = [(one.rows / (4 * load_s) + one.worth) / one.size for one in leaving]
            assert costs == sorted(costs)
            for one in leaving:
                is_alone = len(worth.holders(one.key)) == 1
                waiting = state.waited_for.get((one.key,), WaitingRows(0)).rows
                assert one.rows == (waiting if is_alone else 0)
                assert not is_alone or one.worth == worth.keep((one.key,), "cpu")


@pytest.mark.parametrize("seed", range(5))
def test_nothing_sought_is_worth_more_than_the_bound_by_which_it_is_passed_over(seed: int) -> None:
    state = drawn(seed, 1)
    held = state.workers["w0"].resident
    sought = tuple(key for key in state.models if key not in held)
    worth = Worth(PlacementState(state.workers, state.models, sought=sought), NOW_S)
    units = worth.sought("cpu", 30)
    assert set(units) == {(key,) for key in sought}
    assert all(worth.keep(unit, "cpu") <= worth.most_sought for unit in units)
