"""A snapshot: rows of a dataset, checked, split, and frozen in a Parquet file under their own hash.

    batches ─ Draft.add → staged rows, and numbers of each   ─ Draft.freeze → NAME/ID.parquet, Facts

Memory does not depend on how many the rows are, nor how wide: they are staged on disk and read again, a row
group at a time, once every row's split is known. Blocking. Knows Arrow; knows no database to read from, and
workers by `inspect`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from server.disk_space import full_disk_told
from server.errors import BadInput, BadOption
from server.training.datasets.features import Feature, features_json, features_of, rows_of
from server.training.datasets.spec import DatasetSpec
from server.training.datasets.split import LEFT_OUT, SPLITS, RowNumbers
from server.training.datasets.targets import target_column
from server.training.recipes import recipe_for

__all__ = ["Draft", "Facts", "Inspector", "Looked", "SnapshotLimits", "Unreadable", "split_note"]


# content: a hash of what the input stands for, where that is not the text itself.
def _staged(target: pa.DataType) -> pa.Schema:
    return pa.schema(
        [("key", pa.string()), ("input", pa.string()), ("target", target), ("content", pa.uint64())]
    )


# component: the number of the first row that must stay on one side with this one.
_PLACED = (("split", pa.string()), ("component", pa.int64()))
_SPLIT_KEY = "ml_udf.split_rule"
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


@dataclass(frozen=True, slots=True)
class Looked:
    """A picture that can be read. content: a hash of its file; width, height: the right way up."""

    content: str
    width: int = 0
    height: int = 0


# Paths of pictures → what each is, or why it cannot be read. Called with up to 256 at a time.
Inspector = Callable[[Sequence[str]], Sequence[Looked | Unreadable]]


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """What one snapshot may hold."""

    max_rows: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a snapshot is: `id` is a hash of its rows and of how they are split.

    classes: those that a model can learn, of which there are training rows; none of numbers. untaught: the
    splits of each other class. split_rule: one of `split`'s. left_out: rows that reach over a cut in time.
    """

    id: str
    rows: int
    classes: tuple[str, ...]
    splits: dict[str, int]
    content_sha256: str
    file: str
    split_rule: str
    untaught: dict[str, list[str]] = field(default_factory=dict)
    left_out: int = 0
    columns: tuple[dict[str, str], ...] = ()  # of a table: name and kind of each input
    unreadable: int = 0
    unreadable_rows: list[dict[str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As JSON; tuples become lists."""
        return asdict(self) | {"classes": list(self.classes), "columns": list(self.columns)}


def split_note(facts: Mapping[str, Any]) -> str:
    """What who trains on a snapshot must know of its split; "" where there is nothing.

    Counts and no names: a job is shown to those who may not see what stands in the rows.
    """
    classes = Counter(" and ".join(sides) for sides in facts.get("untaught", {}).values() if sides)
    return "; ".join(
        f"{count} {'class is' if count == 1 else 'classes are'} in the {sides} rows alone:"
        f" no model learns {'it' if count == 1 else 'them'}"
        for sides, count in sorted(classes.items())
    )


class Draft:
    """A snapshot that is being taken. `close` removes what is left of one that came to nothing."""

    def __init__(self, spec: DatasetSpec, folder: Path, limits: SnapshotLimits, inspect: Inspector) -> None:
        self._spec = spec
        self._recipe = recipe_for(spec.task)
        self._folder = folder / spec.name
        for place in (folder, self._folder):  # rows are the owner's alone
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.chmod(0o700)
        self._limits = limits
        self._inspect = inspect
        self._work = Path(tempfile.mkdtemp(prefix=".taking-", dir=self._folder))
        self._staged = self._work / "staged.parquet"
        try:
            with full_disk_told():
                self._numbers = RowNumbers(
                    self._work, by_entity=spec.entity is not None, by_time=spec.time is not None
                )
            self._target = target_column(spec)
            self._schema = _staged(self._target.stored)
            self._writer = pq.ParquetWriter(self._staged, self._schema, compression="zstd")
        except BaseException:
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        self._content = hashlib.sha256()
        self._bytes = 0
        self._seen = 0
        self._null_targets = 0
        self._unreadable_rows = 0
        self._unreadable: list[Unreadable] = []  # the first of them
        self._features: tuple[Feature, ...] = ()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, in the order of the key. Raises `BadOption`, `BadInput`."""
        columns = self._spec.columns(batch.schema.names)
        self._seen += batch.num_rows
        self._bytes += batch.nbytes
        self._check_limits()
        key = _texts(batch, columns.key, self._spec.name)
        target = self._target.texts(batch.column(columns.target))
        inputs = self._inputs(batch, columns.inputs)
        self._null_targets += target.count(None)
        for name, values in ((columns.key, key), (columns.inputs[0], inputs)):
            if values.null_count:
                raise BadOption(f"dataset {self._spec.name}: {name!r} is NULL in some rows; leave them out")
        if self._null_targets:
            return  # counted to the end, so that the message can say how many
        order = _order(batch, columns.time) if columns.time else None
        group = _texts(batch, columns.entity, self._spec.name) if columns.entity else key
        targets = [text for text in target if text is not None]  # all of them
        with full_disk_told():
            self._take(key.to_pylist(), inputs.to_pylist(), targets, group.to_pylist(), order)

    def freeze(self) -> Facts:
        """Split the rows and write the snapshot. Raises `BadOption`."""
        self._writer.close()
        rows = self._numbers.count
        name = self._spec.name
        if self._null_targets:
            raise BadOption(
                f"dataset {name}: the target {self._spec.target!r} is NULL in {self._null_targets} rows; "
                f"add WHERE {self._spec.target} IS NOT NULL"
            )
        if rows < _LEAST_ROWS:
            raise BadOption(f"dataset {name}: {self._too_few(rows)}; at least {_LEAST_ROWS} are needed")
        self._target.check()
        content = self._content.hexdigest()
        with full_disk_told():
            parts = self._numbers.split(self._target.strata(), self._spec.ratios)
            classes, untaught = self._target.classes(self._numbers.sides())
            snapshot, counted = self._write(content, parts)
        return Facts(
            id=snapshot,
            rows=int(counted.sum()),
            classes=tuple(classes),
            splits=dict(zip(SPLITS, counted.tolist(), strict=True)),
            content_sha256=content,
            file=f"{name}/{snapshot}.parquet",
            split_rule=self._numbers.rule,
            untaught=untaught,
            left_out=rows - int(counted.sum()),
            columns=tuple(asdict(feature) for feature in self._features),
            unreadable=self._unreadable_rows,
            unreadable_rows=[asdict(row) for row in self._unreadable],
        )

    def close(self) -> None:
        """Remove the staged rows. Safe after `freeze`, and twice."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self._numbers.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def _take(
        self,
        keys: list[str],
        inputs: list[str],
        targets: list[str],
        groups: list[str],
        order: list[int] | None,
    ) -> None:
        kept: list[int] = []
        entities: list[int] = []
        pictures: list[int] = []
        codes: list[int] = []
        for start in range(0, len(keys), _INSPECTED_ROWS):
            part = slice(start, start + _INSPECTED_ROWS)
            looked_at = self._looked_at(inputs[part])
            for row, found in enumerate(looked_at, start):
                if isinstance(found, Unreadable):
                    self._note_unreadable(found)
                    continue
                self._target.check_picture(targets[row], found.width, found.height)
                kept.append(row)
                entities.append(_hash(groups[row]))
                pictures.append(_hash(found.content))
                codes.append(self._target.code(targets[row]))
                for text in (keys[row], inputs[row], targets[row], found.content):
                    data = text.encode()
                    self._content.update(len(data).to_bytes(8, "little") + data)
        columns: list[Sequence[Any]] = [[values[row] for row in kept] for values in (keys, inputs)]
        columns.append([self._target.value(targets[row]) for row in kept])
        columns.append(pictures if self._recipe.pictures else [None] * len(kept))
        self._writer.write_table(pa.table(columns, schema=self._schema))
        times = None if order is None else [order[row] for row in kept]
        self._numbers.add(entities, pictures, codes, times)

    def _looked_at(self, inputs: Sequence[str]) -> Sequence[Looked | Unreadable]:
        return self._inspect(inputs) if self._recipe.pictures else [Looked(text) for text in inputs]

    def _inputs(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
        """The texts that models get to see; of a table, the row's values as JSON."""
        if not self._recipe.columns:
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

    def _note_unreadable(self, found: Unreadable) -> None:
        self._unreadable_rows = count = self._unreadable_rows + 1
        if count <= _LISTED:
            self._unreadable.append(found)
        if count <= max(_UNREADABLE_LEAST, self._seen * _UNREADABLE_SHARE):
            return
        listed = "; ".join(f"{row.input}: {row.message}" for row in self._unreadable[:3])
        raise BadInput(
            self._unreadable[0].code,
            f"dataset {self._spec.name}: at least {count} of {self._seen} inputs cannot be read: {listed}; …",
        )

    def _too_few(self, rows: int) -> str:
        if not self._unreadable:
            return f"the query gave {rows} rows"
        first = self._unreadable[0]
        return (
            f"the query gave {self._seen} rows, and the inputs of {self._unreadable_rows} cannot be read "
            f"({first.input}: {first.message})"
        )

    def _write(
        self, content: str, dealt: Iterator[tuple[NDArray[np.int8], NDArray[np.int64]]]
    ) -> tuple[str, NDArray[np.int64]]:
        """The snapshot's id, and its rows by split."""
        coming = self._work / "coming.parquet"
        rule = self._numbers.rule
        named = {_SPLIT_KEY: rule}
        if self._features:  # the worker that trains has the file alone, and learns there what a row of it is
            named["ml_udf.columns"] = features_json(self._features)
        schema = pa.schema([*self._schema, *_PLACED]).with_metadata(named)
        names = pa.array(SPLITS)
        identity = hashlib.sha256((content + rule).encode())
        counted = np.zeros(len(SPLITS), np.int64)
        with (
            pq.ParquetFile(self._staged) as staged,
            pq.ParquetWriter(coming, schema, compression="zstd") as out,
        ):
            for batch, sides, components in _alongside(staged.iter_batches(), dealt):
                identity.update(sides.tobytes())
                kept = sides != LEFT_OUT
                counted += np.bincount(sides[kept], minlength=len(SPLITS))
                columns = [*batch.columns, names.take(pa.array(np.maximum(sides, 0))), pa.array(components)]
                frozen = pa.record_batch(columns, schema=schema)
                out.write_batch(frozen if kept.all() else frozen.filter(pa.array(kept)))
        if self._features:
            identity.update(named["ml_udf.columns"].encode())
        snapshot = identity.hexdigest()[:16]
        with open(coming, "rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
        os.replace(coming, self._folder / f"{snapshot}.parquet")
        return snapshot, counted


def _alongside(
    batches: Iterator[pa.RecordBatch], parts: Iterator[tuple[NDArray[np.int8], NDArray[np.int64]]]
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int8], NDArray[np.int64]]]:
    """Each batch with as many sides and components, of parts that are cut elsewhere."""
    sides, components = np.empty(0, np.int8), np.empty(0, np.int64)
    for batch in batches:
        while len(sides) < batch.num_rows:
            more_sides, more_components = next(parts)
            sides = np.concatenate([sides, more_sides])
            components = np.concatenate([components, more_components])
        yield batch, sides[: batch.num_rows], components[: batch.num_rows]
        sides, components = sides[batch.num_rows :], components[batch.num_rows :]


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
        if pa.types.is_date32(values.type):
            values = values.cast(pa.int32())
        if pa.types.is_timestamp(values.type) or pa.types.is_date64(values.type):
            values = values.cast(pa.int64())  # of one unit in all rows
        if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
            return _order_of_numbers(values.cast(pa.float64()), name)
        ordered: list[int] = values.cast(pa.int64()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadOption(
            f"the time column {name!r} is of type {values.type}, which has no order in time"
        ) from None
    return ordered


def _order_of_numbers(values: pa.Array, name: str) -> list[int]:
    """Whole numbers of the same order: the bits of doubles, those of negative ones turned round."""
    numbers = values.to_numpy(zero_copy_only=False)
    if np.isnan(numbers).any():
        raise BadOption(f"the time column {name!r} is no number (NaN) in some rows; leave them out")
    bits = (numbers + 0.0).view(np.int64)  # −0 is 0
    ordered: list[int] = np.where(bits < 0, np.iinfo(np.int64).min - bits, bits).tolist()
    return ordered


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
