"""Ensembles for tests: held-out answers drawn at random, or made to be awkward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from server.ensemble.actor import ActorNetwork, inputs_for
from server.ensemble.evidence import fit_evidence, members_of
from server.ensemble.selection import Ensemble, EnsembleMember
from server.scheduling.simulation.ensembles import MemberOutcomes

Floats = NDArray[np.float64]


def drawn(
    accuracies: Sequence[float], rows: int = 800, classes: int = 4, seed: int = 0
) -> tuple[Floats, list[int]]:
    """[members, rows, classes] of members so accurate, and the labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=rows)
    told = random.dirichlet(np.ones(classes), size=(len(accuracies), rows)) * 0.6
    for member, accuracy in enumerate(accuracies):
        right = random.random(rows) < accuracy
        named = np.where(right, labels, random.integers(classes, size=rows))
        told[member, np.arange(rows), named] += 0.4 * random.random(rows) + 0.3
    probabilities: Floats = told / told.sum(axis=2, keepdims=True)
    return probabilities, labels.tolist()


def outcomes_of(told: Floats, labels: Sequence[int]) -> MemberOutcomes:
    """By the mean of the members' probabilities."""
    subsets = range(1, 1 << len(told))
    mean = {subset: told[list(members_of(subset))].mean(axis=0) for subset in subsets}
    return MemberOutcomes(
        {subset: each.max(axis=1).tolist() for subset, each in mean.items()},
        {subset: (each.argmax(axis=1) == np.asarray(labels)).tolist() for subset, each in mean.items()},
    )


def ensemble_of(
    outcomes: MemberOutcomes, costs_ms: Sequence[float], devices: Sequence[int] | None = None
) -> Ensemble:
    members = tuple(
        EnsembleMember(
            f"m{number}",
            sum(outcomes.correct[1 << number]) / outcomes.rows,
            fixed_s=8 * cost_ms / 1000,
            per_row_s=cost_ms / 1000,
            device=devices[number] if devices else 0,
        )
        for number, cost_ms in enumerate(costs_ms)
    )
    evidence = fit_evidence(len(members), outcomes.confidence, outcomes.correct)
    ensemble = Ensemble(members, evidence)
    return replace(ensemble, actor=untaught(len(members), ensemble.devices))


def untaught(members: int = 3, devices: int = 1, favoured: int = 1, by: float = 0.0) -> ActorNetwork:
    """An actor that heeds nothing, and favours a subset by its mask."""
    biases = np.zeros((1 << members) - 1)
    biases[favoured - 1] = by
    weights = np.zeros((inputs_for(members, devices), len(biases)))
    return ActorNetwork(members, devices, ((weights, biases),))
