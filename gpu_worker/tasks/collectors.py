"""What networks give, gathered into columns: a `Collector` for each kind of task."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.boxes import Box, text_of
from gpu_worker.tasks.label_sets import label_texts
from gpu_worker.tasks.task import BOX_NUMBERS, Collecting
from gpu_worker.wire.columns import BOXES, LABELS, TEXT, Column

__all__ = ["BoxLists", "LabelSets", "Labels", "Texts", "Values", "Vectors"]

Rows = NDArray[np.intp]
Floats = NDArray[np.float32]


class Labels:
    """`label`, `confidence` and `scores` of probabilities [n, classes]."""

    def __init__(self, collecting: Collecting) -> None:
        self._classes = collecting.classes
        self._wanted = collecting.wanted
        self._labels = [""] * collecting.rows
        self._confidences = np.zeros(collecting.rows, np.float32)
        self._scores = _scores(collecting)

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


class LabelSets:
    """`labels` and `scores` of probabilities [n, classes] that need not sum to one."""

    def __init__(self, collecting: Collecting) -> None:
        self._classes = collecting.classes
        self._thresholds = collecting.thresholds
        self._wanted = collecting.wanted
        self._labels = [""] * collecting.rows
        self._scores = _scores(collecting)

    def put(self, rows: Rows, outputs: Floats) -> None:
        """See `Collector.put`."""
        texts = label_texts(outputs, self._classes, self._thresholds)
        for row, text in zip(rows.tolist(), texts, strict=True):
            self._labels[row] = text
        if self._scores is not None:
            self._scores[rows] = outputs

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        found = [Column("labels", TEXT, (), self._labels, LABELS)]
        if self._scores is not None:
            found.append(Column("scores", "FP32", self._scores.shape[1:], self._scores.tobytes()))
        return [column for column in found if column.name in self._wanted]


class Values:
    """`value`, `low` and `high` of values [n, 1], or of values with their intervals [n, 3]."""

    _NAMES = ("value", "low", "high")

    def __init__(self, collecting: Collecting) -> None:
        self._wanted = collecting.wanted
        self._width = collecting.width
        # Rows that are never put have no value: 0 would be one.
        self._numbers = np.full((len(self._NAMES), collecting.rows), np.nan)

    def put(self, rows: Rows, outputs: Floats) -> None:
        """See `Collector.put`. Of float32, the fewest digits that tell it from its neighbours."""
        numbers = outputs.astype("U").astype(np.float64) if outputs.dtype == np.float32 else outputs
        self._numbers[: self._width, rows] = numbers.T

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        return [
            Column(name, "FP64", (), numbers.tobytes())
            for name, numbers in zip(self._NAMES, self._numbers, strict=True)
            if name in self._wanted
        ]


class Vectors:
    """One column of vectors [n, width]."""

    def __init__(self, name: str, collecting: Collecting) -> None:
        self._name = name
        self._vectors = np.zeros((collecting.rows, collecting.width), np.float32)

    def put(self, rows: Rows, outputs: Floats) -> None:
        """See `Collector.put`."""
        self._vectors[rows] = outputs

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        return [Column(self._name, "FP32", self._vectors.shape[1:], self._vectors.tobytes())]


class BoxLists:
    """`boxes` of [n, k · 6]; those that score 0, or less than their class's threshold, are none."""

    def __init__(self, collecting: Collecting) -> None:
        self._classes = collecting.classes
        self._thresholds = collecting.thresholds
        self._texts = [""] * collecting.rows

    def put(self, rows: Rows, outputs: Floats) -> None:
        """See `Collector.put`."""
        for row, found in zip(rows.tolist(), outputs.reshape(len(rows), -1, BOX_NUMBERS), strict=True):
            kept = found[found[:, 4] > 0]
            kept = kept[np.argsort(-kept[:, 4], kind="stable")]
            self._texts[row] = text_of([box for each in kept if (box := self._box(each)) is not None])

    def _box(self, numbers: Floats) -> Box | None:
        x0, y0, x1, y1, score, place = numbers.tolist()
        if x0 >= x1 or y0 >= y1:
            return None
        at = round(place)
        if not 0 <= at < len(self._classes):
            return Box(str(at), score, (x0, y0, x1, y1))  # a class that its manifest does not name
        if score < self._thresholds[at]:
            return None
        return Box(self._classes[at], score, (x0, y0, x1, y1))

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        return [Column("boxes", TEXT, (), self._texts, BOXES)]


class Texts:
    """`text` of n texts."""

    def __init__(self, collecting: Collecting) -> None:
        self._content = collecting.content
        self._texts = [""] * collecting.rows

    def put(self, rows: Rows, outputs: Floats | NDArray[np.object_]) -> None:
        """See `Collector.put`."""
        for row, text in zip(rows.tolist(), outputs.tolist(), strict=True):
            self._texts[row] = text

    def columns(self) -> list[Column]:
        """See `Collector.columns`."""
        return [Column("text", TEXT, (), self._texts, self._content)]


def _scores(collecting: Collecting) -> Floats | None:
    """Where scores go; None where nobody wants them."""
    if "scores" not in collecting.wanted:
        return None
    return np.zeros((collecting.rows, collecting.width), np.float32)
