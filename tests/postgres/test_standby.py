"""What a hot standby answers: what reads works there, what writes says that it is a standby."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of
from tests.postgres.scored import CALL, make_table, refused
from tests.postgres.standby import caught_up, standby_of
from tests.postgres.watched import WATCH, wait_until_fresh, worker
from tests.waiting import wait_until

STATES = "SELECT state, lag_rows, lag_s, retry_rows, answered FROM ml_udf.watches"


@pytest.fixture(scope="module")
def standby_cluster(cluster: Sandbox) -> Iterator[Sandbox]:
    with standby_of(cluster) as standby:
        yield standby


@pytest.fixture
def standby(engine: Engine, standby_cluster: Sandbox) -> Iterator[Engine]:
    """The database of `engine`, on the standby."""
    wait_until(lambda: standby_cluster.sql(f"SELECT 1 FROM pg_database WHERE datname = '{name_of(engine)}'"))
    made = Engine(standby_cluster.dsn(name_of(engine)))
    caught_up(engine, made)
    yield made
    made.close()


def name_of(engine: Engine) -> str:
    return engine.connection.info.dbname


def test_functions_and_their_views_answer_there(
    engine: Engine, standby: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 3)
    caught_up(engine, standby)
    answers = [(label_of(f"/{n}"),) for n in range(1, 4)]
    assert standby.query("SELECT udf_food_name(image_path) FROM foodlog ORDER BY id") == answers
    assert (
        standby.query("SELECT ml_udf.predict('udf_food_name', image_path) FROM foodlog ORDER BY id")
        == answers
    )
    assert standby.value("SELECT value FROM ml_udf.try_predict('udf_food_name', '/1')") == label_of("/1")
    listed = "SELECT name, sql_function::text FROM ml_udf.functions ORDER BY 1"
    assert standby.query(listed) == engine.query(listed)


def test_watches_are_listed_there_with_what_is_logged(
    engine: Engine, standby: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 20)
    engine.query(WATCH + ")")
    caught_up(engine, standby)
    assert standby.query(STATES) == [("no worker", None, None, 0, 0)]
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        wait_until(lambda: engine.query(STATES)[0][-1] == 20)
        assert engine.query(STATES) == [("fresh", 0, 0.0, 0, 20)]
        caught_up(engine, standby)
        assert standby.query(STATES) == [("unknown on a standby", None, None, 0, 20)]
    engine.query("SELECT ml_udf.pause_watch(id) FROM ml_udf.watches")
    caught_up(engine, standby)
    assert standby.query(STATES) == [("paused", None, None, 0, 20)]


@pytest.mark.security
def test_watches_are_their_owners_alone_there_too(engine: Engine, standby: Engine) -> None:
    make_table(engine, 1)
    engine.query(WATCH + ")")
    engine.query("CREATE ROLE onlooker; GRANT ml_udf_reader TO onlooker")
    try:
        caught_up(engine, standby)
        assert len(standby.query(STATES)) == 1
        standby.query("SET ROLE onlooker")
        assert standby.query(STATES) == []
    finally:
        engine.query("DROP ROLE onlooker")


@pytest.mark.parametrize(
    "statement",
    [
        CALL + ")",
        WATCH + ")",
        "SELECT ml_udf.deploy('udf_food_name', job => 1)",
        "SELECT ml_udf.create_function('food', wants => '{}')",
        """SELECT ml_udf.create_pipeline('both', '["food", "udf_food_name"]')""",
    ],
)
def test_what_writes_is_refused_there_before_the_server_is_asked(
    engine: Engine, standby: Engine, fake_server: OipServer, statement: str
) -> None:
    make_table(engine, 3)
    caught_up(engine, standby)
    fake_server.forget()
    sqlstate, message = refused(standby, statement)
    assert sqlstate == "25006"
    assert "primary" in message
    assert fake_server.paths == []


@pytest.mark.parametrize("asked", [["foodlog", "udf_food_name", "image_path", "--to", "food"], ["--watch"]])
def test_commands_that_store_answers_say_that_it_is_a_standby(
    standby: Engine, fake_server: OipServer, asked: list[str]
) -> None:
    where = ["--postgres", standby.dsn, "--endpoint", fake_server.url]
    command = [sys.executable, "-m", "ml_udf.cli", "score", *asked, *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "this database is a standby" in done.stderr
    assert "target_session_attrs" in done.stderr
