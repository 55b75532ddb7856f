"""`make bench-train-rows`: what one epoch over many rows needs: peak memory, seconds, bytes of disk.

Each architecture in a process of its own, over a snapshot of short texts or of a table of six columns: rows
become arrays, one epoch is trained, the test rows are answered. Two peaks are told: what the process holds
itself (RssAnon of /proc/self/status, looked at every 50 ms), and with what is mapped from disk (VmHWM), which
the kernel takes back when memory is short.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.table import Table

from gpu_worker.networks.row_network import COLUMNS_KEY
from gpu_worker.train.learner import Objective
from gpu_worker.train.learners import Learners
from gpu_worker.zoo import TABULAR
from tests.benchmarks.report import console, write_json

_BATCH_ROWS = 20_000
_LOOK_S = 0.05
_CLASSES = ["no", "yes"]
_COLUMNS = [{"name": name, "kind": "number"} for name in ("age", "spent", "visits", "rate")] + [
    {"name": "plan", "kind": "text"},
    {"name": "member", "kind": "boolean"},
]
# Ten deep trees over millions of rows take hours, and no more memory than shallow ones; nor do small batches.
_KNOBS: dict[str, dict[str, Any]] = {
    "gradient_boosting": {"max_depth": 2, "subsample": 0.5, "max_features": 0.3},
    "random_forest": {"max_depth": 4, "max_features": 0.2},
    "fasttext": {"batch_rows": 256},
    "temporal_cnn": {"batch_rows": 256},
    "character_rnn": {"batch_rows": 256},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and time of training by its rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--architectures", nargs="+", default=["fasttext", "logistic_regression"])
    options = parser.parse_args()
    shown = Table(
        "rows", "architecture", "own peak, MB", "with mapped, MB", "arrays, s", "epoch, s", "disk, MB"
    )
    measured: list[dict[str, Any]] = []
    for rows in options.rows:
        for architecture in options.architectures:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                one = pool.apply(train, (rows, architecture))
            measured.append({"rows": rows, "architecture": architecture, **one})
            names = ("own_peak_mb", "peak_mb", "arrays_s", "epoch_s", "disk_mb")
            shown.add_row(f"{rows:,}", architecture, *(f"{one[name]:,.0f}" for name in names))
            console.print(measured[-1])
    console.print(shown)
    write_json("train_rows", {"sizes": measured})


def train(rows: int, architecture: str) -> dict[str, float]:
    """One epoch, and the test rows answered."""
    torch.set_num_threads(1)  # as in the training process
    with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
        path = os.path.join(folder, "snapshot.parquet")
        write_snapshot(path, rows, is_table=architecture in TABULAR)
        spec = {"architecture": architecture, "epochs": 1, **_KNOBS.get(architecture, {})}
        objective = Objective.of("", _CLASSES)
        learners = Learners("cpu", lambda row: row, 1, False)
        with Peak() as peak:
            began_s = time.perf_counter()
            learner = learners.begin(spec, path, objective, "", 0)
            arrays_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            lesson = learner.learn(lambda: False)
            epoch_s = time.perf_counter() - began_s
            kept = os.path.join(folder, "kept" + learner.suffix)
            learner.write(kept, best=True)
            answered = learners.evaluate(spec, path, objective, kept, "test")
        assert answered is not None
        return {
            "own_peak_mb": peak.own_mb,
            "peak_mb": peak.mb,
            "arrays_s": arrays_s,
            "epoch_s": epoch_s,
            "disk_mb": sum(file.stat().st_size for file in Path(folder, ".arrays").glob("*/*")) / 1e6,
            "score": lesson.score.value,
        }


def write_snapshot(path: str, rows: int, *, is_table: bool) -> None:
    """A snapshot as the server freezes it: 70 % train, 15 % validate, 15 % test."""
    random = np.random.default_rng(0)
    names = {"input": pa.string(), "target": pa.string(), "split": pa.string()}
    schema = pa.schema(names.items(), metadata={COLUMNS_KEY: json.dumps(_COLUMNS)} if is_table else None)
    with pq.ParquetWriter(path, schema, compression="zstd") as out:
        for start in range(0, rows, _BATCH_ROWS):
            numbers = np.arange(start, min(start + _BATCH_ROWS, rows))
            is_yes = (random.random(len(numbers)) < 0.5).astype(int)
            inputs = _table_rows(numbers, is_yes, random) if is_table else _texts(numbers, is_yes)
            sides = np.array(["train", "validation", "test"])[
                np.searchsorted([70, 85], numbers % 100, "right")
            ]
            out.write_batch(
                pa.record_batch([inputs, [_CLASSES[yes] for yes in is_yes], sides.tolist()], schema=schema)
            )


def _texts(numbers: Any, is_yes: Any) -> list[str]:
    said = ("came late and was cold", "was all that one could wish for")
    return [f"order {number}: it {said[yes]}" for number, yes in zip(numbers, is_yes, strict=True)]


def _table_rows(numbers: Any, is_yes: Any, random: np.random.Generator) -> list[str]:
    drawn = random.normal(is_yes[:, None] * 0.5, 1.0, (len(numbers), 4)).round(3).tolist()
    plans = random.integers(0, 12, len(numbers))
    return [
        json.dumps([*values, f"plan {plan}", bool(plan % 2)])
        for values, plan in zip(drawn, plans, strict=True)
    ]


class Peak:
    """The most memory that this process has held while it is entered, less what it held before, in MB."""

    def __enter__(self) -> Peak:
        self._begun_mb = self.own_mb = _status("RssAnon")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looking.join()
        self.mb = _status("VmHWM")

    @property
    def grown_mb(self) -> float:
        """What was held more than at the beginning."""
        return self.own_mb - self._begun_mb

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.own_mb = max(self.own_mb, _status("RssAnon"))


def _status(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    main()
