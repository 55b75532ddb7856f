"""The schema is what the migrations make of an empty database."""

from __future__ import annotations

import threading
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from server.store.database import migrate
from server.store.feedback import FeedbackRepository
from server.store.repository import Repository
from server.store.tables import Base

BEFORE_REFITS = "0007"


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
        tables = (
            "model_variants",
            "feedback",
            "feedback_answers",
            "feedback_contexts",
            "secrets",
            "tokens",
            "history",
            "things",
            "audit",
            "ended_sessions",
            "bulk_controls",
            "leases",
            "servers",
            "variant_orders",
        )
        for table in tables:
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE jobs DROP COLUMN owner"))
        for column in ("revision", "refit"):
            connection.execute(text(f"ALTER TABLE deployments DROP COLUMN {column}"))
        connection.execute(text("ALTER TABLE functions DROP COLUMN labels"))
        connection.execute(text("ALTER TABLE model_versions DROP COLUMN rows_per_s"))
        connection.execute(text("ALTER TABLE test_looks DROP COLUMN metric"))
        connection.execute(text("ALTER TABLE test_looks DROP COLUMN score"))
        connection.execute(text("DROP TABLE retrainings"))
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


def test_labels_from_before_are_numbered_by_their_age_and_count_once_as_ever(database: Engine) -> None:
    Repository(database, Path("/home")).deploy("f", {})
    with database.begin() as connection:
        connection.execute(text("DROP TABLE feedback_answers"))
        connection.execute(text("DROP TABLE tokens"))
        connection.execute(text("DROP TABLE history"))
        connection.execute(text("DROP TABLE things"))
        connection.execute(text("DROP TABLE audit"))
        connection.execute(text("DROP TABLE ended_sessions"))
        connection.execute(text("DROP TABLE bulk_controls"))
        connection.execute(text("DROP TABLE leases"))
        connection.execute(text("DROP TABLE servers"))
        connection.execute(text("DROP TABLE variant_orders"))
        connection.execute(text("DROP TABLE model_variants"))
        connection.execute(text("ALTER TABLE jobs DROP COLUMN owner"))
        connection.execute(text("DELETE FROM secrets WHERE name = 'sessions'"))
        connection.execute(text("DROP INDEX ix_feedback_function_number"))
        connection.execute(text("ALTER TABLE feedback DROP COLUMN number"))
        connection.execute(text("ALTER TABLE feedback ADD COLUMN probabilities TEXT"))
        connection.execute(text("ALTER TABLE functions DROP COLUMN labels"))
        connection.execute(text("ALTER TABLE model_versions DROP COLUMN rows_per_s"))
        connection.execute(text("ALTER TABLE test_looks DROP COLUMN metric"))
        connection.execute(text("ALTER TABLE test_looks DROP COLUMN score"))
        connection.execute(text("DROP TABLE retrainings"))
        for column in ("revision", "refit"):
            connection.execute(text(f"ALTER TABLE deployments DROP COLUMN {column}"))
        for minute, digest in enumerate(("c", "a", "b")):
            connection.execute(
                text(
                    "INSERT INTO feedback (function, digest, version, label, labelled_at) VALUES"
                    f" ('f', '{digest}', 1, 'x', '2026-11-01 00:0{minute}:00')"
                )
            )
        connection.execute(
            text("UPDATE alembic_version SET version_num = :before"), {"before": BEFORE_REFITS}
        )
    migrate(database)
    with database.connect() as connection:
        found = connection.execute(text("SELECT digest, number FROM feedback ORDER BY number")).all()
        labels = connection.execute(text("SELECT labels FROM functions")).scalar()
    assert [tuple(each) for each in found] == [("c", 1), ("a", 2), ("b", 3)]
    assert labels == 3
    assert FeedbackRepository(database).labels("f", 1, ["a", "z"]) == {"a": "x"}
