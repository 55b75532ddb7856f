"""A plan as the table that a worker follows: it asks whom the server would ask."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.pipeline.asking import AskPlan, log_floored
from server.ensemble.ask_steps import ask_steps, next_members, shares_asked
from server.ensemble.evidence import NOTHING, members_of
from server.ensemble.fit import combined
from server.ensemble.plan import solve
from server.ensemble.selection import Ensemble, EnsembleMember
from server.training.promotion.combination import choose_combination
from tests.unit.ensemble.ensembles import drawn

NAMES = ("a", "b", "c")
TOLD, LABELS = drawn([0.6, 0.75, 0.9], classes=3)
FIT = choose_combination(
    {name: each.astype(np.float32) for name, each in zip(NAMES, TOLD, strict=True)}, np.asarray(LABELS)
).fit
COSTS_S = (0.001, 0.002, 0.006)


def ensemble() -> Ensemble:
    assert FIT.evidence is not None
    members = tuple(
        EnsembleMember(name, 0.9, 0.0, cost_s) for name, cost_s in zip(NAMES, COSTS_S, strict=True)
    )
    return Ensemble(members, FIT.evidence)


@pytest.mark.parametrize("price", [0.0, 5.0, 20.0, 80.0])
def test_a_worker_asks_whom_the_server_would_ask(price: float) -> None:
    evidence = ensemble().evidence
    plan = solve(ensemble(), (price,))
    steps = AskPlan(ask_steps(plan.choices, evidence, FIT), 3)
    told = TOLD.astype(np.float32)
    asked = 0
    for row in range(200):
        subset, member = 0, steps.first
        assert plan.choices[NOTHING].ask[0] == member
        while member != -1:
            subset |= 1 << member
            asked += 1
            members = members_of(subset)
            by_worker = steps.following(
                subset, {each: log_floored(told[each, row : row + 1]) for each in members}
            )
            sure = float(combined(FIT, members, told[list(members), row : row + 1])[0].max())
            choice = plan.choices[evidence.state_of(subset, sure)]
            member = int(by_worker[0])
            assert (choice.ask[0] if choice.ask else -1) == member
    assert asked > 200 or price


@pytest.mark.parametrize("price", [0.0, 20.0, 1000.0])
def test_the_shares_that_members_are_asked_of_are_what_the_plan_costs(price: float) -> None:
    plan = solve(ensemble(), (price,))
    shares = shares_asked(next_members(plan.choices), ensemble().evidence)
    assert shares @ COSTS_S == pytest.approx(plan.device_s)
    assert shares.sum() >= 1
    assert (shares <= 1 + 1e-9).all()
