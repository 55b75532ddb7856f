"""Another process has the registry's SQLite file locked: reads are answered, writes say so."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from server.errors import Overloaded
from server.store.database import migrate, open_database
from server.store.repository import Repository
from server.store.training import TrainingRepository
from tests.unit.server.manifests import manifest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{file}", lock_timeout_s=0.3)
    migrate(engine)
    yield engine
    engine.dispose()


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@pytest.mark.alone
def test_what_is_read_is_read_at_once(file: Path, engine: Engine, tmp_path: Path) -> None:
    models, training = Repository(engine, tmp_path), TrainingRepository(engine)
    models.add_model(manifest(), tmp_path / "models" / "net" / "1")
    models.deploy("f", {"models": ["net"]})
    training.add_job("food", "one", {})
    with locked(file):
        began_s = time.monotonic()
        assert [model.name for model in models.models()] == ["net"]
        assert models.next_model_version("net") == 2
        assert [deployment.function for deployment in models.served()] == ["f"]
        assert training.datasets() == []
        assert training.snapshots("food") == []
        assert [job.state for job in training.jobs()] == ["running"]
        assert training.job(1).dataset == "food"
        assert time.monotonic() - began_s < 0.3


def test_what_is_written_says_that_it_was_not_and_can_be_tried_again(
    file: Path, engine: Engine, tmp_path: Path
) -> None:
    models, training = Repository(engine, tmp_path), TrainingRepository(engine)
    model = models.add_model(manifest(), tmp_path / "models" / "net" / "1")
    training.add_job("food", "one", {})
    writes = [
        lambda: models.add_model(manifest(version=2), tmp_path / "models" / "net" / "2"),
        lambda: models.measured(model, 10, 0.1),
        lambda: models.touched({("net", 1): (1.0, 0.5)}),
        lambda: models.deploy("f", {"models": ["net"]}),
        lambda: models.delete_function("f"),
        lambda: training.add_snapshot("food", {"name": "food"}, {"id": "one", "rows": 1}),
        lambda: training.add_job("food", "one", {}),
        lambda: training.set_job(1, "done"),
    ]
    with locked(file):
        for write in writes:
            with pytest.raises(Overloaded, match="locked, and nothing was changed; try again"):
                write()
    assert [known.version for known in models.models()] == [1]
    assert (models.served(), training.job(1).state) == ([], "running")
    for write in writes:
        write()


def test_a_lock_that_is_soon_let_go_is_waited_for(file: Path, tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{file}", lock_timeout_s=10.0)
    migrate(engine)
    training = TrainingRepository(engine)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(file):
            held.set()
            let_go.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    threading.Timer(0.2, let_go.set).start()
    assert training.add_job("food", "one", {}).state == "running"
    holder.join()
    engine.dispose()
