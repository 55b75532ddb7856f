"""The simulator with functions whose rows are asked of some of their members, among others on one device."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble
from server.scheduling.arbitration import MostInTime
from server.scheduling.core import Scheduler
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.ensembles import EnsembleLoad, simulate_ensemble
from server.scheduling.simulation.simulator import (
    Following,
    FunctionLoad,
    MemberLoad,
    SimulationResult,
    Workload,
    simulate,
)
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of
from tests.unit.scheduling.views import affine

OUTCOMES = outcomes_of(*drawn([0.6, 0.75, 0.9]))
ENSEMBLE = ensemble_of(OUTCOMES, [0.05, 0.1, 0.3])
GOAL_S = 0.05
BEST_RATE = 64 / (8 * 0.0003 + 64 * 0.0003)  # rows/s of the best member in full batches


MEMBER_S = [(each.fixed_s, each.per_row_s) for each in ENSEMBLE.members]
LONG_PASSES = [(0.0023, 0.000115), (0.0037, 0.000185), (0.005, 0.00025)]


def affine_s(fixed_s: float, per_row_s: float, rows: int) -> float:
    return fixed_s + rows * per_row_s


def latency(number: int):
    member = ENSEMBLE.members[number]
    return lambda rows: member.fixed_s + rows * member.per_row_s


def following(
    name: str, policy: str, rate: float, seconds: float = 2.0, member_s=MEMBER_S, **fields
) -> FunctionLoad:
    members = tuple(
        replace(each, name=f"{name}-{each.name}", fixed_s=fixed_s, per_row_s=per_row_s)
        for each, (fixed_s, per_row_s) in zip(ENSEMBLE.members, member_s, strict=True)
    )
    ensemble = Ensemble(members, ENSEMBLE.evidence)
    return FunctionLoad(
        name,
        poisson(Random(name), rate, seconds),
        GOAL_S,
        64,
        lambda rows: 0.0,
        members=tuple(
            MemberLoad(each.name, partial(affine_s, each.fixed_s, each.per_row_s), accuracy=each.accuracy)
            for each in members
        ),
        followed=Following(ensemble, selection_policy(policy, ensemble), OUTCOMES),
        **fields,
    )


def run(*functions: FunctionLoad) -> SimulationResult:
    return simulate(Workload(functions, arbitration=MostInTime()))


@pytest.mark.parametrize("policy", ["best", "all", "value", "gear", "slackfit", "async"])
@pytest.mark.parametrize("refuses", [True, False])
def test_every_row_is_accounted_for(policy: str, refuses: bool) -> None:
    functions = [following("e", policy, 1.2 * BEST_RATE, 1.0, refuses=refuses, rows_per_request=2)]
    functions.append(following("f", policy, 0.3 * BEST_RATE, 1.0, refuses=refuses))
    for one in run(*functions).functions.values():
        assert one.offered == one.good + one.late + one.refused
        assert 0 < one.right <= one.good
        assert refuses or not one.refused


def test_the_same_seed_gives_the_same_bytes() -> None:
    results = [run(following("e", "value", 3000), following("f", "gear", 1000)) for _ in range(2)]
    first, second = (json.dumps(result.to_json()) for result in results)
    assert first == second


@pytest.mark.parametrize("policy", ["value", "all", "best"])
@pytest.mark.parametrize("load", [0.5, 1.3])
def test_a_function_alone_fares_as_its_pool_alone_does(policy: str, load: float) -> None:
    function = following("e", policy, load * BEST_RATE)
    assert function.followed is not None
    pool = simulate_ensemble(
        EnsembleLoad(
            function.arrivals_s, GOAL_S, [latency(number) for number in range(3)], OUTCOMES, 64, (16, 32, 64)
        ),
        function.followed.ensemble,
        function.followed.policy,
    )
    assert run(function).total.right_share == pytest.approx(pool.goodput, abs=0.03)


def test_functions_that_share_a_worker_together_follow_plans_that_it_can_carry(monkeypatch) -> None:
    functions = [following(f"e{at}", "value", 1.2 * BEST_RATE / 4) for at in range(4)]
    total = run(*functions).total
    assert total.refused == 0
    monkeypatch.setattr(Scheduler, "_share_out", lambda self, now_s: None)  # each plans for all of the worker
    assert total.right_share > run(*functions).total.right_share + 0.02


def test_many_functions_soon_know_that_their_batches_stay_small() -> None:
    """A batch takes milliseconds whatever is in it; each of 32 functions has a row or two in time for one."""
    totals = {}
    for policy in ("all", "value"):
        functions = [following(f"e{at}", policy, 28, 0.7, member_s=LONG_PASSES) for at in range(32)]
        totals[policy] = run(*functions).total
    assert totals["value"].right_share >= totals["all"].right_share
    assert totals["value"].refused <= totals["all"].refused


def test_a_function_that_has_no_choice_keeps_its_rows_where_ensembles_can_give_way() -> None:
    alone = FunctionLoad("f", poisson(Random("f"), 1000, 2.0), GOAL_S, 64, affine)
    result = run(alone, following("e", "value", 0.9 * BEST_RATE))
    assert result.functions["f"].goodput > 0.98
    assert result.functions["e"].goodput > 0.98
