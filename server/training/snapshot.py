"""A snapshot: rows of a dataset, checked, split, and frozen in a Parquet file under their own hash.

    batches ─ Draft.add → staged rows + 40 bytes a row in memory ─ Draft.freeze → NAME/ID.parquet, Facts

Memory does not depend on how wide the rows are: they are staged on disk and read again, a row group at a
time, once every row's split is known. Blocking. Knows Arrow; knows no database, and workers by `inspect`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from server.errors import BadInput, BadOption
from server.training.dataset_spec import DatasetSpec
from server.training.features import Feature, features_json, features_of, rows_of
from server.training.split import SPLITS, components, split_rows
from server.training.tasks import IMAGES, TABLES

__all__ = ["Draft", "Facts", "Inspect", "Limits", "Unreadable"]

_STAGED = pa.schema([("key", pa.string()), ("input", pa.string()), ("target", pa.string())])
_FROZEN = pa.schema([*_STAGED, ("split", pa.string())])
_LEAST_ROWS = 10
_LISTED = 20
_INSPECTED_ROWS = 256
_UNREADABLE_LEAST = 10
_UNREADABLE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An input that no model could be trained on, and why."""

    input: str
    code: str
    message: str


# Inputs → the hash of what each stands for, or why it cannot be read. Called with up to 256 at a time.
Inspect = Callable[[Sequence[str]], Sequence[str | Unreadable]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one snapshot may hold."""

    max_rows: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a snapshot is: `id` is a hash of its rows and of how they are split."""

    id: str
    rows: int
    classes: tuple[str, ...]
    splits: dict[str, int]
    content_sha256: str
    file: str
    columns: tuple[dict[str, str], ...] = ()  # of a table: name and kind of each input
    unreadable: int = 0
    unreadable_rows: list[dict[str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As JSON; tuples become lists."""
        return asdict(self) | {"classes": list(self.classes), "columns": list(self.columns)}


class Draft:
    """A snapshot that is being taken. `close` removes what is left of one that came to nothing."""

    def __init__(self, spec: DatasetSpec, folder: Path, limits: Limits, inspect: Inspect) -> None:
        self._spec = spec
        self._folder = folder / spec.name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._limits = limits
        self._inspect = inspect
        descriptor, staged = tempfile.mkstemp(prefix=".staged-", suffix=".parquet", dir=self._folder)
        os.close(descriptor)
        self._staged = Path(staged)
        self._writer = pq.ParquetWriter(self._staged, _STAGED, compression="zstd")
        self._content = hashlib.sha256()
        self._bytes = 0
        self._seen = 0
        self._null_targets = 0
        self._codes: dict[str, int] = {}
        self._target = array("q")
        self._entity = array("Q")
        self._input = array("Q")
        self._order = array("q")
        self._unreadable: list[Unreadable] = []
        self._features: tuple[Feature, ...] = ()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, in the order of the key. Raises `BadOption`, `BadInput`."""
        columns = self._spec.columns(batch.schema.names)
        self._seen += batch.num_rows
        self._bytes += batch.nbytes
        self._check_limits()
        key = _texts(batch, columns.key, self._spec.name)
        target = _texts(batch, columns.target, self._spec.name)
        inputs = self._inputs(batch, columns.inputs)
        self._null_targets += target.null_count
        for name, values in ((columns.key, key), (columns.inputs[0], inputs)):
            if values.null_count:
                raise BadOption(f"dataset {self._spec.name}: {name!r} is NULL in some rows; leave them out")
        if self._null_targets:
            return  # counted to the end, so that the message can say how many
        order = _order(batch, columns.time) if columns.time else None
        group = _texts(batch, columns.entity, self._spec.name) if columns.entity else key
        self._take(key.to_pylist(), inputs.to_pylist(), target.to_pylist(), group.to_pylist(), order)

    def freeze(self) -> Facts:
        """Split the rows and write the snapshot. Raises `BadOption`."""
        self._writer.close()
        rows = len(self._target)
        name = self._spec.name
        if self._null_targets:
            raise BadOption(
                f"dataset {name}: the target {self._spec.target!r} is NULL in {self._null_targets} rows; "
                f"add WHERE {self._spec.target} IS NOT NULL"
            )
        if rows < _LEAST_ROWS:
            raise BadOption(f"dataset {name}: the query gave {rows} rows; at least {_LEAST_ROWS} are needed")
        if len(self._codes) < 2:
            raise BadOption(
                f"dataset {name}: every row's {self._spec.target!r} is {next(iter(self._codes))!r}; "
                "at least two classes are needed"
            )
        classes = tuple(sorted(self._codes))
        place = np.array([classes.index(label) for label in self._codes])
        entity = np.frombuffer(self._entity, np.uint64)
        by_time = self._spec.time is not None
        order = np.frombuffer(self._order, np.int64) if by_time else entity
        split = split_rows(
            components(entity, np.frombuffer(self._input, np.uint64)),
            order,
            place[np.frombuffer(self._target, np.int64)],
            classes,
            self._spec.shares,
        )
        content = self._content.hexdigest()
        named = features_json(self._features).encode() if self._features else b""
        snapshot = hashlib.sha256(content.encode() + split.tobytes() + named).hexdigest()[:16]
        self._write(snapshot, split)
        counted = np.bincount(split, minlength=len(SPLITS)).tolist()
        return Facts(
            id=snapshot,
            rows=rows,
            classes=classes,
            splits=dict(zip(SPLITS, counted, strict=True)),
            content_sha256=content,
            file=f"{name}/{snapshot}.parquet",
            columns=tuple(asdict(feature) for feature in self._features),
            unreadable=len(self._unreadable),
            unreadable_rows=[asdict(row) for row in self._unreadable[:_LISTED]],
        )

    def close(self) -> None:
        """Remove the staged rows. Safe after `freeze`, and twice."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self._staged.unlink(missing_ok=True)

    def _take(
        self,
        keys: list[str],
        inputs: list[str],
        targets: list[str],
        groups: list[str],
        order: list[int] | None,
    ) -> None:
        kept: list[int] = []
        for start in range(0, len(keys), _INSPECTED_ROWS):
            part = slice(start, start + _INSPECTED_ROWS)
            looked_at = self._inspect(inputs[part]) if self._spec.task == IMAGES else inputs[part]
            for row, found in enumerate(looked_at, start):
                if isinstance(found, Unreadable):
                    self._unreadable.append(found)
                    self._check_unreadable()
                    continue
                kept.append(row)
                self._entity.append(_hash(groups[row]))
                self._input.append(_hash(found))
                self._order.append(order[row] if order is not None else 0)
                self._target.append(self._codes.setdefault(targets[row], len(self._codes)))
                for text in (keys[row], inputs[row], targets[row], found):
                    data = text.encode()
                    self._content.update(len(data).to_bytes(8, "little") + data)
        columns = [[values[row] for row in kept] for values in (keys, inputs, targets)]
        self._writer.write_table(pa.table(columns, schema=_STAGED))

    def _inputs(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
        """The texts that models get to see; of a table, the row's values as JSON."""
        if self._spec.task != TABLES:
            return _texts(batch, names[0], self._spec.name)
        features = features_of(batch, names, self._spec.name)
        if self._features and features != self._features:
            raise BadOption(f"dataset {self._spec.name}: the columns change their types between the parts")
        self._features = features
        return rows_of(batch, features)

    def _check_limits(self) -> None:
        limits = self._limits
        if self._seen > limits.max_rows:
            raise BadOption(f"dataset {self._spec.name}: the query gives more than {limits.max_rows} rows")
        if self._bytes > limits.max_bytes:
            raise BadOption(f"dataset {self._spec.name}: the query gives more than {limits.max_bytes} bytes")

    def _check_unreadable(self) -> None:
        count = len(self._unreadable)
        if count <= max(_UNREADABLE_LEAST, self._seen * _UNREADABLE_SHARE):
            return
        listed = "; ".join(f"{row.input}: {row.message}" for row in self._unreadable[:3])
        raise BadInput(
            self._unreadable[0].code,
            f"dataset {self._spec.name}: {count} of {self._seen} inputs cannot be read: {listed}; …",
        )

    def _write(self, snapshot: str, split: Any) -> None:  # noqa: ANN401  # an array of indices into SPLITS
        place = self._folder / f"{snapshot}.parquet"
        coming = self._folder / f".{snapshot}.coming"
        names = pa.array(SPLITS)
        # The worker that trains has the file alone, and learns there what a row of it is.
        schema = _FROZEN.with_metadata(
            {"ml_udf.columns": features_json(self._features)} if self._features else None
        )
        with (
            pq.ParquetFile(self._staged) as staged,
            pq.ParquetWriter(coming, schema, compression="zstd") as out,
        ):
            start = 0
            for batch in staged.iter_batches():
                part = names.take(pa.array(split[start : start + batch.num_rows]))
                out.write_batch(pa.record_batch([*batch.columns, part], schema=schema))
                start += batch.num_rows
        with open(coming, "rb") as file:
            os.fsync(file.fileno())
        os.replace(coming, place)


def _texts(batch: pa.RecordBatch, name: str, dataset: str) -> pa.Array:
    values = batch.column(name)
    try:
        return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadOption(
            f"dataset {dataset}: {name!r} is of type {values.type}, which has no text form"
        ) from None


def _order(batch: pa.RecordBatch, name: str) -> list[int]:
    values = batch.column(name)
    if values.null_count:
        raise BadOption(f"the time column {name!r} is NULL in some rows; leave them out")
    try:
        if pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("us"))
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
        if pa.types.is_floating(values.type):
            values = pc.multiply(values, 1e6)
        ordered: list[int] = values.cast(pa.int64(), safe=False).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadOption(
            f"the time column {name!r} is of type {values.type}, which has no order in time"
        ) from None
    return ordered


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
