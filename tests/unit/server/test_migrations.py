"""The schema is what the migrations make of an empty database."""

from __future__ import annotations

import threading
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from server.store.database import migrate
from server.store.repository import Repository
from server.store.tables import Base


def test_the_tables_equal_the_migrations(database: Engine) -> None:
    with database.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_twice_changes_nothing(database: Engine) -> None:
    before = sorted(inspect(database).get_table_names())
    migrate(database)
    assert sorted(inspect(database).get_table_names()) == before


def test_servers_that_start_at_once_on_one_database_do_not_collide(empty_database: Engine) -> None:
    failures: list[Exception] = []

    def start() -> None:
        try:
            migrate(empty_database)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert "deployments" in inspect(empty_database).get_table_names()


def test_deployments_from_before_fits_have_none_and_are_served(database: Engine, tmp_path: Path) -> None:
    with database.begin() as connection:
        for table in ("feedback", "feedback_contexts", "secrets"):
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE deployments DROP COLUMN feedback"))
        connection.execute(text("ALTER TABLE deployments DROP COLUMN fit"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0004'"))
        connection.execute(text("INSERT INTO functions VALUES ('f', 2, '2026-11-01 00:00:00')"))
        connection.execute(
            text(
                "INSERT INTO deployments (function, version, spec, deployed_at)"
                """ VALUES ('f', 1, '{"models": ["a/1"]}', '2026-11-01 00:00:00')"""
            )
        )
    migrate(database)
    (served,) = Repository(database, tmp_path).served()
    assert (served.function, served.spec, served.fit) == ("f", {"models": ["a/1"]}, None)
