"""The rows of a snapshot that have taught none of some models: what they answer there shows what they will.

The validation rows; where a model that was trained here was taught these as well (`promotion/refit.py`), the
test rows. Their targets are not read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from server.catalog.functions import ModelVersion
from server.catalog.jobs import Snapshot
from server.errors import BadOption
from server.serving.proxies import HeldOutRows
from server.training.datasets.leakage import clusters_of

__all__ = ["rows_that_taught_none"]

_MOST_ROWS = 10_000


async def rows_that_taught_none(
    file: Path, form: str, snapshot: Snapshot, models: Sequence[ModelVersion]
) -> HeldOutRows:
    """At most 10,000, evenly over all. form: of the rows. Raises `BadOption` for none."""
    return await asyncio.to_thread(_read, file, form, snapshot, models)


def _read(file: Path, form: str, snapshot: Snapshot, models: Sequence[ModelVersion]) -> HeldOutRows:
    split = "test" if any(_was_refit(model) for model in models) else "validation"
    try:
        table = pq.read_table(file, columns=["input"], filters=[("split", "=", split)])
    except OSError as error:
        raise BadOption(f"dataset {snapshot.dataset} cannot be read: {error}") from error
    inputs: list[str] = table["input"].to_pylist()
    if not inputs:
        raise BadOption(f"dataset {snapshot.dataset} has no {split} rows, by which a cascade would be shown")
    groups = clusters_of(file, split)
    if len(groups) != len(inputs):  # pictures that can no longer be read
        groups = np.unique(np.array(inputs), return_inverse=True)[1].astype(np.int64)
    places = np.unique(np.linspace(0, len(inputs) - 1, min(len(inputs), _MOST_ROWS)).astype(np.int64))
    rows = [inputs[place].encode() for place in places]
    return HeldOutRows(form, rows, groups[places])  # type: ignore[arg-type]  # one of the forms


def _was_refit(model: ModelVersion) -> bool:
    """Whether it was taught the validation rows of its job. Blocking."""
    try:
        manifest = json.loads((model.directory / "model.json").read_bytes())
    except (OSError, ValueError):
        return False
    trained = manifest.get("trained")
    return isinstance(trained, dict) and trained.get("refit_of") is not None
