"""The learned policy: its network as a file, how its shares are followed, and that training teaches it."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from server.ensemble.actor import ActorNetwork, inputs_for
from server.ensemble.policies.actor_critic import ActorCritic, Subsets
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, LoadView, RowEvidence
from server.scheduling.simulation.actor_training import Lesson, train_actor
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.ensembles import EnsembleLoad, simulate_ensemble
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of, untaught

OUTCOMES = outcomes_of(*drawn([0.6, 0.75, 0.9]))
ENSEMBLE = ensemble_of(OUTCOMES, [0.1, 0.2, 0.6])
GOAL_S = 0.05


def load(rate: float = 0.0, waiting: float = 0.0, ensemble: Ensemble = ENSEMBLE) -> LoadView:
    counts = np.zeros(ensemble.evidence.states)
    counts[0] = waiting
    return LoadView(0.0, GOAL_S, rate, counts, [0.0] * ensemble.devices, [1.0] * ensemble.devices, GOAL_S)


def test_a_network_is_the_same_after_it_was_kept() -> None:
    kept = untaught(favoured=3, by=1.5)
    read = ActorNetwork.from_json(json.loads(json.dumps(kept.to_json())))
    inputs, accuracies = np.ones(inputs_for(3, 1)), np.ones(7)
    assert np.array_equal(read.shares(inputs, accuracies), kept.shares(inputs, accuracies))


def spoilt(path: str, value: Any) -> dict[str, Any]:
    told: dict[str, Any] = copy.deepcopy(untaught().to_json())
    at: Any = told
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    return told


@pytest.mark.security
@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        "{}",
        spoilt("format", 2),
        spoilt("members", 40),
        spoilt("members", True),
        spoilt("members", 2),
        spoilt("devices", 0),
        spoilt("devices", 4),
        spoilt("skill", math.nan),
        spoilt("skill", None),
        spoilt("layers", []),
        spoilt("layers", [{}] * 100),
        spoilt("layers.0", 1),
        spoilt("layers.0.weights", []),
        spoilt("layers.0.weights.0", [0.0]),
        spoilt("layers.0.weights.0.0", math.inf),
        spoilt("layers.0.weights.0.0", 1e300),
        spoilt("layers.0.weights.0.0", "1"),
        spoilt("layers.0.weights.0.0", True),
        spoilt("layers.0.biases", [0.0] * 8),
        spoilt("layers.0.biases", [[0.0]] * 7),
    ],
)
def test_what_is_no_network_is_refused(told: Any) -> None:
    with pytest.raises(ValueError, match=r"layer|actor of format|members|units|numbers|skill|devices"):
        ActorNetwork.from_json(told)


def test_a_hidden_layer_has_a_bound() -> None:
    told = untaught().to_json()
    wide = 100_000
    told["layers"] = [{"weights": [[0.0] * wide], "biases": [0.0] * wide}, *told["layers"]]
    with pytest.raises(ValueError, match="units"):
        ActorNetwork.from_json(told)


def test_it_needs_a_network_and_one_for_its_size() -> None:
    with pytest.raises(ValueError, match="train-actor"):
        selection_policy("actor_critic", replace(ENSEMBLE, actor=None))
    with pytest.raises(ValueError, match="3 members on 2 devices, not for 3 on 1"):
        selection_policy("actor_critic", replace(ENSEMBLE, actor=untaught(devices=2)))


def test_rows_are_asked_of_subsets_as_often_as_the_network_says() -> None:
    policy = ActorCritic(replace(ENSEMBLE, actor=untaught(favoured=0b101, by=math.log(6))))
    state = policy.steer(policy.init(), load())
    rows = [RowEvidence(draw=(at + 0.5) / 1200) for at in range(1200)]
    asked = Counter(policy.select(state, row).ask for row in rows)
    assert asked[0, 2] == 600, "half of them: 6 of 6 + 6"
    assert all(abs(count - 100) <= 1 for ask, count in asked.items() if ask != (0, 2))


def test_a_row_that_draws_more_asks_no_cheaper_subset() -> None:
    policy = ActorCritic(replace(ENSEMBLE, actor=untaught()))
    state = policy.steer(policy.init(), load())
    costs = [
        sum(ENSEMBLE.members[member].cost_s for member in policy.select(state, RowEvidence(draw=d)).ask)
        for d in np.linspace(0, 0.999, 50)
    ]
    assert costs == sorted(costs)


def test_a_row_is_done_when_its_subset_has_answered() -> None:
    policy = ActorCritic(replace(ENSEMBLE, actor=untaught(favoured=0b011, by=50.0)))
    state = policy.steer(policy.init(), load())
    assert policy.select(state, RowEvidence(subset=0b001, draw=0.5)).ask == (1,)
    assert policy.select(state, RowEvidence(subset=0b001, under_way=0b010, draw=0.5)).waits
    assert policy.select(state, RowEvidence(subset=0b011, draw=0.5)).is_enough


def test_members_stand_by_their_cost() -> None:
    turned = ensemble_of(OUTCOMES, [0.6, 0.2, 0.1])
    policy = ActorCritic(replace(turned, actor=untaught(favoured=0b001, by=50.0)))
    state = policy.steer(policy.init(), load(ensemble=turned))
    assert policy.select(state, RowEvidence()).ask == (2,), "the cheapest one"


def test_a_member_that_nobody_holds_is_not_asked() -> None:
    members = tuple(replace(each, is_held=each.name != "m2") for each in ENSEMBLE.members)
    there = replace(ENSEMBLE, members=members, actor=untaught(favoured=0b101, by=50.0))
    policy = ActorCritic(there)
    state = policy.steer(policy.init(), load(ensemble=there))
    assert policy.select(state, RowEvidence(draw=0.5)).ask == (0,)
    alone = ActorCritic(replace(there, actor=untaught(favoured=0b100, by=50.0)))
    assert alone.select(alone.steer(alone.init(), load()), RowEvidence(draw=0.5)).ask == (0, 1)


def test_the_same_load_changes_nothing() -> None:
    policy = ActorCritic(replace(ENSEMBLE, actor=untaught()))
    state = policy.steer(policy.init(), load())
    assert policy.steer(state, load()) is state


def lesson(draw: Random) -> Lesson:
    rate = draw.uniform(500, 4000)
    return Lesson(ENSEMBLE, poisson(draw, rate, 10 * GOAL_S), GOAL_S, 32, (8, 16, 32))


def test_training_teaches_it_and_the_same_seed_gives_the_same_network() -> None:
    regrets: list[float] = []
    trained = train_actor(lesson, updates=8, lessons=4, heard=lambda _, regret: regrets.append(regret))
    again = train_actor(lesson, updates=8, lessons=4)
    assert json.dumps(trained.to_json()) == json.dumps(again.to_json())

    def goodput(ensemble: Ensemble) -> float:
        member_of = [(lambda rows, m=member: m.fixed_s + rows * m.per_row_s) for member in ensemble.members]
        arrivals_s = poisson(Random(5), 3500, 20 * GOAL_S)
        ask = EnsembleLoad(arrivals_s, GOAL_S, member_of, OUTCOMES, 32, (8, 16, 32))
        return simulate_ensemble(ask, ensemble, ActorCritic(ensemble)).goodput

    assert goodput(replace(ENSEMBLE, actor=trained)) > goodput(ENSEMBLE) + 0.02


def test_inputs_are_finite_whatever_the_load() -> None:
    known = Subsets(ENSEMBLE)
    for each in (load(), load(1e9, 1e9), replace(load(), workers=[0.0], slack_s=-1e9)):
        inputs = known.inputs(each)
        assert len(inputs) == inputs_for(3, 1)
        assert np.isfinite(inputs).all()
