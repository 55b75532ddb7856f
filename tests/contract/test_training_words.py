"""What a job may be told, and what is refused with which words: the same on both engines and in the SDK."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from ml_udf import sdk
from ml_udf.client import Client
from ml_udf.training import TrainingCalls
from tests.engines import DuckDb, Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.waiting import wait_until

SPACE: list[dict[str, Any]] = [
    {"name": "max_depth", "dtype": "integer", "min": 2, "max": 7, "default": 3},
    {
        "name": "min_samples_leaf",
        "dtype": "integer",
        "min": 1,
        "max": 40,
        "depends": ["max_depth"],
        "post_hook": {"hook": "multiple_of", "step": 2},
    },
    {
        "name": "subsample",
        "dtype": "float",
        "min": 0.5,
        "max": 1.0,
        "pre_hook": {"hook": "only_when", "knob": "max_depth", "values": [2, 3, 4]},
    },
]
ROWS = 120
DATASET = "target => 'churned', key => 'id', task => 'tabular-classification'"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a class, of tiny pictures that differ."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(24):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (10 * number, 90, 200)).save(folder / "ab"[number % 2] / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Iterator[InferenceServer]:
    with inference_server(
        tmp_path_factory.mktemp("home"), media_roots=[pictures], flags=["--allow-import"]
    ) as running:
        yield running


@pytest.fixture(scope="module", params=["duckdb", "postgres"])
def engine(request: pytest.FixtureRequest, server: InferenceServer) -> Iterator[Engine]:
    made = make_engine(request.param, server.url, request, ())
    made.query("DROP TABLE IF EXISTS people")
    made.query("CREATE TABLE people (id int, age int, plan text, since text, churned text, paid int)")
    rows = ", ".join(
        f"({n}, {18 + n % 60}, 'p{n % 3}', 'no date {n}', '{('yes', 'no')[n % 60 < 20]}', {7 * n})"
        for n in range(ROWS)
    )
    made.query(f"INSERT INTO people VALUES {rows}")
    made.query(
        f"SELECT ml_udf.create_dataset('people', 'SELECT id, age, plan, churned FROM people', {DATASET})"
    )
    yield made
    made.close()


def refused(engine: Engine, statement: str) -> str:
    with pytest.raises(SqlError) as caught:
        engine.query(statement)
    assert caught.value.sqlstate == "22023", caught.value.text
    assert "Traceback" not in caught.value.text
    return caught.value.text


def listed(engine: Engine, *names: str) -> str:
    return f"{list(names)}" if engine.name == "duckdb" else "'{" + ",".join(names) + "}'"


def spec_of(server: InferenceServer, job: int) -> dict[str, Any]:
    """A job's spec, as the registry has it; the job is over."""
    client = Client(server.url)
    TrainingCalls(client).cancel(job)
    client.close()
    with sqlite3.connect(f"file:{server.home / 'registry.db'}?mode=ro", uri=True) as registry:
        ((text,),) = registry.execute("SELECT spec FROM jobs WHERE id = ?", [job]).fetchall()
    found: dict[str, Any] = json.loads(text)
    return found


TOLD: dict[str, Any] = {
    "policy": "study",
    "advisor": "tpe",
    "max_epochs": 4,
    "max_trials": 3,
    "patience": 2,
    "delta": 0.01,
    "seed": 5,
    "metric": "macro_f1",
    "class_weight": "balanced",
    "refit": False,
}


def test_days_and_moments_without_end_are_taken_with_their_rows_and_served_as_they_were_learnt(
    engine: Engine,
) -> None:
    def until(kind: str, last: str = "9999-12-31") -> str:
        odd = f"WHEN 1 THEN {kind} 'infinity' WHEN 2 THEN {kind} '-infinity' WHEN 3 THEN NULL"
        return f"CASE id % 6 {odd} WHEN 4 THEN {kind} '{last}' ELSE {kind} '2026-01-31' END"

    moment = until("TIMESTAMPTZ", "9999-12-31 23:59:59+00")
    columns = f"{until('DATE')} AS day, {until('TIMESTAMP')} AS hour, {moment} AS moment"
    open_ended = "CASE WHEN id % 6 = 4 THEN 'yes' ELSE 'no' END AS churned"
    rows = f"SELECT id, age, {open_ended}, {columns} FROM people"
    query = rows.replace("'", "''")
    engine.query(f"SELECT ml_udf.create_dataset('unending', '{query}', {DATASET})")
    assert engine.query("SELECT rows FROM ml_udf.datasets WHERE name = 'unending'") == [(ROWS,)]
    ((job,),) = engine.query(
        "SELECT ml_udf.train('unending', models => 'gradient_boosting', budget => '1 trials', refit => false)"
    )

    def state() -> str:
        ((found,),) = engine.query(f"SELECT state FROM ml_udf.jobs WHERE id = {job}")
        return str(found)

    wait_until(lambda: state() not in ("queued", "running", "waiting"), 240)
    assert state() == "done"
    engine.query(f"SELECT ml_udf.deploy('udf_unending', job => {job})")
    asked = f"SELECT count(*) FROM ({rows}) AS t WHERE udf_unending(age, day, hour, moment) = churned"
    for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
        engine.query(f"SET TimeZone = '{zone}'")
        assert engine.query(asked) == [(ROWS,)], zone
        evaluated = f"ml_udf.evaluate('udf_unending', '{query}', target => 'churned')"
        assert engine.query(f"SELECT value FROM {evaluated} WHERE metric = 'accuracy'") == [(1.0,)], zone
        if isinstance(engine, DuckDb):
            with engine.connection.cursor() as other:
                other.execute(f"SET TimeZone = '{zone}'")
                assert other.execute(asked).fetchall() == [(ROWS,)], "without the macro"
    engine.query("RESET TimeZone")


def test_a_column_of_single_precision_is_learnt_from_as_functions_are_given_it(
    engine: Engine, server: InferenceServer
) -> None:
    query = "SELECT id, (1000 + id / 500.0)::float4 AS metres, churned FROM people"
    ((snapshot,),) = engine.query(f"SELECT ml_udf.create_dataset('singles', '{query}', {DATASET})")
    file = server.home / f"training/datasets/singles/{snapshot}.parquet"
    found = {row["key"]: row["input"] for row in pq.read_table(file).to_pylist()}
    assert json.loads(found["1"]) == [1000.0020141601562], "and not 1000.002, its shortest text"


def test_all_that_a_job_may_be_told_reaches_it_from_sql(engine: Engine, server: InferenceServer) -> None:
    told = ", ".join(
        f"{name} => {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in TOLD.items()
    )
    models = listed(engine, "gradient_boosting")
    ((job,),) = engine.query(
        f"SELECT ml_udf.train('people', models => {models}, budget => '90 seconds', {told},"
        f" knobs => '{json.dumps(SPACE)}')"
    )
    spec = spec_of(server, job)
    assert {name: spec[name] for name in TOLD} == TOLD
    assert (spec["models"], spec["budget_s"]) == (["gradient_boosting"], 90.0)
    assert [knob["name"] for knob in spec["knobs"]] == ["max_depth", "min_samples_leaf", "subsample"]
    assert spec["knobs"] == SPACE, "its hooks with it"


def test_all_that_a_job_may_be_told_reaches_it_from_the_sdk(server: InferenceServer, pictures: Path) -> None:
    told = TOLD | {"policy": "asha"}
    hyper = sdk.HyperConf(budget="2 trials", models="small_cnn", knobs=tuple(SPACE), **told)
    job = sdk.Train("pictures", sdk.import_images(pictures), hyper=hyper, endpoint=server.url).run()
    spec = spec_of(server, job.id)
    assert {name: spec[name] for name in told} == told
    assert (spec["models"], spec["budget_trials"], spec["knobs"]) == (["small_cnn"], 2, SPACE)


OWN = "gpu_worker.zoo.small_cnn:SmallCnn"  # any callable of the number of classes, and of options


def test_an_architecture_of_ones_own_is_trained_and_served_by_its_import_path(
    engine: Engine, pictures: Path
) -> None:
    name = f"pictures_{engine.name}"
    rows = ", ".join(f"('{path}', '{path.parent.name}')" for path in sorted(pictures.glob("*/*.png")))
    engine.query(
        f"SELECT ml_udf.create_dataset('{name}', $$SELECT * FROM (VALUES {rows}) AS t(path, label)$$,"
        " target => 'label', key => 'path')"
    )
    space = [{"name": "width", "dtype": "integer", "list": [8], "group": "architecture"}]
    ((job,),) = engine.query(
        f"SELECT ml_udf.train('{name}', models => {listed(engine, OWN)}, budget => '1 trials',"
        f" max_epochs => 1, size => 16, knobs => '{json.dumps(space)}')"
    )
    until_s = time.monotonic() + 400  # a training process begins last on a machine that others use too
    while (told := engine.query(f"SELECT state, reason FROM ml_udf.jobs WHERE id = {job}"))[0][
        0
    ] == "running":
        assert time.monotonic() < until_s, "the job did not end"
        time.sleep(0.2)
    assert told[0][0] == "done", told
    engine.query(f"SELECT ml_udf.deploy('udf_{name}', job => {job})")
    ((label,),) = engine.query(f"SELECT ml_udf.predict('udf_{name}', '{next(pictures.glob('a/*.png'))}')")
    assert label in ("a", "b")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("budget => '1000'", ["'10 minutes', '200 epochs' or '30 trials', not '1000'"]),
        ("budget => '10 bananas'", ["must be a number with its unit", "'10 bananas'"]),
        ("budget => '-5 minutes'", ["must be a number with its unit"]),
        ("budget => '0 trials'", ["must be a number with its unit"]),
        ("metric => 'rmse'", ["'metric' must be one of accuracy, macro_f1, auc, log_loss", "not 'rmse'"]),
        ("metric => 'f1'", ["'metric' must be one of accuracy, macro_f1", "not 'f1'"]),
        ("policy => 'branch'", ["'policy' of tabular-classification must be study", "share no weights"]),
        ("policy => 'best'", ["'policy' must be one of study, costudy, asha, branch, not 'best'"]),
        ("advisor => 'oracle'", ["'advisor' must be one of random, grid, gp, tpe, not 'oracle'"]),
        ("patience => 0", ["'patience' must be a whole number from 1 to 10000, not 0"]),
        ("delta => -1", ["delta"]),
        ("max_trials => 0", ["'max_trials' must be a whole number from 1", "not 0"]),
        ("class_weight => 'heavy'", ["'class_weight' must be one of none, balanced, not 'heavy'"]),
        ("knobs => 'no json'", ["'knobs' is not JSON"]),
        ('knobs => \'[{"name": "x", "dtype": "float", "min": 2, "max": 1}]\'', ["x"]),
        (
            'knobs => \'[{"name": "x", "dtype": "integer", "list": [1], "post_hook": {"hook": "eval"}}]\'',
            ["eval"],
        ),
        ("task => 'image-classification'", ["dataset people is for tabular-classification"]),
    ],
)
def test_what_a_job_cannot_be_told_is_refused_by_name(engine: Engine, asked: str, words: list[str]) -> None:
    if engine.name == "postgres" and "no json" in asked:
        pytest.skip("jsonb is read by PostgreSQL itself")
    text = refused(engine, f"SELECT ml_udf.train('people', {asked})")
    assert all(word in text for word in words), text


def test_models_are_named_in_a_list_of_those_there_are(engine: Engine) -> None:
    there = "logistic_regression, hist_gradient_boosting, random_forest, gradient_boosting, "
    there += "lightgbm, xgboost"
    text = refused(engine, f"SELECT ml_udf.train('people', models => {listed(engine, 'catboost')})")
    assert there in text
    assert "catboost" in text


def test_models_are_named_in_a_text_or_in_an_array(engine: Engine, server: InferenceServer) -> None:
    for models in ("'catboost'", "'lightgbm, catboost'", "'{lightgbm,catboost}'", "ARRAY['catboost']"):
        text = refused(engine, f"SELECT ml_udf.train('people', models => {models})")
        assert "catboost" in text
        assert "hist_gradient_boosting" in text, "those that there are"
    assert "has an empty name in it" in refused(engine, "SELECT ml_udf.train('people', models => 'a,,b')")
    two = "models => 'logistic_regression, gradient_boosting'"
    ((job,),) = engine.query(f"SELECT ml_udf.train('people', {two}, budget => '90 seconds')")
    assert spec_of(server, job)["models"] == ["logistic_regression", "gradient_boosting"]


@pytest.mark.parametrize(
    ("columns", "task", "words"),
    [
        (
            "'same' AS target",
            "classification",
            ["every row's 'target' is 'same'; at least two classes are needed"],
        ),
        ("3 AS target", "regression", ["every row's 'target' is 3; there is nothing to learn"]),
        ("plan AS target", "regression", ["select a number"]),
        ("paid AS target", "classification", ["looks like regression", "tabular-regression"]),
        ("NULL AS target", "classification", ["target"]),
    ],
)
def test_a_target_that_teaches_nothing_is_refused_with_the_reason(
    engine: Engine, columns: str, task: str, words: list[str]
) -> None:
    text = refused(
        engine,
        f"SELECT ml_udf.create_dataset('odd', $$SELECT id, age, {columns} FROM people$$,"
        f" target => 'target', key => 'id', task => 'tabular-{task}')",
    )
    assert all(word in text for word in words), text


def test_a_date_column_of_rubbish_is_refused_where_it_is_read_as_dates(engine: Engine) -> None:
    with pytest.raises(SqlError) as caught:
        engine.query(
            "SELECT ml_udf.create_dataset('odd', $$SELECT id, since::date AS since, churned FROM people$$,"
            f" {DATASET})"
        )
    assert "no date" in caught.value.text
    text = refused(
        engine,
        "SELECT ml_udf.create_dataset('odd', $$SELECT id, age, since, churned FROM people$$,"
        f" {DATASET}, \"time\" => 'since')",
    )
    assert "'since'" in text
