"""`make bench-snapshot`: what taking a snapshot of many rows needs: peak memory, seconds, bytes of disk.

Each size in a process of its own, since a process's peak never falls. Rows have a text of their own, one in
ten shares its text with others, and four rows share an entity.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.table import Table

from server.training.datasets.snapshot import Draft, SnapshotLimits
from server.training.datasets.spec import DatasetSpec
from tests.benchmarks.report import console, write_json

_BATCH_ROWS = 5_000  # as the server reads a database


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and time of a snapshot by its rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    options = parser.parse_args()
    table = Table("rows", "peak memory, MB", "seconds", "snapshot, MB")
    measured: list[dict[str, float]] = []
    for rows in options.rows:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            one = pool.apply(take, (rows,))
        measured.append({"rows": rows, **one})
        table.add_row(f"{rows:,}", *(f"{one[name]:,.0f}" for name in ("peak_mb", "took_s", "snapshot_mb")))
    console.print(table)
    write_json("snapshot", {"sizes": measured})


def take(rows: int) -> dict[str, float]:
    spec = DatasetSpec(
        "many", "SELECT 1", target="label", key="key", task="text-classification", entity="who", input="text"
    )
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
        draft = Draft(spec, Path(folder), SnapshotLimits(rows, 1 << 40), inspect=_not_asked)
        for start in range(0, rows, _BATCH_ROWS):
            draft.add(_batch(start, min(start + _BATCH_ROWS, rows)))
        facts = draft.freeze()
        draft.close()
        size = (Path(folder) / facts.file).stat().st_size
    return {
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "took_s": time.perf_counter() - began_s,
        "snapshot_mb": size / 1e6,
    }


def _batch(start: int, end: int) -> pa.RecordBatch:
    numbers = range(start, end)
    return pa.RecordBatch.from_pydict(
        {
            "key": [f"{number:010}" for number in numbers],
            "text": [f"what row {number if number % 10 else number % 100_000} says" for number in numbers],
            "label": ["ab"[number // 3 % 2] for number in numbers],
            "who": [number // 4 for number in numbers],
        }
    )


def _not_asked(_inputs: Any) -> list[Any]:  # texts need no worker
    raise AssertionError("texts are not looked at by a worker")


if __name__ == "__main__":
    main()
