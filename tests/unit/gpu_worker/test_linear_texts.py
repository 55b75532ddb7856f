"""Linear models of texts: learnt over sparse n-grams, written as a module, and served as that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from gpu_worker.device import find_device
from gpu_worker.errors import BadRequest
from gpu_worker.networks.network import reading
from gpu_worker.networks.text_network import TextNetwork
from gpu_worker.tasks import TEXT_CLASSIFICATION
from gpu_worker.tasks.metrics import METRICS
from gpu_worker.train.learner import Objective
from gpu_worker.train.learners import Learners
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.zoo.tfidf_linear import TfidfLinear

CLASSES = {2: ("bad", "good"), 3: ("bad", "good", "odd")}
WORDS = {"bad": ["awful", "ひどい"], "good": ["lovely", "великолепно"], "odd": ["blue", "seven"]}
TEXTS = ["it was awful", "LOVELY, lovely tea", "", "a seven blue thing", "never seen"]


@pytest.fixture(scope="module", params=[2, 3])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Objective]:
    classes = CLASSES[request.param]
    draw = np.random.default_rng(0)
    targets = [classes[number % len(classes)] for number in range(240)]
    texts = [f"the tea number {draw.integers(50)} was {draw.choice(WORDS[target])}" for target in targets]
    splits = [("train", "train", "train", "validation", "test")[at % 5] for at in range(240)]
    path = tmp_path_factory.mktemp("texts") / "snapshot.parquet"
    pq.write_table(pa.table({"input": texts, "target": targets, "split": splits}), path)
    return str(path), Objective(TEXT_CLASSIFICATION, classes, METRICS["accuracy"])


def learners() -> Learners:
    return Learners("cpu", lambda row: row, 1, False)


def spec(**more: Any) -> dict[str, Any]:
    return {"architecture": "tfidf_linear", "epochs": 3, "seed": 0, "schedule": "constant", "C": 10.0, **more}


def learnt(case: tuple[str, Objective], path: Path, epochs: int = 2, **more: Any) -> str:
    learner = learners().begin(spec(**more), case[0], case[1], "", 0)
    for _ in range(epochs):
        learner.learn(lambda: False)
    learner.write(str(path), best=True)
    return str(path)


@pytest.mark.parametrize("options", [{}, {"words": 1}, {"characters": 4}, {"words": 0, "characters": 3}])
def test_what_was_learnt_is_what_the_served_module_answers(case, options, tmp_path: Path):
    given = spec(architecture_options=options)
    checkpoint = learnt(case, tmp_path / "model.safetensors", architecture_options=options)
    found = learners().evaluate(given, case[0], case[1], checkpoint, "test")
    assert found is not None
    assert (found.predictions.argmax(axis=1) == found.targets).mean() > 0.95
    module = TfidfLinear(len(case[1].classes), **options)
    module.load_state_dict(load_file(checkpoint))
    network = TextNetwork(module, find_device("cpu", threads=1))
    rows = pq.read_table(case[0]).to_pylist()
    texts = [row["input"].encode() for row in rows if row["split"] == "test"]
    served = network.scores(texts, lambda: False)
    assert np.abs(served - found.predictions).max() < 1e-5
    alone = np.concatenate([network.scores([text.encode()], lambda: False) for text in TEXTS])
    together = network.scores([text.encode() for text in TEXTS], lambda: False)
    assert np.allclose(alone, together, atol=1e-6)
    assert np.isfinite(together).all(), "a text without words has an answer"


def test_a_trial_goes_on_from_its_own_weights_and_loses_nothing(case, tmp_path: Path):
    half = learnt(case, tmp_path / "half.safetensors", epochs=1)
    again = learners().begin(spec(), case[0], case[1], half, 1)
    assert again.epoch == 1
    first = learners().begin(spec(), case[0], case[1], "", 0).learn(lambda: False)
    assert again.learn(lambda: False).loss <= first.loss + 1e-3
    again.write_state(str(tmp_path / "any"))


def test_a_regression_says_when_it_has_converged_and_changes_no_more(case, tmp_path: Path):
    learner = learners().begin(spec(), case[0], case[1], "", 0)
    results = [learner.learn(lambda: False) for _ in range(12)]
    told = [result.converged for result in results]
    assert told[-1]
    assert told == sorted(told), "once and for all"
    losses = [result.loss for result in results[told.index(True) :]]
    assert max(losses) - min(losses) < 1e-3


def test_the_same_inputs_give_the_same_weights(case, tmp_path: Path):
    one, other = (load_file(learnt(case, tmp_path / f"{n}.safetensors")) for n in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_cannot_be_learnt_is_refused_in_words(case, tmp_path: Path):
    with pytest.raises(BadRequest, match="no knob 'forget'"):
        learners().begin(spec(forget=0.1), case[0], case[1], "", 0)
    with pytest.raises(BadRequest, match="characters must be"):
        learners().begin(spec(architecture_options={"characters": 1}), case[0], case[1], "", 0)
    checkpoint = learnt(case, tmp_path / "model.safetensors")
    wider = Objective(case[1].task, (*case[1].classes, "new"), case[1].metric)
    with pytest.raises(BadRequest, match="not of tfidf_linear with these knobs"):
        learners().evaluate(spec(), case[0], wider, checkpoint, "test")
    with pytest.raises(TrainingStopped):
        learners().begin(spec(), case[0], case[1], "", 0).learn(lambda: True)


def test_a_refit_knows_the_words_of_validation_rows(tmp_path: Path):
    words = {"train": ("awful", "lovely"), "validation": ("dreadful", "splendid")}
    rows = [
        {"input": f"it was {word} {number}", "target": target, "split": split}
        for split, found in words.items()
        for word, target in zip(found, CLASSES[2], strict=True)
        for number in range(20)
    ]
    tests = [{"input": "splendid", "target": "good", "split": "test"}] * 2
    path = tmp_path / "snapshot.parquet"
    pq.write_table(pa.Table.from_pylist(rows + tests), path)
    sure = {}
    for refits in (False, True):
        objective = Objective(TEXT_CLASSIFICATION, CLASSES[2], METRICS["accuracy"], refits=refits)
        checkpoint = learnt((str(path), objective), tmp_path / "model.safetensors")
        found = learners().evaluate(spec(), str(path), objective, checkpoint, "test")
        assert found is not None
        sure[refits] = float(found.predictions[0, 1])
    assert sure[False] == pytest.approx(0.5, abs=0.1)
    assert sure[True] > 0.8


def test_a_refit_is_not_taught_a_class_that_no_training_row_shows(tmp_path: Path):
    rows = [
        {"input": f"it was {word} {number}", "target": target, "split": split}
        for split in ("train", "validation")
        for word, target in (("awful", "bad"), ("lovely", "good"))
        for number in range(20)
    ]
    later = [{"input": f"it was lovely {n}", "target": "later", "split": "validation"} for n in range(60)]
    tests = [{"input": "it was lovely", "target": "good", "split": "test"}] * 2
    objective = Objective(TEXT_CLASSIFICATION, CLASSES[2], METRICS["accuracy"], refits=True)
    sure = []
    for number, told in enumerate((rows + tests, rows + tests + later)):
        path = str(tmp_path / f"{number}.parquet")
        pq.write_table(pa.Table.from_pylist(told), path)
        checkpoint = learnt((path, objective), tmp_path / f"{number}.safetensors")
        found = learners().evaluate(spec(), path, objective, checkpoint, "test")
        assert found is not None
        sure.append(float(found.predictions[0, 1]))
    assert sure[1] == pytest.approx(sure[0], abs=0.05)


@pytest.mark.parametrize("task", ["text-multilabel", "text-regression"])
def test_labels_and_numbers_are_learnt_of_words_and_served_so(task, tmp_path: Path):
    words = ["awful", "lovely", "blue"]
    sets = [[word for at, word in enumerate(words) if number >> at & 1] for number in range(8)]
    rows = [(f"tea {' '.join(sets[number % 8])} {number}", sets[number % 8]) for number in range(240)]
    has_labels = task == "text-multilabel"
    # `never` is a label of no training row, as one that appears later is.
    targets = [json.dumps(found) if has_labels else 2.0 * len(found) - 1 for _, found in rows]
    splits = [("train", "train", "train", "validation", "test")[number % 5] for number in range(240)]
    snapshot = str(tmp_path / "snapshot.parquet")
    texts = [text for text, _ in rows]
    pq.write_table(pa.table({"input": texts, "target": targets, "split": splits}), snapshot)
    objective = Objective.of(task, [*sorted(words), "never"] if has_labels else [])
    knobs = {"C": 10.0} if has_labels else {"alpha": 0.1}
    given = {"architecture": "tfidf_linear", "epochs": 3, "seed": 0, **knobs}
    learner = learners().begin(given, snapshot, objective, "", 0)
    result = learner.learn(lambda: False)
    assert result.converged
    path = str(tmp_path / "model.safetensors")
    learner.write(path, best=True)
    found = learners().evaluate(given, snapshot, objective, path, "test")
    assert found is not None
    score = objective.metric.of(found.predictions, found.targets)
    assert score == 1.0 if has_labels else score < 0.7, "RMSE, of numbers from -1 to 5"
    assert not has_labels or found.predictions[:, -1].max() < 0.01
    module = TfidfLinear(len(objective.classes) or 1)
    module.load_state_dict(load_file(path))
    network = TextNetwork(module, find_device("cpu", threads=1), objective.task.activation)
    network.warm_up(1)
    tested = [text.encode() for text, split in zip(texts, splits, strict=True) if split == "test"]
    served = reading(network, objective.task.reads)(tested, lambda: False)
    np.testing.assert_allclose(np.asarray(served, np.float64), found.predictions, atol=1e-5)
    again = learners().begin(given, snapshot, objective, path, 1)
    assert again.learn(lambda: False).score.value == pytest.approx(result.score.value, abs=1e-3)
