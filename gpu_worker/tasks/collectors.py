"""What networks give, gathered into columns: labels with their confidence, or vectors as they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.columns import TEXT, Column

__all__ = ["Labels", "Vectors"]

Rows = NDArray[np.intp]
Floats = NDArray[np.float32]


class Labels:
    """`label`, `confidence` and `scores` of probabilities [n, classes]."""

    def __init__(self, rows: int, classes: Sequence[str], width: int, wanted: Collection[str]) -> None:
        self._classes = classes
        self._wanted = wanted
        self._labels = [""] * rows
        self._confidences = np.zeros(rows, np.float32)
        self._scores = np.zeros((rows, width), np.float32) if "scores" in wanted else None

    def put(self, rows: Rows, outputs: Floats) -> None:
        """See `Collector.put`."""
        best = outputs.argmax(axis=1)
        classes, labels = self._classes, self._labels
        for row, label in zip(rows.tolist(), best.tolist(), strict=True):
            labels[row] = classes[label]
        self._confidences[rows] = outputs.max(axis=1)
        if self._scores is not None:
            self._scores[rows] = outputs

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        found = [
            Column("label", TEXT, (), self._labels),
            Column("confidence", "FP32", (), self._confidences.tobytes()),
        ]
        if self._scores is not None:
            found.append(Column("scores", "FP32", self._scores.shape[1:], self._scores.tobytes()))
        return [column for column in found if column.name in self._wanted]


class Vectors:
    """One column of vectors [n, width]."""

    def __init__(self, name: str, rows: int, width: int) -> None:
        self._name = name
        self._vectors = np.zeros((rows, width), np.float32)

    def put(self, rows: Rows, outputs: Floats) -> None:
        """See `Collector.put`."""
        self._vectors[rows] = outputs

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        return [Column(self._name, "FP32", self._vectors.shape[1:], self._vectors.tobytes())]
