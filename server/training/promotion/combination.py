"""By which rule a function that is deployed combines its members, and what is fitted for it. Pure.

The rules that need no fit are judged on all validation rows; `log_pool` by folds, on rows that neither its
temperatures nor its weights were fitted on, or it would look better than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.ensemble.fit import Fit, fit_combination, rows_to_fit, subsets_of
from server.training.promotion.selection import Combine, LabelIndices, Scores, accuracy_of

__all__ = ["Combination", "choose_combination"]


@dataclass(frozen=True, slots=True)
class Combination:
    """held_out: of each rule, the share of rows answered rightly that it was not fitted on. known: the share
    of rows that are of a class; no answer to the others is right, and nothing is fitted to them.
    """

    rule: Combine
    fit: Fit
    held_out: Mapping[str, float]
    known: float = 1.0

    @property
    def accuracy(self) -> float:
        """The rule's own."""
        return self.held_out[self.rule]

    def renamed(self, names: Mapping[str, str]) -> Combination:
        """The same of members that have other names now."""
        members = tuple(names[member] for member in self.fit.members)
        return replace(self, fit=replace(self.fit, members=members))

    def subset_accuracies(self) -> dict[tuple[str, ...], float]:
        """Of each subset that was fitted, by its members' names in order, on rows it was not fitted on."""
        return {
            tuple(sorted(self.fit.members[place] for place in each.members)): each.accuracy * self.known
            for each in self.fit.subsets
        }


def choose_combination(
    scores: Mapping[str, Scores], labels: LabelIndices, groups: NDArray[np.integer[Any]] | None = None
) -> Combination:
    """The rule for these members, on validation rows; and what was fitted of them.

    scores: of each member float32 [n, classes]. labels: −1 = a class that no member knows. groups: [n], rows
    of equal numbers are one observation.

    `log_pool` where it is at least as good as the vote, for what its confidence means; else `mean`, or the
    vote where that is better.

    Raises ValueError for no rows of a class.
    """
    of_class = np.flatnonzero(labels >= 0)
    known = len(of_class) / max(1, len(labels))
    rows = of_class[rows_to_fit(len(of_class), next(iter(scores.values())).shape[1])]
    told = {name: each[rows] for name, each in scores.items()}
    truth = labels[rows]
    names = tuple(told)
    fit = fit_combination(
        np.stack([told[name] for name in names]),
        truth,
        members=names,
        groups=None if groups is None else groups[rows],
        evidence=len(subsets_of(len(names))) == 2 ** len(names) - 1,  # plans may ask for any subset
    )
    together = fit.of(tuple(range(len(names))))
    assert together is not None, "all members together are always fitted"
    held_out = {
        "log_pool": together.accuracy * known,
        "mean": accuracy_of(names, told, truth, "mean") * known,
        "majority_vote": accuracy_of(names, told, truth, "majority_vote") * known,
    }
    vote = held_out["majority_vote"]
    if held_out["log_pool"] >= vote:
        return Combination("log_pool", fit, held_out, known)
    return Combination("mean" if held_out["mean"] >= vote else "majority_vote", fit, held_out, known)
