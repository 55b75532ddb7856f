"""A registry whose connection is cut at any of a verb's statements: the verb is done, and once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from server.errors import Overloaded
from server.store.database import migrate, open_database
from server.store.training import TrainingRepository

FACTS = {"id": "one", "rows": 10}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    try:
        postgres = PostgresServer.find()
    except SetupError as error:
        pytest.skip(error.message)
    with sandbox(postgres) as running:
        engine = open_database(running.dsn())
        migrate(engine)
        engine.dispose()
        yield running


@pytest.fixture
def engine(cluster: Sandbox) -> Iterator[Engine]:
    engine = open_database(cluster.dsn())
    yield engine
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE jobs, snapshots, datasets CASCADE"))
    engine.dispose()


@contextmanager
def cut_at(engine: Engine, nth: int) -> Iterator[list[int]]:
    """The backend of the n-th statement or commit is ended before it runs; what is yielded counts them."""
    other = open_database(engine.url.render_as_string(hide_password=False))
    seen = [0]

    def look(connection: Any) -> None:
        seen[0] += 1
        if seen[0] - 1 == nth:
            pid = connection.connection.driver_connection.info.backend_pid
            with other.begin() as admin:
                admin.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    def before(connection: Any, *_: Any) -> None:
        look(connection)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "commit", look)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", before)
        event.remove(engine, "commit", look)
        other.dispose()


def test_a_verb_that_may_run_twice_is_done_wherever_the_connection_is_cut(engine: Engine) -> None:
    repository = TrainingRepository(engine)
    nth = 0
    while True:
        with cut_at(engine, nth) as seen:
            repository.add_snapshot("food", {"query": "q"}, FACTS)
        if seen[0] <= nth:
            break
        assert [one.id for one in repository.snapshots("food")] == ["one"]
        nth += 1
    assert nth >= 4, "it has several statements and a commit"


def test_a_jobs_end_is_noted_wherever_the_connection_is_cut(engine: Engine) -> None:
    repository = TrainingRepository(engine)
    repository.add_snapshot("food", {"query": "q"}, FACTS)
    nth = 0
    while True:
        job = repository.add_job("food", "one", {}).id
        with cut_at(engine, nth) as seen:
            repository.set_job(job, "done")
        assert repository.job(job).state == "done"
        if seen[0] <= nth:
            break
        nth += 1
    assert nth >= 3


def test_a_new_job_whose_connection_is_cut_is_there_at_most_once_and_who_asked_is_told(
    engine: Engine,
) -> None:
    repository = TrainingRepository(engine)
    repository.add_snapshot("food", {"query": "q"}, FACTS)
    told = []
    for nth in range(4):
        before = len(repository.jobs())
        try:
            with cut_at(engine, nth):
                repository.add_job("food", "one", {})
        except Overloaded as error:
            told.append(error.message)
        assert len(repository.jobs()) - before in (0, 1)
    assert told
    assert all("look whether it was done" in message for message in told)


def test_a_statement_that_is_wrong_is_not_tried_again(tmp_path: Path) -> None:
    repository = TrainingRepository(open_database(f"sqlite:///{tmp_path / 'empty.db'}"))
    with pytest.raises(Exception, match="no such table"):
        repository.jobs()
