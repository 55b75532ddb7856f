"""What killed processes left half written is removed; what somebody writes now is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from server.store.leftovers import ABANDONED_S, remove_leftovers

LEFT = (
    "models/.installing-x/model.safetensors",
    "training/datasets/food/.taking-x/staged.parquet",
    "functions/.x7f_ab2c",
    "functions/.staged-udf_food",
    "training/checkpoints/job-1/.coming-7",
    "training/checkpoints/job-1/.tensors-x",
    "training/checkpoints/job-1/.abc.coming",
    "training/checkpoints/job-1/.abc.safetensors.coming-7-8",
)
STAYS = (
    "models/net/1/model.safetensors",
    "training/datasets/food/abc.parquet",
    "functions/udf_food.json",
    "functions/udf_lost.json.set-aside",
    "training/datasets/food/.arrays/abc/inputs",
    "training/checkpoints/job-1/abc.safetensors",
    "training/checkpoints/job-1/abc.safetensors.optimiser",
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in (*LEFT, *STAYS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def of_files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def test_nothing_is_removed_that_was_written_within_a_day(home: Path) -> None:
    assert remove_leftovers(home, time.time() + ABANDONED_S - 60) == 0
    assert of_files(home) == {*LEFT, *STAYS}


def test_what_nobody_writes_any_more_is_removed_and_nothing_else(home: Path) -> None:
    written = home / LEFT[1]
    later_s = time.time() + 2 * ABANDONED_S
    os.utime(written, (later_s, later_s))
    assert remove_leftovers(home, later_s) == len(LEFT) - 1
    assert of_files(home) == {*STAYS, LEFT[1]}
    assert not (home / "models/.installing-x").exists()


def test_a_home_without_anything_is_fine(tmp_path: Path) -> None:
    assert remove_leftovers(tmp_path, time.time()) == 0
