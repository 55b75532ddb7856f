"""A snapshot of a table as matrices: JSON rows in a Parquet file → numbers by split.

The file's own metadata holds the columns. What is fitted, is fitted on the training rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.network import Floats
from gpu_worker.row_network import COLUMNS_KEY
from gpu_worker.table import Column, Table, values_of

__all__ = ["Rows", "TableSnapshot", "read_table"]

_BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """numbers: float32 [n, width]; labels: int64 [n]."""

    numbers: Floats
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TableSnapshot:
    """The table as the training rows show it, and the rows of each split."""

    table: Table
    parts: Mapping[str, Rows]
    classes: int

    def rows(self, split: str) -> Rows:
        """The rows of train, validation or test. Raises `ValueError`."""
        if split not in self.parts:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(self.parts))}")
        return self.parts[split]


def read_table(path: str, classes: Sequence[str], table: Table | None = None) -> TableSnapshot:
    """Reads the file twice, to fit and to convert: memory is that of the matrices.

    table: one that was fitted before. Raises `ValueError` for a file without columns, or too wide.
    """
    with pq.ParquetFile(path) as file:
        stored = (file.schema_arrow.metadata or {}).get(COLUMNS_KEY.encode())
        if stored is None:
            raise ValueError(f"the snapshot {path} is not one of a table")
        kinds: list[dict[str, str]] = json.loads(stored)
        named = [Column(kind["name"], kind["kind"]) for kind in kinds]
        if table is None:
            training = (
                values_of(text, named) for text, split in _columns(file, "input", "split") if split == "train"
            )
            table = Table.fitted(kinds, training)
        index = {label: at for at, label in enumerate(classes)}
        counts = dict.fromkeys(("train", "validation", "test"), 0)
        for (split,) in _columns(file, "split"):
            counts[split] += 1
        parts = {
            split: Rows(np.zeros((count, table.width), np.float32), np.zeros(count, np.int64))
            for split, count in counts.items()
        }
        filled = dict.fromkeys(parts, 0)
        for text, target, split in _columns(file, "input", "target", "split"):
            at = filled[split]
            table.fill(parts[split].numbers[at], values_of(text, named))
            parts[split].labels[at] = index[target]
            filled[split] = at + 1
    return TableSnapshot(table, parts, len(classes))


def _columns(file: pq.ParquetFile, *names: str) -> Iterator[tuple[Any, ...]]:
    for batch in file.iter_batches(_BATCH_ROWS, columns=list(names)):
        yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)
