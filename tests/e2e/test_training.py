"""The whole circle in SQL, on both engines: dataset → train → watch → deploy → SELECT → rollback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import ml_udf.duckdb
from ml_udf.duckdb import Registration
from tests.inference_server import InferenceServer, inference_server
from tests.training_data import draw_photos

JOB_S = 90.0


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="module")
def labelled(photos: Path) -> list[tuple[str, str]]:
    return draw_photos(photos)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, photos: Path, labelled: list[tuple[str, str]]
) -> Iterator[InferenceServer]:
    with inference_server(tmp_path_factory.mktemp("home"), media_roots=[photos]) as running:
        yield running


@pytest.fixture
def con(
    server: InferenceServer, labelled: list[tuple[str, str]]
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Registration]]:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE labelled (image_path VARCHAR, label VARCHAR)")
    connection.executemany("INSERT INTO labelled VALUES (?, ?)", labelled)
    registration = ml_udf.duckdb.register(connection, server.url)
    yield connection, registration
    registration.close()
    connection.close()


def wait_for(con: duckdb.DuckDBPyConnection, job: int) -> str:
    deadline_s = time.monotonic() + JOB_S
    while time.monotonic() < deadline_s:
        ((state,),) = con.execute("SELECT state FROM ml_udf.jobs WHERE id = ?", [job]).fetchall()
        if state != "running":
            return str(state)
        time.sleep(0.2)
    raise AssertionError(f"job {job} did not end")


def test_duckdb_trains_and_deploys_a_function_by_sql_alone(
    con: tuple[duckdb.DuckDBPyConnection, Registration], labelled: list[tuple[str, str]]
):
    db, _ = con
    ((snapshot,),) = db.execute(
        "SELECT ml_udf.create_dataset('food', $$SELECT image_path, label FROM labelled$$,"
        " target => 'label', key => 'image_path')"
    ).fetchall()
    assert db.execute("SELECT snapshot, rows, classes FROM ml_udf.datasets").fetchall() == [
        (snapshot, 60, ["a", "b"])
    ]
    ((job,),) = db.execute(
        "SELECT ml_udf.train('food', task => 'image-classification', models => ['resnet', 'squeezenet'],"
        " budget => '10 epochs', max_epochs => 3, size => 32)"
    ).fetchall()
    assert wait_for(db, job) == "done"
    ((used, models),) = db.execute(
        "SELECT sum(epochs), count(DISTINCT model) FROM ml_udf.trials WHERE job_id = ?", [job]
    ).fetchall()
    assert (used, models) == (10, 2)
    ((deployed,),) = db.execute(f"SELECT ml_udf.deploy('udf_food', job => {job})").fetchall()
    assert deployed["version"] == 1
    assert deployed["test_low"] <= deployed["test_accuracy"] <= deployed["test_high"]
    ((right,),) = db.execute("SELECT count(*) FROM labelled WHERE udf_food(image_path) = label").fetchall()
    assert right >= 0.8 * len(labelled)
    db.execute(f"SELECT ml_udf.deploy('udf_food', job => {job}, choose => 'best')").fetchall()
    ((version,),) = db.execute("SELECT ml_udf.rollback('udf_food')").fetchall()
    assert version == 3
    ((models,),) = db.execute("SELECT models FROM ml_udf.functions WHERE name = 'udf_food'").fetchall()
    assert [f"{name}/1" for name in models] == deployed["models"]
