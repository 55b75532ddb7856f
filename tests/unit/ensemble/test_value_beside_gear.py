"""`value` beside its plain sister `gear` and the best member, where what is known is little or wrong."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import mean

import numpy as np
import pytest

from server.ensemble.fit import fit_combination
from server.ensemble.policies.base import Steady
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, EnsembleMember
from server.ensemble.subset_answers import answers_of, fit_ensemble
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.ensembles import EnsembleLoad, MemberOutcomes, simulate_ensemble

COSTS_MS = (0.06, 0.15, 0.4)
SLO_S = 0.1
SEEDS = range(4)


def drawn(accuracies, rows, classes, seed):
    """Members that err independently, and are surer where they are right; and the labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=rows)
    told = np.empty((len(accuracies), rows, classes))
    for member, accuracy in enumerate(accuracies):
        right = random.random(rows) < accuracy
        named = np.where(right, labels, (labels + random.integers(1, max(2, classes), rows)) % classes)
        sure = np.where(right, random.beta(8, 2, rows), random.beta(4, 3, rows))
        told[member] = ((1 - sure) / max(1, classes - 1))[:, None]
        told[member, np.arange(rows), named] = sure
    return told, labels


def fitted(told, labels, known, devices=(0, 0, 0), costs_ms=COSTS_MS):
    """An ensemble that knows the first rows, and how it answers the others."""
    fit = fit_combination(told[:, :known], labels[:known], members=[f"m{n}" for n in range(len(told))])
    members = [
        EnsembleMember(
            name, float(np.mean(of.argmax(axis=1) == labels[:known])), 15e-3 * cost, 1e-3 * cost, at
        )
        for name, of, cost, at in zip(fit.members, told[:, :known], costs_ms, devices, strict=True)
    ]
    answers = answers_of(fit, told[:, known:], labels[known:])
    outcomes = MemberOutcomes(
        {subset: each.tolist() for subset, each in answers.confidence.items()},
        {subset: each.tolist() for subset, each in answers.correct.items()},
    )
    return fit_ensemble(members, fit, told[:, :known], labels[:known]), outcomes


def latency(member):
    return lambda rows: member.fixed_s + rows * member.per_row_s


def full_rate(ensemble):
    """Rows per second of the most accurate member's full batches."""
    best = max(ensemble.members, key=lambda member: member.accuracy)
    return 64 / latency(best)(64)


def load_of(ensemble, outcomes, load, seed, rows=4000, predicted=None):
    rate = load * full_rate(ensemble)
    return EnsembleLoad(
        poisson(Random(seed), rate, rows / rate),
        SLO_S,
        [latency(member) for member in ensemble.members],
        outcomes,
        predicted=predicted,
        seed=seed,
    )


def goodput(name, ensemble, outcomes, load, seed):
    return simulate_ensemble(
        load_of(ensemble, outcomes, load, seed), ensemble, selection_policy(name, ensemble)
    ).goodput


@pytest.mark.parametrize("load", [0.9, 1.5])
def test_fitted_on_100_rows_value_is_not_below_gear(load):
    ahead = []
    for seed in SEEDS:
        told, labels = drawn([0.7, 0.8, 0.92], 1600, 10, seed)
        ensemble, outcomes = fitted(told, labels, 100)
        value, gear = (goodput(name, ensemble, outcomes, load, seed) for name in ("value", "gear"))
        ahead.append(value - gear)
    assert mean(ahead) >= 0


def believed(ensemble, factor):
    """The ensemble as one that takes every member to be so much slower."""
    members = [
        replace(member, fixed_s=factor * member.fixed_s, per_row_s=factor * member.per_row_s)
        for member in ensemble.members
    ]
    return Ensemble(tuple(members), ensemble.evidence, ensemble.combination)


class Learned:
    """l̂(b) of a member; wrong by a factor, until it is corrected."""

    def __init__(self, member, factor):
        self._latency_s, self.factor = latency(member), factor

    def __call__(self, rows):
        return self.factor * self._latency_s(rows)


class Corrected(Steady):
    """A policy by what was believed, and from a moment on one by the truth, as when plans are fitted anew."""

    def __init__(self, name, ensemble, l_hat, corrected_s):
        super().__init__(ensemble)
        self.name = name
        self._by = {
            False: selection_policy(name, believed(ensemble, l_hat[0].factor)),
            True: selection_policy(name, ensemble),
        }
        self._l_hat, self._corrected_s = l_hat, corrected_s

    def init(self):
        return {"is_right": False, "own": self._by[False].init()}

    def steer(self, state, load):
        if not state["is_right"] and load.now_s >= self._corrected_s:
            for each in self._l_hat:
                each.factor = 1.0
            return {"is_right": True, "own": self._by[True].init()}
        own = self._by[state["is_right"]].steer(state["own"], load)
        return state if own is state["own"] else {**state, "own": own}

    def select(self, state, row):
        return self._by[state["is_right"]].select(state["own"], row)


def right_after_a_correction(name, ensemble, outcomes, load, seed):
    """The share of the rows right and in time, of those that came after l̂ was no longer 30 % low."""
    l_hat = [Learned(member, 0.7) for member in ensemble.members]
    stream = load_of(ensemble, outcomes, load, seed, 5000, l_hat)
    corrected_s = stream.arrivals_s[1500]
    policy = Corrected(name, ensemble, l_hat, corrected_s)
    result = simulate_ensemble(stream, believed(ensemble, 0.7), policy)
    assert result.offered == result.answered + result.refused
    assert all(each.factor == 1.0 for each in l_hat)
    came = sum(at_s > corrected_s for at_s in stream.arrivals_s)
    right = [
        right and latency_s <= SLO_S + 1e-9
        for at_s, latency_s, right in result.answered_at
        if at_s > corrected_s
    ]
    return sum(right) / came


@pytest.mark.parametrize("load", [0.9, 1.5])
def test_with_latencies_believed_30_percent_low_value_is_not_below_gear_once_that_is_corrected(load):
    ahead = []
    for seed in SEEDS:
        told, labels = drawn([0.7, 0.8, 0.92], 2000, 10, seed)
        ensemble, outcomes = fitted(told, labels, 600)
        value, gear = (
            right_after_a_correction(name, ensemble, outcomes, load, seed) for name in ("value", "gear")
        )
        ahead.append(value - gear)
    assert mean(ahead) >= 0


def awkward(what):
    """Three members of which one, or all, have little to say."""
    told, labels = drawn([0.6, 0.75, 0.9], 2400, 1 if what == "one class only" else 4, 0)
    if what == "always the same":
        told[1] = [0.7, 0.1, 0.1, 0.1]
    elif what == "two equal members":
        told[1] = told[2]
    elif what == "probabilities of zero":
        told[1] = 0.0
    elif what == "zeros where it is not sure":
        told[2] = np.where(told[2] < 0.3, 0.0, told[2])
    return told, labels


@pytest.mark.parametrize("devices", [(0, 0, 0), (0, 1, 2)])
@pytest.mark.parametrize(
    "what",
    [
        "always the same",
        "two equal members",
        "probabilities of zero",
        "zeros where it is not sure",
        "one class only",
    ],
)
def test_with_awkward_members_value_answers_every_row_and_is_not_below_the_best_alone_or_gear(what, devices):
    told, labels = awkward(what)
    ensemble, outcomes = fitted(told, labels, 600, devices)
    for load in (0.5, 1.4):
        stream = load_of(ensemble, outcomes, load, 1)
        value, best, gear = (
            simulate_ensemble(stream, ensemble, selection_policy(name, ensemble))
            for name in ("value", "best", "gear")
        )
        assert value.late == 0
        assert value.refused <= min(best.refused, gear.refused)
        assert value.goodput >= max(best.goodput, gear.goodput) - 0.005
