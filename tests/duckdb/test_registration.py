"""What `ml_udf.duckdb.register` promises beyond the contract that both engines share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from duckdb.func import ARROW, SPECIAL

import ml_udf.duckdb
from ml_udf.client import Client, Options
from ml_udf.duckdb.interrupts import Interrupts, interruptible_by_ctrl_c
from ml_udf.duckdb.registration import Registration
from ml_udf.errors import BadOption, ServerUnreachable, UnknownFunction
from tests.postgres.oip_server import oip_server
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of
from tests.waiting import wait_until


def registered(
    transport: FakeTransport, con: duckdb.DuckDBPyConnection | None = None, name: str = "udf_f"
) -> tuple[duckdb.DuckDBPyConnection, Registration]:
    con = con or duckdb.connect()
    return con, Registration(con, Client("http://fake", transport=transport), {name: "f"}, Options())


def sent_rows(transport: FakeTransport) -> int:
    return sum(len(batch) for batch in transport.sent)


def test_order_by_and_limit_evaluate_only_the_rows_that_are_shown():
    transport = FakeTransport()
    con, registration = registered(transport)
    con.execute("CREATE TABLE t AS SELECT i::VARCHAR AS s, i FROM range(10000) AS r(i)")
    rows = con.execute("SELECT i, udf_f(s) FROM t ORDER BY i DESC LIMIT 3").fetchall()
    registration.close()
    assert rows == [(i, label_of(str(i).encode())) for i in (9999, 9998, 9997)]
    assert sent_rows(transport) == 3


def test_equal_values_of_one_statement_are_sent_once_across_vectors():
    transport = FakeTransport()
    con, registration = registered(transport)
    con.execute("SELECT udf_f((i % 7)::VARCHAR) FROM range(50000) AS r(i)").fetchall()
    registration.close()
    assert sent_rows(transport) == 7


def test_a_statement_run_again_asks_again():
    transport = FakeTransport()
    con, registration = registered(transport)
    for _ in range(2):
        con.execute("SELECT udf_f('x' || range) FROM range(3)").fetchall()
    registration.close()
    assert sent_rows(transport) == 6


def test_explain_calls_no_server_for_columns():
    transport = FakeTransport()
    con, registration = registered(transport)
    con.execute("CREATE TABLE t AS FROM (VALUES ('a'), ('b')) AS v(s)")
    con.execute("EXPLAIN SELECT udf_f(s) FROM t").fetchall()
    registration.close()
    assert transport.sent == []


def test_one_version_answers_a_whole_statement_and_the_next_one_takes_the_new():
    transport = FakeTransport(version="1")
    con, registration = registered(transport)

    def deploy_anew() -> None:
        transport.version = "2"

    transport.on_infer = deploy_anew  # while the first vector is under way
    con.execute("SELECT udf_f(i::VARCHAR) FROM range(9000) AS r(i)").fetchall()
    asked = {path for path in transport.paths if path.endswith("/infer")}
    assert asked == {"/v2/models/f/versions/1/infer"}
    con.execute("SELECT udf_f('a')").fetchall()
    assert transport.paths[-1] == "/v2/models/f/versions/2/infer"
    registration.close()


def test_one_version_answers_all_that_a_statement_asks_of_a_function():
    transport = FakeTransport(version="1")
    con, registration = registered(transport)

    def deploy_anew() -> None:
        transport.version = "2"

    transport.on_infer = deploy_anew
    query = "SELECT udf_f('a' || i), ml_udf.detail('f', 'b' || i) FROM range(3) AS r(i)"
    con.execute(query).fetchall()
    registration.close()
    asked = [path for path in transport.paths if path.endswith("/infer")]
    assert asked == ["/v2/models/f/versions/1/infer"] * 2


@pytest.mark.parametrize("functions", [8, 9, 30])
def test_however_many_functions_a_statement_has_each_is_asked_once_of_one_version(functions: int):
    with oip_server() as server, contextlib.closing(duckdb.connect()) as con:
        names = [f"udf_{n}" for n in range(functions)]
        server.functions = dict.fromkeys(names, "text")
        registration = ml_udf.duckdb.register(con, server.url, functions=names)
        server.paths.clear()
        calls = ", ".join(f"max({name}((i % 50)::VARCHAR))" for name in names)
        con.execute(f"SELECT {calls} FROM range(9000) AS r(i)").fetchall()
        asked_for = [path for path in server.paths if not path.endswith("/infer")]
        told = con.execute("SELECT statements, rows_sent FROM ml_udf.stat_functions").fetchall()
        registration.close()
    assert len(server.rows) == 50 * functions
    assert len(asked_for) == functions  # the version to ask, once
    assert told == [(1, 50)] * functions


def test_statements_of_many_cursors_at_once_send_equal_values_once_each():
    transport = FakeTransport()
    con, registration = registered(transport)
    cursors = [con.cursor() for _ in range(12)]
    all_read = threading.Barrier(len(cursors), timeout=60)

    def read(cursor: duckdb.DuckDBPyConnection) -> None:
        rows = cursor.execute("SELECT ml_udf.predict('f', (i % 2048)::VARCHAR) FROM range(20480) AS r(i)")
        for _ in range(10):  # vectors, each of them when all have read the one before
            all_read.wait()
            rows.fetchmany(2048)

    threads = [threading.Thread(target=read, args=[cursor]) for cursor in cursors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    registration.close()
    assert sent_rows(transport) == 2048 * len(cursors)


def test_a_name_that_duckdb_has_itself_is_refused():
    with pytest.raises(BadOption, match="'lower' is a function of DuckDB itself"):
        registered(FakeTransport(), name="lower")


def test_registering_again_replaces_what_was_there():
    con, first = registered(FakeTransport())
    _, second = registered(FakeTransport(), con)
    assert con.execute("SELECT udf_f('a')").fetchall() == [(label_of(b"a"),)]
    second.close()
    with pytest.raises(duckdb.CatalogException):
        con.execute("SELECT udf_f('a')")
    first.close()


def test_nothing_is_written_to_the_users_database(tmp_path: Path):
    path = str(tmp_path / "food.db")
    con, registration = registered(FakeTransport(), duckdb.connect(path))
    con.execute("SELECT udf_f('a')").fetchall()
    registration.close()
    con.close()
    again = duckdb.connect(path)
    assert again.execute(
        "SELECT count(*) FROM duckdb_functions() WHERE function_name = 'udf_f'"
    ).fetchone() == (0,)
    assert again.execute("SELECT count(*) FROM duckdb_schemas() WHERE schema_name = 'ml_udf'").fetchone() == (
        0,
    )
    again.close()


def test_a_stored_view_works_again_once_the_function_is_registered(tmp_path: Path):
    path = str(tmp_path / "food.db")
    con, registration = registered(FakeTransport(), duckdb.connect(path))
    con.execute("CREATE VIEW answers AS SELECT udf_f('a') AS answer")
    registration.close()
    con.close()
    again = duckdb.connect(path)
    with pytest.raises(duckdb.CatalogException, match="udf_f"):
        again.execute("FROM answers")
    _, registration = registered(FakeTransport(), again)
    assert again.execute("FROM answers").fetchall() == [(label_of(b"a"),)]
    registration.close()


def test_a_server_that_is_not_there_is_said_so_by_register():
    with pytest.raises(ServerUnreachable):
        ml_udf.duckdb.register(duckdb.connect(), "http://127.0.0.1:9", functions=["f"])


def test_a_function_that_the_server_lacks_registers_nothing():
    con = duckdb.connect()
    with pytest.raises(UnknownFunction):
        Registration(con, Client("http://fake", transport=FakeTransport()), ["f", "g"], Options())
    with pytest.raises(duckdb.CatalogException):
        con.execute("SELECT f('a')")


def test_the_warning_comes_by_itself_a_moment_after_the_statement():
    con, registration = registered(FakeTransport())
    con.execute("SET VARIABLE ml_udf_on_error = 'null'")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # One call of the function: a pause between two would end what counts as one statement.
        con.execute("SELECT udf_f('bad' || i) FROM range(2000) AS r(i)").fetchall()
        wait_until(lambda: caught)
    registration.close()
    (warning,) = caught
    assert "2,000 inputs could not be answered" in str(warning.message)
    assert warning.category is ml_udf.duckdb.FaultyRowsWarning


def test_several_connections_at_once_keep_their_answers_apart():
    failures: list[str] = []

    def work(number: int) -> None:
        con, registration = registered(FakeTransport(delay_s=0.005))
        rows = con.execute(f"SELECT udf_f('{number}-' || i) FROM range(300) AS r(i)").fetchall()
        if rows != [(label_of(f"{number}-{i}".encode()),) for i in range(300)]:
            failures.append(f"connection {number}")
        registration.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


CTRL_C = """
import duckdb, sys
from ml_udf.client import Client, Options
from ml_udf.duckdb.interrupts import interruptible_by_ctrl_c
from ml_udf.duckdb.registration import Registration
from tests.postgres.oip_server import oip_server
from tests.unit.ml_udf.fake_transport import FakeTransport
con = duckdb.connect()
transport = FakeTransport(delay_s=60)
transport.on_infer = lambda: print("asked", flush=True)
Registration(con, Client("http://fake", transport=transport), {"udf_f": "f"}, Options())
try:
    con.execute("SELECT udf_f(i::VARCHAR) FROM range(3) AS r(i) ORDER BY 1").fetchall()
except (KeyboardInterrupt, duckdb.Error, RuntimeError):
    print("interrupted", flush=True)
"""


def test_options_that_are_none_are_refused_before_a_statement_asks():
    with pytest.raises(BadOption, match="no Options"):
        ml_udf.duckdb.register(duckdb.connect(), "http://127.0.0.1:9", options={"slo_ms": 200})  # type: ignore[arg-type]


COMMAND_LINE = """
import sys, typer
import ml_udf.duckdb
from ml_udf.cli.sql import sql
from ml_udf.client import Client, Options
from ml_udf.duckdb.interrupts import interruptible_by_ctrl_c
from ml_udf.duckdb.registration import Registration
from tests.postgres.oip_server import oip_server
from tests.unit.ml_udf.fake_transport import FakeTransport
transport = FakeTransport(delay_s=60)
transport.on_infer = lambda: print("asked", flush=True)
client = Client("http://fake", transport=transport)
ml_udf.duckdb.register = lambda con, *_, **__: Registration(con, client, {"udf_f": "f"}, Options())
sys.argv = ["sql", "SELECT count(udf_f(i::VARCHAR)) FROM range(3) AS r(i)"]
typer.run(sql)
"""


def test_ctrl_c_ends_the_command_line_with_one_word():
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND_LINE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=45)
        assert "error: interrupted" in out + err
        assert "Traceback" not in err
        assert process.returncode == 130
    finally:
        process.kill()


def test_ctrl_c_within_a_function_is_ctrl_c():
    def pressed(*_: object) -> object:
        raise KeyboardInterrupt

    with contextlib.closing(duckdb.connect()) as con:
        con.create_function("pressed", pressed, None, "VARCHAR", type=ARROW, null_handling=SPECIAL)
        with pytest.raises(KeyboardInterrupt), interruptible_by_ctrl_c(con):
            con.execute("SELECT pressed(i) FROM range(3) AS r(i)").fetchall()


def test_ctrl_c_ends_a_statement_that_waits_for_the_server():
    process = subprocess.Popen(
        [sys.executable, "-c", CTRL_C], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=45)
        assert out == "interrupted\n"
    finally:
        process.kill()


def test_ctrl_c_ends_a_statement_whose_rows_another_thread_reads():
    con, registration = registered(FakeTransport())
    key = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    key.start()
    began_s = time.monotonic()
    with pytest.raises((KeyboardInterrupt, RuntimeError, duckdb.InterruptException)):
        con.execute("SELECT count(a), sum(sqrt(b)) FROM (VALUES (1), (2)) AS t(a), range(2000000000) AS u(b)")
    assert time.monotonic() - began_s < 8
    assert con.execute("SELECT udf_f('a')").fetchall() == [(label_of(b"a"),)]
    registration.close()


def test_ctrl_c_interrupts_the_connection_whose_threads_see_nothing_else():
    class Busy:
        interrupted = False

        def interrupt(self) -> None:
            self.interrupted = True

    con = Busy()
    with pytest.raises(KeyboardInterrupt), interruptible_by_ctrl_c(con):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
    assert con.interrupted


def close_in_a_thread(registration: Registration) -> None:
    thread = threading.Thread(target=registration.close)
    thread.start()
    thread.join()


@pytest.mark.parametrize("close", [Registration.close, close_in_a_thread])
def test_ctrl_c_is_there_whichever_registration_is_closed_first(close: Callable[[Registration], None]):
    before = signal.getsignal(signal.SIGINT)
    try:
        (_, first), (_, second) = registered(FakeTransport()), registered(FakeTransport())
        for registration in (first, second):
            close(registration)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_may_come_while_a_call_begins():
    class Pressed(set[threading.Event]):
        def add(self, token: threading.Event) -> None:
            interrupts.interrupt()  # as Python does it, in between
            super().add(token)

    def call() -> None:
        with interrupts.call():
            begun.set()

    begun = threading.Event()
    with contextlib.closing(duckdb.connect()) as con:
        interrupts = Interrupts(con)
        interrupts._tokens = Pressed()
        threading.Thread(target=call, daemon=True).start()
        assert begun.wait(10)


def test_duckdb_says_no_user_unless_it_is_told_one() -> None:
    with oip_server() as server:
        for user in ("", "Größe"):
            con = duckdb.connect()
            registration = ml_udf.duckdb.register(con, server.url, functions=["udf_food_name"], user=user)
            con.execute("SELECT udf_food_name('/a')").fetchall()
            registration.close()
            assert set(server.claims) == {(user, "")}
            server.forget()
        with pytest.raises(BadOption, match="the user is too long"):
            ml_udf.duckdb.register(duckdb.connect(), server.url, user="x" * 401)


def test_a_database_that_may_only_be_read_has_its_functions_too(tmp_path: Path):
    file = str(tmp_path / "food.db")
    with duckdb.connect(file) as writer:
        writer.execute("CREATE TABLE t AS SELECT 'laksa' AS s")
    con, registration = registered(FakeTransport(), duckdb.connect(file, read_only=True))
    assert con.execute("SELECT udf_f(s) FROM t").fetchall() == [(label_of(b"laksa"),)]
    assert con.execute("SELECT count(*) FROM duckdb_views() WHERE database_name = 'ml_udf'").fetchone() != (
        0,
    )
    registration.close()
    con.close()
