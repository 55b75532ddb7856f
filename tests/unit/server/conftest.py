"""A registry on each database it can live in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from ml_udf.cli.pg_sandbox import Sandbox
from server.store.database import migrate, open_database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database without tables; PostgreSQL's is a fresh one of the suite's private cluster."""
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
        yield engine
        engine.dispose()
        return
    cluster: Sandbox = request.getfixturevalue("cluster")
    name = f"registry_{uuid.uuid4().hex}"
    cluster.sql(f"CREATE DATABASE {name}")
    engine = open_database(cluster.dsn(name, tcp=True))
    try:
        yield engine
    finally:
        engine.dispose()
        cluster.sql(f"DROP DATABASE {name}")


@pytest.fixture
def database(empty_database: Engine) -> Engine:
    """A database with the newest schema."""
    migrate(empty_database)
    return empty_database


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Engine]:
    """A registry in SQLite with the newest schema, for tests that need no other."""
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    yield engine
    engine.dispose()
