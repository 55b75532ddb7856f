"""The schema is what the migrations make of an empty database."""

from __future__ import annotations

import threading

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect

from server.store.database import migrate
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
