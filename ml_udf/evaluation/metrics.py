"""Metrics of answers, over plain lists: the same names and values as the server's, which has numpy for them.

    accuracy, macro_f1, log_loss, auc    of one label a row; the last two where there are probabilities
    micro_f1                             of several labels a row
    rmse, mae, r2                        of numbers
    map, map_50                          of boxes, where there is a true one

Each beside its baseline: what the best constant answer on the same rows gets. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from ml_udf.evaluation.answered import Answered, Target
from ml_udf.evaluation.average_precision import mean_average_precision

__all__ = ["GREATER_IS_BETTER", "METRICS", "confusion", "metric_value", "metrics_of"]

_LEAST = 2.0**-52  # a probability of 0 would cost infinitely much

# What answers are compared as → the names of its metrics, the first one decides.
METRICS: Mapping[Target, tuple[str, ...]] = {
    "label": ("accuracy", "macro_f1", "log_loss", "auc"),
    "labels": ("micro_f1",),
    "number": ("rmse", "mae", "r2"),
    "boxes": ("map_50", "map"),
}
_OF_PROBABILITIES = {"log_loss", "auc"}
_COCO_OVERLAPS = tuple(0.5 + (0.95 - 0.5) / 9 * step for step in range(10))  # to the last digit
GREATER_IS_BETTER = {"accuracy", "macro_f1", "auc", "micro_f1", "r2", "map", "map_50"}


def metrics_of(answered: Answered) -> Iterator[tuple[str, float, float]]:
    """(name, value, baseline) of each metric; none of no rows."""
    if not answered.rows or (answered.target == "boxes" and not any(answered.targets)):
        return
    for name in METRICS[answered.target]:
        if name not in _OF_PROBABILITIES or answered.probabilities:
            yield name, metric_value(name, answered), _baseline(name, answered)


def metric_value(name: str, answered: Answered) -> float:
    """The value of one metric, of at least one row."""
    if name in _OF_PROBABILITIES:
        return _BY_PROBABILITIES[name](answered.probabilities, _places(answered), len(answered.classes))
    return _BY_ANSWERS[name](answered.answers, answered.targets)


def confusion(answered: Answered) -> list[tuple[str, str, int]]:
    """(actual, predicted, rows), of pairs that occur, by name."""
    counted = Counter(zip(answered.targets, answered.answers, strict=True))
    return [(actual, predicted, rows) for (actual, predicted), rows in sorted(counted.items())]


def _baseline(name: str, answered: Answered) -> float:
    """The metric's value of the constant that is best for these rows."""
    targets, rows = answered.targets, answered.rows
    constant: Any
    if answered.target == "number":
        constant = median(targets) if name == "mae" else fmean(targets)
    elif answered.target == "boxes":
        constant = []  # no box is in all pictures
    elif answered.target == "labels":
        counted = Counter(label for labels in targets for label in labels)
        constant = frozenset(label for label, count in counted.items() if 2 * count >= rows)
    else:
        counted = Counter(targets)
        if name in _OF_PROBABILITIES:
            shares = [counted[label] / rows for label in answered.classes]
            return _BY_PROBABILITIES[name]([shares] * rows, _places(answered), len(shares))
        constant = min(counted, key=lambda label: (-counted[label], label))
    return float(_BY_ANSWERS[name]([constant] * rows, targets))


def _places(answered: Answered) -> list[int]:
    """Of each row's target among the classes; −1 = none of them."""
    place = {label: at for at, label in enumerate(answered.classes)}
    return [place.get(target, -1) for target in answered.targets]


def _accuracy(answers: Sequence[Any], targets: Sequence[Any]) -> float:
    hits = sum(bool(answer == target) for answer, target in zip(answers, targets, strict=True))
    return hits / len(targets)


def _macro_f1(answers: Sequence[Any], targets: Sequence[Any]) -> float:
    """The mean, over every class that was said or was to be said, of 2·tp / (2·tp + fp + fn)."""
    hits = Counter(target for answer, target in zip(answers, targets, strict=True) if answer == target)
    counted = Counter(answers) + Counter(targets)
    return fmean(2 * hits[label] / count for label, count in counted.items())


def _micro_f1(answers: Sequence[frozenset[str]], targets: Sequence[frozenset[str]]) -> float:
    """2·tp / (2·tp + fp + fn) over all labels of all rows; 0 where none was said nor to be said."""
    hits: int = sum(len(answer & target) for answer, target in zip(answers, targets, strict=True))
    counted = sum(map(len, answers)) + sum(map(len, targets))
    return 2 * hits / counted if counted else 0.0


def _rmse(answers: Sequence[float], targets: Sequence[float]) -> float:
    return math.sqrt(fmean((a - t) ** 2 for a, t in zip(answers, targets, strict=True)))


def _mae(answers: Sequence[float], targets: Sequence[float]) -> float:
    return fmean(abs(a - t) for a, t in zip(answers, targets, strict=True))


def _r2(answers: Sequence[float], targets: Sequence[float]) -> float:
    """1 − the share of the variance that is left; of targets that are all one number, 1 where all are met."""
    mean = fmean(targets)
    left = math.fsum((a - t) ** 2 for a, t in zip(answers, targets, strict=True))
    there = math.fsum((t - mean) ** 2 for t in targets)
    if there == 0.0:
        return 1.0 if left == 0.0 else 0.0
    return 1 - left / there


def _log_loss(probabilities: Sequence[Sequence[float]], places: Sequence[int], _: int) -> float:
    """The mean of −log p of each row's class; of a row of no class, that of the least probability."""
    said = (row[place] if place >= 0 else 0.0 for row, place in zip(probabilities, places, strict=True))
    return fmean(-math.log(min(max(each, _LEAST), 1 - _LEAST)) for each in said)


def _auc(probabilities: Sequence[Sequence[float]], places: Sequence[int], classes: int) -> float:
    """The area under the ROC curve; of several classes the mean of each against the rest (Provost & Domingos
    2000, unweighted), over those of which there are rows of either side. Where there is none it is 0.5.
    """
    asked = range(classes) if classes > 2 else [classes - 1]
    areas = [
        area
        for each in asked
        if (area := _area([row[each] for row in probabilities], [place == each for place in places]))
        is not None
    ]
    return fmean(areas) if areas else 0.5


def _area(scores: Sequence[float], positive: Sequence[bool]) -> float | None:
    """The chance that a row of the class has the higher score; a tie is half of one (Mann & Whitney 1947)."""
    positives = sum(positive)
    others = len(positive) - positives
    if not positives or not others:
        return None
    counts = Counter(scores)
    rank, ranks = 0, {}
    for score in sorted(counts):
        ranks[score] = rank + (counts[score] + 1) / 2
        rank += counts[score]
    total = math.fsum(ranks[score] for score, is_one in zip(scores, positive, strict=True) if is_one)
    return (total - positives * (positives + 1) / 2) / (positives * others)


_BY_ANSWERS: Mapping[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    "rmse": _rmse,
    "mae": _mae,
    "r2": _r2,
    "map": lambda answers, targets: mean_average_precision(answers, targets, _COCO_OVERLAPS),
    "map_50": lambda answers, targets: mean_average_precision(answers, targets, (0.5,)),
}
_BY_PROBABILITIES: Mapping[str, Callable[[Sequence[Sequence[float]], Sequence[int], int], float]] = {
    "log_loss": _log_loss,
    "auc": _auc,
}
