"""Trees of a library of their own as a `Network`: rows as JSON in, probabilities or values out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from gpu_worker.networks.coded_columns import CodedColumns
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, check
from gpu_worker.networks.piece_sizes import LARGEST_LIGHT_PIECE_ROWS

__all__ = ["MOST_TREE_BYTES", "BoostedTrees", "TreeModel", "both"]

# Of a file: while its arrays are looked over they take many times as much of the host's memory.
MOST_TREE_BYTES = 512 << 20

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TreeModel:
    """What a file holds.

    kind: a class of several, any number of labels, or a value. outputs: classes, labels; of a value 1, or 3
    where the model gives a low and a high one beside it. predict: float64 [n, columns] → [n, outputs], as
    the library itself answers; may be called by several threads at once. nbytes: in memory.
    """

    columns: CodedColumns
    objective: str
    kind: Literal["classification", "multilabel", "regression"]
    outputs: int
    predict: Callable[[Numbers], Floats]
    nbytes: int


def both(positive: Floats) -> Floats:
    """[n, 2] probabilities of two classes, of the second one's [n, 1]."""
    found: Floats = np.concatenate((1 - positive, positive), axis=1)
    return found


class BoostedTrees:
    """`model`, as the worker asks it."""

    forms = frozenset(("row",))
    pixels: tuple[int, int] | None = None
    cuttable = True
    largest_piece = LARGEST_LIGHT_PIECE_ROWS
    features_width = 0

    def __init__(self, model: TreeModel) -> None:
        self._model = model
        self.resident_bytes = model.nbytes
        self.values_width = model.outputs if model.kind == "regression" else 0

    def warm_up(self, rows: int) -> Floats:
        """The answers to `rows` rows whose values are all missing."""
        return self._model.predict(np.full((rows, len(self._model.columns.columns)), np.nan))

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, outputs] probabilities of JSON rows; not a number where a row does not fit the columns."""
        check(is_cancelled)
        numbers, faults = self._model.columns.numbers([bytes(row) for row in cast("Sequence[bytes]", inputs)])
        found = self._model.predict(numbers)
        found[faults] = np.nan
        return found

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, 1] values, or [n, 3]: value, low, high."""
        return self.scores(inputs, is_cancelled)

    def fault_of(self, row: bytes) -> str | None:
        """Why a row does not fit the columns; None for one that does."""
        return self._model.columns.fault_of(row)
