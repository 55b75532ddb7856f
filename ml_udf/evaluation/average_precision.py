"""How well boxes are found, over plain lists: the server's mean average precision, which has numpy for it.

As COCO's evaluation counts it (Lin et al. 2014, and its `pycocotools`): a box found is right if it overlaps a
true one of its label enough, the surest boxes first, each true box once; precision is read at 101 recalls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple, TypeAlias

__all__ = ["Boxes", "EvaluatedBox", "mean_average_precision"]

_MOST_BOXES = 100  # of a picture and a label: the surest
_RECALLS = [*(0.01 * step for step in range(100)), 1.0]


class EvaluatedBox(NamedTuple):
    """corners: x0, y0, x1, y1. A true box's score means nothing."""

    label: str
    score: float
    corners: tuple[float, float, float, float]


Boxes: TypeAlias = Sequence[EvaluatedBox]  # of one picture


def mean_average_precision(found: Sequence[Boxes], true: Sequence[Boxes], enough: Sequence[float]) -> float:
    """From 0 to 1: the mean over the labels of the true boxes, at least one, and over `enough`.

    enough: intersections over union from which a box is right.
    """
    labels = sorted({box.label for boxes in true for box in boxes})
    return fmean(
        _average_precision(
            [[box for box in boxes if box.label == label] for boxes in found],
            [[box for box in boxes if box.label == label] for boxes in true],
            enough,
        )
        for label in labels
    )


def _average_precision(found: Sequence[Boxes], true: Sequence[Boxes], enough: Sequence[float]) -> float:
    """Of one label, the mean over `enough`."""
    wanted = sum(map(len, true))
    sure = [sorted(boxes, key=lambda box: -box.score)[:_MOST_BOXES] for boxes in found]
    overlaps = [
        [[_overlap(box, real) for real in reals] for box in boxes]
        for boxes, reals in zip(sure, true, strict=True)
    ]
    scores = [box.score for boxes in sure for box in boxes]
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    precisions = []
    for least in enough:
        right = [is_right for each in overlaps for is_right in _matched(each, min(least, 1 - 1e-10))]
        precisions.append(_read_precision([right[at] for at in order], wanted))
    return fmean(precisions)


def _read_precision(right: Sequence[bool], wanted: int) -> float:
    """The mean, over 101 recalls, of the best precision at it or any higher one. right: the surest first."""
    hits = 0
    recalls, precisions = [], []
    for count, is_right in enumerate(right, 1):
        hits += is_right
        recalls.append(hits / wanted)
        precisions.append(hits / count)
    for at in range(len(precisions) - 2, -1, -1):
        precisions[at] = max(precisions[at], precisions[at + 1])
    precisions.append(0.0)
    return fmean(precisions[bisect_left(recalls, recall)] for recall in _RECALLS)


def _matched(overlaps: Sequence[Sequence[float]], least: float) -> list[bool]:
    """Of each box of one picture, the surest first, whether it is one of the true ones that is left."""
    left = set(range(len(overlaps[0]))) if overlaps else set()
    right = []
    for each in overlaps:
        best = max(left, key=lambda at: (each[at], at), default=-1)  # of equal ones the last, as COCO has it
        is_right = best >= 0 and each[best] >= least
        if is_right:
            left.remove(best)
        right.append(is_right)
    return right


def _overlap(box: EvaluatedBox, other: EvaluatedBox) -> float:
    """Intersection over union; 0 where both are empty."""
    (left, top, right, bottom), (x0, y0, x1, y1) = box.corners, other.corners
    common = max(0.0, min(right, x1) - max(left, x0)) * max(0.0, min(bottom, y1) - max(top, y0))
    union = (right - left) * (bottom - top) + (x1 - x0) * (y1 - y0) - common
    return common / union if union > 0 else 0.0
