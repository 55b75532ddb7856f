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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from server.catalog.functions import Function
from server.errors import ServiceError
from server.serving.recent_answers import AnsweredRow, RecentAnswers, Sample
from server.store.training import TrainingRepository
from server.supervision import Tasks

__all__ = ["Bins", "Drift", "DriftOf", "stability_index"]

MUCH = 0.25
_EVERY_S = 60.0
_LEAST_ROWS = 200  # fewer differ by chance alone
_TRAINING_ROWS = 20_000
_BINS = 10
_TEXTS = 20
_LEAST_SHARE = 1e-3  # a bin that is empty on one side would be infinitely far


@dataclass(frozen=True, slots=True)
class DriftOf:
    """One thing of a version of a function. rows: recent ones. index: None while they are too few."""

    function: str
    version: int
    what: str
    rows: int
    index: float | None
    reference: str

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

    def shares(self, values: Iterable[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The share of the values in each bin: float64 [bins]."""
        places = {text: at for at, text in enumerate(self.texts)}
        counts = np.zeros((len(self.edges) + 1 if self.edges else len(self.texts) + 1) + 1)
        for value in values:
            if self.edges:
                at = int(np.searchsorted(self.edges, float(value))) if _is_number(value) else -1
            else:
                at = -1 if value is None else places.get(str(value), len(self.texts))
            counts[at] += 1
        shares: np.ndarray[Any, np.dtype[np.float64]] = counts / max(1.0, counts.sum())
        return shares


def stability_index(before: Sequence[Any], now: Sequence[Any]) -> float:
    """The population stability index of two samples of one thing, of the bins of the first."""
    bins = Bins.of(before)
    p, q = (np.maximum(bins.shares(values), _LEAST_SHARE) for values in (before, now))
    return float(((q - p) * np.log(q / p)).sum())


class Drift:
    """folder: of the datasets' snapshots."""

    def __init__(
        self,
        recent: RecentAnswers,
        repository: TrainingRepository,
        folder: Path,
        tasks: Tasks | None = None,
    ) -> None:
        self._recent = recent
        self._repository = repository
        self._folder = folder
        self._tasks = tasks or Tasks()
        self.latest: tuple[DriftOf, ...] = ()

    def start(self) -> None:
        """Look from time to time."""
        self._tasks.always("drift", self._watch)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def look(self) -> tuple[DriftOf, ...]:
        """How far every sampled function has drifted, as it stands now."""
        found: list[DriftOf] = []
        for sample in self._recent.all():
            # What is sampled meanwhile belongs to the next look.
            told = Sample(sample.function, list(sample.first), sample.recent.copy())
            found += await asyncio.to_thread(self._of, told)
        self.latest = tuple(found)
        return self.latest

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.look()

    def _of(self, sample: Sample) -> list[DriftOf]:
        function, recent = sample.function, list(sample.recent)
        found = []
        compared = {"confidence": ("its first answers", _confidences(sample.first), _confidences(recent))}
        trained = self._trained_on(function)
        if trained is not None:
            reference, targets, inputs = trained
            compared["answer"] = (reference, targets, [row.value for row in recent])
            now = _inputs(function, recent)
            compared |= {
                f"input {name}": (reference, inputs[name], now[name]) for name in inputs if name in now
            }
        for what, (reference, before, values) in sorted(compared.items()):
            if not before or all(value is None for value in values):
                continue
            enough = min(len(before), len(values)) >= _LEAST_ROWS
            index = stability_index(before, values) if enough else None
            found.append(DriftOf(function.name, function.version, what, len(values), index, reference))
        return found

    def _trained_on(self, function: Function) -> tuple[str, list[Any], dict[str, list[Any]]] | None:
        """The snapshot that taught the first member: its name, its targets, and its inputs by name."""
        try:
            manifest = json.loads((function.members[0].directory / "model.json").read_bytes())
            told = manifest["trained"]
            job = self._repository.job(told["job"])
            snapshot = self._repository.snapshot(job.dataset, told["snapshot"])
            file = self._folder / str(snapshot.facts["file"])
            with pq.ParquetFile(file) as parquet:
                rows = next(parquet.iter_batches(_TRAINING_ROWS, columns=["input", "target", "split"]))
        except (OSError, ValueError, KeyError, TypeError, StopIteration, ServiceError):
            return None  # it was not trained here, or its rows are gone
        kept = [row for row in rows.to_pylist() if row["split"] == "train"]
        reference = f"snapshot {snapshot.id} of {job.dataset}"
        texts = [str(row["input"]) for row in kept]
        return reference, [row["target"] for row in kept], _of_texts(function, texts)


def _inputs(function: Function, rows: Sequence[AnsweredRow]) -> Mapping[str, list[Any]]:
    if function.form == "row":
        return _of_texts(function, [row.row.decode(errors="replace") for row in rows if row.row])
    return {"length": [float(row.length) for row in rows]}


def _of_texts(function: Function, texts: Sequence[str]) -> dict[str, list[Any]]:
    """By column of a table; of texts how long they are, in bytes; nothing of paths."""
    if function.form == "row":
        names = [name for name, _ in function.members[0].input.columns]
        found: dict[str, list[Any]] = {name: [] for name in names}
        for text in texts:
            try:
                values = json.loads(text)
            except ValueError:
                continue
            if isinstance(values, dict):
                values = [values.get(name) for name in names]
            if isinstance(values, list) and len(values) == len(names):
                for name, value in zip(names, values, strict=True):
                    found[name].append(value)
        return found
    return {"length": [float(len(text.encode())) for text in texts]} if function.form == "text" else {}


def _confidences(rows: Sequence[AnsweredRow]) -> list[Any]:
    return [row.confidence for row in rows if row.confidence is not None]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
