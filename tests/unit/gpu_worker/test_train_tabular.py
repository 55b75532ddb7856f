"""scikit-learn's estimators, an epoch at a time, and the ONNX files that are served."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from gpu_worker.device import find_device
from gpu_worker.errors import BadRequest, ModelUnusable
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.networks.encoders import Scaled, Words
from gpu_worker.networks.row_network import COLUMNS_KEY, RowNetwork
from gpu_worker.networks.table import Table
from gpu_worker.tasks.metrics import METRICS
from gpu_worker.train.boosted_libraries import BoostedClassifier, BoostedRegressor, LightGbm, XgBoost
from gpu_worker.train.boosted_onnx import exact_in_float32, forest_onnx, hist_forest
from gpu_worker.train.estimators import Taught, answers_of, made
from gpu_worker.train.learner import Objective, row_time
from gpu_worker.train.learners import Learners
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.train.tabular import read_table
from gpu_worker.train.tabular_learner import TabularLearner
from gpu_worker.zoo import TABULAR

CLASSES = ["no", "yes"]
OBJECTIVE = Objective.of("tabular-classification", CLASSES)
CLASSIFIERS = sorted(TABULAR - {"ridge"})
REGRESSORS = sorted(TABULAR - {"logistic_regression"})
COLUMNS = [{"name": "age", "kind": "number"}, {"name": "plan", "kind": "text"}]


def served(path: str) -> Manifest:
    """The manifest of a model of two classes whose file that is."""
    folder, weights = os.path.split(path)
    classes = ("free", "pro")
    return Manifest(folder, "m", 1, "tabular-classification", "onnx", "", classes, InputSpec("row"), weights)


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


def scaled(table: Table) -> Scaled:
    (encoder,) = table.columns[0].encoders
    assert isinstance(encoder, Scaled)
    return encoder


def learners() -> Learners:
    return Learners("cpu", lambda row: row, 1, False)


def spec(architecture: str, **knobs: Any) -> dict[str, Any]:
    return {"architecture": architecture, "epochs": 3, "seed": 7, **knobs}


@pytest.mark.parametrize("architecture", CLASSIFIERS)
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
    network = RowNetwork(served(path), find_device("cpu", threads=1))
    rows = [b'[30, "free"]', b'[30, "pro"]', b"[]", b'[null, "new"]']
    scores = network.scores(rows, lambda: False)
    assert scores[0].argmax() == 1
    assert scores[1].argmax() == 0
    assert np.isnan(scores[2]).all(), "a row at fault has no answer"
    assert scores[3].sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_a_regression_converges_and_trees_can_always_be_more(architecture, snapshot):
    learner = learners().begin(spec(architecture), snapshot, OBJECTIVE, "", 0)
    assert learner.learn(lambda: False).converged is (architecture == "logistic_regression")


@pytest.mark.parametrize("architecture", CLASSIFIERS)
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
    assert scaled(whole.table).mean == pytest.approx(np.mean([age for age in ages if age is not None]))
    assert {split: len(rows.labels) for split, rows in whole.parts.items()} == {
        "train": 120,
        "validation": 40,
        "test": 40,
    }


@pytest.mark.parametrize("huge", [1e160, 1.7e308, -1.7e308])
@pytest.mark.parametrize("architecture", ["logistic_regression", "ridge"])
def test_a_few_values_whose_squares_are_no_numbers_leave_the_other_columns_their_say(
    architecture, huge, tmp_path: Path
):
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=300)
    rows = [json.dumps([number, huge if at % 50 == 7 else at]) for at, number in enumerate(numbers)]
    splits = [("train", "train", "train", "validation", "test")[at % 5] for at in range(300)]
    tells_numbers = architecture == "ridge"
    targets = numbers if tells_numbers else [CLASSES[int(number > 0)] for number in numbers]
    table = pa.table({"input": rows, "target": targets, "split": splits})
    path = str(tmp_path / "snapshot.parquet")
    columns = json.dumps([{"name": name, "kind": "number"} for name in ("told", "wild")])
    pq.write_table(table.replace_schema_metadata({COLUMNS_KEY: columns}), path)
    objective = Objective.of("tabular-regression", (), "r2") if tells_numbers else OBJECTIVE
    learner = learners().begin(spec(architecture), path, objective, "", 0)
    assert learner.learn(lambda: False).score.value > 0.9


def test_free_text_is_taught_by_the_numbers_that_it_is_served_with(tmp_path: Path):
    draw = np.random.default_rng(0)
    words = ["spicy", "noodle", "soup", "rice", "egg", "laksa", "curry", "good", "bad", "cold"]
    texts = [" ".join(draw.choice(words, 8)) for _ in range(200)]
    table = pa.table(
        {
            "input": [json.dumps([text]) for text in texts],
            "target": [float(text.count("good") - text.count("bad")) for text in texts],
            "split": [("train", "train", "train", "validation", "test")[at % 5] for at in range(200)],
        }
    )
    kinds = json.dumps([{"name": "comment", "kind": "text"}])
    path = str(tmp_path / "texts.parquet")
    pq.write_table(table.replace_schema_metadata({COLUMNS_KEY: kinds}), path)
    seen = read_table(path, ())
    assert isinstance(seen.table.columns[0].encoders[0], Words)
    rows = [row["input"].encode() for row in table.to_pylist() if row["split"] == "validation"]
    served_numbers, _ = seen.table.numbers(rows)
    assert np.array_equal(served_numbers, seen.rows("validation").numbers)


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
    assert scaled(read_table(other, CLASSES).table).mean > 500


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
        RowNetwork(served(path), find_device("cpu", threads=1))


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


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is to be told is a number: with the size and the town it rises."""
    draw = np.random.default_rng(0)
    sizes, towns = draw.uniform(20, 200, 300), draw.choice(["here", "there"], 300)
    told = 3.0 * sizes + 100 * (towns == "there") + draw.normal(0, 5, 300)
    rows = [json.dumps([float(size), str(town)]) for size, town in zip(sizes, towns, strict=True)]
    splits = [("train", "train", "train", "validation", "test")[at % 5] for at in range(300)]
    table = pa.table({"input": rows, "target": told, "split": splits})
    path = tmp_path_factory.mktemp("prices") / "snapshot.parquet"
    kinds = [{"name": "size", "kind": "number"}, {"name": "town", "kind": "text"}]
    pq.write_table(table.replace_schema_metadata({COLUMNS_KEY: json.dumps(kinds)}), path)
    return str(path)


@pytest.mark.parametrize("architecture", REGRESSORS)
def test_a_number_is_told_as_the_estimator_tells_it(architecture, prices, tmp_path: Path):
    ours = learners()
    objective = Objective(OBJECTIVE.task, (), METRICS["rmse"])
    learner = ours.begin(spec(architecture), prices, objective, "", 0)
    results = [learner.learn(lambda: False) for _ in range(3)]
    assert results[-1].score.value < 60, "of a spread of about 160"
    path = str(tmp_path / "model.onnx")
    learner.write(path, best=True)
    found = ours.evaluate(spec(architecture), prices, objective, path, "validation")
    assert found is not None
    assert found.predictions.shape == (60, 1)
    best = min(result.score.value for result in results)
    assert METRICS["rmse"].of(found.predictions, found.targets) == pytest.approx(best, rel=1e-4)


def test_a_model_that_tells_no_numbers_says_so(prices, snapshot):
    numbers = Objective(OBJECTIVE.task, (), METRICS["rmse"])
    with pytest.raises(ValueError, match="'logistic_regression' that tells numbers"):
        learners().begin(spec("logistic_regression"), prices, numbers, "", 0)
    with pytest.raises(ValueError, match="'ridge' that tells classes"):
        learners().begin(spec("ridge"), snapshot, OBJECTIVE, "", 0)


def test_boosted_trees_of_several_classes_are_the_same_in_onnx(tmp_path: Path):
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(400, 5)).astype(np.float32)
    numbers[::7, 2] = np.nan
    for classes in (2, 3):
        labels = (np.nan_to_num(numbers).sum(axis=1) > 0) + (classes == 3) * (numbers[:, 0] > 1)
        boosted = HistGradientBoostingClassifier(max_iter=20, early_stopping=False).fit(numbers, labels)
        exact_in_float32(boosted)
        content = forest_onnx(hist_forest(boosted), 5, {"": 17, "ai.onnx.ml": 3}).SerializeToString()
        session = onnxruntime.InferenceSession(content)
        (found,) = session.run(["probabilities"], {"X": numbers})
        assert np.abs(found - boosted.predict_proba(numbers)).max() < 1e-5


@pytest.mark.parametrize("library", [LightGbm, XgBoost])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trees_of_other_libraries_are_the_same_in_onnx_and_a_copy_keeps_its_own(library, classes):
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(400, 5)).astype(np.float32)
    sums = numbers.sum(axis=1)
    targets = (sums > 0) + (classes == 3) * (numbers[:, 0] > 1).astype(int) if classes else sums + 40
    boosted = (BoostedClassifier if classes else BoostedRegressor)(library(3, {}))
    weights = draw.uniform(0.5, 2, 400)
    boosted.grow(5, numbers, targets, weights, lambda: None)
    early = copy.copy(boosted)
    boosted.grow(20, numbers, targets, weights, lambda: None)
    told = []
    for each in (early, boosted):
        content = forest_onnx(each.forest(), 5, {"": 17, "ai.onnx.ml": 3}).SerializeToString()
        session = onnxruntime.InferenceSession(content)
        (found,) = session.run(["probabilities" if classes else "values"], {"X": numbers})
        told.append(found)
        wanted = answers_of(each, numbers)
        assert np.abs(found - wanted).max() < 1e-4
    assert np.abs(told[0] - told[1]).max() > 1e-2, "the copy has five iterations"


def test_what_a_library_does_not_know_is_refused_and_a_stop_comes_between_iterations():
    with pytest.raises(ValueError, match=r"lightgbm: it has no knob 'leaves' here; it has .*num_leaves"):
        made("lightgbm", 0, {"leaves": 3}, tells_numbers=False)
    estimator, fit = made("xgboost", 0, {}, tells_numbers=True)
    looks = iter(range(4))

    def check() -> None:
        if next(looks) == 3:
            raise TrainingStopped("enough")

    rows = Taught(np.eye(40, dtype=np.float32), np.arange(40.0))
    with pytest.raises(TrainingStopped):
        fit(estimator, 1, rows, check)
    assert estimator.iterations == 2


def test_rare_classes_weigh_as_much_as_frequent_ones_where_it_is_asked_for(snapshot):
    balanced = Objective(OBJECTIVE.task, OBJECTIVE.classes, OBJECTIVE.metric, "balanced")
    told = []
    for objective in (OBJECTIVE, balanced):
        learner = learners().begin(spec("logistic_regression", C=1e-3), snapshot, objective, "", 0)
        told.append(learner.learn(lambda: False).loss)
    assert told[0] != told[1]


def test_class_weights_of_a_job_and_of_a_knob_are_not_counted_twice(snapshot, tmp_path: Path):
    balanced = Objective.of("tabular-classification", CLASSES, class_weight="balanced")
    digests = set()
    for knob in ("none", "balanced"):
        learner = learners().begin(spec("logistic_regression", class_weight=knob), snapshot, balanced, "", 0)
        learner.learn(lambda: False)
        learner.write(str(tmp_path / knob), best=False)
        digests.add(hashlib.sha256((tmp_path / knob).read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("class_weight", ["none", "balanced"])
@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_a_refit_is_not_taught_a_class_that_no_training_row_shows(architecture, class_weight, tmp_path: Path):
    ages = [age for _ in range(10) for age in range(20, 60)]
    splits = [("train", "train", "train", "validation", "test")[at // 4 % 5] for at in range(400)]
    later = [splits[at] == "validation" and at % 7 == 0 for at in range(400)]
    targets = ["later" if later[at] else CLASSES[int(ages[at] < 40)] for at in range(400)]
    table = pa.table({"input": [json.dumps([age]) for age in ages], "target": targets, "split": splits})
    path = str(tmp_path / "snapshot.parquet")
    columns = json.dumps([{"name": "age", "kind": "number"}])
    pq.write_table(table.replace_schema_metadata({COLUMNS_KEY: columns}), path)
    objective = Objective.of("tabular-classification", CLASSES, class_weight=class_weight, refits=True)
    learner = learners().begin(spec(architecture), path, objective, "", 0)
    score = learner.learn(lambda: False).score
    assert score.value > 0.8, "all but the rows of that class"
    learner.write(str(tmp_path / "model.onnx"), best=False)
    found = learners().evaluate(spec(architecture), path, objective, str(tmp_path / "model.onnx"), "test")
    assert found is not None
    assert found.predictions.shape == (80, 2)


def test_a_refit_knows_what_the_validation_rows_alone_show(tmp_path: Path):
    """The target of ages above 50 is to be seen in them alone."""
    ages = [*range(20, 50), *range(50, 80), *range(20, 80)]
    splits = ["train"] * 30 + ["validation"] * 30 + ["test"] * 60
    targets = [age % 2 * 10.0 if age < 50 else 100.0 for age in ages]
    table = pa.table({"input": [json.dumps([age]) for age in ages], "target": targets, "split": splits})
    path = str(tmp_path / "snapshot.parquet")
    columns = json.dumps([{"name": "age", "kind": "number"}])
    pq.write_table(table.replace_schema_metadata({COLUMNS_KEY: columns}), path)
    found = {}
    for refits in (False, True):
        objective = Objective.of("tabular-regression", (), refits=refits)
        learner = learners().begin(spec("random_forest"), path, objective, "", 0)
        learner.learn(lambda: False)
        learner.write(str(tmp_path / "model.onnx"), best=False)
        answered = learners().evaluate(
            spec("random_forest"), path, objective, str(tmp_path / "model.onnx"), "test"
        )
        assert answered is not None
        found[refits] = answered.predictions[-20:].mean()
    assert found[False] < 20
    assert found[True] > 95
