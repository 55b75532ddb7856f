"""scikit-learn's estimators, an epoch at a time, and the ONNX files that are served."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import RandomForestClassifier

from gpu_worker.device import find_device
from gpu_worker.errors import BadRequest, ModelUnusable
from gpu_worker.networks.row_network import COLUMNS_KEY, RowNetwork
from gpu_worker.train.learner import Objective, row_time
from gpu_worker.train.learners import Learners
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.train.tabular import read_table
from gpu_worker.train.tabular_learner import TabularLearner
from gpu_worker.zoo import TABULAR

CLASSES = ["no", "yes"]
OBJECTIVE = Objective.of("tabular-classification", CLASSES)
COLUMNS = [{"name": "age", "kind": "number"}, {"name": "plan", "kind": "text"}]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> str:
    draw = np.random.default_rng(0)
    rows, labels = [], []
    for _ in range(200):
        age, plan = int(draw.integers(18, 80)), str(draw.choice(["free", "pro"]))
        rows.append(json.dumps([None if draw.random() < 0.1 else age, plan]))
        labels.append(CLASSES[int(plan == "free" and age < 50)])
    splits = [("train", "train", "train", "validation", "test")[at % 5] for at in range(200)]
    table = pa.table({"input": rows, "target": labels, "split": splits})
    path = tmp_path_factory.mktemp("table") / "snapshot.parquet"
    pq.write_table(table.replace_schema_metadata({COLUMNS_KEY: json.dumps(COLUMNS)}), path)
    return str(path)


def learners() -> Learners:
    return Learners("cpu", lambda row: row, 1, False)


def spec(architecture: str, **knobs: Any) -> dict[str, Any]:
    return {"architecture": architecture, "epochs": 3, "seed": 7, **knobs}


@pytest.mark.parametrize("architecture", sorted(TABULAR))
def test_a_checkpoint_answers_as_the_estimator_did_and_is_served(architecture, snapshot, tmp_path: Path):
    ours = learners()
    learner = ours.begin(spec(architecture), snapshot, OBJECTIVE, "", 0)
    results = [learner.learn(lambda: False) for _ in range(3)]
    path = str(tmp_path / "model.onnx")
    learner.write(path, best=True)
    found = ours.evaluate(spec(architecture), snapshot, OBJECTIVE, path, "validation")
    assert found is not None
    accuracy = (found.predictions.argmax(axis=1) == found.targets).mean()
    assert accuracy == pytest.approx(max(result.score.value for result in results)), "the best epoch was kept"
    assert accuracy > 0.85
    network = RowNetwork(path, find_device("cpu", threads=1))
    rows = [b'[30, "free"]', b'[30, "pro"]', b"[]", b'[null, "new"]']
    scores = network.scores(rows, lambda: False)
    assert scores[0].argmax() == 1
    assert scores[1].argmax() == 0
    assert np.isnan(scores[2]).all(), "a row at fault has no answer"
    assert scores[3].sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("architecture", sorted(TABULAR))
def test_the_same_inputs_give_the_same_file(architecture, snapshot, tmp_path: Path):
    digests = set()
    for attempt in range(2):
        learner = learners().begin(spec(architecture), snapshot, OBJECTIVE, "", 0)
        for _ in range(2):
            learner.learn(lambda: False)
        path = tmp_path / f"{attempt}.onnx"
        learner.write(str(path), best=False)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_what_is_fitted_is_fitted_on_the_training_rows_alone(snapshot):
    whole = read_table(snapshot, CLASSES)
    ages = [
        json.loads(row["input"])[0] for row in pq.read_table(snapshot).to_pylist() if row["split"] == "train"
    ]
    assert whole.table.columns[0].mean == pytest.approx(np.mean([age for age in ages if age is not None]))
    assert {split: len(rows.labels) for split, rows in whole.parts.items()} == {
        "train": 120,
        "validation": 40,
        "test": 40,
    }


def test_a_checkpoint_brings_its_own_columns_to_a_snapshot_with_others(snapshot, tmp_path: Path):
    ours = learners()
    learner = ours.begin(spec("logistic_regression"), snapshot, OBJECTIVE, "", 0)
    learner.learn(lambda: False)
    path = str(tmp_path / "model.onnx")
    learner.write(path, best=True)
    rows = pq.read_table(snapshot)
    shifted = [json.dumps([(json.loads(row)[0] or 0) + 500, "new"]) for row in rows["input"].to_pylist()]
    other = str(tmp_path / "other.parquet")
    pq.write_table(rows.set_column(0, "input", pa.array(shifted)), other)
    before = ours.evaluate(spec("logistic_regression"), snapshot, OBJECTIVE, path, "test")
    after = ours.evaluate(spec("logistic_regression"), other, OBJECTIVE, path, "test")
    assert before is not None
    assert after is not None
    assert not np.allclose(before.predictions, after.predictions), "the rows are other ones"
    assert asdict(read_table(other, CLASSES).table.columns[0])["mean"] > 500


def test_a_stop_and_a_cold_start_do_not_count_as_the_time_of_a_row():
    times = iter([0, 9.0, 10, 10.5, 20, 20.25, 30, 60, *range(100, 120)])
    passes: list[slice] = []
    assert row_time(passes.append, 1_000, lambda: next(times)) == 0.25 / 64
    assert all(part == slice(0, 64) for part in passes)
    assert row_time(passes.append, 0) == 0.0


def test_knobs_that_an_estimator_does_not_have_are_refused(snapshot):
    with pytest.raises(ValueError, match="max_depht"):
        learners().begin(spec("random_forest", max_depht=3), snapshot, OBJECTIVE, "", 0)


def test_no_trial_of_a_table_begins_from_anothers_checkpoint(snapshot):
    with pytest.raises(BadRequest, match="share no weights"):
        learners().begin(spec("random_forest"), snapshot, OBJECTIVE, "some.onnx", 0)
    learner = learners().begin(spec("random_forest"), snapshot, OBJECTIVE, "", 0)
    with pytest.raises(ValueError, match="cannot be paused"):
        learner.write_state("anywhere")


def test_a_trial_stops_when_it_is_told_to(snapshot):
    learner = learners().begin(spec("random_forest"), snapshot, OBJECTIVE, "", 0)
    with pytest.raises(TrainingStopped):
        learner.learn(lambda: True)


def test_rows_that_become_arrays_are_heard_of_as_steps(snapshot, tmp_path: Path):
    own = tmp_path / "own.parquet"
    own.write_bytes(Path(snapshot).read_bytes())
    steps: list[int] = []
    ours = Learners("cpu", lambda row: row, 1, False, lambda: steps.append(1))
    ours.begin(spec("random_forest"), str(own), OBJECTIVE, "", 0)
    assert len(steps) == 2, "to fit, and to convert"


def test_an_onnx_file_that_does_not_say_what_a_row_is_cannot_be_served(snapshot, tmp_path: Path):
    learner = learners().begin(spec("logistic_regression"), snapshot, OBJECTIVE, "", 0)
    learner.learn(lambda: False)
    path = str(tmp_path / "model.onnx")
    learner.write(path, best=True)
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    with pytest.raises(ModelUnusable, match="what a row is"):
        RowNetwork(path, find_device("cpu", threads=1))


@pytest.mark.parametrize("architecture", ["gradient_boosting", "random_forest"])
def test_a_tables_epoch_stops_between_two_trees_and_keeps_the_best_before(
    architecture: str, snapshot: str, tmp_path: Path
) -> None:
    learner = learners().begin(spec(architecture), snapshot, OBJECTIVE, "", 0)
    learner.learn(lambda: False)
    asked = itertools.count()
    with pytest.raises(TrainingStopped):
        learner.learn(lambda: next(asked) == 4)
    assert next(asked) == 5, "it was asked between the trees of one epoch"
    assert learner.epoch == 1
    learner.write(str(tmp_path / "best.onnx"), best=True)


def test_trees_that_grow_one_by_one_are_those_that_grow_at_once(snapshot: str) -> None:
    learner = learners().begin(spec("random_forest"), snapshot, OBJECTIVE, "", 0)
    assert isinstance(learner, TabularLearner)
    for _ in range(2):
        learner.learn(lambda: False)
    train, validation = (learner._snapshot.rows(split) for split in ("train", "validation"))
    at_once = RandomForestClassifier(random_state=7, n_estimators=20, n_jobs=1)
    at_once.fit(train.numbers, train.labels)
    grown = learner._estimator.predict_proba(validation.numbers)
    assert np.array_equal(grown, at_once.predict_proba(validation.numbers))
