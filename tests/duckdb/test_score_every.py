"""`ml-udf score --every`: what is new or changed is answered, round after round."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from ml_udf.cli.score_every import every, interval_of, rest_s
from ml_udf.duckdb.interrupts import interruptible_by_ctrl_c
from ml_udf.errors import BadOption
from ml_udf.scoring import ScoreProgress
from tests.postgres.oip_server import label_of, oip_server
from tests.waiting import wait_until


def test_a_time_between_rounds_is_read_with_its_unit() -> None:
    assert [interval_of(text) for text in ("30s", "1m", "1.5 h", "1d")] == [30, 60, 5400, 86_400]
    for text in ("", "1", "m", "0s", "-1m", "1 week"):
        with pytest.raises(BadOption):
            interval_of(text)


def test_the_next_round_is_due_so_long_after_the_last_one_began() -> None:
    assert rest_s(60.0, 100.0, 110.0) == 50.0
    assert rest_s(60.0, 100.0, 170.0) == 0.0


def test_new_and_changed_rows_are_answered_until_it_is_told_to_end(tmp_path: Path) -> None:
    file = tmp_path / "food.db"
    change(file, "CREATE TABLE foodlog (id INTEGER PRIMARY KEY, image_path VARCHAR, age INTEGER)")
    change(file, "INSERT INTO foodlog SELECT range, '/' || range, 1 FROM range(300)")
    with oip_server() as server:
        asked = ["score", "foodlog", "udf_food_name", "image_path", "--into", "names", "-d", str(file)]
        command = [sys.executable, "-m", "ml_udf.cli", *asked, "-e", server.url, "--every", "0.5s"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: len(server.rows) == 300, 90)
            change(file, "INSERT INTO foodlog VALUES (1000, '/new', 1)")
            change(file, "UPDATE foodlog SET age = 2")
            change(file, "UPDATE foodlog SET image_path = '/other' WHERE id = 7")
            wait_until(lambda: len(server.rows) == 302, 90)
            wait_until(lambda: right(file), 90)
            running.send_signal(signal.SIGTERM)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
        assert (running.returncode, "Traceback" in err) == (0, False), err
        assert "300 rows answered" in out
        assert sorted(server.rows) == sorted([*(f"/{n}" for n in range(300)), "/new", "/other"])


def test_to_be_told_to_end_is_ctrl_c_for_who_listens_to_that() -> None:
    heard: list[int] = []

    def run() -> ScoreProgress:
        with duckdb.connect() as con, interruptible_by_ctrl_c(con):
            signal.raise_signal(signal.SIGTERM)
        return ScoreProgress(0)

    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        every(60.0, run, print)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def change(file: Path, statement: str) -> None:
    """Between two rounds: one process alone may have the file."""

    def done() -> bool:
        try:
            with duckdb.connect(str(file)) as con:
                con.execute(statement)
        except duckdb.IOException:
            return False
        return True

    wait_until(done, 90)


def right(file: Path) -> bool:
    """Whether the answer of every row is that of its input."""
    try:
        with duckdb.connect(str(file), read_only=True) as con:
            rows = con.execute("SELECT image_path, value FROM foodlog JOIN names USING (id)").fetchall()
    except duckdb.IOException:
        return False
    return len(rows) == 301 and all(label_of(path) == value for path, value in rows)
