"""What the user of either engine sees when a worker or the whole server dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ml_udf.client import Client
from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model, image_model, label_of

ENGINES = ("duckdb", "postgres", "postgres-by-row")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server of this file's own, whose `udf_slow` takes 2 ms a row."""
    folder = tmp_path_factory.mktemp("mortal")
    with inference_server(folder / "home", flags=[ANEW]) as running:
        running.deploy(hashing_model(folder, "text_hash"), "udf_text")
        running.deploy(hashing_model(folder, "slow_hash", row_delay_ms=2), "udf_slow")
        running.deploy(image_model(folder, "photo_net"), "udf_photo")
        client = Client(running.url)
        client.put("/v1/functions/udf_features", {"models": ["photo_net"], "task": "image-embedding"})
        client.close()
        yield running


@pytest.fixture
def mortal(house: InferenceServer) -> InferenceServer:
    """The server, up again if the test before has stopped it."""
    if not house.is_started:
        house.start()
    return house


@pytest.fixture
def session(engine_name: str, mortal: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, mortal.url, request)
    yield made
    made.close()


@pytest.fixture
def sessions(mortal: InferenceServer, request: pytest.FixtureRequest) -> Iterator[list[Engine]]:
    """A session of every engine, so that a server stops once for them all."""
    made = [make_engine(name, mortal.url, request) for name in ENGINES]
    yield made
    for one in made:
        one.close()


def test_a_killed_worker_costs_time_and_no_answer(session: Engine, mortal: InferenceServer):
    killed: list[int] = []
    killer = threading.Timer(0.7, lambda: killed.extend(mortal.kill_workers()))
    killer.start()
    rows = session.query("SELECT i, udf_slow(CAST(i AS text)) FROM generate_series(1, 800) AS s(i)")
    killer.join()
    assert killed, "the worker was to die in the middle"
    assert sorted(rows) == [(i, label_of(str(i))) for i in range(1, 801)]


def test_a_server_that_comes_back_answers_the_same_session(sessions: list[Engine], mortal: InferenceServer):
    for session in sessions:
        assert session.query("SELECT udf_text('a')") == [(label_of("a"),)], session.name
    mortal.stop()
    mortal.start()
    for session in sessions:
        assert session.query("SELECT udf_text('b')") == [(label_of("b"),)], session.name


def test_a_stopped_server_is_a_clear_connection_error_soon(sessions: list[Engine], mortal: InferenceServer):
    for session in sessions:
        assert session.query("SELECT udf_text('a')") == [(label_of("a"),)], session.name
    mortal.stop()
    for session in sessions:
        began_s = time.monotonic()
        with pytest.raises(SqlError) as caught:
            session.query("SELECT udf_text('b')")
        assert time.monotonic() - began_s < 10, session.name
        assert caught.value.sqlstate.startswith("08"), session.name
        assert f"127.0.0.1:{mortal.port}" in caught.value.text, session.name


def test_with_on_error_null_a_stopped_server_gives_nulls_and_one_warning(
    sessions: list[Engine], mortal: InferenceServer
):
    mortal.stop()
    for session in sessions:
        session.set("on_error", "null")
        rows = session.query("SELECT udf_text(CAST(i AS text)) FROM generate_series(1, 50) AS s(i)")
        assert rows == [(None,)] * 50, session.name
        (warning,) = session.warned()
        assert "50 inputs could not be answered" in warning, session.name
        assert "unreachable" in warning, session.name
