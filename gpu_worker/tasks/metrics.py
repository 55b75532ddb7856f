"""How good answers are: metrics by name, and the score by which trials, studies and deployments are compared.

Predictions are what networks give, float [n, width]: probabilities of classes, sigmoids of labels, numbers
in the first column, or boxes (`networks.network.GivesBoxes`). Targets are what was to be said:

    of classes   int [n], indices into the classes; −1 = none of them, which no answer meets
    of labels    bool [n, classes]
    of numbers   float64 [n]
    of boxes     float [n, m, 5]: x0, y0, x1, y1, index into the classes; −1 = no box

Needs numpy, which the package `gpu_worker.tasks` itself does not: who compares answers imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.average_precision import COCO_OVERLAPS, NO_BOX, BoxMatches
from gpu_worker.tasks.task import BOX_NUMBERS

__all__ = [
    "METRICS",
    "Metric",
    "Predictions",
    "Score",
    "Targets",
    "box_matches",
    "confusion_matrix",
    "metric_named",
]

Predictions = NDArray[np.floating]
Targets = NDArray[Any]
Losses = NDArray[np.float64]
Counts = NDArray[Any]  # [..., 3, classes]
Rows = NDArray[np.intp]
OfRows = Callable[[Rows], float]

_LEAST = float(np.finfo(np.float64).eps)  # a probability of 0 would cost infinitely much
_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Metric:
    """of(predictions, targets): its value, of at least one row. loss: the mean loss of the same rows
    (log-loss, squared error), by which equal values are told apart.

    best: the value that cannot be bettered. row_losses: what each row costs, float64 [n], where the metric
    is a function of their mean; None where it looks at all rows together. row_gains: what each row adds to
    the difference of two predictions' values, float64 [n], where to swap what the two say to a row turns that
    row's sign and nothing else. row_counts: what each row adds, int64 [n, 3, classes], to how often each
    class was named rightly, was named, and was to be named, where the metric is `of_counts` of their sums.
    relative: whether a difference means something beside the value alone, as of an error in the target's own
    unit. prepared(predictions, targets): `of` any choice of their rows, where most of its work is the same
    for all choices.
    """

    name: str
    greater_is_better: bool
    of: Callable[[Predictions, Targets], float]
    loss: Callable[[Predictions, Targets], float]
    best: float
    row_losses: Callable[[Predictions, Targets], Losses] | None = None
    row_gains: Callable[[Predictions, Predictions, Targets], Losses] | None = None
    row_counts: Callable[[Predictions, Targets], Counts] | None = None
    of_counts: Callable[[Counts], Losses] | None = None
    relative: bool = False
    prepared: Callable[[Predictions, Targets], OfRows] | None = None

    def score(self, predictions: Predictions, targets: Targets) -> Score:
        """The score of some rows. Raises ValueError for none."""
        if not len(targets):
            raise ValueError(f"{self.name} of no rows is not known")
        return Score(self.name, self.of(predictions, targets), self.loss(predictions, targets))

    def of_rows(self, predictions: Predictions, targets: Targets) -> OfRows:
        """The value of any choice of rows, by their places; a row may be chosen several times."""
        if self.prepared is not None:
            return self.prepared(predictions, targets)
        return lambda rows: self.of(predictions[rows], targets[rows])

    def merit(self, value: float) -> float:
        """The value, or its negative: the larger, the better."""
        return value if self.greater_is_better else -value

    def value(self, merit: float) -> float:
        """The inverse of `merit`."""
        return self.merit(merit)

    def behind(self, value: float, best: float) -> float:
        """How far a value stays behind the best one: in points, or as a share of the best error."""
        gap = self.merit(best) - self.merit(value)
        return gap / max(abs(best), _LEAST) if self.relative else gap


@dataclass(frozen=True, slots=True)
class Score:
    """What some rows said of a model, by a metric. loss: the mean of the same rows; None = not known."""

    metric: str
    value: float
    loss: float | None = None

    @property
    def merit(self) -> float:
        """By which scores of one metric are compared: the larger, the better. Raises ValueError."""
        return metric_named(self.metric).merit(self.value)


def metric_named(name: str) -> Metric:
    """The metric of that name. Raises ValueError, which names them all."""
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r}; there are {', '.join(METRICS)}")
    return METRICS[name]


def confusion_matrix(predictions: Predictions, targets: Targets, classes: int) -> NDArray[np.int64]:
    """int64 [classes, classes]: how often a class (row) was called another (column), without rows of none."""
    known = targets >= 0
    named = predictions.argmax(axis=1)
    pairs = targets[known].astype(np.int64) * classes + named[known]
    counted: NDArray[np.int64] = np.bincount(pairs, minlength=classes * classes)
    return counted.reshape(classes, classes)


# ── of classes ────────────────────────────────────────────────────────────────────────────────────────────


def _accuracy(predictions: Predictions, targets: Targets) -> float:
    return float((predictions.argmax(axis=1) == targets).mean())


def _errors(predictions: Predictions, targets: Targets) -> Losses:
    wrong: Losses = (predictions.argmax(axis=1) != targets).astype(np.float64)
    return wrong


def _macro_f1(predictions: Predictions, targets: Targets) -> float:
    """The mean, over every class that was said or was to be said, of 2·tp / (2·tp + fp + fn)."""
    named = predictions.argmax(axis=1)
    _, places = np.unique(np.concatenate([targets, named]), return_inverse=True)
    was, said = places[: len(targets)], places[len(targets) :]
    there = int(places.max()) + 1
    hit = np.bincount(was[was == said], minlength=there)
    counted = np.bincount(was, minlength=there) + np.bincount(said, minlength=there)
    return float((2 * hit / counted).mean())


def _auc(predictions: Predictions, targets: Targets) -> float:
    """The area under the ROC curve; of several classes the mean of each against the rest (Provost & Domingos
    2000, unweighted), over those of which there are rows of either side. Where there is none it is 0.5.
    """
    classes = range(predictions.shape[1]) if predictions.shape[1] > 2 else [predictions.shape[1] - 1]
    areas = [_area(predictions[:, each], targets == each) for each in classes]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else 0.5


def _area(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float | None:
    """The chance that a row of the class has the higher score; a tie is half of one (Mann & Whitney 1947)."""
    positives = int(positive.sum())
    others = len(positive) - positives
    if not positives or not others:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * others))


def _auc_gains(better: Predictions, than: Predictions, targets: Targets) -> Losses:
    """A pair of a row of the class and one of another adds the part of either row, as the pair's four orders
    are ψ(b, b′) − ψ(t, t′) ± (ψ(b, t′) − ψ(t, b′)): no part depends on whether the other row is swapped.
    """
    classes = range(better.shape[1]) if better.shape[1] > 2 else [better.shape[1] - 1]
    parts = [_area_gains(better[:, each], than[:, each], targets == each) for each in classes]
    known = [part for part in parts if part is not None]
    gains: Losses = np.mean(known, axis=0) if known else np.zeros(len(targets))
    return gains


def _area_gains(
    better: NDArray[np.floating], than: NDArray[np.floating], positive: NDArray[np.bool_]
) -> Losses | None:
    positives = int(positive.sum())
    others = len(positive) - positives
    if not positives or not others:
        return None
    gains = np.zeros(len(positive))
    for side, sign in ((positive, 1.0), (~positive, -1.0)):
        pool = np.sort(np.concatenate([better[~side], than[~side]]))
        gains[side] = sign * (_above(better[side], pool) - _above(than[side], pool))
    return gains / (2 * positives * others)


def _above(scores: NDArray[np.floating], ordered: NDArray[np.floating]) -> Losses:
    """How many of the ordered ones each score is above; a tie is half of one."""
    both = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    above: Losses = both / 2
    return above


def _class_counts(predictions: Predictions, targets: Targets) -> Counts:
    """The last class is none of them."""
    classes = predictions.shape[1] + 1
    named = np.eye(classes, dtype=np.int64)[predictions.argmax(axis=1)]
    wanted = np.eye(classes, dtype=np.int64)[targets]
    return np.stack([named * wanted, named, wanted], axis=1)


def _label_counts(predictions: Predictions, targets: Targets) -> Counts:
    """All labels as one class."""
    said = predictions >= _THRESHOLD
    columns = [each.sum(axis=1) for each in (said & targets, said, targets)]
    return np.stack(columns, axis=1)[:, :, None].astype(np.int64)


def _mean_f1(counts: Counts) -> Losses:
    """Of each [3, classes]: the mean over the classes that were named or to be named; 0 where none was."""
    hit, there = counts[..., 0, :], counts[..., 1, :] + counts[..., 2, :]
    each = 2 * hit / np.maximum(there, 1)
    mean: Losses = each.sum(axis=-1) / np.maximum((there > 0).sum(axis=-1), 1)
    return mean


def _log_losses(predictions: Predictions, targets: Targets) -> Losses:
    """−log p of each row's class; of a row of no class, that of the least probability."""
    said = predictions[np.arange(len(targets)), np.maximum(targets, 0)].astype(np.float64)
    found: Losses = -np.log(np.clip(np.where(targets >= 0, said, 0.0), _LEAST, 1 - _LEAST))
    return found


def _log_loss(predictions: Predictions, targets: Targets) -> float:
    return float(_log_losses(predictions, targets).mean())


# ── of labels ─────────────────────────────────────────────────────────────────────────────────────────────


def _micro_f1(predictions: Predictions, targets: Targets) -> float:
    """2·tp / (2·tp + fp + fn) over all labels of all rows; 0 where none was said nor to be said."""
    said = predictions >= _THRESHOLD
    hit = int((said & targets).sum())
    counted = int(said.sum()) + int(targets.sum())
    return 2 * hit / counted if counted else 0.0


def _cross_entropy(predictions: Predictions, targets: Targets) -> float:
    said = np.clip(predictions.astype(np.float64), _LEAST, 1 - _LEAST)
    return float(-np.log(np.where(targets, said, 1 - said)).mean())


# ── of numbers ────────────────────────────────────────────────────────────────────────────────────────────


def _gaps(predictions: Predictions, targets: Targets) -> Losses:
    return predictions[:, 0].astype(np.float64) - targets


def _squares(predictions: Predictions, targets: Targets) -> Losses:
    return _gaps(predictions, targets) ** 2


def _mean_square(predictions: Predictions, targets: Targets) -> float:
    return float(_squares(predictions, targets).mean())


def _rmse(predictions: Predictions, targets: Targets) -> float:
    return math.sqrt(_mean_square(predictions, targets))


def _distances(predictions: Predictions, targets: Targets) -> Losses:
    return np.abs(_gaps(predictions, targets))


def _mae(predictions: Predictions, targets: Targets) -> float:
    return float(_distances(predictions, targets).mean())


def _r2(predictions: Predictions, targets: Targets) -> float:
    """1 − the share of the variance that is left; of targets that are all one number, 1 where all are met."""
    left = float(_squares(predictions, targets).sum())
    there = float(((targets - targets.mean()) ** 2).sum())
    if there == 0.0:
        return 1.0 if left == 0.0 else 0.0
    return 1 - left / there


# ── of boxes ──────────────────────────────────────────────────────────────────────────────────────────────


def box_matches(predictions: Predictions, targets: Targets, enough: Sequence[float]) -> BoxMatches:
    """What networks found, a score of 0 being no box, held against the true boxes."""
    found = predictions.reshape(len(predictions), -1, BOX_NUMBERS).copy()
    found[found[:, :, 4] <= 0, 5] = NO_BOX
    return BoxMatches(found, targets, enough)


def _precision_at(*enough: float) -> Callable[[Predictions, Targets], OfRows]:
    """Mean average precision at these overlaps; 0 of pictures in which there is nothing to find."""

    def prepared(predictions: Predictions, targets: Targets) -> OfRows:
        matches = box_matches(predictions, targets, enough)

        def of(rows: Rows) -> float:
            found = matches.value(np.bincount(rows, minlength=len(targets)))
            return 0.0 if math.isnan(found) else found

        return of

    return prepared


def _boxes_metric(name: str, *enough: float) -> Metric:
    prepared, all_overlaps = _precision_at(*enough), _precision_at(*COCO_OVERLAPS)
    return Metric(
        name,
        True,
        lambda predictions, targets: prepared(predictions, targets)(np.arange(len(targets))),
        lambda predictions, targets: 1 - all_overlaps(predictions, targets)(np.arange(len(targets))),
        1.0,
        prepared=prepared,
    )


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("accuracy", True, _accuracy, _log_loss, 1.0, _errors),
            Metric("macro_f1", True, _macro_f1, _log_loss, 1.0, row_counts=_class_counts, of_counts=_mean_f1),
            Metric("auc", True, _auc, _log_loss, 1.0, row_gains=_auc_gains),
            Metric("log_loss", False, _log_loss, _log_loss, 0.0, _log_losses),
            Metric(
                "micro_f1", True, _micro_f1, _cross_entropy, 1.0, row_counts=_label_counts, of_counts=_mean_f1
            ),
            Metric("rmse", False, _rmse, _mean_square, 0.0, _squares, relative=True),
            Metric("mae", False, _mae, _mean_square, 0.0, _distances, relative=True),
            Metric("r2", True, _r2, _mean_square, 1.0, _squares),
            _boxes_metric("map_50", 0.5),
            _boxes_metric("map", *COCO_OVERLAPS),
        )
    }
)
