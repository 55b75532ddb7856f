"""Object detection, the whole circle in SQL on both engines: boxes → dataset → train → deploy → SELECT."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pytest
from PIL import Image

import ml_udf.duckdb
from ml_udf.cli.pg_sandbox import Sandbox
from tests.inference_server import InferenceServer, inference_server
from tests.waiting import wait_for_job

JOB_S = 400.0  # a training process begins last on a machine that others use too
SIDE = 96
Value = Callable[..., Any]
Row = tuple[str, str]  # path, boxes as JSON


def draw(folder: Path, count: int = 90) -> list[Row]:
    """Grey pictures with up to two squares, dark ones and light ones."""
    random = np.random.default_rng(7)
    rows = []
    for number in range(count):
        pixels, boxes = np.full((SIDE, SIDE, 3), 128, np.uint8), []
        for at in range(number % 3):
            side, label = int(random.integers(20, 38)), int(random.integers(2))
            x, y = at * 48 + int(random.integers(0, 48 - side)), int(random.integers(0, SIDE - side))
            pixels[y : y + side, x : x + side] = 255 * label
            boxes.append({"label": ("dark", "light")[label], "box": [x, y, x + side, y + side]})
        pixels[0, 0] = number, number // 2, 0  # no two pictures are the same
        path = folder / f"{number}.png"
        Image.fromarray(pixels).save(path)
        rows.append((str(path), json.dumps(boxes)))
    return rows


@pytest.fixture(scope="module")
def drawn(open_folder: Path) -> list[Row]:
    folder = open_folder / "squares"
    folder.mkdir()
    return draw(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_folder: Path) -> Iterator[InferenceServer]:
    with inference_server(tmp_path_factory.mktemp("home"), media_roots=[open_folder]) as running:
        yield running


@pytest.fixture(scope="module")
def in_duckdb(server: InferenceServer, drawn: list[Row]) -> Iterator[Value]:
    con = duckdb.connect()
    con.execute("CREATE TABLE text_boxes (path VARCHAR, boxes VARCHAR)")
    con.executemany("INSERT INTO text_boxes VALUES (?, ?)", drawn)
    con.execute(
        "CREATE TABLE squares AS SELECT path, nullif(boxes, '[]')::JSON"
        "::STRUCT(label VARCHAR, box DOUBLE[])[] AS boxes FROM text_boxes"
    )
    registration = ml_udf.duckdb.register(con, server.url)

    def value(sql: str) -> Any:
        ((found,),) = con.execute(sql).fetchall()
        return found

    yield value
    registration.close()
    con.close()


@pytest.fixture(scope="module")
def in_postgresql(cluster: Sandbox, server: InferenceServer, drawn: list[Row]) -> Iterator[Value]:
    with psycopg.connect(cluster.database("detection", url=server.url), autocommit=True) as connection:
        connection.execute("CREATE TABLE squares (path text, boxes jsonb)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO squares VALUES (%s, %s)", drawn)

        def value(sql: str) -> Any:
            row = connection.execute(sql).fetchone()
            assert row is not None
            return row[0]

        yield value


def create(value: Value, name: str, query: str = "SELECT path, boxes FROM squares") -> Any:
    return value(
        f"SELECT ml_udf.create_dataset('{name}', $${query}$$, target => 'boxes', key => 'path',"
        " task => 'object-detection', validation => 0.2, test => 0.2)"
    )


def train(value: Value, name: str) -> int:
    job = "max_epochs => 12, size => 64, policy => 'study', budget => '12 epochs'"
    return int(value(f"SELECT ml_udf.train('{name}', {job})"))


def check_answers(value: Value, function: str, path: str, told: dict[str, Any]) -> None:
    assert told["metric"] == "map_50"
    assert told["test_accuracy"] is None
    assert 0.5 < told["test_score"] <= 1
    assert told["baseline"] == 0.0
    found = value(f"SELECT to_json({function}('{path}'))")
    boxes = json.loads(found) if isinstance(found, str) else found
    assert boxes
    for box in boxes:
        assert box["label"] in ("dark", "light")
        x0, y0, x1, y1 = box["box"]
        assert 0 <= x0 < x1 <= SIDE
        assert 0 <= y0 < y1 <= SIDE


def test_duckdb_learns_boxes_from_structs_though_a_worker_dies(
    in_duckdb: Value, server: InferenceServer, drawn: list[Row]
) -> None:
    create(in_duckdb, "squares")
    job = train(in_duckdb, "squares")
    end_s = time.monotonic() + JOB_S
    while not in_duckdb(f"SELECT epochs_used FROM ml_udf.jobs WHERE id = {job}"):
        assert time.monotonic() < end_s, "no epoch ended"
        time.sleep(0.1)
    server.kill_workers()
    wait_for_job(in_duckdb, job, JOB_S)
    told = json.loads(in_duckdb(f"SELECT to_json(ml_udf.deploy('udf_squares', job => {job}))"))
    two = next(path for path, boxes in drawn if boxes.count("label") == 2)
    check_answers(in_duckdb, "udf_squares", two, told)
    evaluated = "FROM ml_udf.evaluate('udf_squares', 'squares') WHERE metric = 'map_50'"
    # Boxes below the thresholds that the validation rows gave are not answered.
    assert told["test_score"] - 0.25 < in_duckdb(f"SELECT value {evaluated}") <= told["test_score"] + 1e-6


def test_postgresql_learns_boxes_from_jsonb(in_postgresql: Value, drawn: list[Row]) -> None:
    create(in_postgresql, "squares_pg")
    job = train(in_postgresql, "squares_pg")
    wait_for_job(in_postgresql, job, JOB_S)
    told = in_postgresql(f"SELECT to_json(ml_udf.deploy('udf_squares_pg', job => {job}))")
    two = next(path for path, boxes in drawn if boxes.count("label") == 2)
    check_answers(in_postgresql, "udf_squares_pg", two, told)


def test_boxes_that_cannot_be_are_refused_before_anything_is_learnt(
    in_duckdb: Value, in_postgresql: Value
) -> None:
    outside = 'SELECT path, \'[{"label": "dark", "box": [0, 0, 500, 20]}]\' AS boxes FROM squares'
    for value in (in_duckdb, in_postgresql):
        with pytest.raises((duckdb.Error, psycopg.Error), match="which is 96 × 96 pixels"):
            create(value, "outside", outside)
        with pytest.raises((duckdb.Error, psycopg.Error), match="has no list of boxes such as"):
            create(value, "labels", "SELECT path, 'dark' AS boxes FROM squares")
        with pytest.raises((duckdb.Error, psycopg.Error), match="no row has a box"):
            create(value, "empty", "SELECT path, NULL AS boxes FROM squares")
