"""What scoring a table of DuckDB promises: from Python, and from the shell with kills in the middle."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import duckdb
import pytest

from ml_udf.duckdb import score_table
from ml_udf.duckdb.interrupts import interruptible_by_ctrl_c
from ml_udf.errors import (
    BadOption,
    ConnectionLost,
    InputNotFound,
    MlUdfError,
    NoKey,
    UnknownColumn,
    UnknownTable,
    WrongType,
)
from ml_udf.scoring import ScoreProgress
from ml_udf.scoring.pages import Key
from ml_udf.scoring.queries import Queries
from tests.postgres.oip_server import OipServer, label_of, oip_server
from tests.waiting import wait_until

KILLS = 8


@pytest.fixture
def server() -> Iterator[OipServer]:
    with oip_server() as running:
        yield running


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        make_table(made, 5000)
        yield made


def make_table(con: duckdb.DuckDBPyConnection, rows: int) -> None:
    con.execute(
        "CREATE TABLE foodlog (id INTEGER PRIMARY KEY, image_path VARCHAR, age INTEGER, food VARCHAR,"
        " food_error VARCHAR, food_input_hash UUID, food_model_version VARCHAR, food_scored_at TIMESTAMPTZ)"
    )
    con.execute(
        "INSERT INTO foodlog (id, image_path, age) SELECT range, '/' || range, range % 90 FROM range(?)",
        [rows],
    )


def scored(con: duckdb.DuckDBPyConnection, server: OipServer, **how: object) -> tuple[int, int, int]:
    tally = score_table(con, server.url, "foodlog", "udf_food_name", "image_path", **how)  # type: ignore[arg-type]  # of any field
    return tally.answered, tally.failed, tally.missed


def test_every_row_gets_its_answer_and_a_second_run_has_nothing_to_do(
    con: duckdb.DuckDBPyConnection, server: OipServer
):
    assert scored(con, server, output="food") == (5000, 0, 0)
    found = con.execute("SELECT image_path, food FROM foodlog").fetchall()
    assert all(food == label_of(path) for path, food in found)
    server.forget()
    assert scored(con, server, output="food") == (0, 0, 0)
    assert server.requests == []


def test_a_table_of_answers_is_created_and_follows_changes(con: duckdb.DuckDBPyConnection, server: OipServer):
    assert scored(con, server, result_table="scores") == (5000, 0, 0)
    con.execute("UPDATE foodlog SET image_path = '/other' WHERE id = 7")
    con.execute("INSERT INTO foodlog (id, image_path) VALUES (9000, '/9000')")
    assert scored(con, server, result_table="scores") == (2, 0, 0)
    assert con.execute("SELECT value FROM scores WHERE id = 7").fetchall() == [(label_of("/other"),)]


def test_faults_are_stored_and_not_tried_again(con: duckdb.DuckDBPyConnection, server: OipServer):
    con.execute("UPDATE foodlog SET image_path = 'missing' WHERE id = 5")
    with pytest.raises(InputNotFound):
        scored(con, server, output="food")
    _, failed, _ = scored(con, server, output="food", on_error="null")
    assert failed == 1
    assert scored(con, server, output="food", on_error="null") == (0, 0, 0)
    (stored,) = con.execute("SELECT food, food_error FROM foodlog WHERE id = 5").fetchall()
    assert stored == (None, "input_not_found: there is no file missing")


def test_null_inputs_conditions_limits_and_versions_hold(con: duckdb.DuckDBPyConnection, server: OipServer):
    con.execute("UPDATE foodlog SET image_path = NULL WHERE id < 100")
    assert scored(con, server, output="food", condition="age > 30", row_limit=50) == (50, 0, 0)
    assert con.execute(
        "SELECT min(age) > 30, min(id) >= 100 FROM foodlog WHERE food IS NOT NULL"
    ).fetchall() == [(True, True)]
    assert scored(con, server, output="food") == (4850, 0, 0)
    server.version = "2"
    assert scored(con, server, output="food") == (0, 0, 0)
    assert scored(con, server, output="food", rescore="version") == (4900, 0, 0)


def test_views_composite_keys_and_odd_names_work(con: duckdb.DuckDBPyConnection, server: OipServer):
    con.execute(
        """CREATE SCHEMA "Shop ""x"; CREATE VIEW "Shop ""x"."Adult; --" AS
           SELECT id % 7 AS "the ""shop", id // 7 AS n, image_path AS "Image Path" FROM foodlog"""
    )
    tally = score_table(
        con,
        server.url,
        '"Shop ""x"."Adult; --"',
        "udf_food_name",
        '"Image Path"',
        result_table='"Shop ""x".scores',
        key=('the "shop', "n"),
        batch_rows=100,
    )
    assert (tally.answered, tally.missed) == (5000, 0)
    assert con.execute('SELECT count(*) FROM "Shop ""x".scores').fetchall() == [(5000,)]


@pytest.mark.parametrize("place", [{"output": "food"}, {"result_table": "answers"}], ids=["beside", "apart"])
@pytest.mark.parametrize(
    "key", ["id", "shelf, id", "name", "eaten", "shelf, name, eaten"], ids=lambda key: key.replace(", ", "-")
)
@pytest.mark.parametrize("every", [1, 7, 450])
def test_whichever_rows_are_due_each_is_found_in_the_range_of_its_key(
    server: OipServer, monkeypatch: pytest.MonkeyPatch, key: str, every: int, place: dict[str, str]
):
    monkeypatch.setattr("ml_udf.duckdb.scoring.RANGE_ROWS", 16)
    monkeypatch.setattr("ml_udf.duckdb.scoring.MAX_RANGE_ROWS", 200)
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE foodlog AS"
            " SELECT range AS id, range % 3 AS shelf, 'n' || (range * 7919 % 1000) AS name,"
            " TIMESTAMP '2026-01-01' + to_microseconds(range * 1234567) AS eaten,"
            f" CASE WHEN range % {every} = 0 THEN '/' || range END AS image_path, NULL::VARCHAR AS food"
            " FROM range(1000)"
        )
        con.execute(f"ALTER TABLE foodlog ADD PRIMARY KEY ({key})")
        assert scored(con, server, batch_rows=10, **place) == (len(range(0, 1000, every)), 0, 0)
        con.execute(
            "INSERT INTO foodlog SELECT 1000 + id, shelf, 'm' || name, eaten + INTERVAL 1 DAY, '/', NULL"
            " FROM foodlog WHERE id IN (3, 998)"
        )
        assert scored(con, server, **place) == (2, 0, 0)


@pytest.mark.parametrize("place", [{"output": "food"}, {"result_table": "answers"}], ids=["beside", "apart"])
def test_keys_in_an_order_of_their_columns_own_are_all_found(
    server: OipServer, monkeypatch: pytest.MonkeyPatch, place: dict[str, str]
):
    monkeypatch.setattr("ml_udf.duckdb.scoring.RANGE_ROWS", 2)
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE foodlog (id VARCHAR COLLATE NOCASE PRIMARY KEY, image_path VARCHAR, food VARCHAR)"
        )
        con.execute(
            "INSERT INTO foodlog SELECT unnest(['b', 'A', 'a2', 'B2', 'C', 'c1', 'Z', 'y']), '/1', NULL"
        )
        assert scored(con, server, batch_rows=3, **place) == (8, 0, 0)


def test_where_few_rows_are_due_few_ranges_are_looked_over(
    server: OipServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ml_udf.duckdb.scoring.RANGE_ROWS", 16)
    ranges: list[object] = []
    end = Queries.end

    def counted(queries: Queries, after: Key | None, rows: int) -> str:
        ranges.append(after)
        return end(queries, after, rows)

    monkeypatch.setattr(Queries, "end", counted)
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE foodlog AS SELECT range AS id, '/1' AS image_path, 'known' AS food"
            " FROM range(100_000)"
        )
        con.execute("ALTER TABLE foodlog ADD PRIMARY KEY (id)")
        con.execute("UPDATE foodlog SET food = NULL WHERE id = 99_999")
        assert scored(con, server, output="food") == (1, 0, 0)
    assert len(ranges) < 16


def test_images_are_sent_as_images(con: duckdb.DuckDBPyConnection, server: OipServer):
    con.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY, photo BLOB, food VARCHAR)")
    con.execute("INSERT INTO photos SELECT range, encode('image' || range), NULL FROM range(300)")
    tally = score_table(con, server.url, "photos", "udf_food_name", "photo", output="food")
    assert tally.answered == 300
    assert con.execute("SELECT food FROM photos WHERE id = 9").fetchall() == [(label_of("image9"),)]
    assert set(server.inputs) == {"image"}


@pytest.mark.parametrize("how", [{"output": "food"}, {"result_table": "scores"}])
def test_two_runs_of_one_process_store_every_row_once(
    con: duckdb.DuckDBPyConnection, server: OipServer, how: dict[str, str]
):
    server.delay_s = 0.05
    if "result_table" in how:
        scored(con, server, row_limit=1, **how)
    tallies: list[tuple[int, int, int]] = []

    def run() -> None:
        with con.cursor() as own:
            tallies.append(scored(own, server, batch_rows=100, **how))

    runs = [threading.Thread(target=run) for _ in range(2)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert len(tallies) == 2, "one of the runs has failed"
    assert sum(answered for answered, _, _ in tallies) == 5000 - ("result_table" in how)
    assert scored(con, server, **how) == (0, 0, 0)


def test_pages_of_a_fast_function_are_stored_together(con: duckdb.DuckDBPyConnection, server: OipServer):
    transactions: list[ScoreProgress] = []
    tally = score_table(
        con,
        server.url,
        "foodlog",
        "udf_food_name",
        "image_path",
        output="food",
        batch_rows=10,
        on_progress=lambda so_far: transactions.append(replace(so_far)),
    )
    assert tally.answered == 5000
    assert transactions[-1].answered == 5000
    assert len(transactions) < 5000 / 10 / 2


def test_what_was_answered_before_the_server_went_away_is_stored(
    con: duckdb.DuckDBPyConnection, server: OipServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ml_udf.scoring.writing.WRITING_SHARE", 1e-6)  # all but the first page wait

    def leave() -> None:
        wait_until(lambda: len(server.requests) >= 100, 30)
        server.away = True

    leaving = threading.Thread(target=leave)
    leaving.start()
    with pytest.raises(ConnectionLost):
        scored(con, server, output="food", batch_rows=10, patience_s=0.3)
    leaving.join()
    assert con.execute("SELECT count(food) >= 900 FROM foodlog").fetchall() == [(True,)]


@pytest.mark.parametrize("made", ["TABLE foodlog", "VIEW foodlog", "TABLE scores"])
def test_what_is_temporary_is_refused_with_the_reason(
    con: duckdb.DuckDBPyConnection, server: OipServer, made: str
) -> None:
    con.execute(f"CREATE TEMPORARY {made} AS SELECT 1 AS id, 'mine' AS image_path")
    kind, name = made.lower().split()
    for written in (name, f"temp.{name}"):
        relation, answers = (written, "scores") if name == "foodlog" else ("foodlog", written)
        with pytest.raises(UnknownTable, match=f"'{written}' is a temporary {kind}") as refused:
            score_table(
                con, server.url, relation, "udf_food_name", "image_path", key=("id",), result_table=answers
            )
        assert f"CREATE TABLE … AS FROM {written}" in refused.value.hint
    assert server.requests == []
    tables = con.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    assert tables == [("foodlog",)], "no table of answers is made beside it"
    # The one that is kept is scored where the name says so.
    assert (
        score_table(
            con, server.url, "memory.main.foodlog", "udf_food_name", "image_path", output="food"
        ).answered
        == 5000
    )


@pytest.mark.parametrize(
    ("relation", "column", "how", "error"),
    [
        ("nowhere", "image_path", {"output": "food"}, UnknownTable),
        ("foodlog", "photo", {"output": "food"}, UnknownColumn),
        ("foodlog", "image_path", {"output": "dish"}, UnknownColumn),
        ("foodlog", "age", {"output": "food"}, WrongType),
        ("foodlog", "image_path", {"output": "age"}, WrongType),
        ("foodlog", "image_path", {"output": "image_path"}, BadOption),
        ("foodlog", "image_path", {"output": "id"}, BadOption),
        ("foodlog", "image_path", {"output": "food", "key": ("age",)}, NoKey),
    ],
)
def test_what_cannot_be_scored_is_refused_clearly(
    con: duckdb.DuckDBPyConnection,
    server: OipServer,
    relation: str,
    column: str,
    how: dict[str, object],
    error: type[MlUdfError],
):
    with pytest.raises(error) as caught:
        score_table(con, server.url, relation, "udf_food_name", column, **how)  # type: ignore[arg-type]  # of any field
    assert caught.value.hint
    assert server.requests == []


def test_the_hint_of_a_key_that_is_not_unique_is_sql_that_mends_it(
    con: duckdb.DuckDBPyConnection, server: OipServer
):
    con.execute("CREATE TABLE keyless AS SELECT id, image_path FROM foodlog LIMIT 20")
    how = {"result_table": "scores", "key": ("id",)}

    def score() -> int:
        return score_table(con, server.url, "keyless", "udf_food_name", "image_path", **how).answered  # type: ignore[arg-type]  # of any field

    with pytest.raises(NoKey, match="several rows of keyless") as caught:
        score()
    con.execute(caught.value.hint.partition(", or ")[0])
    how["key"] = "id"
    assert score() == 20
    with pytest.raises(NoKey) as caught:
        scored(con, server, output="food", key=("age",))
    assert caught.value.hint.startswith("name its primary key (id), or on PostgreSQL ")


# ── ml-udf score ───────────────────────────────────────────────────────────────────────────────────


def command(file: Path, server: OipServer, *more: str) -> list[str]:
    arguments = ["score", "foodlog", "udf_food_name", "image_path", "--to", "food", "--duckdb", str(file)]
    return [sys.executable, "-m", "ml_udf.cli", *arguments, "--endpoint", server.url, *more]


def test_the_command_killed_again_and_again_loses_no_row(tmp_path: Path, server: OipServer):
    file = tmp_path / "food.db"
    with duckdb.connect(str(file)) as con:
        make_table(con, 6000)
    server.delay_s = 0.3
    dice = random.Random(5)
    for _ in range(KILLS):
        server.forget()
        run = subprocess.Popen(
            command(file, server, "--batch-rows", "200"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda run=run: server.requests or run.poll() is not None, 60)  # type: ignore[misc]
        time.sleep(dice.uniform(0.0, 0.6))
        run.kill()
        run.wait()
    server.delay_s = 0.0
    with duckdb.connect(str(file)) as con:
        ((before,),) = con.execute("SELECT count(food) FROM foodlog").fetchall()
    server.forget()
    done = subprocess.run(command(file, server), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{6000 - before:,} rows answered" in done.stdout
    assert len(server.rows) == 6000 - before, "what was stored is not asked again"
    with duckdb.connect(str(file)) as con:
        found = con.execute("SELECT image_path, food FROM foodlog").fetchall()
    assert len(found) == 6000
    assert all(food == label_of(path) for path, food in found)


def test_ctrl_c_ends_the_command_soon_and_says_how_to_go_on(tmp_path: Path, server: OipServer):
    file = tmp_path / "food.db"
    with duckdb.connect(str(file)) as con:
        make_table(con, 3000)
    server.delay_s = 1.0
    run = subprocess.Popen(
        command(file, server, "--batch-rows", "100"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: server.requests or run.poll() is not None, 60)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "run the same command again to go on" in out


def test_ctrl_c_within_a_query_is_ctrl_c(
    con: duckdb.DuckDBPyConnection, server: OipServer, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> int:
        """As DuckDB tells of Ctrl-C, where it looks for it itself."""
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr("ml_udf.duckdb.scoring._DuckDbStore.write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scored(con, server, output="food")


@pytest.mark.parametrize(
    ("used", "relation", "meant"),
    [
        ("memory", "foodlog", "memory.main"),
        ("memory", '"my shop".foodlog', '"my shop".main'),
        ("memory", '"my shop".OLD.foodlog', '"my shop".old'),
        ('"my shop"', "foodlog", '"my shop".main'),
        ('"my shop"', "old.foodlog", '"my shop".old'),
        ('"my shop".old', "foodlog", '"my shop".old'),
        ('"my shop".old', "memory.foodlog", "memory.main"),
    ],
)
def test_a_name_means_the_table_that_it_means_in_sql(server: OipServer, used: str, relation: str, meant: str):
    places = ["memory.main", '"my shop".main', '"my shop".old']
    with duckdb.connect() as con:
        con.execute('ATTACH \':memory:\' AS "my shop"; CREATE SCHEMA "my shop".old')
        for place in places:
            con.execute(f"CREATE TABLE {place}.foodlog (image_path VARCHAR PRIMARY KEY, food VARCHAR)")
            con.execute(f"INSERT INTO {place}.foodlog VALUES ('/1', NULL)")
        con.execute(f"USE {used}")
        score_table(con, server.url, relation, "udf_food_name", "image_path", output="food")
        counts = [con.execute(f"SELECT count(food) FROM {place}.foodlog").fetchall() for place in places]
    assert counts == [[(int(place == meant),)] for place in places]


def test_a_table_elsewhere_takes_no_answers_that_are_for_a_new_one(
    con: duckdb.DuckDBPyConnection, server: OipServer
):
    con.execute("CREATE SCHEMA old; CREATE TABLE old.scores (id INTEGER PRIMARY KEY, value VARCHAR)")
    assert scored(con, server, result_table="scores") == (5000, 0, 0)
    assert con.execute("SELECT count(*) FROM old.scores").fetchall() == [(0,)]


def test_ctrl_c_ends_a_search_for_rows_that_takes_long(con: duckdb.DuckDBPyConnection, server: OipServer):
    key = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    key.start()
    began_s = time.monotonic()
    slow = "SELECT sum(sqrt(b)) FROM (VALUES (1), (2)) AS t(a), range(2000000000) AS u(b)"
    with pytest.raises(KeyboardInterrupt):
        scored(con, server, output="food", condition=f"age < ({slow})")
    assert time.monotonic() - began_s < 8


def test_duckdb_tells_of_ctrl_c_in_a_way_that_is_known(con: duckdb.DuckDBPyConnection):
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        signal.default_int_handler(number, frame)

    def press_after(delay_s: float) -> threading.Timer:
        key = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
        key.start()
        return key

    def queries_until_ctrl_c() -> None:
        heard.clear()
        keys = [press_after(0.02)]
        end_s = time.monotonic() + 20
        try:
            with interruptible_by_ctrl_c(con):
                while time.monotonic() < end_s:
                    con.execute("SELECT count(*), max(image_path || age) FROM foodlog").fetchall()
                    # CPython drops what is raised in a callback of its garbage collector (Hypothesis leaves
                    # one behind) or in a finalizer, KeyboardInterrupt too. A person presses again.
                    if len(heard) == len(keys):
                        keys.append(press_after(0.0))
        finally:
            for key in keys:
                key.join()

    previous = signal.signal(signal.SIGINT, hear)
    try:
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                queries_until_ctrl_c()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_the_command_without_a_database_says_which_options_name_one(server: OipServer):
    asked = [sys.executable, "-m", "ml_udf.cli", "score", "t", "f", "x", "--to", "y"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "--postgres" in done.stderr
    assert "--duckdb" in done.stderr
