"""A snapshot of a table as matrices: JSON rows in a Parquet file → numbers by split, mapped from disk.

The file's own metadata holds the columns. What is fitted, is fitted on the training rows alone. Rows become
numbers once for each table that they are seen by; memory does not depend on how many they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.networks.network import Floats
from gpu_worker.networks.row_network import COLUMNS_KEY
from gpu_worker.networks.table import Table, TableColumn, values_of
from gpu_worker.train.array_store import ArrayStore, ArrayWriter
from gpu_worker.train.snapshot import NO_CLASS, SPLITS

__all__ = ["LabelledRows", "TableSnapshot", "read_table"]

_BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """numbers: float32 [n, width]; labels: int64 [n], indices into the classes, or `NO_CLASS`."""

    numbers: Floats
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TableSnapshot:
    """The table as the training rows show it, and the rows of each split."""

    table: Table
    parts: Mapping[str, LabelledRows]
    classes: int
    nbytes = 0  # of this process's memory: all is mapped

    def rows(self, split: str) -> LabelledRows:
        """The rows of train, validation or test. Raises `ValueError`."""
        if split not in self.parts:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(self.parts))}")
        return self.parts[split]


def read_table(
    path: str,
    classes: Sequence[str],
    table: Table | None = None,
    splits: Sequence[str] = SPLITS,
    on_step: Callable[[], None] = lambda: None,
) -> TableSnapshot:
    """The rows of some splits; the first time the file is read twice, to fit and to convert.

    table: one that was fitted before. on_step: called for every some thousand rows. Raises `ValueError` for a
    file without columns, or too wide; `OSError`.
    """
    index = {label: at for at, label in enumerate(classes)}

    def write(arrays: ArrayWriter) -> None:
        with pq.ParquetFile(path) as file:
            kinds = _kinds(file, path)
            fitted = _fitted(file, kinds, on_step) if table is None else table
            arrays.facts["table"] = fitted.as_json()
            for split in splits:  # of each, were it empty
                _append(arrays, split, fitted, [], np.zeros(0, np.int64))
            named = [TableColumn(kind["name"], kind["kind"]) for kind in kinds]
            for batch in _batches(file, "input", "target", "split"):
                on_step()
                texts, targets, sides = (column.to_pylist() for column in batch.columns)
                for split in set(sides).intersection(splits):
                    rows = [row for row, side in enumerate(sides) if side == split]
                    labels = [index.get(targets[row], NO_CLASS) for row in rows]
                    values = [values_of(texts[row], named) for row in rows]
                    _append(arrays, split, fitted, values, np.array(labels, np.int64))

    seen_by = "" if table is None else table.as_json()
    key = json.dumps(["table", seen_by, list(classes), list(splits)])
    mapped, facts = ArrayStore(path).open(key, write)
    parts = {split: LabelledRows(mapped[f"{split}.numbers"], mapped[f"{split}.labels"]) for split in splits}
    return TableSnapshot(Table.from_json(facts["table"]), parts, len(classes))


def _kinds(file: pq.ParquetFile, path: str) -> list[dict[str, str]]:
    stored = (file.schema_arrow.metadata or {}).get(COLUMNS_KEY.encode())
    if stored is None:
        raise ValueError(f"the snapshot {path} is not one of a table")
    kinds: list[dict[str, str]] = json.loads(stored)
    return kinds


def _fitted(file: pq.ParquetFile, kinds: Sequence[Mapping[str, str]], on_step: Callable[[], None]) -> Table:
    named = [TableColumn(kind["name"], kind["kind"]) for kind in kinds]

    def training() -> Iterator[list[Any]]:
        for batch in _batches(file, "input", "split"):
            on_step()
            for text, split in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if split == "train":
                    yield values_of(text, named)

    return Table.fitted(kinds, training())


def _append(
    arrays: ArrayWriter, split: str, table: Table, rows: Sequence[Sequence[Any]], labels: NDArray[np.int64]
) -> None:
    numbers = np.zeros((len(rows), table.width), np.float32)
    for line, values in zip(numbers, rows, strict=True):
        table.fill(line, values)
    arrays.append(f"{split}.numbers", numbers)
    arrays.append(f"{split}.labels", labels)


def _batches(file: pq.ParquetFile, *names: str) -> Iterator[pa.RecordBatch]:
    yield from file.iter_batches(_BATCH_ROWS, columns=list(names))
