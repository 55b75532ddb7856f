"""The metrics that SQL shows have the values that scikit-learn's and the server's have."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as of_sklearn

from gpu_worker.tasks.average_precision import mean_average_precision as server_map
from gpu_worker.tasks.boxes import boxes_of
from gpu_worker.tasks.metrics import metric_named
from ml_udf.errors import BadOption
from ml_udf.evaluation.answered import Answered
from ml_udf.evaluation.metrics import METRICS, confusion, metric_value, metrics_of
from ml_udf.evaluation.sources import QueryRows
from ml_udf.evaluation.verbs import importance_rows
from tests.unit.ml_udf.infos import info_of

ROWS = 400


def labelled(classes: int, seed: int = 1) -> tuple[Answered, np.ndarray, np.ndarray]:
    """Answers with their probabilities [rows, classes], some of them equal, and targets [rows]."""
    drawn = np.random.default_rng(seed)
    names = tuple(f"c{each}" for each in range(classes))
    targets = drawn.integers(0, classes, ROWS)
    raw = drawn.random((ROWS, classes)) + 0.7 * np.eye(classes)[targets]
    scores = np.round(raw / raw.sum(axis=1, keepdims=True), 2)
    scores /= scores.sum(axis=1, keepdims=True)
    answered = Answered("label", names)
    told = [names[each] for each in scores.argmax(axis=1)]
    answered.add([names[each] for each in targets], told, scores.tolist())
    return answered, scores, targets


@pytest.mark.parametrize("classes", [2, 4])
def test_of_labels_they_are_those_of_scikit_learn_and_of_the_server(classes: int) -> None:
    answered, scores, targets = labelled(classes)
    said = scores.argmax(axis=1)
    several: dict[str, Any] = {"multi_class": "ovr", "average": "macro"}
    expected = {
        "accuracy": of_sklearn.accuracy_score(targets, said),
        "macro_f1": of_sklearn.f1_score(targets, said, average="macro"),
        "log_loss": of_sklearn.log_loss(targets, scores),
        "auc": of_sklearn.roc_auc_score(targets, scores[:, 1])
        if classes == 2
        else of_sklearn.roc_auc_score(targets, scores, **several),
    }
    found = {name: value for name, value, _ in metrics_of(answered)}
    assert found == pytest.approx(expected, abs=1e-9)
    assert found == pytest.approx({name: metric_named(name).of(scores, targets) for name in found}, abs=1e-9)


@pytest.mark.parametrize(
    "number", [0.25, 12345678901.5, 1e-4, 1.25e-5, 1e-6, -2.5e-6, 9.5e-7, 1e-7, -1.5e-10, 1e16, 2.5e300]
)
def test_numbers_that_are_classes_have_the_text_that_datasets_give_them(number: float) -> None:
    answered = Answered("label", ("a", "b"))
    answered.add([number], ["a"])
    assert answered.targets == pa.array([number]).cast(pa.string()).to_pylist()


def test_of_numbers_they_are_those_of_scikit_learn_and_of_the_server() -> None:
    drawn = np.random.default_rng(2)
    targets = drawn.normal(100, 20, ROWS)
    said = targets + drawn.normal(3, 5, ROWS)
    answered = Answered("number")
    answered.add(targets.tolist(), said.tolist())
    expected = {
        "rmse": of_sklearn.mean_squared_error(targets, said) ** 0.5,
        "mae": of_sklearn.mean_absolute_error(targets, said),
        "r2": of_sklearn.r2_score(targets, said),
    }
    found = {name: value for name, value, _ in metrics_of(answered)}
    assert found == pytest.approx(expected, rel=1e-9)
    assert found == pytest.approx(
        {name: metric_named(name).of(said[:, None], targets) for name in found}, rel=1e-9
    )
    baseline = {name: value for name, _, value in metrics_of(answered)}
    assert baseline == pytest.approx(
        {"rmse": targets.std(), "mae": np.abs(targets - np.median(targets)).mean(), "r2": 0.0}, abs=1e-9
    )


def test_of_several_labels_it_is_that_of_scikit_learn() -> None:
    drawn = np.random.default_rng(3)
    wanted, said = drawn.random((2, ROWS, 3)) < 0.4
    answered = Answered("labels")
    lists = [[[f"c{at}" for at in np.flatnonzero(row)] for row in rows] for rows in (wanted, said)]
    answered.add(lists[0], [json.dumps(row) for row in lists[1]])
    ((name, value, _),) = metrics_of(answered)
    assert name == "micro_f1"
    assert value == pytest.approx(of_sklearn.f1_score(wanted, said, average="micro"))


def test_of_boxes_they_are_those_of_the_server() -> None:
    drawn = np.random.default_rng(5)

    def boxes(near: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        found = []
        for at in range(drawn.integers(0, 5) if near is None else len(near)):
            label = "ab"[drawn.integers(2)] if near is None or drawn.random() < 0.2 else near[at]["label"]
            x, y = (
                drawn.integers(0, 60, 2) if near is None else near[at]["box"][:2] + drawn.integers(-4, 5, 2)
            )
            box = [float(each) for each in (x, y, x + 20, y + 20)]
            found.append({"label": label, "box": box, "score": round(float(drawn.random()), 1)})
        return found

    true = [boxes() for _ in range(60)]
    found = [boxes(each) + (boxes() if drawn.random() < 0.3 else []) for each in true]
    answered = Answered("boxes")
    without_scores = [[{"label": box["label"], "box": box["box"]} for box in each] for each in true]
    answered.add(without_scores, [json.dumps(each) for each in found])
    said, real = ([boxes_of(json.dumps(each)) for each in rows] for rows in (found, true))
    expected = {"map": server_map(said, real), "map_50": server_map(said, real, (0.5,))}
    assert 0.05 < expected["map"] < expected["map_50"] < 1
    assert {name: value for name, value, _ in metrics_of(answered)} == pytest.approx(expected, abs=1e-12)
    assert {baseline for _, _, baseline in metrics_of(answered)} == {0.0}


def test_of_pictures_without_any_true_box_there_is_no_metric() -> None:
    answered = Answered("boxes")
    answered.add([[], "[]"], ['[{"label": "a", "score": 1, "box": [0, 0, 1, 1]}]', "[]"])
    assert list(metrics_of(answered)) == []


def test_a_confusion_matrix_in_rows_is_that_of_scikit_learn() -> None:
    answered, scores, targets = labelled(4)
    matrix = of_sklearn.confusion_matrix(targets, scores.argmax(axis=1))
    expected = [
        (f"c{row}", f"c{column}", int(matrix[row, column]))
        for row in range(4)
        for column in range(4)
        if matrix[row, column]
    ]
    assert confusion(answered) == expected


def test_the_baseline_always_names_the_most_frequent_label_or_how_frequent_each_is() -> None:
    answered = Answered("label", ("a", "b", "c"))
    answered.add(["a", "a", "b", "z"], ["b"] * 4, [[0.2, 0.5, 0.3]] * 4)
    found = {name: baseline for name, _, baseline in metrics_of(answered)}
    assert found["accuracy"] == 0.5
    assert found["auc"] == 0.5
    assert found["log_loss"] > metric_value("log_loss", labelled(2)[0])


def test_rows_without_an_answer_or_a_target_do_not_count_and_of_none_there_are_no_metrics() -> None:
    answered = Answered("number")
    answered.add([1, None, 3.0], [2.0, 4.0, None])
    assert answered.rows == 1
    assert metric_value("rmse", answered) == 1.0
    for target in METRICS:
        assert list(metrics_of(Answered(target))) == []


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("number", "ten"),
        ("number", [1]),
        ("number", "NaN"),
        ("number", 10**400),
        ("labels", "a, b"),
        ("labels", 3),
        ("boxes", "{"),
        ("boxes", [[1, 2, 3, 4]]),
        ("boxes", '[{"label": "a"}]'),
        ("boxes", [{"label": "a", "box": [0, 0, "NaN", 1]}]),
        ("boxes", [{"label": "a", "box": [2, 0, 1, 1]}]),
    ],
)
def test_a_target_that_is_no_value_of_the_answers_is_refused(target: Any, value: object) -> None:
    with pytest.raises(Exception, match="is no"):
        Answered(target).add([value], [1.0 if target == "number" else "[]"])


def test_numbers_truth_values_and_dates_are_labels_as_their_datasets_have_them() -> None:
    said = ["1", "true", "1.1", "2026-11-01", "2"]
    answered = Answered("label", tuple(said))
    answered.add([1, True, Decimal("1.10"), date(2026, 11, 1), 2.0], said)
    assert metric_value("accuracy", answered) == 1.0


class Threshold:
    """Answers whether a row's first number is over a half."""

    def info(self) -> Any:
        from dataclasses import replace

        columns = (("first", "number"), ("second", "number"))
        return replace(info_of(), classes=("no", "yes"), columns=columns)

    def values(self, inputs: Any) -> list[Any]:
        return ["yes" if json.loads(row)[0] > 0.5 else "no" for row in inputs]

    def probabilities(self, inputs: Any) -> list[Any]:
        raise NotImplementedError


def test_importance_is_what_accuracy_loses_and_nothing_of_a_column_that_is_not_looked_at() -> None:
    drawn = np.random.default_rng(4)
    rows = [
        {"first": first, "second": second, "label": "yes" if first > 0.5 else "no"}
        for first, second in drawn.random((2000, 2)).tolist()
    ]
    source = QueryRows(Threshold(), lambda: [rows[:1000], rows[1000:]], "label")
    first, second = importance_rows(source, repeats=5, seed=0)
    assert (first["feature"], first["metric"]) == ("first", "accuracy")
    assert first["importance"] == pytest.approx(0.5, abs=0.03), "half of the rows get the other side's value"
    assert 0 < first["spread"] < 0.03
    assert second == {"feature": "second", "importance": 0.0, "spread": 0.0, "metric": "accuracy"}
    assert importance_rows(source, repeats=5, seed=0) == [first, second], "by its seed"
    assert importance_rows(source, repeats=1, seed=1)[0]["spread"] is None
    with pytest.raises(BadOption, match="repeats = 0 is out of bounds"):
        importance_rows(source, repeats=0, seed=0)
