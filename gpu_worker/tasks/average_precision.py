"""How well boxes are found: mean average precision, as COCO's evaluation counts it.

Lin et al. 2014, "Microsoft COCO: Common Objects in Context", and its `pycocotools` (cocoeval.py): a box found
is right if it overlaps a true one of its label enough, the surest boxes first, each true box once; precision
is read at 101 recalls. No crowds, no limits of area.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_worker.tasks.boxes import Box, Floats, overlaps

__all__ = ["COCO_OVERLAPS", "mean_average_precision"]

COCO_OVERLAPS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())  # mAP@[.5:.95]
_MOST_BOXES = 100  # of a picture and a label: the surest
_RECALLS = np.linspace(0.0, 1.0, 101)


def mean_average_precision(
    found: Sequence[Sequence[Box]],
    true: Sequence[Sequence[Box]],
    enough: Sequence[float] = COCO_OVERLAPS,
) -> float:
    """Of boxes found in pictures, and the true ones of each: from 0 to 1, the mean over labels and overlaps.

    enough: intersections over union from which a box is right; (0.5,) for mAP@.5. Labels of which there is no
    true box do not count; nan where there is none at all. A true box's score means nothing.

    Raises ValueError for different numbers of pictures.
    """
    if len(found) != len(true):
        raise ValueError(f"boxes of {len(found)} pictures were found, and {len(true)} have true ones")
    labels = sorted({box.label for boxes in true for box in boxes})
    if not labels:
        return float("nan")
    return float(
        np.mean([_average_precision(found, true, label, each) for label in labels for each in enough])
    )


def _average_precision(
    found: Sequence[Sequence[Box]], true: Sequence[Sequence[Box]], label: str, enough: float
) -> float:
    scores: list[float] = []
    right: list[bool] = []
    wanted = 0
    for drawn, real in zip(found, true, strict=True):
        left = [box for box in real if box.label == label]
        wanted += len(left)
        sure = sorted((box for box in drawn if box.label == label), key=lambda box: -box.score)[:_MOST_BOXES]
        scores += [box.score for box in sure]
        right += _matched(sure, left, enough)
    order = np.argsort(-np.array(scores), kind="stable")
    hits = np.cumsum(np.array(right, bool)[order])
    if not len(hits):
        return 0.0
    recall = hits / wanted
    precision = hits / np.arange(1, len(hits) + 1)
    # The best precision at this recall or any higher one.
    best = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, _RECALLS, side="left")
    return float(np.append(best, 0.0)[at].mean())


def _matched(sure: Sequence[Box], real: Sequence[Box], enough: float) -> list[bool]:
    """Of each box of one picture, the surest first, whether it is one of the true ones that is left."""
    corners: Floats = np.array([box.corners for box in real], np.float64).reshape(-1, 4)
    is_left = np.ones(len(real), bool)
    right = []
    for box in sure:
        common = np.where(is_left, overlaps(np.array(box.corners, np.float64), corners), -1.0)
        best = len(common) - 1 - int(common[::-1].argmax()) if len(common) else -1  # of equal ones the last
        is_right = best >= 0 and bool(common[best] >= min(enough, 1 - 1e-10))
        if is_right:
            is_left[best] = False
        right.append(is_right)
    return right
