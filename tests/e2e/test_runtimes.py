"""Models of other libraries: imported by one command, or registered from one's own process, asked in SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.importing import Checked, checked, recognised, staged
from ml_udf import sdk
from ml_udf.registration import register_model
from tests.engines import Engine, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.unit.gpu_worker import test_static_embedding as static
from tests.unit.gpu_worker import test_transformers as hugging_face

pd = pytest.importorskip("pandas", reason="trees of categories are trained on pandas' frames")
xgboost = pytest.importorskip("xgboost", reason="pip install xgboost-cpu")
lightgbm = pytest.importorskip("lightgbm", reason="pip install lightgbm")

ROWS = 80
FUNCTIONS = ("udf_churn", "udf_visits", "udf_words", "udf_service", "udf_plan", "udf_meaning")
TEXTS = ["a car runs fast", "the service was slow", "car"]


@pytest.fixture(scope="module")
def frame() -> Any:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.normal(40, 10, ROWS).round(2),
            "plan": pd.Categorical(random.choice(["free", "pro", "team"], ROWS)),
            "visits": random.integers(0, 5, ROWS),
        }
    )


def _bring(server: InferenceServer, source: Path, **wishes: Any) -> Checked:
    """What `ml-udf import` does, in this process."""
    found = recognised(source, wishes)
    with tempfile.TemporaryDirectory() as folder, server.client() as client:
        manifest = staged(found, source.stem, Path(folder))
        told = checked(manifest, found)
        register_model(client, manifest.to_json(), lambda name: (Path(folder) / name).read_bytes())
    return told


@pytest.fixture(scope="module")
def estimators(frame: Any) -> dict[str, Any]:
    """The sources, fitted; they answer for themselves."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    leaves = ((frame.age > 38) ^ (frame.plan == "pro")).astype(int)
    columns = make_column_transformer(
        (StandardScaler(), ["age", "visits"]), (OneHotEncoder(handle_unknown="ignore"), ["plan"])
    )
    return {
        "churn": xgboost.XGBClassifier(n_estimators=8, enable_categorical=True).fit(frame, leaves),
        "visits": lightgbm.LGBMRegressor(n_estimators=8, verbose=-1, min_child_samples=5).fit(
            frame, frame.age * 2
        ),
        "plan": make_pipeline(columns, LogisticRegression()).fit(frame, np.where(leaves, "leaves", "stays")),
    }


@pytest.fixture(scope="module")
def server(estimators: dict[str, Any], frame: Any, open_folder: Path) -> Iterator[InferenceServer]:
    home = open_folder / "runtimes"
    source = open_folder / "runtimes-source"
    source.mkdir()
    estimators["churn"].save_model(source / "churn.ubj")
    estimators["visits"].booster_.save_model(source / "visits.txt")
    static._model2vec(source / "words")
    hugging_face._bert(source / "service", id2label={0: "bad", 1: "good"})
    hugging_face._sentence_transformer(source / "meaning", {"pooling_mode_mean_tokens": True})
    with inference_server(home) as running:
        for name in ("visits.txt", "words", "service", "meaning"):
            _bring(running, source / name)
        told = _bring(running, source / "churn.ubj", classes=["stays", "leaves"])
        assert told.difference is not None  # it was compared with its library
        registered = sdk.register(estimators["plan"], frame, "plan", endpoint=running.url)
        assert (registered.version, registered.task) == (1, "tabular-classification")
        with running.client() as client:
            for name in ("churn", "visits", "words", "service", "plan", "meaning"):
                client.put(f"/v1/functions/udf_{name}", {"models": [name]})
        yield running


@pytest.fixture
def sql(request: pytest.FixtureRequest, server: InferenceServer) -> Iterator[Engine]:
    made = make_engine("duckdb", server.url, request, FUNCTIONS)
    yield made
    made.close()


def _of_columns(sql: Engine, function: str, frame: Any) -> list[Any]:
    """A function of a table's columns, asked for each row."""
    rows = zip(*(frame[name].tolist() for name in frame.columns), strict=True)
    values = ", ".join(
        f"({number}, {age}, '{plan}', {visits})" for number, (age, plan, visits) in enumerate(rows)
    )
    table = f"(VALUES {values}) AS t(number, age, plan, visits)"
    found = sql.query(f"SELECT {function}(age, plan, visits) FROM {table} ORDER BY number")
    return [value for (value,) in found]


def _asked(sql: Engine, function: str, rows: list[str]) -> list[Any]:
    values = ", ".join(f"({at}, '{row}')" for at, row in enumerate(rows))
    found = sql.query(f"SELECT {function}(x) FROM (VALUES {values}) AS t(number, x) ORDER BY number")
    return [value for (value,) in found]


def test_trees_answer_in_sql_as_their_libraries_do(
    sql: Engine, estimators: dict[str, Any], frame: Any
) -> None:
    expected = np.where(estimators["churn"].predict(frame), "leaves", "stays").tolist()
    assert _of_columns(sql, "udf_churn", frame) == expected
    assert _of_columns(sql, "udf_visits", frame) == pytest.approx(
        estimators["visits"].predict(frame), rel=1e-5
    )


def test_a_pipeline_of_scikit_learn_answers_in_sql_as_in_its_own_process(
    sql: Engine, estimators: dict[str, Any], frame: Any
) -> None:
    assert _of_columns(sql, "udf_plan", frame) == estimators["plan"].predict(frame).tolist()


def test_texts_are_embedded_and_classified(sql: Engine) -> None:
    words = np.array(_asked(sql, "udf_words", ["a car", "unheard"]))
    assert words[0] == pytest.approx([2**-0.5, 2**-0.5, 0], abs=1e-6)
    assert words[1].tolist() == [0, 0, 0]
    assert set(_asked(sql, "udf_service", TEXTS)) <= {"bad", "good"}
    meaning = np.array(_asked(sql, "udf_meaning", TEXTS))
    assert meaning.shape == (3, 16)
    assert np.linalg.norm(meaning, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


def test_a_row_that_does_not_fit_says_why_and_spoils_no_other(sql: Engine) -> None:
    with pytest.raises(Exception, match="has no 'visits'"):
        sql.query("""SELECT ml_udf.predict('udf_churn', '{"age": 3, "plan": "pro"}')""")
    ((by_name,),) = sql.query(
        """SELECT ml_udf.predict('udf_churn', '{"visits": 2, "id": 7, "plan": "unheard of", "age": null}')"""
    )
    assert by_name in ("stays", "leaves")
