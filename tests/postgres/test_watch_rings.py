"""What commits note for a watch in memory that sessions share: nothing of it is lost."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer
from tests.postgres.scored import make_table, refused
from tests.postgres.watched import WATCH, is_fresh, wait_until_fresh, worker, wrong_answers
from tests.waiting import wait_until

ROW = "INSERT INTO foodlog (id, image_path) VALUES ({0}, '/{0}')"
TAKE = "SELECT size, ids FROM ml_udf._take_ring_notes() ORDER BY noted_at, ids"
HELD = "SELECT coalesce(sum(size), 0) FROM ml_udf._ring_notes()"
STORED = "SELECT size, ids FROM ml_udf._new_note ORDER BY noted_at"
LOOKS = "SELECT count(*) FROM ml_udf._note WHERE size = 0"
RING_NOTES = 124  # sql/postgres/batch/note/ring.c


def watched(engine: Engine) -> None:
    """Whose first look at the whole table is done."""
    make_table(engine, 0)
    engine.query(WATCH + ")")
    engine.query("DELETE FROM ml_udf._note")


def the_file(cluster: Sandbox, engine: Engine) -> Path:
    number = engine.value("SELECT number FROM ml_udf._rings")
    database = engine.value("SELECT oid FROM pg_database WHERE datname = current_database()")
    return Path(cluster.sql("SHOW data_directory").strip()) / "pg_dynshmem" / f"ml_udf.{database}.{number}"


def wait_until_gone(engine: Engine, pid: int) -> None:
    wait_until(lambda: not engine.query("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))


def test_a_session_stores_its_ring_when_it_is_full_and_every_key_is_noted_once(engine: Engine) -> None:
    watched(engine)
    engine.query(
        """DO $$ BEGIN FOR n IN 1..300 LOOP
               INSERT INTO foodlog (id, image_path) VALUES (n * 2, '/'); COMMIT;
           END LOOP; END $$"""
    )
    full = RING_NOTES + 1  # and the key that found no room
    assert [size for size, _ in engine.query(STORED)] == [RING_NOTES, 1, RING_NOTES, 1]
    assert engine.value(HELD) == 300 - 2 * full
    assert engine.value("SELECT lag_rows FROM ml_udf.watches") == 300
    engine.query("SELECT ml_udf._gather_notes()")
    keys = engine.query("SELECT unnest(ids) FROM ml_udf._note ORDER BY 1")
    assert keys == [(2 * n,) for n in range(1, 301)]
    assert (engine.value(HELD), engine.query(STORED)) == (0, [])


def test_a_transaction_that_fails_while_its_ring_is_full_leaves_all_there(engine: Engine) -> None:
    watched(engine)
    for n in range(RING_NOTES):
        engine.query(ROW.format(n))
    engine.query("ALTER TABLE ml_udf._new_note RENAME TO gone; CREATE TABLE ml_udf._new_note (too_few int)")
    try:
        assert refused(engine, ROW.format(900))[0] == "XX000"
    finally:
        engine.query("DROP TABLE ml_udf._new_note; ALTER TABLE ml_udf.gone RENAME TO _new_note")
    assert engine.value(HELD) == RING_NOTES
    assert engine.value("SELECT count(*) FROM foodlog") == RING_NOTES


def test_runs_pairs_and_single_keys_go_to_a_ring_and_others_to_the_table(engine: Engine) -> None:
    watched(engine)
    for keys in ("(7)", "(9), (4)", "(20), (21), (22)", "(30), (32), (34)"):
        engine.query(f"INSERT INTO foodlog (id) VALUES {keys}")
    assert engine.query(STORED) == [(3, [30, 32, 34])]
    assert engine.query(TAKE) == [(1, [7]), (2, [9, 4]), (3, [20, 22])]
    assert engine.query(TAKE) == []


def test_what_a_gatherer_took_and_did_not_commit_is_taken_by_the_next_one(engine: Engine) -> None:
    watched(engine)
    engine.query(ROW.format(1))
    engine.query("BEGIN; SELECT * FROM ml_udf._take_ring_notes(); ROLLBACK")
    engine.query("BEGIN; SAVEPOINT s; SELECT * FROM ml_udf._take_ring_notes(); ROLLBACK TO s; COMMIT")
    with contextlib.closing(psycopg.connect(engine.dsn)) as other:
        assert [other.execute(TAKE).fetchall() for _ in range(2)] == [[(1, [1])], []]
        assert engine.query(TAKE) == [], "he who took first has it until his transaction ends"
        assert engine.value(HELD) == 1
        pid = other.info.backend_pid
        engine.query("SELECT pg_terminate_backend(%s)", pid)
        wait_until_gone(engine, pid)
    assert engine.query(TAKE) == [(1, [1])]
    assert engine.value(HELD) == 0


def test_a_ring_outlives_its_session_and_is_the_next_ones(engine: Engine) -> None:
    watched(engine)
    for n in (1, 2):
        with psycopg.connect(engine.dsn) as con:
            con.execute(ROW.format(n))
            pid = con.info.backend_pid
        wait_until_gone(engine, pid)
    assert engine.query(TAKE) == [(1, [1]), (1, [2])]


def test_a_copy_of_the_database_misses_what_the_rings_held_and_looks_at_all(
    cluster: Sandbox, engine: Engine
) -> None:
    watched(engine)
    engine.query(ROW.format(1))
    name = engine.connection.info.dbname
    engine.connection.close()
    cluster.sql(f"CREATE DATABASE copied TEMPLATE {name}")
    copied = Engine(cluster.dsn("copied"))
    try:
        copied.query(ROW.format(2))
        assert copied.value(HELD) == 0, "no rings: the table"
        assert [ids for _, ids in copied.query(STORED)] == [[2]]
        copied.query("SELECT ml_udf._gather_notes()")
        assert copied.value(LOOKS) == 1
        copied.query(ROW.format(3))
        assert copied.value(HELD) == 1, "rings of its own"
        copied.query("SELECT ml_udf._gather_notes()")
        assert copied.value(LOOKS) == 1, "once"
    finally:
        copied.close()
        cluster.sql("DROP DATABASE copied")
    engine.connection = psycopg.connect(engine.dsn, autocommit=True)
    assert engine.query(TAKE) == [(1, [1])]


@pytest.mark.parametrize("at", [8, None], ids=["another start of the machine", "no file"])
def test_a_file_that_cannot_be_believed_is_replaced_and_whole_tables_are_looked_at(
    cluster: Sandbox, engine: Engine, at: int | None
) -> None:
    watched(engine)
    engine.query(ROW.format(1))
    path = the_file(cluster, engine)
    if at is None:
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"?")
    engine.connection.close()
    engine.connection = psycopg.connect(engine.dsn, autocommit=True)
    engine.query(ROW.format(2))
    assert [ids for _, ids in engine.query(STORED)] == [[2]]
    engine.query("SELECT ml_udf._gather_notes()")
    assert engine.value(LOOKS) == 1
    assert [each.name for each in path.parent.glob(f"{path.stem}.*")] == [the_file(cluster, engine).name]


def test_a_file_of_another_version_of_the_module_is_left_alone(cluster: Sandbox, engine: Engine) -> None:
    watched(engine)
    path = the_file(cluster, engine)
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"\x09")
    engine.connection.close()
    engine.connection = psycopg.connect(engine.dsn, autocommit=True)
    engine.query(ROW.format(1))
    assert engine.query(STORED) == [(1, [1])]
    assert engine.value("SELECT ml_udf._gather_notes()") == 1
    assert engine.value(LOOKS) == 0
    assert the_file(cluster, engine) == path


def test_no_ring_is_made_by_a_transaction_that_is_rolled_back(cluster: Sandbox, engine: Engine) -> None:
    watched(engine)
    engine.query("DELETE FROM ml_udf._rings")
    with engine.connection.transaction(force_rollback=True):
        assert engine.value("SELECT ml_udf._make_rings()")
        engine.query(ROW.format(1))
        lost = the_file(cluster, engine)
    assert lost.exists()
    engine.query(ROW.format(2))
    assert engine.query(STORED) == [(1, [2])]
    assert engine.value("SELECT ml_udf._make_rings()")
    engine.query(ROW.format(3))
    assert engine.query(TAKE) == [(1, [3])]
    assert not lost.exists()


def test_where_the_file_cannot_be_made_a_warning_says_so_and_notes_go_to_the_table(
    cluster: Sandbox, engine: Engine
) -> None:
    watched(engine)
    folder = the_file(cluster, engine).parent
    engine.query("DELETE FROM ml_udf._rings")
    folder.chmod(0o500)
    try:
        for _ in range(2):
            assert engine.value("SELECT ml_udf._gather_notes()") == 0
    finally:
        folder.chmod(0o700)
    (warning,) = engine.warnings
    assert f'could not make file "{folder.name}/ml_udf.' in warning.message
    assert "Permission denied" in warning.message
    assert "costs them more" in warning.detail
    assert "every minute" in warning.hint
    engine.query(ROW.format(1))
    assert engine.query(STORED) == [(1, [1])]


def test_one_statement_sees_a_note_that_is_moved_meanwhile_once_at_least(engine: Engine) -> None:
    watched(engine)
    engine.query(ROW.format(1))
    with psycopg.connect(engine.dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert other.execute("SELECT lag_rows FROM ml_udf.watches").fetchall() == [(1,)]
        assert engine.value("SELECT ml_udf._gather_notes()") == 1
        assert other.execute("SELECT lag_rows FROM ml_udf.watches").fetchall() == [(1,)]
        other.rollback()
        assert other.execute("SELECT lag_rows FROM ml_udf.watches").fetchall() == [(1,)]
    assert engine.value(HELD) == 0


def test_where_what_commits_note_is_logged_it_goes_to_the_table(engine: Engine) -> None:
    watched(engine)
    engine.query(ROW.format(1))
    engine.query("ALTER TABLE ml_udf._new_note SET LOGGED")
    try:
        engine.query(ROW.format(2))
        assert engine.query(STORED) == [(1, [2])]
        assert engine.value("SELECT ml_udf._gather_notes()") == 2
        assert engine.value(LOOKS) == 0
    finally:
        engine.query("ALTER TABLE ml_udf._new_note SET UNLOGGED")


def test_a_dump_has_no_mark_so_that_whole_tables_are_looked_at(cluster: Sandbox, engine: Engine) -> None:
    watched(engine)
    engine.query(ROW.format(1))
    dump = cluster.program("pg_dump", "--data-only", "--schema=ml_udf", "-d", engine.dsn)
    script = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    copies = {
        part.partition(" ")[0]: part.partition("\n")[2].partition("\\.")[0]
        for part in script.split("COPY ml_udf.")[1:]
    }
    assert copies["_watch"].count("\n") == 1
    assert copies["_marked"] == ""
    assert "_rings" not in copies


def test_keys_outlive_a_clean_stop_and_after_a_crash_the_whole_table_is_looked_at(
    postgres_server: PostgresServer, fake_server: OipServer
) -> None:
    durable = {"synchronous_commit": "on"}
    with sandbox(postgres_server, settings=durable, batching=None, local=False) as cluster:
        dsn = cluster.database("stopped", url=fake_server.url, functions=["udf_food_name"])
        engine = Engine(dsn)
        watched(engine)
        engine.query(ROW.format(1))
        file = the_file(cluster, engine)
        cluster.restart()
        engine = Engine(dsn)
        assert (engine.value(HELD), the_file(cluster, engine)) == (1, file)
        engine.query(ROW.format(2))
        assert engine.value(HELD) == 2
        with worker(engine, fake_server):
            wait_until_fresh(engine)
        assert sorted(fake_server.rows) == ["/1", "/2"]
        engine.query(ROW.format(3))
        cluster.crash()
        engine = Engine(dsn)
        assert not is_fresh(engine)
        assert engine.query("SELECT 1 FROM ml_udf._rings") == []
        engine.query(ROW.format(4))
        with worker(engine, fake_server):
            wait_until_fresh(engine)
        assert wrong_answers(engine) == []
        assert sorted(fake_server.rows) == ["/1", "/2", "/3", "/4"]
        assert not file.exists()
        assert the_file(cluster, engine).exists()
        engine.close()
