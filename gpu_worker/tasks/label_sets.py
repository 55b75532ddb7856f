"""Which classes are probable enough, of rows that may have several or none, as a column says it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["label_texts"]


def label_texts(
    scores: NDArray[np.float32], classes: Sequence[str], thresholds: Sequence[float]
) -> list[str]:
    """Of each row, a JSON array of the classes whose score is not below their threshold, in their order.

    scores: [n, classes]. thresholds: of each class; compared as the float32 that scores are.
    """
    told = scores >= np.asarray(thresholds, np.float32)
    texts: dict[bytes, str] = {}  # most rows have one of a few sets
    found = []
    for row in told:
        key = row.tobytes()
        text = texts.get(key)
        if text is None:
            text = texts[key] = json.dumps(
                [classes[at] for at in np.flatnonzero(row).tolist()], ensure_ascii=False
            )
        found.append(text)
    return found
