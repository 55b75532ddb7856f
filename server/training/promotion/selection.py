"""Which trained models a function is made of: greedy ensemble selection under a latency budget.

Pure, over validation probabilities. The rules of combination are those of `server/ensemble/combine.py`; here
they are counted over whole matrices, since hundreds of subsets are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from server.ensemble.fit import Fit, HeldOutRows, combined, rows_to_fit

__all__ = [
    "Combine",
    "LabelIndices",
    "Scores",
    "SelectedMembers",
    "accuracy_of",
    "answers_of",
    "select_ensemble",
    "subset_accuracies",
]

Combine = Literal["majority_vote", "mean", "log_pool"]
# float32 [n, classes]: one model's probabilities for the n validation rows.
Scores = NDArray[np.floating]
LabelIndices = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class SelectedMembers:
    """Members in the order of their choice; validation accuracy; latency of all, one after the other."""

    members: tuple[str, ...]
    accuracy: float
    latency_ms: float


def accuracy_of(
    members: Sequence[str],
    scores: Mapping[str, Scores],
    labels: LabelIndices,
    combine: Combine,
    fit: Fit | None = None,
) -> float:
    """The share of rows that the members answer rightly together. Raises ValueError for no member.

    `majority_vote` (Rafiki §5.2): a tie goes to the prediction of the most accurate model. fit: of members of
    these names, by which `log_pool` answers.
    """
    return float((answers_of(members, scores, labels, combine, fit) == labels).mean())


def answers_of(
    members: Sequence[str],
    scores: Mapping[str, Scores],
    labels: LabelIndices,
    combine: Combine,
    fit: Fit | None = None,
) -> NDArray[np.intp]:
    """What the members answer together to each row; see `accuracy_of`."""
    if not members:
        raise ValueError("an ensemble needs a member")
    if combine == "mean":
        answers: NDArray[np.intp] = (
            np.stack([scores[member] for member in members]).sum(axis=0).argmax(axis=1)
        )
        return answers
    if combine == "log_pool":
        names = members if fit is None else [name for name in fit.members if name in members]
        subset = tuple(range(len(names))) if fit is None else fit.subset(names)
        pooled = combined(fit, subset, [scores[name] for name in names])
        best: NDArray[np.intp] = pooled.argmax(axis=1)
        return best
    return _majority(members, scores, labels)


def select_ensemble(
    scores: Mapping[str, Scores],
    labels: LabelIndices,
    *,
    latency_ms: Mapping[str, float] | None = None,
    budget_ms: float | None = None,
    combine: Combine = "mean",
    groups: NDArray[np.integer[Any]] | None = None,
    most: int = 8,
    margin: float = 1.0,
) -> SelectedMembers:
    """Caruana et al. 2004, "Ensemble selection from libraries of models", without replacement.

    Begins with the best model that fits into `budget_ms` (with the fastest, if none does), adds the model
    that does best with those before it, up to `most` or until two in a row have not helped, and returns the
    best of the nested ensembles (a second vote alone seldom helps, a third often does). No model is taken
    twice; they run one after the other on a device, so their latencies add up. A model that is more than
    `margin` less accurate than the first is left out: that it helps on these rows is chance (Rafiki §4.1 too
    wants models of similar accuracy).

    combine: the rule by which they will answer. By `log_pool` subsets are judged on rows that they were not
    fitted on, by folds; groups: [n], rows of equal numbers are one observation, never on both sides.

    Raises ValueError when there are no models, or a latency is missing.
    """
    if not scores:
        raise ValueError("there are no models to choose from")
    cost = dict.fromkeys(scores, 0.0) if latency_ms is None else latency_ms
    missing = [name for name in scores if name not in cost]
    if missing:
        raise ValueError(f"the latency of {missing[0]!r} is not known")
    within = [name for name in scores if budget_ms is None or cost[name] <= budget_ms]
    first = within or [min(scores, key=lambda name: cost[name])]
    judge = _judge(scores, labels, combine, groups)
    alone = {name: accuracy_of([name], scores, labels, "mean") for name in scores}
    # Of equally good ones the faster, then the first by name: the choice depends on nothing else.
    chosen = [min(first, key=lambda name: (-alone[name], cost[name], name))]
    nested = [SelectedMembers(tuple(chosen), judge([chosen])[0], cost[chosen[0]])]
    while len(chosen) < most and not _has_ended(nested):
        left_ms = np.inf if budget_ms is None else budget_ms - nested[-1].latency_ms
        fitting = [
            name
            for name in scores
            if name not in chosen and cost[name] <= left_ms and alone[name] >= alone[chosen[0]] - margin
        ]
        if not fitting:
            break
        together = dict(zip(fitting, judge([[*chosen, name] for name in fitting]), strict=True))
        best = min(together, key=lambda name: (-together[name], -alone[name], cost[name], name))
        chosen.append(best)
        nested.append(SelectedMembers(tuple(chosen), together[best], nested[-1].latency_ms + cost[best]))
    return max(nested, key=lambda ensemble: (ensemble.accuracy, -len(ensemble.members)))


def _has_ended(nested: Sequence[SelectedMembers]) -> bool:
    """Whether the last two members have not helped."""
    best_before = max((each.accuracy for each in nested[:-2]), default=-1.0)
    return len(nested) > 2 and max(each.accuracy for each in nested[-2:]) <= best_before


def _judge(
    scores: Mapping[str, Scores],
    labels: LabelIndices,
    combine: Combine,
    groups: NDArray[np.integer[Any]] | None,
) -> Callable[[Sequence[Sequence[str]]], Sequence[float]]:
    """The accuracies of several subsets at once, by the rule."""
    if combine != "log_pool":
        return lambda subsets: [accuracy_of(names, scores, labels, combine) for names in subsets]
    rows = rows_to_fit(len(labels), next(iter(scores.values())).shape[1])
    places = {name: place for place, name in enumerate(scores)}
    held_out = HeldOutRows(
        np.stack([each[rows] for each in scores.values()]),
        labels[rows],
        None if groups is None else groups[rows],
    )
    return lambda subsets: held_out.accuracies(
        [tuple(sorted(places[name] for name in names)) for names in subsets]
    )


def subset_accuracies(
    scores: Mapping[str, Scores], labels: LabelIndices, combine: Combine
) -> dict[tuple[str, ...], float]:
    """The accuracy of every subset of the members, for choosing a subset under load (Rafiki Figure 6).

    Raises ValueError for more than 10 members: their subsets are too many to serve from.
    """
    if len(scores) > 10:
        raise ValueError(f"{len(scores)} members have too many subsets; 10 is the most")
    names = sorted(scores)
    return {
        subset: accuracy_of(subset, scores, labels, combine)
        for size in range(1, len(names) + 1)
        for subset in combinations(names, size)
    }


def _majority(members: Sequence[str], scores: Mapping[str, Scores], labels: LabelIndices) -> NDArray[np.intp]:
    predictions = {member: scores[member].argmax(axis=1) for member in members}
    ranked = sorted(members, key=lambda member: -float((predictions[member] == labels).mean()))
    rows = np.arange(len(labels))
    votes = np.zeros(scores[members[0]].shape)
    for place, member in enumerate(ranked):
        # Less than a vote, and less with each rank: it parts ties and nothing else.
        votes[rows, predictions[member]] += 1 + 0.5 ** (place + 2)
    answers: NDArray[np.intp] = votes.argmax(axis=1)
    return answers
