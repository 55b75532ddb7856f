"""Tenants in the simulator: one with a million rows delays another by its share and no more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from server.ensemble.policies.by_name import selection_policy
from server.scheduling.arbitration import MostInTime
from server.scheduling.policy import RowClass
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    Following,
    FunctionLoad,
    MemberLoad,
    SimulatedDevice,
    SimulationResult,
    TenantLoad,
    Workload,
    simulate,
)
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of
from tests.unit.scheduling.cores import actions, core, rows, spec

ENDS_S = 24.0
OUTCOMES = outcomes_of(*drawn([0.6, 0.75, 0.9]))
BIG = TenantLoad("big", rows=1_000_000, rows_per_request=256, begins_s=4.0, ends_s=ENDS_S)
ENDLESS = replace(BIG, rows=1_000_000_000, ends_s=10.0)


def latency_s(batch: int) -> float:
    return 0.02 + 0.001 * batch


def small(row_class: RowClass = "interactive", rate: float = 20.0) -> TenantLoad:
    return TenantLoad("small", arrivals_s=poisson(Random(1), rate, ENDS_S), row_class=row_class)


def simulated(*tenants: TenantLoad, refuses: bool = False, functions: int = 1) -> SimulationResult:
    """All tenants ask the first function; the first one asks the others too."""
    loads = [
        FunctionLoad(
            f"f{number}",
            (),
            0.25,
            64,
            latency_s,
            refuses=refuses,
            tenants=tenants if number == 0 else tenants[:1],
        )
        for number in range(functions)
    ]
    devices = (SimulatedDevice(in_flight_limit=2),)
    return simulate(Workload(tuple(loads), devices, arbitration=MostInTime()))


def planned(policy: str, refuses: bool, *tenants: TenantLoad) -> SimulationResult:
    """They ask a function of three members, each row by itself."""
    costs_ms = (0.1, 0.3, 1.0)
    ensemble = ensemble_of(OUTCOMES, costs_ms)
    members = tuple(
        MemberLoad(each.name, partial(member_s, cost_ms), accuracy=each.accuracy)
        for each, cost_ms in zip(ensemble.members, costs_ms, strict=True)
    )
    followed = Following(ensemble, selection_policy(policy, ensemble), OUTCOMES)
    function = FunctionLoad(
        "f",
        (),
        0.25,
        64,
        lambda batch: 0.0,
        refuses=refuses,
        members=members,
        followed=followed,
        tenants=tenants,
    )
    return simulate(Workload((function,), (SimulatedDevice(in_flight_limit=2),), arbitration=MostInTime()))


def member_s(cost_ms: float, batch: int) -> float:
    return (8 + batch) * cost_ms / 1000


def rate_while_it_asks(result: SimulationResult) -> float:
    """Of the big one, which asks again as soon as it is refused, until its rows are used up."""
    big = result.tenants["f0", "big"]
    return big.rate(5, min(ENDS_S, big.answered_at_s[-1][0]))


@pytest.mark.parametrize(
    ("row_class", "refuses"), [("bulk", False), ("interactive", False), ("interactive", True)]
)
def test_a_million_rows_cost_another_half_of_its_latency_and_themselves_no_more_than_its_share(
    row_class: RowClass, refuses: bool
) -> None:
    big = replace(BIG, row_class=row_class)
    few = small(row_class)
    alone = simulated(few, refuses=refuses).tenants["f0", "small"]
    unhurt = rate_while_it_asks(simulated(big, refuses=refuses))
    beside = simulated(few, big, refuses=refuses)
    both = beside.tenants
    assert both["f0", "small"].answered == both["f0", "small"].offered
    assert both["f0", "small"].quantile_s(0.99, 4.0) <= 1.55 * alone.quantile_s(0.99, 4.0)
    assert rate_while_it_asks(beside) >= 0.48 * unhurt  # of 42 % that the small one takes alone


@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
def test_a_million_rows_in_one_request_cost_another_no_more_however_long_they_wait(
    row_class: RowClass,
) -> None:
    few = small(row_class)
    big = replace(BIG, row_class=row_class, rows_per_request=60_000, in_flight=1)
    alone, both = simulated(few).tenants, simulated(few, big).tenants
    beside_s = both["f0", "small"].quantile_s(0.99, 4.0)
    assert beside_s <= 1.55 * alone["f0", "small"].quantile_s(0.99, 4.0)
    assert both["f0", "big"].rate(5, ENDS_S) > 0.48 * 64 / latency_s(64)


@pytest.mark.parametrize("weight", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("row_class", ["interactive", "bulk"])
def test_two_who_want_more_than_there_is_get_it_by_weight(row_class: RowClass, weight: float) -> None:
    heavy = replace(BIG, weight=weight, row_class=row_class)
    light = replace(BIG, name="other", row_class=row_class)
    tenants = simulated(heavy, light).tenants
    # Interactive rows that are late already give way to those that are not, whoever's they are.
    rel = 0.1 if row_class == "bulk" else 0.3
    shares = [tenants["f0", name].rate(6, ENDS_S) for name in ("big", "other")]
    assert shares[0] / shares[1] == pytest.approx(weight, rel=rel)
    assert sum(shares) == pytest.approx(64 / latency_s(64), rel=0.1)  # nothing is lost by sharing


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("policy", ["best", "value"])
def test_of_a_function_that_follows_plans_no_row_of_a_small_caller_is_lost_beside_a_million(
    policy: str, refuses: bool
) -> None:
    few, big = small(), replace(ENDLESS, in_flight=200)
    alone = planned(policy, refuses, big).tenants["f", "big"].rate(5, 10)
    both = planned(policy, refuses, few, big).tenants
    assert both["f", "small"].answered == both["f", "small"].offered
    assert both["f", "small"].quantile_s(0.99, 4.0) <= 0.16  # two full batches of the slowest member
    assert both["f", "big"].rate(5, 10) >= 0.7 * alone


@pytest.mark.parametrize("refuses", [False, True])
def test_of_a_function_that_follows_plans_two_who_want_all_have_half_however_many_rows_wait(
    refuses: bool,
) -> None:
    many, less = replace(ENDLESS, in_flight=200), replace(ENDLESS, name="less", in_flight=50)
    both = planned("value", refuses, many, less).tenants
    rates = [both["f", name].rate(5, 10) for name in ("big", "less")]
    assert min(rates) >= 0.95 * max(rates)


def test_more_functions_are_no_more_of_the_device() -> None:
    other = replace(BIG, name="other")
    tenants = simulated(BIG, other, functions=3).tenants
    of_big = sum(result.rate(6, ENDS_S) for (_, name), result in tenants.items() if name == "big")
    assert of_big == pytest.approx(tenants["f0", "other"].rate(6, ENDS_S), rel=0.25)


def test_who_has_the_device_alone_again_has_all_of_it() -> None:
    brief = replace(BIG, name="brief", ends_s=8.0)
    alone, beside = simulated(BIG).tenants, simulated(BIG, brief).tenants
    assert beside["f0", "big"].rate(14, ENDS_S) == pytest.approx(
        alone["f0", "big"].rate(14, ENDS_S), rel=0.05
    )


def test_where_all_are_in_time_nobody_is_held_back() -> None:
    many = TenantLoad("many", arrivals_s=poisson(Random(2), 450.0, ENDS_S))
    beside = simulated(many, small()).tenants["f0", "many"]
    assert beside.quantile_s(1.0) <= 0.25
    assert beside.answered == beside.offered


def test_many_small_tenants_in_overload_have_full_batches() -> None:
    arrivals = [poisson(Random(number), 16.0, 8.0) for number in range(60)]  # 960 rows/s of 762
    tenants = [TenantLoad(f"t{number}", arrivals_s=times) for number, times in enumerate(arrivals)]
    everybody = TenantLoad("", arrivals_s=sorted(time for times in arrivals for time in times))
    apart, together = simulated(*tenants, refuses=True), simulated(everybody, refuses=True)
    answered = sum(result.answered for result in apart.tenants.values())
    assert answered >= 0.95 * together.tenants["f0", ""].answered


def test_a_row_of_another_tenant_goes_before_what_waits_of_the_first() -> None:
    busy = core(spec(max_batch=8, slo_s=10.0))
    for number in range(40):
        busy.submit(0.0, rows(number, 8, tenant="a"))
    assert len(actions(busy, 0.0)) == 2
    busy.submit(0.001, rows(100, tenant="b"))
    busy.finished(0.01, 1)
    (batch,) = actions(busy, 0.01)
    assert batch.slices[0].request_id == 100


def test_cancelled_rows_leave_whoever_they_are_of() -> None:
    busy = core()
    for number, tenant in enumerate("aabbc"):
        busy.submit(0.0, rows(number, 30, tenant=tenant, row_class="bulk"))
    assert sum(busy.cancel(0.0, number) for number in range(5)) == 150
    assert busy.queue_depth() == {"f": (0, 0)}
