"""The registry's database: an engine for SQLite or PostgreSQL, brought to the newest schema.

Knows dialects and migrations; no table by name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError

from server.store.damaged import read_json

__all__ = ["migrate", "open_database", "reading", "utc"]

# Two servers that start at once on one PostgreSQL must not both create the tables.
_MIGRATION_LOCK = 0x6D6C5F756466


_LOCK_TIMEOUT_S = 30.0
_READS = "ml_udf_reads"


def open_database(url: str, lock_timeout_s: float = _LOCK_TIMEOUT_S) -> Engine:
    """An engine whose transactions see each other's writes in order. Raises SQLAlchemy's errors.

    `lock_timeout_s`: how long one waits for SQLite's lock, which another process may hold.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and parsed.database != ":memory:":
            path = Path(parsed.database).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)  # SQLite gives the files beside it the same mode
        engine = create_engine(parsed, connect_args={"timeout": lock_timeout_s}, json_deserializer=read_json)
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begins)
        return engine
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise ArgumentError(f"it is SQLite or PostgreSQL, not {parsed.get_backend_name()}")
    if parsed.drivername in {"postgresql", "postgres"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    return create_engine(parsed, pool_pre_ping=True, json_deserializer=read_json)


def reading(engine: Engine) -> Engine:
    """The same database for transactions that only read: these wait for no lock."""
    return engine.execution_options(**{_READS: True})


def utc(value: datetime) -> datetime:
    """A stored time with its zone: SQLite gives back what it was given, less that."""
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def migrate(engine: Engine) -> None:
    """Bring the database to the newest schema; safe when several servers do it at once."""
    config = Config()
    # Found as data, not imported: the server's code does not depend on its migrations.
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _sqlite_connected(connection: Any, _record: object) -> None:  # noqa: ANN401  # sqlite3's own, or its driver's
    # The driver's own BEGIN is deferred, so that two writers can both read first and one loses its update;
    # `_sqlite_begins` emits a BEGIN IMMEDIATE in its stead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _sqlite_begins(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
