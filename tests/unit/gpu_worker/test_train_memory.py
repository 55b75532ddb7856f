"""Training holds the rows that it works on: a process's own memory does not grow with the snapshot.

The large form, run by hand: `make bench-train-rows`.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.train.learner import Objective
from gpu_worker.train.learners import Learners
from gpu_worker.zoo import TABULAR
from tests.benchmarks.train_rows import Peak, write_snapshot

_LEAST, _MOST = 30_000, 120_000
# Own memory for each further row. A text's tokens in a Python list take 1,500, a row's numbers 180.
_ROW_BYTES = {"fasttext": 300, "logistic_regression": 120}


@pytest.mark.parametrize(
    ("architecture", "knobs"), [("fasttext", {"batch_rows": 2_048}), ("logistic_regression", {})]
)
def test_own_memory_is_bounded_by_rows(architecture: str, knobs: dict[str, Any], tmp_path: Path) -> None:
    sizes = (_LEAST, _LEAST + 1, _MOST)  # the first warms the process up
    most_bytes = _ROW_BYTES[architecture] * (_MOST - _LEAST)
    tries: list[list[float]] = []
    for _ in range(3):  # a peak holds what the allocator had not given back yet: of one run that can be a lot
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks = [pool.apply(trained, (str(tmp_path), architecture, knobs, rows)) for rows in sizes]
        if (peaks[2] - peaks[1]) * (1 << 20) < most_bytes:
            return
        tries.append(peaks)
    pytest.fail(f"peaks of {tries} MB")


def trained(folder: str, architecture: str, knobs: dict[str, Any], rows: int) -> float:
    """The peak of own memory, in MB: arrays made, an epoch trained, the test rows answered."""
    torch.set_num_threads(1)
    path = f"{folder}/{rows}.parquet"
    write_snapshot(path, rows, is_table=architecture in TABULAR)
    spec = {"architecture": architecture, "epochs": 1, **knobs}
    objective = Objective.of("", ["no", "yes"])
    learners = Learners("cpu", lambda row: row, 1, False)
    with Peak() as peak:
        learner = learners.begin(spec, path, objective, "", 0)
        learner.learn(lambda: False)
        kept = f"{folder}/kept{learner.suffix}"
        learner.write(kept, best=True)
        assert learners.evaluate(spec, path, objective, kept, "test") is not None
    return peak.own_mb
