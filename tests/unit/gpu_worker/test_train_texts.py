"""Text models in training: they learn, and can be suspended between two epochs and taken up again."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gpu_worker.networks.build import build_module
from gpu_worker.train.learner import Learner, Objective
from gpu_worker.train.learners import Learners
from gpu_worker.train.snapshot import read_texts
from gpu_worker.train.spec import TrainSpec
from gpu_worker.zoo import LINEAR_TEXT, TEXT_ARCHITECTURES
from gpu_worker.zoo.text import TextModule

CLASSES = ["bad", "good"]
OBJECTIVE = Objective.of("text-classification", CLASSES)
NETWORKS = sorted(TEXT_ARCHITECTURES.keys() - {LINEAR_TEXT})
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
    return Learners("cpu", lambda row: row, 1, False).begin(spec, snapshot, OBJECTIVE, start, done)


def digest(learner: Learner, path: Path) -> str:
    learner.write(str(path), best=False)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("architecture", NETWORKS)
def test_it_learns_from_three_scripts(architecture: str, snapshot: str):
    learner = begin(snapshot, architecture)
    results = [learner.learn(lambda: False) for _ in range(8)]
    assert results[-1].loss < results[0].loss
    assert max(result.score.value for result in results) > 0.8


@pytest.mark.parametrize("architecture", NETWORKS)
def test_a_trial_that_was_suspended_ends_with_the_very_weights_of_one_that_was_not(
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


@pytest.mark.parametrize("architecture", [*NETWORKS, LINEAR_TEXT])
def test_a_rare_class_is_found_where_classes_weigh_the_same(architecture: str, tmp_path: Path):
    """Of the rows with the word a third are of the rare class: most likely they are not, but worth a look."""
    rows = [("rare", "alarm"), *[("often", "alarm")] * 2, *[("often", "calm")] * 17] * 20
    path = str(tmp_path / "rare.parquet")
    splits = [("train", "train", "train", "test", "validation")[at // 20 % 5] for at in range(len(rows))]
    texts = [text for _, text in rows]
    pq.write_table(pa.table({"input": texts, "target": [label for label, _ in rows], "split": splits}), path)
    learners = Learners("cpu", lambda row: row, 1, False)
    spec: dict[str, Any] = {"architecture": architecture, "epochs": 6, "learning_rate": 0.01}
    recall = {}
    for weight in ("none", "balanced"):
        objective = Objective.of("text-classification", ["often", "rare"], "macro_f1", weight)
        learner = learners.begin(spec, path, objective, "", 0)
        for _ in range(6):
            learner.learn(lambda: False)
        checkpoint = str(tmp_path / weight)
        learner.write(checkpoint, best=False)
        found = learners.evaluate(spec, path, objective, checkpoint, "test")
        assert found is not None
        recall[weight] = (found.predictions.argmax(axis=1) == 1)[found.targets == 1].mean()
    assert recall == {"none": 0.0, "balanced": 1.0}


def test_texts_are_tokenised_once_for_a_snapshot_and_a_tokeniser(
    snapshot: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Trials of several architectures in turn, as a job hands them out, and a second training process."""
    own = tmp_path / "own.parquet"
    own.write_bytes(Path(snapshot).read_bytes())
    encoded: list[int] = []
    for name in ("fasttext.ngram_tokens", "temporal_cnn.byte_tokens", "character_rnn.byte_tokens"):
        module, _, function = name.partition(".")
        target = importlib.import_module(f"gpu_worker.zoo.{module}")
        inner = getattr(target, function)

        def counted(texts, *rest, inner=inner, **more):
            encoded.append(len(texts))
            return inner(texts, *rest, **more)

        monkeypatch.setattr(target, function, counted)
    for _ in range(2):
        learners = Learners("cpu", lambda row: row, 1, False)
        for _ in range(3):
            for architecture in NETWORKS:
                spec = {"architecture": architecture, "epochs": 1, "batch_rows": 8}
                learners.begin(spec, str(own), OBJECTIVE, "", 0)
    assert sum(encoded) == 90 * len(NETWORKS)


def test_a_batch_of_mapped_texts_is_what_the_module_makes_of_them(snapshot: str):
    for architecture in NETWORKS:
        module = cast("TextModule", build_module(architecture, 2, {}))
        texts = [row for row in pq.read_table(snapshot).to_pylist() if row["split"] == "train"]
        examples = read_texts(snapshot, CLASSES, module.tokeniser, module.encode).examples("train")
        rows = torch.tensor([0, 7, 3, 20])
        spec = TrainSpec(architecture)
        varied = examples.varied(rows, spec, torch.Generator(), torch.device("cpu"))
        assert torch.equal(varied, module.encode([texts[row]["input"] for row in rows.tolist()]))
        plain = examples.plain(50, 60, spec, torch.device("cpu"))
        assert torch.equal(plain, module.encode([row["input"] for row in texts[50:60]]))
        assert examples.labels.tolist() == [CLASSES.index(row["target"]) for row in texts]


def test_a_class_that_the_training_rows_do_not_show_is_never_answered_rightly(tmp_path: Path):
    path = str(tmp_path / "late.parquet")
    rows = {
        "input": ["good", "bad"] * 10 + ["new"] * 4,
        "target": ["good", "bad"] * 10 + ["late"] * 4,
        "split": ["train"] * 16 + ["validation"] * 4 + ["test"] * 4,
    }
    pq.write_table(pa.table(rows), path)
    learner = begin(path, "fasttext")
    learner.learn(lambda: False)
    learner.write(str(tmp_path / "kept"), best=True)
    spec = {"architecture": "fasttext", "epochs": 1}
    found = Learners("cpu", lambda row: row, 1, False).evaluate(
        spec, path, OBJECTIVE, str(tmp_path / "kept"), "test"
    )
    assert found is not None
    assert found.targets.tolist() == [-1] * 4
