"""Boxes around things in a picture: as columns have them, how much two overlap, where in a picture they lie.

A box is x0, y0, x1, y1 in pixels, from the picture's upper left corner.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.task import BOX_NUMBERS

__all__ = ["Box", "boxes_of", "in_picture", "overlaps", "text_of"]

Floats = NDArray[np.float64]

_DIGITS = 2  # of a coordinate: a hundredth of a pixel
_SCORE_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Box:
    """One of them. corners: x0, y0, x1, y1."""

    label: str
    score: float
    corners: tuple[float, float, float, float]


def text_of(boxes: Sequence[Box]) -> str:
    """Boxes as a row of a column has them."""
    told = [
        {
            "label": box.label,
            "score": round(box.score, _SCORE_DIGITS),
            "box": [round(corner, _DIGITS) for corner in box.corners],
        }
        for box in boxes
    ]
    return json.dumps(told, ensure_ascii=False)


def boxes_of(text: str) -> list[Box]:
    """Reads what `text_of` wrote; none of "", which a row at fault has. Raises ValueError."""
    try:
        return [_box(told) for told in json.loads(text)] if text else []
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ValueError(f"{text[:100]!r} are no boxes: {exc!r}") from exc


def overlaps(box: NDArray[np.floating[Any]], others: NDArray[np.floating[Any]]) -> Floats:
    """Intersection over union of a box [4] with others [n, 4]: [n], 0 where both are empty."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - common
    found: Floats = np.divide(common, union, out=np.zeros(len(others)), where=union > 0)
    return found


def in_picture(
    boxes: NDArray[np.float32], back: NDArray[np.float32], pictures: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Boxes of a network's input, in pixels of the pictures that were put into it; no box leaves its picture.

    boxes: [n, k · 6] as networks give them · back: [n, 4], of each picture, as `Frame.back` has it ·
    pictures: [n, 2], (H, W) of each.
    """
    found = boxes.reshape(len(boxes), -1, BOX_NUMBERS).copy()
    scale, start = back[:, None, :2], back[:, None, 2:]
    most = pictures[:, None, ::-1].astype(np.float32)
    for corner in (slice(0, 2), slice(2, 4)):
        found[:, :, corner] = np.clip((found[:, :, corner] - start) * scale, 0, most)
    return found.reshape(boxes.shape)


def _box(told: dict[str, Any]) -> Box:
    x0, y0, x1, y1 = map(float, told["box"])
    return Box(str(told["label"]), float(told["score"]), (x0, y0, x1, y1))
