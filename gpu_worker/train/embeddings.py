"""What a frozen backbone sees in a snapshot's rows: computed once, then mapped from disk.

    snapshot ─ pictures or texts ─ backbone, some rows at a time ─→ arrays beside the snapshot ─→ heads

Kept by the backbone's hash, so that every head of a snapshot, in every job, is learnt on one computation. One
that was interrupted leaves nothing, and is begun again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from gpu_worker.device import find_device
from gpu_worker.errors import BadRequest, Cancelled, RowFault
from gpu_worker.model_files.backbone import Backbone, backbone_from
from gpu_worker.networks.backbones import SharedBackbone, backbone_below, lend
from gpu_worker.networks.network import Floats
from gpu_worker.pipeline.decode import decode_picture
from gpu_worker.train.array_store import ArrayStore, ArrayWriter
from gpu_worker.train.learner import Objective, Spec
from gpu_worker.train.snapshot import SPLITS
from gpu_worker.train.tabular import LabelledRows, rows_of
from gpu_worker.train.targets import learnt_targets

__all__ = ["EmbeddedRows", "Embedder", "Reading", "backbone_of", "read_embedded"]

_PASS_ROWS = 32
_SKIPPED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Reading:
    """How pictures are read. read: path → the file's bytes; raises `RowFault`. ahead: hears of paths that are
    read next.
    """

    read: Callable[[bytes], bytes]
    max_pixels: int
    ahead: Callable[[list[str]], None] = lambda rows: None


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """Features and targets by split. width: numbers of a row. skipped: rows that could not be read."""

    width: int
    parts: Mapping[str, LabelledRows]
    skipped: int
    nbytes = 0  # of this process's memory: all is mapped

    @property
    def properties(self) -> Mapping[str, str]:
        """What a head's file says of its rows: nothing, its backbone knows."""
        return {}

    def rows(self, *splits: str) -> LabelledRows:
        """See `rows_of`."""
        return rows_of(self.parts, *splits)


@dataclass(frozen=True, slots=True)
class Embedder:
    """A backbone in a training process. directory: where it is stored."""

    backbone: Backbone
    directory: str
    device: str
    reading: Reading
    allow_import: bool

    def opened(self) -> SharedBackbone:
        """Its network. Raises `ModelUnusable` where it is gone, or another one by now."""
        manifest = backbone_below(self.directory, self.backbone)
        device = find_device(self.device, threads=1)
        return lend(manifest, self.backbone, device, allow_import=self.allow_import)

    def passed(self, network: SharedBackbone, rows: list[str]) -> tuple[Floats, list[int], list[str]]:
        """float32 [n, width] of the rows that could be read, which these are, and why others could not."""
        if network.network.pixels is None:
            texts = [row.encode("utf-8", "surrogatepass") for row in rows]
            return network.features(texts, _goes_on), list(range(len(rows))), []
        frame = network.manifest.input.preprocess.frame(*network.network.pixels)
        self.reading.ahead(rows)
        pictures, places, faults = [], [], []
        for place, row in enumerate(rows):
            try:
                data = self.reading.read(row.encode())
                pictures.append(decode_picture(data, frame, max_pixels=self.reading.max_pixels))
                places.append(place)
            except RowFault as fault:
                faults.append(f"{row}: {fault.message}")
        if not pictures:
            return np.zeros((0, network.features_width), np.float32), [], faults
        return network.features(np.stack(pictures), _goes_on), places, faults


def backbone_of(spec: Spec) -> tuple[Backbone, str]:
    """The backbone that a message's spec names, and where it is stored. Raises `BadRequest`."""
    said: Any = spec.get("backbone")
    try:
        found = backbone_from({"runtime": "head", "backbone": said})
    except ValueError as exc:
        raise BadRequest(str(exc)) from exc
    assert found is not None
    return found, str(said["directory"])


def read_embedded(
    path: str, objective: Objective, embedder: Embedder, should_stop: Callable[[], bool] = lambda: False
) -> EmbeddedRows:
    """The rows of a snapshot as the backbone sees them; what pictures are lost since is skipped.

    Raises `ValueError` where more than 1 % are, naming the first; `Cancelled` between two passes,
    `ModelUnusable`, `OSError`.
    """

    def write(arrays: ArrayWriter) -> None:
        network = embedder.opened()
        skipped: list[str] = []
        with pq.ParquetFile(path) as file:
            most_skipped = max(1, file.metadata.num_rows * _SKIPPED_SHARE)
            for split in SPLITS:  # of each, were it empty
                _append(arrays, split, np.zeros((0, network.features_width), np.float32), [])
            for first, rows, sides in _batches(file):
                if should_stop():
                    raise Cancelled("the computation of embeddings was stopped")
                seen, places, faults = embedder.passed(network, rows)
                skipped += faults
                if len(skipped) > most_skipped:
                    raise ValueError(
                        f"{len(skipped)} rows of the snapshot can no longer be read, the first {skipped[0]}; "
                        "refresh the dataset"
                    )
                finite = np.isfinite(seen).all(axis=1)
                if not finite.all():
                    at = places[int(np.flatnonzero(~finite)[0])]
                    raise ValueError(
                        f"the backbone {embedder.backbone.key} answers numbers that are not finite to the "
                        f"row {first + at} of the snapshot"
                    )
                for split in sorted({sides[place] for place in places}):
                    mine = [at for at, place in enumerate(places) if sides[place] == split]
                    _append(arrays, split, seen[mine], [first + places[at] for at in mine])
        arrays.facts["skipped"] = len(skipped)

    key = json.dumps(["embeddings", embedder.backbone.sha256])
    mapped, facts = ArrayStore(path).open(key, write)
    given = pq.read_table(path, columns=["target"])["target"]
    parts = {}
    for split in SPLITS:
        targets = learnt_targets(objective, given.take(mapped[f"{split}.rows"]).to_pylist())
        parts[split] = LabelledRows(mapped[f"{split}.features"], targets)
    return EmbeddedRows(mapped["train.features"].shape[1], parts, int(facts["skipped"]))


def _goes_on() -> bool:
    return False


def _append(arrays: ArrayWriter, split: str, features: Floats, rows: list[int]) -> None:
    arrays.append(f"{split}.features", features)
    arrays.append(f"{split}.rows", np.array(rows, np.int64))


def _batches(file: pq.ParquetFile) -> Iterator[tuple[int, list[str], list[str]]]:
    """The number of the first row, inputs and splits."""
    first = 0
    for batch in file.iter_batches(_PASS_ROWS, columns=["input", "split"]):
        inputs, sides = (column.to_pylist() for column in batch.columns)
        yield first, inputs, sides
        first += len(inputs)
