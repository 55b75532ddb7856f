"""What every subset of a function's members answers to held-out rows, and the ensemble that follows from it.

Where a fit of the combination (fit.py) meets the evidence that plans are made of. Pure; numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.ensemble.evidence import fit_evidence, subset_of
from server.ensemble.fit import Fit, combined, largest_of
from server.ensemble.selection import Combination, Ensemble, EnsembleMember, Probabilities

__all__ = ["SubsetAnswers", "answers_of", "by_fit", "fit_ensemble"]


@dataclass(frozen=True, slots=True)
class SubsetAnswers:
    """By subset (a bit mask), of the same rows: the combined top probability, whether the answer is right,
    and how probable it is by the largest subset.
    """

    confidence: Mapping[int, NDArray[np.float64]]
    correct: Mapping[int, NDArray[np.bool_]]
    believed: Mapping[int, NDArray[np.float64]]


def answers_of(
    fit: Fit, probabilities: ArrayLike, labels: Sequence[int] | NDArray[np.integer[Any]]
) -> SubsetAnswers:
    """Of every subset whose weights were fitted. probabilities: [members, rows, classes], in the fit's order.

    labels: [rows], places among the classes.
    """
    told, truth = np.asarray(probabilities, np.float64), np.asarray(labels)
    confidence: dict[int, NDArray[np.float64]] = {}
    correct: dict[int, NDArray[np.bool_]] = {}
    believed: dict[int, NDArray[np.float64]] = {}
    largest = largest_of(each.members for each in fit.subsets)
    by_all, rows = combined(fit, largest, told[list(largest)]), np.arange(len(truth))
    for each in fit.subsets:
        subset = subset_of(each.members)
        answer = combined(fit, each.members, told[list(each.members)])
        named = answer.argmax(axis=1)
        confidence[subset] = answer.max(axis=1)
        correct[subset] = named == truth
        believed[subset] = by_all[rows, named]
    return SubsetAnswers(confidence, correct, believed)


def by_fit(fit: Fit) -> Combination:
    """How the members that have answered a row answer together."""

    def combination(evidence: Mapping[int, Probabilities]) -> Sequence[float]:
        members = tuple(sorted(evidence))
        told = [[list(evidence[member])] for member in members]
        probabilities: list[float] = combined(fit, members, told)[0].tolist()
        return probabilities

    return combination


def fit_ensemble(
    members: Sequence[EnsembleMember],
    fit: Fit,
    probabilities: ArrayLike,
    labels: Sequence[int] | NDArray[np.integer[Any]],
    observations: int | None = None,
) -> Ensemble:
    """What a selection policy has to know of these members, in the fit's order, from held-out rows.

    observations: how many of the rows are independent. Raises ValueError for other members than the fit's,
    and what `fit_evidence` raises.
    """
    names = tuple(member.name for member in members)
    if names != fit.members:
        raise ValueError(f"the fit is of {list(fit.members)}, and the members are {list(names)}")
    told = answers_of(fit, probabilities, labels)
    evidence = fit_evidence(len(members), told.confidence, told.correct, observations)
    return Ensemble(tuple(members), evidence, by_fit(fit))
