"""What `CALL ml_udf.score_table(…)` promises where nothing breaks: which rows, and each once."""

from __future__ import annotations

import threading
import time

import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of
from tests.postgres.scored import CALL, INTO, assert_each_row_was_scored_once, call, make_table, refused
from tests.waiting import wait_until


@pytest.fixture
def table(engine: Engine) -> Engine:
    make_table(engine, 3000)
    return engine


def test_every_row_gets_its_answer_once(table: Engine) -> None:
    assert call(table) == (3000, 0, 0)
    assert_each_row_was_scored_once(table, 3000)
    told = "SELECT DISTINCT food_model_version, food_confidence, food_error FROM foodlog"
    assert table.query(told) == [("1", 0.5, None)]


def test_a_second_call_has_nothing_to_do_and_asks_nothing(table: Engine, fake_server: OipServer) -> None:
    call(table)
    fake_server.forget()
    assert call(table) == (0, 0, 0)
    assert fake_server.requests == []


def test_new_rows_alone_are_scored(table: Engine) -> None:
    call(table)
    table.query("INSERT INTO foodlog (id, image_path) VALUES (0, '/0'), (9000, '/9000')")
    assert call(table) == (2, 0, 0)


def test_rows_whose_input_changed_are_scored_again(table: Engine) -> None:
    call(table)
    table.query("UPDATE foodlog SET image_path = '/other' WHERE id IN (7, 8)")
    assert call(table, "rescore => 'none'") == (0, 0, 0)
    assert call(table) == (2, 0, 0)
    assert table.value("SELECT food FROM foodlog WHERE id = 7") == label_of("/other")


def test_null_inputs_are_left_alone(table: Engine, fake_server: OipServer) -> None:
    table.query("UPDATE foodlog SET image_path = NULL WHERE id % 2 = 0")
    assert call(table) == (1500, 0, 0)
    assert table.value("SELECT count(*) FROM foodlog WHERE food IS NULL") == 1500


def test_an_empty_table_is_no_error(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 0)
    assert call(engine) == (0, 0, 0)
    assert call(engine, what=INTO) == (0, 0, 0)
    assert fake_server.requests == []


def test_a_condition_and_a_limit_hold(table: Engine) -> None:
    assert call(table, "condition => 'age > 30 AND foodlog.id < 1000', row_limit => 100") == (100, 0, 0)
    outside = "SELECT count(*) FROM foodlog WHERE food IS NOT NULL AND NOT (age > 30 AND id < 1000)"
    assert table.value(outside) == 0
    assert table.value("SELECT count(food) FROM foodlog") == 100
    assert call(table, "row_limit => 0") == (0, 0, 0)


def test_equal_inputs_are_sent_about_once(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 8000)
    engine.query("UPDATE foodlog SET image_path = '/' || id % 10")
    assert call(engine) == (8000, 0, 0)
    assert len(fake_server.rows) <= 30  # three pages are on the way before the first answer is remembered


@pytest.mark.alone
def test_batches_are_large_and_several_are_under_way(table: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 0.3
    began_s = time.monotonic()
    call(table, "batch_rows => 1000")
    assert len(fake_server.requests) <= 14
    assert time.monotonic() - began_s < 0.3 * len(fake_server.requests)


def test_an_answer_that_another_version_gave_is_replaced_on_request(
    table: Engine, fake_server: OipServer
) -> None:
    call(table)
    fake_server.version = "2"
    assert call(table) == (0, 0, 0)
    assert call(table, "rescore => 'version', row_limit => 10") == (10, 0, 0)
    assert call(table, "rescore => 'changed, version'") == (2990, 0, 0)
    assert table.query("SELECT DISTINCT food_model_version FROM foodlog") == [("2",)]


def test_a_version_that_is_not_served_is_refused(table: Engine) -> None:
    state, text = refused(table, CALL + ", version => '77')")
    assert state == "42704"
    assert "77" in text


def test_a_faulty_row_ends_the_call_and_keeps_what_was_good(table: Engine) -> None:
    table.query("UPDATE foodlog SET image_path = 'missing' WHERE id = 1500")
    state, _ = refused(table, CALL + ", batch_rows => 500)")
    assert state == "58P01"
    assert table.value("SELECT count(food) FROM foodlog WHERE id < 1500") == 1499
    assert table.value("SELECT food_error FROM foodlog WHERE id = 1500") is None


def test_with_on_error_null_faults_are_stored_and_not_tried_again(
    table: Engine, fake_server: OipServer
) -> None:
    table.query("UPDATE foodlog SET image_path = 'missing' || id WHERE id IN (5, 2500)")
    assert call(table, "on_error => 'null'") == (2998, 2, 0)
    stored = "SELECT food, food_error FROM foodlog WHERE id = 5"
    assert table.query(stored) == [(None, "input_not_found: there is no file missing5")]
    (warning,) = table.warnings
    assert warning.message.startswith("2 rows of foodlog.food could not be answered")
    assert "(id) = (5)" in warning.detail
    fake_server.forget()
    assert call(table, "on_error => 'null'") == (0, 0, 0)
    assert fake_server.requests == []
    assert call(table, "on_error => 'null', rescore => 'errors'") == (0, 2, 0)
    table.query("UPDATE foodlog SET image_path = '/5' WHERE id = 5")
    assert call(table, "on_error => 'null'") == (1, 0, 0)
    assert table.query(stored) == [(label_of("/5"), None)]


def test_an_answer_that_the_column_cannot_hold_is_its_rows_fault(table: Engine) -> None:
    table.query("UPDATE foodlog SET image_path = 'zero' WHERE id = 5")
    table.query("UPDATE foodlog SET image_path = 'bytes' WHERE id = 6")
    state, text = refused(table, CALL + ")")
    assert state == "42804"
    assert "holds a zero character" in text
    assert call(table, "on_error => 'null'")[1] == 2
    stored = table.query("SELECT id, food, food_error FROM foodlog WHERE id BETWEEN 4 AND 7 ORDER BY id")
    zero = "wrong_type: the answer 'a\\x00b' holds a zero character, which no text of PostgreSQL can"
    assert stored == [
        (4, label_of("/4"), None),
        (5, None, zero),
        (6, None, "wrong_type: the function answered bytes that are not text"),
        (7, label_of("/7"), None),
    ]


def test_the_sessions_on_error_is_the_default(table: Engine) -> None:
    table.query("UPDATE foodlog SET image_path = 'missing' WHERE id = 5; SET ml_udf.on_error = 'null'")
    assert call(table) == (2999, 1, 0)


def test_on_error_null_wants_a_column_for_the_errors(table: Engine) -> None:
    table.query("ALTER TABLE foodlog DROP COLUMN food_error")
    state, text = refused(table, CALL + ", on_error => 'null')")
    assert state == "22023"
    assert 'ADD COLUMN "food_error" text' in text


def test_a_second_run_into_the_same_place_is_refused_and_told_who_runs(
    table: Engine, fake_server: OipServer
) -> None:
    fake_server.delay_s = 0.3
    other = Engine(table.dsn)
    runner = threading.Thread(target=lambda: call(other, "batch_rows => 300"))
    runner.start()
    shown = "SELECT application_name FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: fake_server.requests)
    state, text = refused(table, CALL + ")")
    assert state == "55P03"
    assert str(other.connection.info.backend_pid) in text
    assert "ml_udf.score_table" in table.value(shown, other.connection.info.backend_pid)
    call(table, what=INTO)  # another place is free
    runner.join()
    assert table.value(shown, other.connection.info.backend_pid) == ""
    other.close()
    assert call(table) == (0, 0, 0)
    assert_each_row_was_scored_once(table, 3000)


def test_rows_that_change_while_they_are_asked_get_the_answer_of_what_they_became(
    table: Engine, fake_server: OipServer
) -> None:
    fake_server.delay_s = 0.4
    other = Engine(table.dsn)

    def change() -> None:
        wait_until(lambda: fake_server.requests)
        other.query("SET lock_timeout = '2s'; UPDATE foodlog SET image_path = '/new' || id WHERE id <= 10")
        other.query("DELETE FROM foodlog WHERE id BETWEEN 11 AND 15")

    changer = threading.Thread(target=change)
    changer.start()
    answered, failed, missed = call(table, "batch_rows => 512")
    changer.join()
    other.close()
    assert (answered, failed) == (2995, 0)
    assert missed == 15
    found = table.query("SELECT image_path, food FROM foodlog")
    assert all(food == label_of(path) for path, food in found)


def test_a_serialization_failure_is_tried_again(table: Engine) -> None:
    other = Engine(table.dsn)
    blocked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    with other.connection.transaction():
        other.query("UPDATE foodlog SET age = 0 WHERE id = 5")
        table.query("SET default_transaction_isolation = 'repeatable read'")
        runner = threading.Thread(target=call, args=(table,))
        runner.start()
        wait_until(lambda: other.query(blocked, table.connection.info.backend_pid), 30)
    runner.join()
    other.close()
    assert_each_row_was_scored_once(table, 3000)


def test_the_sessions_statistics_count_the_run(table: Engine) -> None:
    call(table)
    asked = "SELECT statements, rows, rows_sent, failed_rows FROM ml_udf.stat_functions"
    assert table.query(asked) == [(1, 3000, 3000, 0)]
