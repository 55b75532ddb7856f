"""What the user of either engine sees when a worker or the whole server dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[InferenceServer]:
    """A server of the test's own, whose `udf_slow` takes 2 ms a row."""
    with inference_server(tmp_path / "home") as running:
        running.deploy(hashing_model(tmp_path / "made", "text_hash"), "udf_text")
        running.deploy(hashing_model(tmp_path / "made", "slow_hash", row_delay_ms=2), "udf_slow")
        running.deploy(hashing_model(tmp_path / "made", "photo_hash", form="path"), "udf_photo")
        yield running


@pytest.fixture
def session(engine_name: str, mortal: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, mortal.url, request)
    yield made
    made.close()


def test_a_killed_worker_costs_time_and_no_answer(session: Engine, mortal: InferenceServer):
    killed: list[int] = []
    killer = threading.Timer(0.7, lambda: killed.extend(mortal.kill_workers()))
    killer.start()
    rows = session.query("SELECT i, udf_slow(CAST(i AS text)) FROM generate_series(1, 800) AS s(i)")
    killer.join()
    assert killed, "the worker was to die in the middle"
    assert sorted(rows) == [(i, label_of(str(i))) for i in range(1, 801)]


def test_a_stopped_server_is_a_clear_connection_error_soon(session: Engine, mortal: InferenceServer):
    assert session.query("SELECT udf_text('a')") == [(label_of("a"),)]
    mortal.stop()
    began_s = time.monotonic()
    with pytest.raises(SqlError) as caught:
        session.query("SELECT udf_text('b')")
    assert time.monotonic() - began_s < 10
    assert caught.value.sqlstate.startswith("08")
    assert f"127.0.0.1:{mortal.port}" in caught.value.text


def test_with_on_error_null_a_stopped_server_gives_nulls_and_one_warning(
    session: Engine, mortal: InferenceServer
):
    session.set("on_error", "null")
    mortal.stop()
    rows = session.query("SELECT udf_text(CAST(i AS text)) FROM generate_series(1, 50) AS s(i)")
    assert rows == [(None,)] * 50
    (warning,) = session.warned()
    assert "50 inputs could not be answered" in warning
    assert "unreachable" in warning


def test_a_server_that_comes_back_answers_the_same_session(session: Engine, mortal: InferenceServer):
    assert session.query("SELECT udf_text('a')") == [(label_of("a"),)]
    mortal.stop()
    mortal.start()
    assert session.query("SELECT udf_text('b')") == [(label_of("b"),)]
