"""Text models in training: they learn, and can be put down between two epochs and taken up again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gpu_worker.train.learner import Learner
from gpu_worker.train.learners import Learners
from gpu_worker.zoo import TEXT_ARCHITECTURES

CLASSES = ["bad", "good"]
WORDS = {"bad": ("awful", "ひどい", "ужасно"), "good": ("lovely", "素晴らしい", "великолепно")}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the training process, whose weights depend on the inputs alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> str:
    texts, labels = [], []
    for number in range(90):
        label = CLASSES[number % 2]
        texts.append(f"{WORDS[label][number % 3]} soup {number}" if number else "")
        labels.append(label)
    splits = [("train", "train", "train", "validation", "test")[at // 2 % 5] for at in range(90)]
    path = tmp_path_factory.mktemp("texts") / "snapshot.parquet"
    pq.write_table(pa.table({"input": texts, "target": labels, "split": splits}), path)
    return str(path)


def begin(snapshot: str, architecture: str, start: str = "", done: int = 0) -> Learner:
    spec: dict[str, Any] = {
        "architecture": architecture,
        "epochs": 8,
        "seed": 3,
        "batch_rows": 8,
        "learning_rate": 0.01,
        "schedule": "constant",
        "forget": 0.1,
    }
    return Learners("cpu", lambda row: row, 1, False).begin(spec, snapshot, CLASSES, start, done)


def digest(learner: Learner, path: Path) -> str:
    learner.write(str(path), best=False)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("architecture", sorted(TEXT_ARCHITECTURES))
def test_it_learns_from_three_scripts(architecture: str, snapshot: str):
    learner = begin(snapshot, architecture)
    lessons = [learner.learn(lambda: False) for _ in range(8)]
    assert lessons[-1].loss < lessons[0].loss
    assert max(lesson.score for lesson in lessons) > 0.8


@pytest.mark.parametrize("architecture", sorted(TEXT_ARCHITECTURES))
def test_a_trial_that_was_put_down_ends_with_the_very_weights_of_one_that_was_not(
    architecture: str, snapshot: str, tmp_path: Path
):
    whole = begin(snapshot, architecture)
    for _ in range(4):
        whole.learn(lambda: False)
    first = begin(snapshot, architecture)
    for _ in range(2):
        first.learn(lambda: False)
    down = str(tmp_path / "down.safetensors")
    first.write(down, best=False)
    first.write_state(down)
    second = begin(snapshot, architecture, down, 2)
    assert second.epoch == 2
    for _ in range(2):
        second.learn(lambda: False)
    assert digest(second, tmp_path / "second") == digest(whole, tmp_path / "whole")
