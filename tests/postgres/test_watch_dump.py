"""A database that is dumped and restored goes on with its watches, and computes nothing again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer
from tests.postgres.scored import make_table
from tests.postgres.watched import INTO, WATCH, wait_until_fresh, worker, wrong_answers, wrong_scores

WATCHES = "SELECT id, relation, function, input, answers, answered, lag_rows FROM ml_udf.watches ORDER BY id"


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_watches_go_on_in_a_restored_database(
    cluster: Sandbox, engine: Engine, fake_server: OipServer, tmp_path: Path, form: str
) -> None:
    make_table(engine, 300)
    for watch in (WATCH, INTO):
        engine.query(watch + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
    # Noted, and not answered when the dump is made.
    engine.query("UPDATE foodlog SET image_path = '/before' || id WHERE id <= 5")
    engine.query("DELETE FROM foodlog WHERE id = 6")
    wanted = engine.query(WATCHES)
    assert [lag for *_, lag in wanted] == [5, 6]
    assert len(wanted) == 2

    _restore(cluster, engine, tmp_path / "dump", form)
    fake_server.forget()
    restored = Engine(cluster.dsn("restored"))
    try:
        found = restored.query(WATCHES)
        assert [row[:-1] for row in found] == [row[:-1] for row in wanted]
        assert {lag for *_, lag in found} == {None}, (
            "what was noted in memory is not in the dump: nobody knows"
        )
        restored.query("INSERT INTO foodlog (id, image_path) VALUES (1001, '/after')")
        restored.query("UPDATE foodlog SET age = age + 1")
        restored.query("DELETE FROM foodlog WHERE id = 7")
        with worker(restored, fake_server):
            wait_until_fresh(restored)
        assert wrong_answers(restored) == []
        assert wrong_scores(restored) == []
        asked = [*(f"/before{n}" for n in range(1, 6)), "/after"]
        assert sorted(fake_server.rows) == sorted(2 * asked), "of each watch, and nothing that was answered"
        restored.query(INTO.replace("'scores'", "'more_scores'") + ")")
        assert restored.value("SELECT count(*) FROM ml_udf.watches") == 3, (
            "ids go on behind the restored ones"
        )
    finally:
        restored.close()
        cluster.sql("DROP DATABASE restored")


def _restore(cluster: Sandbox, engine: Engine, dump: Path, form: str) -> None:
    cluster.sql("CREATE DATABASE restored")
    target = cluster.dsn("restored")
    told = cluster.program("pg_dump", f"--format={form}", f"--file={dump}", "-d", engine.dsn)
    subprocess.run(told, check=True)
    restore = (
        cluster.program("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", str(dump), "-d", target)
        if form == "plain"
        else cluster.program("pg_restore", "--exit-on-error", "-d", target, str(dump))
    )
    subprocess.run(restore, check=True, stdout=subprocess.DEVNULL)
