"""The answer that needs no model, and what it scores on a snapshot's test rows. Blocking.

Of classes it is the most frequent one, or where probabilities are scored how frequent each is; of labels
how frequent each is; of numbers their mean, or the median where distances are scored; of boxes none.
Learned of the training rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Metric
from server.training.datasets.leakage import majority_baseline
from server.training.recipes import TargetKind

__all__ = ["Baseline", "baseline_of"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """said: what it does, as words. value: the metric's. share: of the test rows of the most frequent class;
    None where there are no classes.
    """

    said: str
    value: float
    share: float | None = None


def baseline_of(file: Path, target: TargetKind, classes: Sequence[str], metric: Metric) -> Baseline:
    """Of a snapshot. Raises ValueError for one without training rows."""
    if target == "class":
        majority = majority_baseline(file)
        said = f"always naming {majority.label!r}"
        if metric.name == "accuracy":
            return Baseline(said, majority.share, majority.share)
        index = {label: at for at, label in enumerate(classes)}
        taught, tested = (
            np.array([index.get(label, -1) for label in _column(file, split)], np.int64)
            for split in ("train", "test")
        )
        frequent = np.bincount(taught[taught >= 0], minlength=len(classes)) / max(1, len(taught))
        return Baseline(said, metric.of(np.tile(frequent, (len(tested), 1)), tested), majority.share)
    if target == "number":
        known, asked = (np.array(_column(file, split), np.float64) for split in ("train", "test"))
        number = float(np.median(known) if metric.name == "mae" else known.mean())
        told = np.full((len(asked), 1), number)
        return Baseline(f"always saying {number:.4g}", metric.of(told, asked))
    if target == "boxes":
        return Baseline("finding nothing", 0.0)
    sets, wanted = (_sets(_column(file, split), classes) for split in ("train", "test"))
    told = np.tile(sets.mean(axis=0), (len(wanted), 1))
    return Baseline("always naming the labels of most rows", metric.of(told, wanted))


def _column(file: Path, split: str) -> list[Any]:
    found: list[Any] = pq.read_table(file, columns=["target"], filters=[("split", "=", split)])[
        "target"
    ].to_pylist()
    return found


def _sets(rows: Sequence[str], classes: Sequence[str]) -> NDArray[np.bool_]:
    index = {label: at for at, label in enumerate(classes)}
    found = np.zeros((len(rows), len(classes)), np.bool_)
    for row, text in enumerate(rows):
        found[row, [index[label] for label in json.loads(text) if label in index]] = True
    return found
