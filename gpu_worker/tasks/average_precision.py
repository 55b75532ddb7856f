"""How well boxes are found: mean average precision, as COCO's evaluation counts it.

Lin et al. 2014, "Microsoft COCO: Common Objects in Context", and its `pycocotools` (cocoeval.py): a box found
is right if it overlaps a true one of its label enough, the surest boxes first, each true box once; precision
is read at 101 recalls. No crowds, no limits of area.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.boxes import Box, Floats, overlaps
from gpu_worker.tasks.task import BOX_NUMBERS

__all__ = ["COCO_OVERLAPS", "NO_BOX", "TRUE_NUMBERS", "BoxMatches", "Boxed", "mean_average_precision"]

COCO_OVERLAPS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())  # mAP@[.5:.95]
NO_BOX = -1  # the label of what fills a picture's line up
TRUE_NUMBERS = 5  # of a true box: x0, y0, x1, y1, number of its label
_MOST_BOXES = 100  # of a picture and a label: the surest
_RECALLS = np.linspace(0.0, 1.0, 101)

Boxed = NDArray[Any]  # true boxes, [n, m, TRUE_NUMBERS]


@dataclass(frozen=True, slots=True)
class _Label:
    """scores, pictures: of each box found, the surest first, [d]. right: [overlaps, d]. wanted: true boxes of
    each picture, [n].
    """

    number: int
    scores: Floats
    pictures: NDArray[np.intp]
    right: NDArray[np.bool_]
    wanted: NDArray[np.int64]


class BoxMatches:
    """Boxes found in pictures, held against the true ones once: how good they are in any choice of pictures.

    found: [n, k · 6], as networks give them · true: [n, m, 5] · of both a label of NO_BOX is no box · enough:
    intersections over union from which a box is right.
    """

    def __init__(self, found: NDArray[Any], true: Boxed, enough: Sequence[float] = COCO_OVERLAPS) -> None:
        told = np.asarray(found, np.float64).reshape(len(found), -1, BOX_NUMBERS)
        real = np.asarray(true, np.float64)
        least = np.minimum(np.array(enough, np.float64), 1 - 1e-10)
        self._pictures = len(real)
        labels = np.unique(real[:, :, 4])
        self._labels = [_matches(told, real, label, least) for label in labels[labels != NO_BOX]]

    def value(self, counts: NDArray[Any] | None = None) -> float:
        """The mean average precision of the pictures, each as often as `counts` [n] says; None = each once.

        nan where there is no true box in them.
        """
        weights = np.ones(self._pictures, np.int64) if counts is None else counts
        found = [
            _average_precision(label, weights, wanted)
            for label in self._labels
            if (wanted := int(label.wanted @ weights))
        ]
        return float(np.mean(found)) if found else math.nan

    def best_cuts(self) -> dict[int, float]:
        """By label, the score from which on its boxes have the best F1 at the first overlap, a little lower.

        Half-way to the next score, for other pictures have scores in between. None of labels of which no box
        is right.
        """
        cuts = {}
        for label in self._labels:
            hits = np.cumsum(label.right[0])
            if not len(hits) or not hits[-1]:
                continue
            f1 = 2 * hits / (np.arange(1, len(hits) + 1) + label.wanted.sum())
            below = np.append(label.scores[1:], 0.0)
            f1[below == label.scores] = 0.0  # no cut parts equal scores
            best = int(f1.argmax())
            cuts[label.number] = float(label.scores[best] + below[best]) / 2
        return cuts


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
    places: dict[str, int] = {}
    for boxes in (*true, *found):
        for box in boxes:
            places.setdefault(box.label, len(places))
    told = np.full((len(found), max(map(len, found), default=0), BOX_NUMBERS), float(NO_BOX))
    real = np.full((len(true), max(map(len, true), default=0), TRUE_NUMBERS), float(NO_BOX))
    for row, boxes in enumerate(found):
        for at, box in enumerate(boxes):
            told[row, at] = *box.corners, box.score, places[box.label]
    for row, boxes in enumerate(true):
        for at, box in enumerate(boxes):
            real[row, at] = *box.corners, places[box.label]
    return BoxMatches(told, real, enough).value()


def _matches(found: Floats, true: Floats, label: float, least: Floats) -> _Label:
    """What is found and true of one label. found: [n, k, 6]; true: [n, m, 5]; least: of the overlaps."""
    parts = list(_by_picture(found, true, label, least))
    scores = np.concatenate([scores for scores, _, _ in parts])
    right = np.concatenate([right for _, right, _ in parts], axis=1)
    pictures = np.repeat(np.arange(len(parts)), [len(scores) for scores, _, _ in parts])
    order = np.argsort(-scores, kind="stable")
    return _Label(
        int(label),
        scores[order],
        pictures[order],
        right[:, order],
        np.array([wanted for _, _, wanted in parts], np.int64),
    )


def _by_picture(
    found: Floats, true: Floats, label: float, least: Floats
) -> Iterator[tuple[Floats, NDArray[np.bool_], int]]:
    """(scores [d], right [overlaps, d], true boxes) of each picture; the surest first."""
    for told, real in zip(found, true, strict=True):
        mine = told[told[:, 5] == label]
        mine = mine[np.argsort(-mine[:, 4], kind="stable")][:_MOST_BOXES]
        corners = real[real[:, 4] == label, :4]
        yield mine[:, 4], _right(mine[:, :4], corners, least), len(corners)


def _right(sure: Floats, real: Floats, least: Floats) -> NDArray[np.bool_]:
    """[overlaps, d]: of each box, the surest first, whether it is one of the true ones that is left."""
    right = np.zeros((len(least), len(sure)), np.bool_)
    if not len(real):
        return right
    is_left = np.ones((len(least), len(real)), np.bool_)
    every = np.arange(len(least))
    for at, box in enumerate(sure):
        common = np.where(is_left, overlaps(box, real), -1.0)
        best = common.shape[1] - 1 - common[:, ::-1].argmax(axis=1)  # of equal ones the last
        hits = common[every, best] >= least
        is_left[every[hits], best[hits]] = False
        right[:, at] = hits
    return right


def _average_precision(label: _Label, weights: NDArray[Any], wanted: int) -> float:
    """The mean over the overlaps. A picture that counts twice has its boxes side by side."""
    if not len(label.pictures):
        return 0.0
    weight = weights[label.pictures]
    hits = np.cumsum(label.right * weight, axis=1)
    recall = hits / wanted
    precision = hits / np.maximum(1, np.cumsum(weight))
    # The best precision at this recall or any higher one.
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return float(
        np.mean(
            [
                np.append(of_one, 0.0)[np.searchsorted(reached, _RECALLS, side="left")].mean()
                for reached, of_one in zip(recall, best, strict=True)
            ]
        )
    )
