"""A scikit-learn estimator becomes ONNX that answers as it does itself, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.svm import LinearSVC

from ml_udf.errors import BadOption
from ml_udf.estimator import convert

ROWS = 60
NUMBERS = np.random.default_rng(0).random((ROWS, 3))
LABELS = np.where(NUMBERS[:, 0] > 0.5, "leaves", "stays")


@pytest.fixture(scope="module")
def frame() -> Any:
    pd = pytest.importorskip("pandas", reason="frames are pandas'")
    random = np.random.default_rng(1)
    age = random.normal(40, 10, ROWS)
    age[::9] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "plan": random.choice(["free", "pro", "team"], ROWS),
            "active": random.random(ROWS) > 0.5,
            "visits": random.integers(0, 5, ROWS),
        }
    )


def test_a_matrix_of_numbers_is_one_input_of_named_columns() -> None:
    found = convert(LogisticRegression().fit(NUMBERS, LABELS), NUMBERS)
    assert found.difference < 1e-5
    assert found.manifest["task"] == "tabular-classification"
    assert found.manifest["classes"] == ["leaves", "stays"]
    names = [column["name"] for column in found.manifest["input"]["columns"]]
    assert names == ["x0", "x1", "x2"]


def test_a_pipeline_over_a_frames_columns_keeps_their_names_and_kinds(frame: Any) -> None:
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "visits"]),
        (OneHotEncoder(handle_unknown="ignore"), ["plan"]),
        remainder="passthrough",
    )
    found = convert(
        make_pipeline(columns, RandomForestClassifier(5, random_state=0)).fit(frame, LABELS), frame
    )
    assert found.difference < 1e-5
    assert [tuple(column.values()) for column in found.manifest["input"]["columns"]] == [
        ("age", "number"),
        ("plan", "text"),
        ("active", "boolean"),
        ("visits", "number"),
    ]


@pytest.mark.parametrize(
    ("age", "visits"), [("größe in cm", "größe.in-cm"), ("a_b", "a b"), ("a b", "a_b"), ("label", "variable")]
)
def test_columns_may_have_any_name(frame: Any, age: str, visits: str) -> None:
    named = frame.rename(columns={"age": age, "visits": visits, "plan": "probabilities"})
    columns = make_column_transformer(
        (SimpleImputer(), [age, visits]), (OneHotEncoder(handle_unknown="ignore"), ["probabilities"])
    )
    found = convert(make_pipeline(columns, LogisticRegression()).fit(named, LABELS), named)
    names = [age, "probabilities", "active", visits]
    assert [column["name"] for column in found.manifest["input"]["columns"]] == names
    inputs = InferenceSession(found.content, providers=["CPUExecutionProvider"]).get_inputs()
    assert [each.name for each in inputs] == names


def test_a_regressor_answers_values() -> None:
    found = convert(RandomForestRegressor(5).fit(NUMBERS, 1e6 * NUMBERS[:, 1]), NUMBERS)
    assert found.manifest["task"] == "tabular-regression"
    assert found.manifest["classes"] == []
    assert found.difference < 1e-5  # of the largest answer


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_answers_of_any_unit_are_compared_as_parts_of_the_largest(unit: float) -> None:
    # Seconds of an hour that began in 2023: single precision, which ONNX has, tells 128 of them as one.
    seconds = 1.7e9 + 3600 * NUMBERS
    estimator = HistGradientBoostingRegressor(min_samples_leaf=2).fit(seconds, unit * NUMBERS[:, 0])
    with pytest.raises(BadOption, match=f"of {ROWS} rows differ"):
        convert(estimator, seconds)
    with pytest.raises(BadOption, match=f"of {ROWS} rows differ"):
        convert(estimator, seconds, bound=0.01)


def test_texts_are_shown_as_they_are() -> None:
    texts = ["good Car runs well", "bad slow service", "nice and fast cars", "awful slow"] * 10
    estimator = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["+", "-"] * 20)
    found = convert(estimator, texts, classes=["positive", "negative"])
    assert found.manifest["task"] == "text-classification"
    assert found.manifest["classes"] == ["positive", "negative"]
    assert found.difference < 1e-5


def test_words_that_onnx_would_cut_otherwise_are_refused() -> None:
    """Its tokenizer knows no letters beyond ASCII."""
    texts = ["schöne schnelle Autos", "kläglich langsam", "schön", "müde"] * 10
    estimator = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["+", "-"] * 20)
    with pytest.raises(BadOption, match="as ONNX 40 of 40 rows differ"):
        convert(estimator, texts)


def test_a_pipeline_that_fails_at_a_missing_number_is_refused_for_that() -> None:
    estimator = make_pipeline(Binarizer(threshold=0.5), LogisticRegression()).fit(NUMBERS, LABELS)
    with pytest.raises(BadOption, match="fails where a number is missing") as refused:
        convert(estimator, NUMBERS)
    assert "SimpleImputer" in refused.value.hint
    with_imputer = make_pipeline(SimpleImputer(), Binarizer(threshold=0.5), LogisticRegression())
    assert convert(with_imputer.fit(NUMBERS, LABELS), NUMBERS).difference < 1e-5


def test_a_pipeline_that_fails_at_an_unknown_category_is_refused(frame: Any) -> None:
    columns = make_column_transformer((OneHotEncoder(), ["plan"]))
    with pytest.raises(BadOption, match="fails where a text is unknown or missing") as refused:
        convert(make_pipeline(columns, LogisticRegression()).fit(frame, LABELS), frame)
    assert "handle_unknown='ignore'" in refused.value.hint


def test_a_text_column_stands_beside_numbers(frame: Any) -> None:
    columns = make_column_transformer((TfidfVectorizer(), "plan"), (StandardScaler(), ["visits"]))
    found = convert(make_pipeline(columns, LogisticRegression()).fit(frame, LABELS), frame)
    assert found.difference < 1e-5


def test_several_labels_of_a_row_are_a_multilabel_task() -> None:
    both = np.stack([NUMBERS[:, 0] > 0.5, NUMBERS[:, 1] > 0.5], axis=1).astype(int)
    found = convert(OneVsRestClassifier(LogisticRegression()).fit(NUMBERS, both), NUMBERS, classes=["a", "b"])
    assert found.manifest["task"] == "tabular-multilabel"


@pytest.mark.parametrize(
    ("estimator", "sample", "reason"),
    [
        (KMeans(2, n_init=1).fit(NUMBERS), NUMBERS, "no classifier and no regressor"),
        ("a name", NUMBERS, "no classifier and no regressor"),
        (LogisticRegression, NUMBERS, "no classifier and no regressor"),
        (LinearSVC().fit(NUMBERS, LABELS), NUMBERS, "says no probabilities"),
        (LinearRegression().fit(NUMBERS, NUMBERS[:, :2]), NUMBERS, "2 values a row"),
        (LogisticRegression().fit(NUMBERS, LABELS), NUMBERS[:0], "the sample is empty"),
        (LogisticRegression().fit(NUMBERS, LABELS), NUMBERS[:, :2], "does not answer to the sample"),
        (LogisticRegression(), NUMBERS, "not fitted"),
        (
            make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()).fit(NUMBERS, LABELS),
            NUMBERS,
            "cannot be served as ONNX: FunctionTransformer is not supported",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_served_is_refused_with_the_reason(estimator: Any, sample: Any, reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        convert(estimator, sample)


def test_a_difference_over_the_bound_is_refused() -> None:
    estimator = LogisticRegression().fit(NUMBERS, LABELS)
    with pytest.raises(BadOption, match="rows differ, by up to"):
        convert(estimator, NUMBERS, bound=0.0)


def test_classes_must_be_as_many_as_the_estimators() -> None:
    estimator = LogisticRegression().fit(NUMBERS, LABELS)
    with pytest.raises(BadOption, match="3 classes are named, and the estimator has 2"):
        convert(estimator, NUMBERS, classes=["a", "b", "c"])


@pytest.mark.parametrize("classes", [2, 3])
def test_boosted_trees_of_histograms_are_converted_with_their_missing_values(classes: int) -> None:
    numbers = np.random.default_rng(3).random((300, 4))
    numbers[::7, 1] = np.nan
    labels = (numbers[:, 0] > 0.5).astype(int) + (classes == 3) * (numbers[:, 2] > 0.8)
    found = convert(HistGradientBoostingClassifier(max_iter=10).fit(numbers, labels), numbers)
    assert found.difference < 1e-6
    assert found.manifest["classes"] == [str(label) for label in range(classes)]


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "poisson"])
def test_boosted_trees_tell_numbers_on_the_scale_of_their_loss(loss: str) -> None:
    boosted = HistGradientBoostingRegressor(loss=loss, max_iter=10, min_samples_leaf=3)
    found = convert(boosted.fit(NUMBERS, 1 + NUMBERS[:, 1]), NUMBERS)
    assert found.difference < 1e-6
    assert found.manifest["task"] == "tabular-regression"


def test_boosted_trees_are_a_step_of_a_pipeline_over_a_frame(frame: Any) -> None:
    columns = make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["plan"]),
        (SimpleImputer(), ["age", "visits"]),
        remainder="drop",
    )
    boosted = HistGradientBoostingClassifier(max_iter=10, min_samples_leaf=3)
    found = convert(make_pipeline(columns, boosted).fit(frame, LABELS), frame)
    assert found.difference < 1e-5


def test_boosted_trees_that_split_by_categories_are_refused_with_what_to_do() -> None:
    numbers = np.column_stack([np.arange(ROWS) % 5, NUMBERS[:, 0]])
    target = np.where(numbers[:, 0] % 2 == 0, 1.0, 5.0)
    boosted = HistGradientBoostingRegressor(categorical_features=[0], max_iter=5, min_samples_leaf=3)
    with pytest.raises(BadOption, match="its trees split by categories: encode them before it"):
        convert(boosted.fit(numbers, target), numbers)
