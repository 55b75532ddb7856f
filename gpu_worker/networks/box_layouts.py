"""How boxes lie in what detectors answer, and the boxes themselves: one function for each layout.

    corners     [n, k, 6]               x0, y0, x1, y1, score, class: the graph has chosen already
    yolo        [n, 4 + c, k]           centre, size, a score for each class (Ultralytics YOLOv8 and later)
    yolov5      [n, k, 5 + c]           centre, size, how sure of it, a score for each class (YOLOv5, v7)
    separate    [n, k, 4] [n, k] [n, k] boxes, scores, classes (torchvision; TensorFlow: 0 to 1, y first)
    detr        [n, k, c + 1] [n, k, 4] logits, the last of no object; centre and size from 0 to 1
    centerface  [n, 1, h, w] and [n, 2, h, w] twice: heat, log of size, offset, at a quarter of the size
    text_map    [n, 1, h, w]            how likely each pixel is part of a text (Differentiable Binarization)

All of them answer float32 [n, k · 6]: x0, y0, x1, y1 in pixels of the network's input, score, class; a score
of 0 is no box. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.networks.network import Floats, softmax
from gpu_worker.tasks.boxes import overlaps

__all__ = ["BoxRules", "boxes_from", "guessed_layout"]

MOST_BOXES = 300  # of a row, the surest; evaluations of COCO count 100
_MOST_CANDIDATES = 3000  # that are compared with each other
_LEAST_SCORE = 1e-6  # 0 is no box
_TEXT_LEVEL = 0.3  # of a pixel that is part of a text (Liao et al., 2020, §3.4)
_TEXT_UNCLIP = 1.6  # by how much area over length a region grows: training shrank it (the same)
_TEXT_LEAST_SIDE = 3  # pixels


@dataclass(frozen=True, slots=True)
class BoxRules:
    """size: (H, W) of the network's input. threshold, overlap: as in `outputs` of a manifest."""

    size: tuple[int, int]
    threshold: float
    overlap: float


def boxes_from(layout: str, outputs: Sequence[NDArray[Any]], rules: BoxRules) -> Floats:
    """float32 [n, k · 6] of a graph's outputs. Raises `ValueError` where they do not lie so."""
    read, shapes = _LAYOUTS[layout]
    if len(outputs) != len(shapes) or any(
        found.ndim != ndim for found, ndim in zip(outputs, shapes, strict=True)
    ):
        told = ", ".join(str(list(found.shape)) for found in outputs)
        raise ValueError(
            f"the layout {layout!r} takes {len(shapes)} outputs of {shapes} axes, and there are {told}"
        )
    floats = [np.asarray(found, np.float32) for found in outputs]
    rows = len(floats[0])
    found = [_kept(*read([each[row] for each in floats], rules), rules) for row in range(rows)]
    width = MOST_BOXES if layout != "corners" else max(1, floats[0].shape[1])
    boxes = np.zeros((rows, min(width, MOST_BOXES), 6), np.float32)
    for row, kept in enumerate(found):
        kept = kept[: boxes.shape[1]]
        boxes[row, : len(kept)] = kept
    return boxes.reshape(rows, -1)


def guessed_layout(shapes: Sequence[Sequence[object]], classes: int) -> str:
    """The layout of outputs of these shapes, in their order; "" where they could be several, or none."""
    ranks = [len(shape) for shape in shapes]
    if ranks == [3]:
        across = [size if isinstance(size, int) else 0 for size in shapes[0]]
        if across[2] == 6 and classes != 1:
            return "corners"
        if across[1] == 4 + classes:
            return "yolo"
        return "yolov5" if across[2] == 5 + classes else ""
    if ranks == [4]:
        return "text_map" if shapes[0][1] == 1 else ""
    if ranks[:3] == [4, 4, 4] and [shape[1] for shape in shapes[:3]] == [1, 2, 2]:
        return "centerface"
    if ranks == [3, 2, 2] and shapes[0][2] == 4:
        return "separate"
    if ranks == [3, 3] and shapes[1][2] == 4 and shapes[0][2] == classes + 1:
        return "detr"
    return ""


_Found = tuple[Floats, Floats, Floats]  # boxes [k, 4], scores [k], classes [k]


def _corners(outputs: list[Floats], _: BoxRules) -> _Found:
    (found,) = outputs
    return found[:, :4], found[:, 4], found[:, 5]


def _yolo(outputs: list[Floats], _: BoxRules) -> _Found:
    found = outputs[0].T
    return _from_centres(found[:, :4]), found[:, 4:].max(axis=1), _best(found[:, 4:])


def _yolov5(outputs: list[Floats], _: BoxRules) -> _Found:
    (found,) = outputs
    scores = found[:, 5:] * found[:, 4:5] if found.shape[1] > 5 else found[:, 4:5]
    return _from_centres(found[:, :4]), scores.max(axis=1), _best(scores)


def _separate(outputs: list[Floats], rules: BoxRules) -> _Found:
    boxes, scores, classes = outputs
    if boxes.size and boxes.max() <= 1.5:  # TensorFlow's: y first, as shares of the picture
        height, width = rules.size
        boxes = boxes[:, [1, 0, 3, 2]] * np.array([width, height, width, height], np.float32)
    return boxes, scores, classes


def _detr(outputs: list[Floats], rules: BoxRules) -> _Found:
    logits, boxes = outputs
    height, width = rules.size
    scores = softmax(logits)[:, :-1]
    whole = boxes * np.array([width, height, width, height], np.float32)
    return _from_centres(whole), scores.max(axis=1), _best(scores)


def _centerface(outputs: list[Floats], rules: BoxRules) -> _Found:
    """Xu et al., "CenterFace: Joint Face Detection and Alignment Using Face as Point", 2019."""
    heat, size, offset = outputs[:3]
    height, width = rules.size
    step = height / heat.shape[1]
    rows, columns = np.nonzero(heat[0] >= rules.threshold)
    tall, wide = (np.exp(side[rows, columns]) * step for side in size[:2])
    down, right = (
        (place + moved[rows, columns] + 0.5) * step
        for place, moved in ((rows, offset[0]), (columns, offset[1]))
    )
    left = np.clip(right - wide / 2, 0, width)
    top = np.clip(down - tall / 2, 0, height)
    boxes = np.stack(
        [left, top, np.minimum(left + wide, width), np.minimum(top + tall, height)], axis=1
    ).astype(np.float32)
    return boxes, heat[0, rows, columns], np.zeros(len(rows), np.float32)


def _text_map(outputs: list[Floats], rules: BoxRules) -> _Found:
    """Liao et al., "Real-Time Scene Text Detection with Differentiable Binarization", 2020, §3.4.

    Regions are told by upright boxes, which is what a box of ours is; a slanted line's box is larger.
    """
    chances = outputs[0][0]
    height, width = rules.size
    across, down = width / chances.shape[1], height / chances.shape[0]
    boxes, scores = [], []
    for rows, columns in _regions(chances > _TEXT_LEVEL):
        top, bottom = int(rows.min()), int(rows.max()) + 1
        left, right = int(columns.min()), int(columns.max()) + 1
        if min(bottom - top, right - left) < _TEXT_LEAST_SIDE:
            continue
        grown = (bottom - top) * (right - left) * _TEXT_UNCLIP / (2 * (bottom - top + right - left))
        boxes.append(
            (
                max(0.0, (left - grown) * across),
                max(0.0, (top - grown) * down),
                min(float(width), (right + grown) * across),
                min(float(height), (bottom + grown) * down),
            )
        )
        scores.append(float(chances[top:bottom, left:right].mean()))
    return (
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.zeros(len(boxes), np.float32),
    )


_Read = Callable[[list[Floats], BoxRules], _Found]
_LAYOUTS: Mapping[str, tuple[_Read, tuple[int, ...]]] = {
    "corners": (_corners, (3,)),
    "yolo": (_yolo, (3,)),
    "yolov5": (_yolov5, (3,)),
    "separate": (_separate, (3, 2, 2)),
    "detr": (_detr, (3, 3)),
    "centerface": (_centerface, (4, 4, 4)),
    "text_map": (_text_map, (4,)),
}


def _from_centres(boxes: Floats) -> Floats:
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def _best(scores: Floats) -> Floats:
    return np.asarray(scores.argmax(axis=1), np.float32)


def _kept(boxes: Floats, scores: Floats, classes: Floats, rules: BoxRules) -> Floats:
    """[k, 6], the surest first: over the threshold, and of several of one class on one place the surest.

    Greedy non-maximum suppression, class by class.
    """
    sure = np.flatnonzero(scores >= max(rules.threshold, _LEAST_SCORE))
    order = sure[np.argsort(-scores[sure], kind="stable")][:_MOST_CANDIDATES]
    found = np.concatenate([boxes[order], scores[order, None], classes[order, None]], axis=1)
    if rules.overlap >= 1:
        return np.asarray(found, np.float32)
    # Boxes of other classes are moved away from each other, so that one pass does for all.
    far = float(np.abs(found[:, :4]).max(initial=0)) * 2 + 1
    apart = np.asarray(found[:, :4] + found[:, 5:] * far, np.float32)
    kept: list[int] = []
    left = np.arange(len(found))
    while len(left) and len(kept) < MOST_BOXES:
        first, left = int(left[0]), left[1:]
        kept.append(first)
        left = left[overlaps(apart[first], apart[left]) < rules.overlap]
    return np.asarray(found[kept], np.float32)


def _regions(mask: NDArray[np.bool_]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows and columns of the pixels of each connected region (eight neighbours), at most MOST_BOXES · 4.

    Runs of a line are joined with those of the line above that they touch (union-find).
    """
    height = len(mask)
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    lines, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    parent = list(range(len(lines)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    first_of = np.searchsorted(lines, np.arange(height + 1)).tolist()
    begins, stops = starts.tolist(), ends.tolist()
    for line in range(1, height):
        above, above_end = first_of[line - 1], first_of[line]
        for run in range(first_of[line], first_of[line + 1]):
            while above < above_end and stops[above] < begins[run]:
                above += 1
            other = above
            while other < above_end and begins[other] <= stops[run]:
                parent[root(run)] = root(other)
                other += 1
    members: dict[int, list[int]] = {}
    for run in range(len(parent)):
        members.setdefault(root(run), []).append(run)
    most = sorted(members.values(), key=lambda runs: -sum(stops[run] - begins[run] for run in runs))
    return [
        (
            np.repeat(lines[runs], ends[runs] - starts[runs]),
            np.concatenate([np.arange(begins[run], stops[run]) for run in runs]),
        )
        for runs in most[: 4 * MOST_BOXES]
    ]
