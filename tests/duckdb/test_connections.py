"""What every connection of a database may count on, not only the one that called `register`."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from ml_udf.client import Client, Options
from ml_udf.client.statement import Binding
from ml_udf.duckdb.pauses import LONGEST_S, PAUSE_S, Pauses
from ml_udf.duckdb.registration import Registration, register
from ml_udf.errors import BadOption
from tests.postgres.oip_server import oip_server
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of


def registered(transport: FakeTransport, con: duckdb.DuckDBPyConnection) -> Registration:
    return Registration(con, Client("http://fake", transport=transport), {"udf_f": "f"}, Options())


def sent_rows(transport: FakeTransport) -> int:
    return sum(len(batch) for batch in transport.sent)


def test_a_cursor_a_view_and_a_threads_own_cursor_know_the_function(tmp_path: Path):
    con = duckdb.connect(str(tmp_path / "food.db"))
    registration = registered(FakeTransport(), con)
    con.execute("CREATE TABLE t AS SELECT i::VARCHAR AS s FROM range(5000) AS r(i)")
    con.execute("CREATE VIEW answers AS SELECT s, udf_f(s) AS answer FROM t")
    expected = [(str(i), label_of(str(i).encode())) for i in range(5000)]
    found: list[list[tuple[str, str]]] = []

    def read() -> None:
        with con.cursor() as own:
            found.append(own.execute("FROM answers").fetchall())
            found.append(own.execute("SELECT s, UDF_F(s) FROM t").fetchall())

    read()
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [expected] * 8
    registration.close()
    with con.cursor() as after, pytest.raises(duckdb.CatalogException):
        after.execute("FROM answers")
    con.close()


def test_a_database_with_a_quote_in_its_name_is_left_as_it_was(tmp_path: Path):
    con = duckdb.connect(str(tmp_path / "bob's.db"))
    registration = registered(FakeTransport(), con)
    assert con.execute("SELECT udf_f('a')").fetchall() == [(label_of(b"a"),)]
    registration.close()
    con.execute("CREATE TABLE t AS SELECT 1 AS n")
    assert con.execute("SELECT table_catalog FROM information_schema.tables").fetchall() == [("bob's",)]
    con.close()


def test_a_cursors_statement_sends_equal_values_once_and_has_one_version():
    transport = FakeTransport(version="1")
    con = duckdb.connect()
    registration = registered(transport, con)

    def deploy_anew() -> None:
        transport.version = "2"

    transport.on_infer = deploy_anew  # while the first vector is under way
    with con.cursor() as cursor:
        cursor.execute("SELECT udf_f((i % 5000)::VARCHAR) FROM range(9000) AS r(i)").fetchall()
    asked = {path for path in transport.paths if path.endswith("/infer")}
    assert asked == {"/v2/models/f/versions/1/infer"}
    assert sent_rows(transport) == 5000
    registration.close()


WHILE_A_CURSOR_READS = """
import threading
import duckdb
from ml_udf.client import Client, Options
from ml_udf.duckdb.registration import Registration
from tests.unit.ml_udf.fake_transport import FakeTransport

def registered():
    return Registration(con, Client("http://fake", transport=transport), {"udf_f": "f"}, Options())

def asked():
    is_asked.set()
    may_go_on.wait(60)

def read():
    try:
        said.append(len(cursor.execute("SELECT udf_f(i::VARCHAR) FROM range(9000) AS r(i)").fetchall()))
    except duckdb.Error as error:
        said.append(str(error))

con, transport, said = duckdb.connect(), FakeTransport(), []
is_asked, may_go_on = threading.Event(), threading.Event()
transport.on_infer = asked
first = registered()
cursor = con.cursor()
reading = threading.Thread(target=read)
reading.start()
is_asked.wait(60)
%s
may_go_on.set()
reading.join(60)
print(said[0])
"""


@pytest.mark.parametrize(
    ("act", "said"),
    [("first.close()", "Cancelled: udf_f: the registration was closed"), ("registered()", "9000")],
)
def test_a_function_may_go_while_another_connection_reads(act: str, said: str):
    """In a process of its own: DuckDB called what it had freed, and took the process with it."""
    done = subprocess.run(
        [sys.executable, "-c", WHILE_A_CURSOR_READS % act], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_an_error_on_a_cursor_is_raised_there_too():
    con = duckdb.connect()
    registration = registered(FakeTransport(), con)
    with con.cursor() as cursor:
        with pytest.raises(duckdb.Error, match=r"f: bad1 is not there \[58P01 input_not_found\]"):
            cursor.execute("SELECT udf_f('bad1')")
        assert cursor.execute("SELECT udf_f(NULL), udf_f(?)", ["a"]).fetchall() == [(None, label_of(b"a"))]
    registration.close()


def test_a_pause_tells_statements_apart_and_a_fault_or_a_long_time_too():
    now_s = 0.0
    pauses = Pauses(lambda: now_s)

    def name() -> str:
        with pauses.call() as identity:
            return identity

    first = name()
    now_s += PAUSE_S * 0.9
    assert name() == first
    now_s += PAUSE_S * 1.1
    second = name()
    assert second != first
    with pytest.raises(ValueError, match="fault"), pauses.call():
        raise ValueError("fault")
    third = name()
    assert third != second
    with pauses.call() as long:
        now_s += LONGEST_S / 2
        assert long == third == name()
        now_s += LONGEST_S
        assert name() != third


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("udf_f(123)", "udf_f takes VARCHAR, not INTEGER"),
        ("udf_f(1.5)", r"udf_f takes VARCHAR, not DECIMAL\(2,1\)"),
        ("udf_f('x'::BLOB)", "udf_f takes VARCHAR, not BLOB"),
        ("udf_f([1, 2])", r"udf_f takes VARCHAR, not INTEGER\[\]"),
        ("ml_udf.predict('f', 123)", "predict takes VARCHAR, not INTEGER"),
        ("ml_udf.predict('f', 123)", "WrongType: f: predict takes"),
        ("ml_udf.try_predict('f', 123)", "try_predict takes VARCHAR, not INTEGER"),
        ("ml_udf.predict_many('f', [['a'], ['b']])", r"predict_many takes VARCHAR\[\], not VARCHAR\[\]\[\]"),
        ("udf_f('a', 'b')", "udf_f"),
        ("udf_f()", "udf_f"),
        ("udf_g('a')", '"udf_f"'),
    ],
)
def test_an_error_shows_the_names_that_a_user_knows(call: str, said: str):
    con = duckdb.connect()
    registration = registered(FakeTransport(), con)
    with con.cursor() as cursor:
        for each in (con, cursor):
            with pytest.raises(duckdb.Error, match=said) as caught:
                each.execute(f"SELECT {call}")
            assert not any(inner in str(caught.value) for inner in ("ml_udf_", "call_", "statement"))
    registration.close()


@pytest.mark.parametrize(
    ("function", "way_out"),
    [
        ("eye", r"udf\(content\) FROM read_blob\(.+ input_name='image_path'"),
        ("road", "a path of the inference server's host.+ input_name='image'"),
    ],
)
def test_a_path_and_a_photos_bytes_are_told_apart_and_no_cast_is_advised(function: str, way_out: str):
    other = {"eye": ("image_path", "'a.jpg'"), "road": ("image", "'photo'::BLOB")}
    name, given = other[function]
    with oip_server() as server, duckdb.connect() as con:
        server.functions = {"eye": "image", "road": "path"}
        with closing(register(con, server.url, functions={"udf": function})):
            with pytest.raises(duckdb.Error, match=way_out) as caught:
                con.execute(f"SELECT udf({given})")
            assert "cast" not in str(caught.value)
        with closing(register(con, server.url, functions={"udf": Binding(function, input_name=name)})):
            assert con.execute(f"SELECT udf({given}) IS NOT NULL").fetchall() == [(True,)]
        assert server.inputs == [name]


def test_what_fits_by_itself_needs_no_cast():
    con = duckdb.connect()
    registration = registered(FakeTransport(), con)
    rows = con.execute("SELECT udf_f(v) FROM (VALUES ('a'::ENUM('a', 'b')), ('b')) AS t(v)").fetchall()
    assert rows == [(label_of(b"a"),), (label_of(b"b"),)]
    assert con.execute("SELECT udf_f('{}'::JSON), ml_udf.predict_many('f', NULL)").fetchall() == [
        (label_of(b"{}"), None)
    ]
    registration.close()


def test_another_connection_that_registers_the_same_name_is_told_so():
    con = duckdb.connect()
    registration = registered(FakeTransport(), con)
    with con.cursor() as cursor, pytest.raises(BadOption, match="has registered 'udf_f'"):
        registered(FakeTransport(), cursor)
    assert con.execute("SELECT udf_f('a')").fetchall() == [(label_of(b"a"),)]
    registration.close()


def test_a_refusal_shows_its_message_and_no_frames_of_ours(tmp_path: Path):
    with pytest.raises(BadOption) as caught:
        register(duckdb.connect(), f"local:{tmp_path}", functions=["upper"])
    assert len(caught.traceback) <= 2
    shown = caught.value._render_traceback_()
    assert shown[0].startswith("BadOption: ")
    assert shown[1].startswith("HINT: ")


@pytest.mark.parametrize("threads", [1, 4])
def test_pipelines_that_run_at_once_share_what_is_under_way(threads: int):
    transport = FakeTransport(delay_s=0.05)
    con = duckdb.connect(config={"threads": threads})
    registration = registered(transport, con)
    con.execute("CREATE TABLE t AS SELECT (i % 24)::VARCHAR AS s FROM range(300000) AS r(i)")
    rows = con.execute("SELECT udf_f(s) FROM t INTERSECT ALL SELECT udf_f(s) FROM t").fetchall()
    assert len(rows) == 300_000
    assert sent_rows(transport) == 24
    registration.close()


def test_a_server_that_is_not_ours_tells_its_models():
    with oip_server(ours=False) as server:
        con = duckdb.connect()
        registration = register(con, server.url, functions={"ask_food": "food"})
        listed = con.execute("SELECT name, resident FROM ml_udf.models").fetchall()
        assert listed == [("udf_food_name", True), ("food", True)]
        assert con.execute("SELECT name FROM ml_udf.functions").fetchall() == [("udf_food_name",), ("food",)]
        assert con.execute("FROM ml_udf.trials").fetchall() == []
        registration.close()
