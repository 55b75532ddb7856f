"""Which trained models a function is made of: greedy ensemble selection under a latency budget.

Pure, over validation probabilities. The rules of combination are those of `server/ensemble/combine.py`; here
they are counted over whole matrices, since hundreds of subsets are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import METRICS, Metric
from server.ensemble.fit import Fit, HeldOutRows, combined, rows_to_fit
from server.training.promotion.resampling import gains

__all__ = [
    "Combine",
    "LabelIndices",
    "Scores",
    "SelectedMembers",
    "accuracy_of",
    "answers_of",
    "mean_of",
    "pooled_of",
    "select_ensemble",
    "subset_scores",
]

Combine = Literal["majority_vote", "mean", "log_pool"]
# float32 [n, classes]: one model's probabilities for the n validation rows.
Scores = NDArray[np.floating]
LabelIndices = NDArray[np.integer]


_ACCURACY = METRICS["accuracy"]
_ROWS_GAINED = 2  # for which members join


@dataclass(frozen=True, slots=True)
class SelectedMembers:
    """Members in the order of their choice; accuracy: the validation value of the metric that chose them;
    latency of all, one after the other.
    """

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
        best: NDArray[np.intp] = pooled_of(members, scores, fit).argmax(axis=1)
        return best
    return _majority(members, scores, labels)


def pooled_of(members: Sequence[str], scores: Mapping[str, Scores], fit: Fit | None) -> NDArray[Any]:
    """What members say together by `log_pool`: float [n, classes]."""
    names = members if fit is None else [name for name in fit.members if name in members]
    subset = tuple(range(len(names))) if fit is None else fit.subset(names)
    pooled: NDArray[Any] = combined(fit, subset, [scores[name] for name in names])
    return pooled


def select_ensemble(
    scores: Mapping[str, Scores],
    labels: NDArray[Any],
    *,
    latency_ms: Mapping[str, float] | None = None,
    budget_ms: float | None = None,
    combine: Combine = "mean",
    groups: NDArray[np.integer[Any]] | None = None,
    most: int = 8,
    margin: float = 1.0,
    metric: Metric = _ACCURACY,
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
    metric: by which they are judged; by any but accuracy they answer with their mean, and a member joins
    only for a gain that is surer than its interval. Of accuracy members join for two rows more that are
    answered rightly: one is chance, and to wait for a sure gain was measured to lose more than it spares.

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
    by_accuracy = metric.name == _ACCURACY.name
    judge = _judge(scores, labels, combine, groups) if by_accuracy else _judge_by(metric, scores, labels)
    alone = dict(zip(scores, _judge_by(metric, scores, labels)([[name] for name in scores]), strict=True))
    # Of equally good ones the faster, then the first by name: the choice depends on nothing else.
    chosen = [min(first, key=lambda name: (-alone[name], cost[name], name))]
    nested = [SelectedMembers(tuple(chosen), judge([chosen])[0], cost[chosen[0]])]
    while len(chosen) < most and not _has_ended(nested):
        left_ms = np.inf if budget_ms is None else budget_ms - nested[-1].latency_ms
        fitting = [
            name
            for name in scores
            if name not in chosen
            and cost[name] <= left_ms
            and metric.behind(metric.value(alone[name]), metric.value(alone[chosen[0]])) <= margin
        ]
        if not fitting:
            break
        together = dict(zip(fitting, judge([[*chosen, name] for name in fitting]), strict=True))
        best = min(together, key=lambda name: (-together[name], -alone[name], cost[name], name))
        chosen.append(best)
        nested.append(SelectedMembers(tuple(chosen), together[best], nested[-1].latency_ms + cost[best]))
    best_of_all = max(nested, key=lambda ensemble: (ensemble.accuracy, -len(ensemble.members)))
    if by_accuracy:
        chance = (_ROWS_GAINED - 0.5) / max(1, len(labels))
        best_of_all = next(each for each in nested if best_of_all.accuracy - each.accuracy < chance)
    else:
        best_of_all = next(
            each
            for each in nested
            if each is best_of_all
            or not gains(
                metric, mean_of(best_of_all.members, scores), mean_of(each.members, scores), labels, groups
            )
        )
    return replace(best_of_all, accuracy=metric.value(best_of_all.accuracy))


def mean_of(members: Sequence[str], scores: Mapping[str, Scores]) -> NDArray[Any]:
    """What members say together where nothing is fitted of them: float [n, width]."""
    together: NDArray[Any] = np.mean(np.stack([scores[name] for name in members]), axis=0)
    return together


def _judge_by(
    metric: Metric, scores: Mapping[str, Scores], targets: NDArray[Any]
) -> Callable[[Sequence[Sequence[str]]], Sequence[float]]:
    """The merits of several subsets, each by its mean."""
    return lambda subsets: [metric.merit(metric.of(mean_of(names, scores), targets)) for names in subsets]


def _has_ended(nested: Sequence[SelectedMembers]) -> bool:
    """Whether the last two members have not helped."""
    best_before = max((each.accuracy for each in nested[:-2]), default=-np.inf)
    return len(nested) > 2 and max(each.accuracy for each in nested[-2:]) <= best_before


def _judge(
    scores: Mapping[str, Scores],
    labels: LabelIndices,
    combine: Combine,
    groups: NDArray[np.integer[Any]] | None,
) -> Callable[[Sequence[Sequence[str]]], Sequence[float]]:
    """The accuracies of several subsets at once, by the rule."""
    of_class = np.flatnonzero(labels >= 0)  # the others are of a class that no member knows
    if combine != "log_pool" or not len(of_class):
        return lambda subsets: [accuracy_of(names, scores, labels, combine) for names in subsets]
    known = len(of_class) / len(labels)
    rows = of_class[rows_to_fit(len(of_class), next(iter(scores.values())).shape[1])]
    places = {name: place for place, name in enumerate(scores)}
    held_out = HeldOutRows(
        np.stack([each[rows] for each in scores.values()]),
        labels[rows],
        None if groups is None else groups[rows],
    )

    def accuracies(subsets: Sequence[Sequence[str]]) -> Sequence[float]:
        asked = [tuple(sorted(places[name] for name in names)) for names in subsets]
        return [accuracy * known for accuracy in held_out.accuracies(asked)]

    return accuracies


def subset_scores(
    metric: Metric, scores: Mapping[str, Scores], targets: NDArray[Any]
) -> dict[tuple[str, ...], float]:
    """The metric of every subset of the members, by its mean, for choosing a subset under load (Rafiki
    Figure 6).

    Raises ValueError for more than 10 members: their subsets are too many to serve from.
    """
    if len(scores) > 10:
        raise ValueError(f"{len(scores)} members have too many subsets; 10 is the most")
    names = sorted(scores)
    subsets = [subset for size in range(1, len(names) + 1) for subset in combinations(names, size)]
    merits = _judge_by(metric, scores, targets)(subsets)
    return {subset: metric.value(merit) for subset, merit in zip(subsets, merits, strict=True)}


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
