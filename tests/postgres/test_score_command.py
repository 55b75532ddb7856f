"""`ml-udf score --postgres`: scoring from outside, in a database that has no extension."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.score_postgres import score_postgres
from ml_udf.client import Client
from ml_udf.config import Options
from ml_udf.scoring import ScoreRequest
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer
from tests.postgres.scored import assert_each_row_was_scored_once, make_table
from tests.typed_server import typed_server, vector_of
from tests.waiting import wait_until

ROWS = 6000
KILLS = 8


@pytest.fixture
def plain(cluster: Sandbox) -> Iterator[Engine]:
    """A database without ml_udf, with the table."""
    cluster.sql("CREATE DATABASE plain")
    engine = Engine(cluster.dsn("plain"))
    make_table(engine, ROWS)
    yield engine
    engine.close()
    cluster.sql("DROP DATABASE plain WITH (FORCE)")


def start(engine: Engine, server: OipServer, *more: str) -> subprocess.Popen[str]:
    asked = ["score", "foodlog", "udf_food_name", "image_path", "--to", "food", "--postgres", engine.dsn]
    command = [sys.executable, "-m", "ml_udf.cli", *asked, "--endpoint", server.url, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_requests(server: OipServer, run: subprocess.Popen[str], requests: int = 1) -> None:
    wait_until(lambda: len(server.requests) >= requests or run.poll() is not None, 60)


def ended(run: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = run.communicate(timeout=120)
    return run.returncode, out, err


def test_it_scores_every_row_once_and_tells_how_many(plain: Engine, fake_server: OipServer) -> None:
    status, out, err = ended(start(plain, fake_server))
    assert status == 0, err
    assert "6,000 rows answered, 0 hold an error" in out
    assert "rows/s" in out
    assert_each_row_was_scored_once(plain, ROWS)
    assert "0 rows answered" in ended(start(plain, fake_server))[1]


def test_killed_again_and_again_it_loses_no_row_and_scores_none_twice(
    plain: Engine, fake_server: OipServer
) -> None:
    fake_server.delay_s = 0.3
    dice = random.Random(6)
    for _ in range(KILLS):
        fake_server.forget()
        run = start(plain, fake_server, "--batch-rows", "200")
        wait_for_requests(fake_server, run)
        time.sleep(dice.uniform(0.0, 0.8))
        run.kill()
        run.communicate()
    fake_server.delay_s = 0.0
    # The last one's backend may not have noticed yet.
    wait_until(lambda: not plain.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"), 30)
    status, _, err = ended(start(plain, fake_server))
    assert status == 0, err
    assert_each_row_was_scored_once(plain, ROWS)


def test_it_connects_again_when_its_backends_are_ended(plain: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 0.1
    run = start(plain, fake_server, "--batch-rows", "100")
    ended_backends = 0
    for round_ in range(4):
        wait_for_requests(fake_server, run, 4 * (round_ + 1))
        found = plain.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'ml-udf score%'"
        )
        ended_backends += len(found)
        fake_server.forget()
    status, out, err = ended(run)
    assert status == 0, err
    assert ended_backends >= 2
    assert "rows answered" in out  # all but those whose commit a lost connection did not acknowledge
    assert_each_row_was_scored_once(plain, ROWS)


def test_faults_and_refusals_are_told_without_a_traceback(plain: Engine, fake_server: OipServer) -> None:
    plain.query("UPDATE foodlog SET image_path = 'missing' WHERE id = 9")
    status, _, err = ended(start(plain, fake_server))
    assert (status, "input_not_found" in err, "(id) = (9)" in err) == (1, True, True)
    status, out, err = ended(start(plain, fake_server, "--on-error", "null"))
    assert status == 0, err
    assert "1 hold an error" in out
    status, _, err = ended(start(plain, fake_server, "--key", "age"))
    assert (status, "no_key" in err) == (1, True)
    status, _, err = ended(start(plain, fake_server, "--where", "nothing > 1"))
    assert (status, "nothing" in err, "Traceback" in err) == (1, True, False)


def test_answers_go_into_a_table_of_their_own(plain: Engine, fake_server: OipServer) -> None:
    asked = ["score", "foodlog", "udf_food_name", "image_path", "--into", "scores", "--limit", "700"]
    command = [sys.executable, "-m", "ml_udf.cli", *asked, "--postgres", plain.dsn, "-e", fake_server.url]
    for stored in (700, 1400):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert plain.value("SELECT count(*) FROM scores WHERE value IS NOT NULL") == stored


@pytest.mark.parametrize("kind", ["real[]", "double precision[]", "text"])
def test_vectors_go_into_their_columns_and_faulty_rows_hold_their_error(plain: Engine, kind: str) -> None:
    plain.query(
        f"""CREATE TABLE texts (id int PRIMARY KEY, t text, v {kind}, v_error text);
            INSERT INTO texts SELECT n, CASE WHEN n % 7 = 3 THEN 'missing' || n ELSE repeat('a', n) END
            FROM generate_series(1, 30) n"""
    )
    request = ScoreRequest("texts", "udf_vector", "t", output="v", on_error="null", batch_rows=8)
    with typed_server() as typed, contextlib.closing(Client(typed.url)) as client:
        so_far = score_postgres(plain.dsn, client, request, Options(), lambda _: None)
    assert (so_far.answered, so_far.failed, so_far.missed) == (26, 4, 0)
    numbers = "translate(v, '[]', '{}')::real[]" if kind == "text" else "v"
    for row, text, vector, error in plain.query(f"SELECT id, t, {numbers}, v_error FROM texts"):
        if row % 7 == 3:
            assert (vector, error.partition(":")[0]) == (None, "input_not_found")
        else:
            assert (vector, error) == (pytest.approx(vector_of(text)), None)
