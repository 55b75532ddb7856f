"""Mean average precision is that of COCO's own evaluation, `pycocotools`, on drawn cases of every kind."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import numpy as np
import pytest

from gpu_worker.tasks.average_precision import COCO_OVERLAPS, mean_average_precision
from gpu_worker.tasks.boxes import Box
from ml_udf.evaluation.average_precision import EvaluatedBox
from ml_udf.evaluation.average_precision import mean_average_precision as plain_average_precision

coco = pytest.importorskip(
    "pycocotools.coco", reason="pycocotools is not installed: nothing to hold the metric against"
)
cocoeval = pytest.importorskip("pycocotools.cocoeval")

LABELS = ("plate", "cup", "fork")
Pictures = list[list[Box]]


@pytest.mark.parametrize("seed", range(24))
def test_it_is_that_of_coco(seed: int) -> None:
    found, true = _drawn(np.random.default_rng(seed), kind=seed % 6)
    half, all_overlaps = _of_coco(found, true)
    for enough, expected in ((COCO_OVERLAPS, all_overlaps), ((0.5,), half)):
        told = mean_average_precision(found, true, enough)
        plain = plain_average_precision(_plain(found), _plain(true), enough) if any(true) else math.nan
        assert [told, plain] == pytest.approx([expected, expected], abs=1e-9, nan_ok=True)


def _drawn(random: np.random.Generator, kind: int) -> tuple[Pictures, Pictures]:
    """kind: 0 anything · 1 scores in a few steps, so that they tie · 2 boxes on a coarse grid, so that
    overlaps tie · 3 pictures that are mostly empty · 4 one label, and others found · 5 more than 100 boxes.
    """
    grid = 8 if kind == 2 else 1
    steps = 3 if kind == 1 else 1_000_000
    labels = LABELS[:1] if kind == 4 else LABELS
    found: Pictures = []
    true: Pictures = []
    for _ in range(3 if kind == 5 else int(random.integers(1, 25))):
        count = 0 if kind == 3 and random.random() < 0.7 else int(random.integers(0, 6))
        real = [_box(random, str(random.choice(labels)), grid) for _ in range(count)]
        near = [_moved(random, each, grid, steps) for each in real for _ in range(random.integers(0, 3))]
        far = 130 if kind == 5 else int(random.integers(0, 4))
        near += [_box(random, str(random.choice(LABELS)), grid, steps) for _ in range(far)]
        true.append(real)
        found.append([near[at] for at in random.permutation(len(near))])
    return found, true


def _box(random: np.random.Generator, label: str, grid: int, steps: int = 1) -> Box:
    x, y = random.integers(0, 100 // grid, 2) * grid
    width, height = random.integers(1, 40 // grid, 2) * grid
    score = float(random.integers(1, steps + 1)) / steps
    return Box(label, score, (float(x), float(y), float(x + width), float(y + height)))


def _moved(random: np.random.Generator, box: Box, grid: int, steps: int) -> Box:
    dx, dy = random.integers(-3, 4, 2) if grid == 1 else random.integers(-1, 2, 2) * grid
    x0, y0, x1, y1 = box.corners
    label = str(random.choice(LABELS)) if random.random() < 0.1 else box.label
    score = float(random.integers(1, steps + 1)) / steps
    return Box(label, score, (x0 + float(dx), y0 + float(dy), x1 + float(dx), y1 + float(dy)))


def _plain(pictures: Pictures) -> list[list[EvaluatedBox]]:
    return [[EvaluatedBox(box.label, box.score, box.corners) for box in boxes] for boxes in pictures]


def _of_coco(found: Pictures, true: Pictures) -> tuple[float, float]:
    """(mAP@.5, mAP@[.5:.95]); nan for both where there is no true box."""
    known = coco.COCO()
    known.dataset = {
        "images": [{"id": at} for at in range(1, len(true) + 1)],
        "categories": [{"id": at} for at in range(1, len(LABELS) + 1)],
        "annotations": [
            _told(box, picture) | {"id": number, "iscrowd": 0}
            for number, (picture, box) in enumerate(_numbered(true), 1)
        ],
    }
    detected = [_told(box, picture) | {"score": box.score} for picture, box in _numbered(found)]
    with contextlib.redirect_stdout(io.StringIO()):
        known.createIndex()
        if not detected:
            return (0.0, 0.0) if any(true) else (math.nan, math.nan)
        evaluation = cocoeval.COCOeval(known, known.loadRes(detected), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, -1]  # overlaps, recalls, labels; any area, 100 boxes
    return _mean(precision[0]), _mean(precision)


def _mean(precision: np.ndarray[Any, Any]) -> float:
    counted = precision[precision > -1]
    return float(counted.mean()) if counted.size else math.nan


def _numbered(pictures: Pictures) -> list[tuple[int, Box]]:
    return [(at, box) for at, boxes in enumerate(pictures, 1) for box in boxes]


def _told(box: Box, picture: int) -> dict[str, Any]:
    x0, y0, x1, y1 = box.corners
    return {
        "image_id": picture,
        "category_id": LABELS.index(box.label) + 1,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": (x1 - x0) * (y1 - y0),
    }
