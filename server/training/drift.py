"""Whether what functions are asked, and what they answer, is still like what they were trained on.

    recent answers (server.serving.recent_answers) ─┐
    the training rows of the snapshot ──────────────┴→ histograms of the same bins → their distance

The distance is the population stability index, Σ (p − q) ln (p / q): below 0.1 little, above 0.25 much
(Siddiqi 2006). Numbers have the tenths of the training rows as bins, texts the most frequent ones. What a
snapshot does not hold, how sure answers are, is compared with the first answers of the same version. Says
that something changed, not that answers have become wrong: labels say that.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.wire.moments import moment_s
from server.access.seen_catalog import SeenCatalog
from server.access.view import View
from server.catalog.functions import Function
from server.errors import ServiceError
from server.serving.recent_answers import AnsweredRow, RecentAnswers, Sample
from server.store.training import TrainingRepository
from server.supervision import Tasks

__all__ = ["MUCH", "Bins", "Drift", "DriftOf", "Reference", "seen_drift"]

Shares: TypeAlias = NDArray[np.float64]

MUCH = 0.25
_EVERY_S = 60.0
_FRESH_S = 1.0
_LEAST_ROWS = 200  # fewer differ by chance alone
_TRAINING_ROWS = 20_000
_BINS = 10
_TEXTS = 20
_TIMES = ("date", "timestamp", "timestamptz")  # kinds of columns
_LEAST_SHARE = 1e-3  # a bin that is empty on one side would be infinitely far


@dataclass(frozen=True, slots=True)
class DriftOf:
    """One thing of a version of a function. rows: recent ones. index: None while they are too few. dataset:
    whose rows the reference is; "" = it is none.
    """

    function: str
    version: int
    what: str
    rows: int
    index: float | None
    reference: str
    dataset: str = ""

    @property
    def is_much(self) -> bool:
        """Whether somebody should look."""
        return self.index is not None and self.index > MUCH


@dataclass(frozen=True, slots=True)
class Bins:
    """Of numbers by their upper edges, of texts by name; missing values have a bin of their own."""

    edges: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Sequence[Any]) -> Bins:
        """As the values of training rows show them."""
        numbers = [float(value) for value in values if _is_number(value)]
        if numbers:
            # What lies below or above all that was seen is another bin.
            ends = [float(np.nextafter(min(numbers), -np.inf)), max(numbers)]
            tenths = np.quantile(numbers, np.arange(1, _BINS) / _BINS).tolist()
            return cls(edges=tuple(np.unique([*ends, *tenths]).tolist()))
        counted = Counter(str(value) for value in values if value is not None)
        return cls(texts=tuple(text for text, _ in counted.most_common(_TEXTS)))

    def shares(self, values: Iterable[Any]) -> Shares:
        """The share of the values in each bin: float64 [bins]."""
        places = {text: at for at, text in enumerate(self.texts)}
        counts = np.zeros((len(self.edges) + 1 if self.edges else len(self.texts) + 1) + 1)
        for value in values:
            if self.edges:
                at = bisect_left(self.edges, float(value)) if _is_number(value) else -1
            else:
                at = -1 if value is None else places.get(str(value), len(self.texts))
            counts[at] += 1
        shares: Shares = counts / max(1.0, counts.sum())
        return shares


@dataclass(frozen=True, slots=True)
class Reference:
    """What recent values of one thing are compared with: how so many `rows` of before fell into bins."""

    bins: Bins
    shares: Shares
    rows: int

    @classmethod
    def of(cls, values: Sequence[Any]) -> Reference:
        """Of the values of before."""
        bins = Bins.of(values)
        return cls(bins, np.maximum(bins.shares(values), _LEAST_SHARE), len(values))

    def index(self, now: Iterable[Any]) -> float:
        """The population stability index of other values of the same thing."""
        p, q = self.shares, np.maximum(self.bins.shares(now), _LEAST_SHARE)
        return float(((q - p) * np.log(q / p)).sum())


class Drift:
    """folder: of the datasets' snapshots. fresh_s: so long a look serves all who ask."""

    def __init__(
        self,
        recent: RecentAnswers,
        repository: TrainingRepository,
        folder: Path,
        tasks: Tasks | None = None,
        fresh_s: float = _FRESH_S,
    ) -> None:
        self._recent = recent
        self._repository = repository
        self._folder = folder
        self._tasks = tasks or Tasks()
        self._fresh_s = fresh_s
        self._trained: dict[str, tuple[str, str, dict[str, Reference]]] = {}  # by function's key
        self._looking = asyncio.Lock()
        self._looked_s = -math.inf
        self.latest: tuple[DriftOf, ...] = ()

    def start(self) -> None:
        """Look from time to time."""
        self._tasks.always("drift", self._watch)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def look(self) -> tuple[DriftOf, ...]:
        """How far every sampled function has drifted, as it stood a moment ago at the most."""
        async with self._looking:
            if time.monotonic() - self._looked_s < self._fresh_s:
                return self.latest
            found: list[DriftOf] = []
            samples = self._recent.all()
            for sample in samples:
                # What is sampled meanwhile belongs to the next look.
                told = Sample(sample.function, list(sample.first), sample.recent.copy())
                found += await asyncio.to_thread(self._of, told)
            keys = {sample.function.key for sample in samples}
            self._trained = {key: known for key, known in self._trained.items() if key in keys}
            self.latest, self._looked_s = tuple(found), time.monotonic()
            return self.latest

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.look()

    def _of(self, sample: Sample) -> list[DriftOf]:
        function, recent = sample.function, list(sample.recent)
        # The first answers are no evidence that nothing has changed since.
        sure = [row.confidence for row in recent if row.confidence is not None and not row.is_first]
        compared = {"confidence": ("its first answers", "", Reference.of(sample.first), sure)}
        trained = self._trained_on(function)
        if trained is not None:
            name, dataset, references = trained
            now = {f"input {column}": values for column, values in _inputs(function, recent).items()}
            now["answer"] = [row.value for row in recent]
            compared |= {
                what: (name, dataset, each, now[what]) for what, each in references.items() if what in now
            }
        found = []
        for what, (name, dataset, before, values) in sorted(compared.items()):
            if not before.rows or (values and all(value is None for value in values)):
                continue
            enough = min(before.rows, len(values)) >= _LEAST_ROWS
            index = before.index(values) if enough else None
            found.append(DriftOf(function.name, function.version, what, len(values), index, name, dataset))
        return found

    def _trained_on(self, function: Function) -> tuple[str, str, dict[str, Reference]] | None:
        """The snapshot that taught the first member: its name, its dataset, its targets, and its inputs by
        name.
        """
        if function.key not in self._trained:
            try:
                manifest = json.loads((function.members[0].directory / "model.json").read_bytes())
                told = manifest["trained"]
                job = self._repository.job(told["job"])
                snapshot = self._repository.snapshot(job.dataset, told["snapshot"])
                rows = _training_rows(self._folder / str(snapshot.facts["file"]))
            except (OSError, ValueError, KeyError, TypeError, ServiceError):
                return None  # it was not trained here, or its rows are gone
            values = {"answer": [row["target"] for row in rows]}
            inputs = _of_texts(function, [str(row["input"]) for row in rows])
            values |= {f"input {column}": of_column for column, of_column in inputs.items()}
            references = {what: Reference.of(each) for what, each in values.items()}
            name = f"snapshot {snapshot.id} of {job.dataset}"
            self._trained[function.key] = name, job.dataset, references
        return self._trained[function.key]


def seen_drift(found: Iterable[DriftOf], seen: SeenCatalog, view: View) -> list[DriftOf]:
    """That of functions that a caller sees; a dataset that they do not see is not named."""
    return [
        each
        if not each.dataset or view.sees("dataset", each.dataset)
        else replace(each, reference="what it was trained on", dataset="")
        for each in found
        if seen.sees(each.function)
    ]


def _training_rows(file: Path) -> list[dict[str, Any]]:
    """Some of a snapshot's training rows, of all its parts: rows lie there in the order of their keys."""
    kept: list[dict[str, Any]] = []
    with pq.ParquetFile(file) as parquet:
        every, first = -(-parquet.metadata.num_rows // _TRAINING_ROWS), 0
        for batch in parquet.iter_batches(columns=["input", "target", "split"]):
            picked = batch.take(pa.array(range(-first % every, batch.num_rows, every), pa.int64()))
            kept += [row for row in picked.to_pylist() if row["split"] == "train"]
            first += batch.num_rows
    return kept


def _inputs(function: Function, rows: Sequence[AnsweredRow]) -> Mapping[str, list[Any]]:
    if function.form == "row":
        return _of_texts(function, [row.row.decode(errors="replace") for row in rows if row.row])
    return {"length": [float(row.length) for row in rows]}


def _of_texts(function: Function, texts: Sequence[str]) -> dict[str, list[Any]]:
    """By column of a table; of texts how long they are, in bytes; nothing of paths."""
    if function.form == "row":
        columns = function.members[0].input.columns
        names = [name for name, _ in columns]
        found: dict[str, list[Any]] = {name: [] for name in names}
        for text in texts:
            try:
                values = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict):
                values = [values.get(name) for name in names]
            if isinstance(values, list) and len(values) == len(names):
                for (name, kind), value in zip(columns, values, strict=True):
                    found[name].append(_moment_s(value) if kind in _TIMES else value)
        return found
    return {"length": [float(len(text.encode())) for text in texts]} if function.form == "text" else {}


def _moment_s(value: object) -> float | None:
    """When a date or time is: the same moment has another text in another time zone. None where it has no
    place in the calendar.
    """
    try:
        return moment_s(str(value))
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False
