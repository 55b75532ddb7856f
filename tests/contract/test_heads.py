"""Heads on a frozen backbone, from SQL: on both engines, of pictures and of texts, of every target."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app
from ml_udf.errors import MlUdfError
from tests.engines import DuckDb, Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.task_models import eyes_model, words_model
from tests.training_data import draw_photos

JOB_S = 400.0  # training yields to everything else that the machine does
ROWS = 120
BUDGET = "budget => '4 trials'"
Photos = tuple[Path, list[tuple[str, str]]]  # their folder; path and label of each


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    folder = tmp_path_factory.mktemp("photos")
    return folder, draw_photos(folder, ROWS)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, photos: Photos) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("served")
    with inference_server(folder, media_roots=[photos[0]]) as running:
        running.deploy(eyes_model(folder / "made", "eyes"))
        running.deploy(words_model(folder / "made", ["red", "green", "big", "small", "tea"]))
        yield running


@pytest.fixture(params=["duckdb", "postgres"])
def sql(request: pytest.FixtureRequest, house: InferenceServer, photos: Photos) -> Iterator[Engine]:
    made = make_engine(request.param, house.url, request, [])
    made.query("DROP TABLE IF EXISTS seen")
    made.query("CREATE TABLE seen (p text, t text, label text, tags text[], grams double precision)")
    rows = []
    for number, (path, label) in enumerate(photos[1]):
        tags = [["red", "green"][label == "b"], *(["big"] if number % 3 == 0 else [])]
        text = " ".join(["tea", *tags, str(number)])
        rows.append(f"('{path}', '{text}', '{label}', ARRAY{tags}, {1.0 if label == 'a' else 3.5})")
    made.query(f"INSERT INTO seen VALUES {', '.join(rows)}")
    yield made
    made.close()


def trained(sql: Engine, dataset: str, query: str, target: str, key: str, task: str, job: str) -> int:
    sql.query(
        f"SELECT ml_udf.create_dataset('{dataset}', '{query}', target => '{target}', key => '{key}', "
        f"task => '{task}')"
    )
    ((number,),) = sql.query(f"SELECT ml_udf.train('{dataset}', {job})")
    deadline_s = time.monotonic() + JOB_S
    while True:
        ((state, reason),) = sql.query(f"SELECT state, reason FROM ml_udf.jobs WHERE id = {number}")
        if state != "running":
            assert state == "done", reason
            return int(number)
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def deployed(sql: Engine, function: str, job: int) -> dict[str, Any]:
    """What the deployment said of itself."""
    as_json = "to_json" if isinstance(sql, DuckDb) else "to_jsonb"
    ((told,),) = sql.query(f"SELECT {as_json}(ml_udf.deploy('{function}', job => {job}))::text")
    found: dict[str, Any] = json.loads(told)
    return found


def metric_of(sql: Engine, function: str, dataset: str, metric: str) -> float:
    ((value,),) = sql.query(
        f"SELECT value FROM ml_udf.evaluate('{function}', '{dataset}') WHERE metric = '{metric}'"
    )
    return float(value)


def test_photos_learn_classes_numbers_and_labels_on_one_backbone(
    sql: Engine, house: InferenceServer, tmp_path: Path
) -> None:
    called = f"heads_{sql.name}"
    job = trained(
        sql,
        f"{called}_c",
        "SELECT p, label FROM seen",
        "label",
        "p",
        "image-classification",
        f"backbone => 'eyes', {BUDGET}",
    )
    told = deployed(sql, f"{called}_class", job)
    assert told["test_accuracy"] == 1.0
    assert metric_of(sql, f"{called}_class", f"{called}_c", "accuracy") == 1.0
    ((right,),) = sql.query(f"SELECT count(*) FROM seen WHERE {called}_class(p) = label")
    assert right == ROWS
    job = trained(
        sql,
        f"{called}_n",
        "SELECT p, grams FROM seen",
        "grams",
        "p",
        "image-regression",
        f"backbone => 'eyes/1', models => {models(sql, 'ridge')}, {BUDGET}",
    )
    told = deployed(sql, f"{called}_grams", job)
    assert (told["metric"], told["test_accuracy"]) == ("rmse", None)
    assert told["test_score"] < 0.4 * told["baseline"]
    assert metric_of(sql, f"{called}_grams", f"{called}_n", "rmse") == pytest.approx(
        told["test_score"], rel=1e-4
    )
    ((off,),) = sql.query(f"SELECT max(abs({called}_grams(p) - grams)) FROM seen")
    assert off < 1.2
    job = trained(
        sql,
        f"{called}_l",
        "SELECT p, tags[1:1] AS tags FROM seen",
        "tags",
        "p",
        "image-multilabel",
        f"backbone => 'eyes', {BUDGET}",
    )
    told = deployed(sql, f"{called}_tags", job)
    assert (told["metric"], told["test_score"]) == ("micro_f1", 1.0)
    assert metric_of(sql, f"{called}_tags", f"{called}_l", "micro_f1") == 1.0
    ((right,),) = sql.query(f"SELECT count(*) FROM seen WHERE {called}_tags(p) = tags[1:1]")
    assert right == ROWS
    stored = json.loads((house.home / "models" / told["models"][0] / "model.json").read_text())
    assert stored["runtime"] == "head"
    assert (stored["backbone"]["name"], stored["backbone"]["version"]) == ("eyes", 1)
    _leaves_with_a_word_of_its_backbone(told["models"][0], house, tmp_path)
    with house.client() as client:
        client.post("/v2/repository/models/eyes/unload", {})
        ((right,),) = sql.query(f"SELECT count(*) FROM seen WHERE {called}_class(p) = label")
        client.post("/v2/repository/models/eyes/load", {})
    assert right == ROWS, "heads keep the backbone that is unloaded by its own name"


def _leaves_with_a_word_of_its_backbone(model: str, house: InferenceServer, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["export", model, str(tmp_path / "out"), f"--endpoint={house.url}"])
    assert told.exit_code == 0, told.output
    assert "it is a head on eyes/1: export and register that too" in told.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.json", "model.onnx"]
    with house.client() as client:
        with pytest.raises(MlUdfError, match="is a head on the model gone/1, which is not here"):
            client.post("/register", {"directory": str(_copy(tmp_path, "gone", {"name": "gone"}))})
        with pytest.raises(MlUdfError, match="was trained on another model than the eyes/1"):
            client.post("/register", {"directory": str(_copy(tmp_path, "other", {"sha256": "0" * 64}))})


def _copy(tmp_path: Path, name: str, backbone: dict[str, Any]) -> Path:
    """The exported head, with another backbone."""
    folder = tmp_path / name
    shutil.copytree(tmp_path / "out", folder)
    manifest = json.loads((folder / "model.json").read_text())
    manifest |= {"name": name, "version": 1, "backbone": manifest["backbone"] | backbone}
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


def test_texts_learn_labels_and_numbers_on_a_backbone(sql: Engine) -> None:
    called = f"text_heads_{sql.name}"
    job = trained(
        sql,
        f"{called}_l",
        "SELECT t, tags FROM seen",
        "tags",
        "t",
        "text-multilabel",
        f"backbone => 'words', {BUDGET}",
    )
    assert deployed(sql, f"{called}_tags", job)["test_score"] == 1.0
    ordered = "ARRAY(SELECT unnest(tags) ORDER BY 1)"  # as classes are
    ((right,),) = sql.query(f"SELECT count(*) FROM seen WHERE {called}_tags(t) = {ordered}")
    assert right == ROWS
    job = trained(
        sql,
        f"{called}_n",
        "SELECT t, grams FROM seen",
        "grams",
        "t",
        "text-regression",
        f"backbone => 'words', {BUDGET}",
    )
    assert deployed(sql, f"{called}_grams", job)["test_score"] < 0.2
    ((off,),) = sql.query(f"SELECT max(abs({called}_grams(t) - grams)) FROM seen")
    assert off < 0.5


def test_texts_learn_labels_and_numbers_without_a_backbone(sql: Engine) -> None:
    called = f"text_words_{sql.name}"
    query = "SELECT t, tags FROM seen"
    job = trained(sql, f"{called}_l", query, "tags", "t", "text-multilabel", "budget => '3 trials'")
    assert deployed(sql, f"{called}_tags", job)["test_score"] > 0.9
    ((kind,),) = sql.query(f"SELECT {typed(sql)}({called}_tags(t)) FROM seen LIMIT 1")
    assert kind in ("VARCHAR[]", "text[]")
    query = "SELECT t, grams FROM seen"
    job = trained(sql, f"{called}_n", query, "grams", "t", "text-regression", "budget => '3 trials'")
    told = deployed(sql, f"{called}_grams", job)
    assert told["test_score"] < 0.5 * told["baseline"]
    ((off,),) = sql.query(f"SELECT avg(abs({called}_grams(t) - grams)) FROM seen")
    assert off < 0.5


def typed(sql: Engine) -> str:
    return "typeof" if isinstance(sql, DuckDb) else "pg_typeof"


def models(sql: Engine, *names: str) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    return f"[{listed}]" if isinstance(sql, DuckDb) else f"ARRAY[{listed}]"


def test_what_cannot_be_learnt_on_a_backbone_says_why(sql: Engine) -> None:
    called = f"refused_{sql.name}"

    def refused(target: str, task: str, job: str, query: str = "") -> str:
        chosen = query or f"SELECT p, {target} FROM seen"
        with pytest.raises(SqlError) as caught:
            trained(sql, called, chosen, target, "p", task, job)
        return caught.value.text

    on_eyes = "backbone => 'eyes'"
    assert "say backbone => 'NAME'" in refused("grams", "image-regression", BUDGET)
    assert "there is no model 'ears' here" in refused("label", "image-classification", "backbone => 'ears'")
    assert "no model 'eyes' version 7" in refused("label", "image-classification", "backbone => 'eyes/7'")
    assert "words/1 takes text, and the rows are path" in refused(
        "label", "image-classification", "backbone => 'words'"
    )
    assert "'models' must name some of ridge" in refused(
        "grams", "image-regression", f"{on_eyes}, models => {models(sql, 'resnet')}"
    )
    assert "leave 'pretrained' out" in refused(
        "label", "image-classification", f"{on_eyes}, pretrained => true"
    )
    for target, said in (
        ("NULL::float8 AS grams", "is NULL in 120 rows"),
        ("2.0::float8 AS grams", "every row's 'grams' is 2"),
        ("label AS grams", "learns numbers, and the target 'grams'"),
    ):
        assert said in refused("grams", "image-regression", on_eyes, f"SELECT p, {target} FROM seen")
    for target, said in (
        ("tags[4:] AS tags", "there is nothing to learn"),
        ("label AS tags", "is no list of texts in some rows"),
        ("NULL::text[] AS tags", "is NULL in 120 rows"),
        ("ARRAY[label, NULL] AS tags", "is no list of texts in some rows"),
    ):
        assert said in refused("tags", "image-multilabel", on_eyes, f"SELECT p, {target} FROM seen")
