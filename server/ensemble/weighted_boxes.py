"""Boxes that several members drew around the same things, fused: one box a thing, where all of them see it.

Solovyev, Wang & Gabruseva 2021, "Weighted boxes fusion: Ensembling boxes from different object detection
models", §3. Pure, numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_worker.tasks.boxes import Box, overlaps

__all__ = ["fused_boxes"]

_SAME_THING = 0.55  # intersection over union, as in the paper


def fused_boxes(members: Sequence[Sequence[Box]], same: float = _SAME_THING) -> list[Box]:
    """Of one picture: each member's boxes → fused ones, the surest first. same: overlap of a thing's boxes.

    By label, from the surest box down: it joins the thing that it overlaps most, if by more than `same`, else
    it is a new one. A thing's box is the mean of its boxes, by their scores; its score is their mean, times
    min(boxes, members) / members, so that what few of them see is less sure.
    """
    by_label: dict[str, list[Box]] = {}
    for boxes in members:
        for box in boxes:
            by_label.setdefault(box.label, []).append(box)
    fused = [box for boxes in by_label.values() for box in _fused(boxes, len(members), same)]
    return sorted(fused, key=lambda box: -box.score)


def _fused(boxes: Sequence[Box], members: int, same: float) -> list[Box]:
    """Those of one label."""
    scores = np.array([box.score for box in boxes])
    corners = np.array([box.corners for box in boxes], np.float64)
    things: list[list[int]] = []  # by number of the box
    means = np.empty((len(boxes), 4))  # of the things so far
    for at in np.argsort(-scores, kind="stable").tolist():
        found = overlaps(corners[at], means[: len(things)])
        best = int(found.argmax()) if len(found) else -1
        if best < 0 or found[best] <= same:
            best = len(things)
            things.append([])
        things[best].append(at)
        weights = scores[things[best]]
        means[best] = weights @ corners[things[best]] / weights.sum()
    return [
        Box(
            boxes[0].label,
            float(scores[thing].mean()) * min(len(thing), members) / members,
            (float(x0), float(y0), float(x1), float(y1)),
        )
        for thing, (x0, y0, x1, y1) in zip(things, means, strict=False)
    ]
