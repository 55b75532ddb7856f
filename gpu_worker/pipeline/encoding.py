"""The pictures of a row group → the one picture that a parity model sees (ParM, SOSP 2019, §4.2.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from gpu_worker.model_files.parity_spec import SUM, Encoder
from gpu_worker.pipeline.decode import Pixels

__all__ = ["encoded"]


def encoded(pictures: Sequence[Pixels], encoder: Encoder) -> Pixels:
    """One picture [H, W, 3] of k of that shape.

    `sum`: their mean, rounded; the network's normalisation makes a sum of it. `tiles`: two beside each other;
    of three or four a square of two by two, the fourth black where there are three.
    """
    if encoder == SUM:
        together = np.stack(pictures).sum(axis=0, dtype=np.uint32)
        return np.asarray((2 * together + len(pictures)) // (2 * len(pictures)), np.uint8)
    height, width = pictures[0].shape[:2]
    across, down = 2, 1 if len(pictures) == 2 else 2
    tiled = np.zeros((height, width, 3), np.uint8)
    for place, picture in enumerate(pictures):
        top, left = place // across * height // down, place % across * width // across
        bottom, right = (place // across + 1) * height // down, (place % across + 1) * width // across
        small = Image.fromarray(picture).resize((right - left, bottom - top), Image.Resampling.BOX)
        tiled[top:bottom, left:right] = np.asarray(small)
    return tiled
