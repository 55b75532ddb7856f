"""A snapshot of a table as matrices: JSON rows in a Parquet file → numbers by split, mapped from disk.

The file's own metadata holds the columns. What is fitted, is fitted on the training rows alone. Rows become
numbers once for each table that they are seen by; memory does not depend on how many they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.networks.network import Floats
from gpu_worker.networks.row_network import COLUMNS_KEY
from gpu_worker.networks.table import Table, TableColumn, values_of
from gpu_worker.tasks.metrics import Targets
from gpu_worker.train.array_store import ArrayStore, ArrayWriter
from gpu_worker.train.snapshot import NO_CLASS, SPLITS
from gpu_worker.train.table_fit import ALL_COLUMNS, ColumnChoices, FittedTable, fit_table

__all__ = ["LabelledRows", "TableSnapshot", "read_table", "rows_of", "taught_of"]

_BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """numbers: float32 [n, width]; labels: int64 [n], indices into the classes, or `NO_CLASS`; of a table
    without classes float64 [n], the numbers that are to be told; of rows with several labels bool [n, k].
    """

    numbers: Floats
    labels: Targets


@dataclass(frozen=True, slots=True, eq=False)
class TableSnapshot:
    """The table as the training rows show it, and the rows of each split."""

    table: Table
    parts: Mapping[str, LabelledRows]
    classes: int
    nbytes = 0  # of this process's memory: all is mapped

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.table.width

    @property
    def properties(self) -> Mapping[str, str]:
        """What a model's file says of its rows."""
        return {COLUMNS_KEY: self.table.as_json()}

    def rows(self, *splits: str) -> LabelledRows:
        """See `rows_of`."""
        return rows_of(self.parts, *splits)


def rows_of(parts: Mapping[str, LabelledRows], *splits: str) -> LabelledRows:
    """The rows of train, validation or test; of several, those of one after those of the other.

    Raises `ValueError`.
    """
    for split in splits:
        if split not in parts:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(parts))}")
    if len(splits) == 1:
        return parts[splits[0]]
    found = [parts[split] for split in splits]
    return LabelledRows(
        np.concatenate([part.numbers for part in found]), np.concatenate([part.labels for part in found])
    )


def taught_of(rows: LabelledRows) -> LabelledRows:
    """Those that can be taught: without validation rows of a class that no training row shows."""
    if not np.issubdtype(rows.labels.dtype, np.integer) or (rows.labels != NO_CLASS).all():
        return rows
    known = rows.labels != NO_CLASS
    return LabelledRows(rows.numbers[known], rows.labels[known])


def read_table(
    path: str,
    classes: Sequence[str],
    table: Table | None = None,
    splits: Sequence[str] = SPLITS,
    on_step: Callable[[], None] = lambda: None,
    choices: ColumnChoices = ALL_COLUMNS,
) -> TableSnapshot:
    """The rows of some splits; the first time the file is read twice, to fit and to convert.

    classes: none where the target is a number. table: one that was fitted before. on_step: called for every
    some thousand rows. choices: of what is made of columns, where no table is given. Raises `ValueError` for
    a file without columns, or too wide; `OSError`.
    """
    targets = _Targets(classes)

    def write(arrays: ArrayWriter) -> None:
        with pq.ParquetFile(path) as file:
            kinds = _kinds(file, path)
            named = [TableColumn(kind["name"], kind["kind"]) for kind in kinds]
            fitted = _fitted(file, kinds, named, targets, choices, on_step) if table is None else None
            seen_as = table if fitted is None else fitted.whole
            assert seen_as is not None
            arrays.facts["table"] = seen_as.as_json()
            for split in splits:  # of each, were it empty
                _append(arrays, split, seen_as.matrix([]), targets.labels([]))
            trained = 0
            for batch in _batches(file, "input", "target", "split"):
                on_step()
                texts, given, sides = (column.to_pylist() for column in batch.columns)
                for split in set(sides).intersection(splits):
                    rows = [row for row, side in enumerate(sides) if side == split]
                    values = [values_of(texts[row], named) for row in rows]
                    if fitted is not None and split == "train":
                        numbers = fitted.training_matrix(values, trained)
                        trained += len(rows)
                    else:
                        numbers = seen_as.matrix(values)
                    _append(arrays, split, numbers, targets.labels([given[row] for row in rows]))

    seen_by = json.dumps(asdict(choices)) if table is None else table.as_json()
    key = json.dumps(["table as served", seen_by, list(classes), list(splits)])
    mapped, facts = ArrayStore(path).open(key, write)
    parts = {split: LabelledRows(mapped[f"{split}.numbers"], mapped[f"{split}.labels"]) for split in splits}
    return TableSnapshot(Table.from_json(facts["table"]), parts, len(classes))


class _Targets:
    """The targets of rows, as they are learnt: indices into classes, or numbers."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._index = {label: at for at, label in enumerate(classes)}

    def labels(self, given: Sequence[Any]) -> NDArray[np.int64] | NDArray[np.float64]:
        """[n], as `LabelledRows.labels`."""
        if not self._index:
            return np.array(given, np.float64)
        return np.array([self._index.get(label, NO_CLASS) for label in given], np.int64)

    def flags(self, given: Sequence[Any]) -> Floats:
        """float32 [n, k], as `fit_table` takes them."""
        labels = self.labels(given)
        if not self._index:
            return labels.astype(np.float32)[:, None]
        wanted = np.arange(len(self._index)) if len(self._index) != 2 else np.array([1])
        flags: Floats = (labels[:, None] == wanted).astype(np.float32)
        return flags


def _kinds(file: pq.ParquetFile, path: str) -> list[dict[str, str]]:
    stored = (file.schema_arrow.metadata or {}).get(COLUMNS_KEY.encode())
    if stored is None:
        raise ValueError(f"the snapshot {path} is not one of a table")
    kinds: list[dict[str, str]] = json.loads(stored)
    return kinds


def _fitted(
    file: pq.ParquetFile,
    kinds: Sequence[Mapping[str, str]],
    named: Sequence[TableColumn],
    targets: _Targets,
    choices: ColumnChoices,
    on_step: Callable[[], None],
) -> FittedTable:
    def training() -> Iterator[tuple[list[list[Any]], Floats]]:
        for batch in _batches(file, "input", "target", "split"):
            on_step()
            rows = zip(*(each.to_pylist() for each in batch.columns), strict=True)
            mine = [(values_of(text, named), target) for text, target, split in rows if split == "train"]
            yield [values for values, _ in mine], targets.flags([target for _, target in mine])

    return fit_table(kinds, training(), choices)


def _append(
    arrays: ArrayWriter,
    split: str,
    numbers: Floats,
    labels: NDArray[np.int64] | NDArray[np.float64],
) -> None:
    arrays.append(f"{split}.numbers", numbers)
    arrays.append(f"{split}.labels", labels)


def _batches(file: pq.ParquetFile, *names: str) -> Iterator[pa.RecordBatch]:
    yield from file.iter_batches(_BATCH_ROWS, columns=list(names))
