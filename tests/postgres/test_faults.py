"""What an analyst reads when something is wrong: SQLSTATE, message, detail, hint, warnings."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of

ROWS = "(VALUES ('/a'), ('missing1'), ('/b'), ('missing2'), (NULL)) v(path)"


def test_a_faulty_row_fails_the_statement_by_name(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.UndefinedFile) as caught:
        engine.query(f"SELECT udf_food_name(path) FROM {ROWS}")
    told = caught.value.diag
    assert told.message_primary == "ml_udf: there is no file missing1"
    assert "udf_food_name('missing1')" in (told.message_detail or "")
    assert "on_error" in (told.message_hint or "")
    assert engine.value("SELECT failed_calls FROM ml_udf.stat_functions") == 1


def test_on_error_null_gives_null_and_one_warning_with_count_and_cause(engine: Engine) -> None:
    engine.query("SET ml_udf.on_error = 'null'")
    rows = engine.query(f"SELECT udf_food_name(path) FROM {ROWS}")
    assert rows == [(label_of("/a"),), (None,), (label_of("/b"),), (None,), (None,)]
    (warning,) = engine.warnings
    assert warning.message == (
        "udf_food_name: 2 inputs could not be answered and gave NULL; "
        "the first: input_not_found: there is no file missing1"
    )


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT ml_udf.predict('nope', '/a')", "42704"),
        ("SET ml_udf.slo_ms = 'fast'; SELECT udf_food_name('/a')", "22023"),
        ("SELECT ml_udf.predict('food', '/a', 'elsewhere')", "42704"),
    ],
)
def test_on_error_null_hides_no_mistake_of_the_statement_itself(engine: Engine, sql: str, state: str) -> None:
    engine.query("SET ml_udf.on_error = 'null'")
    with pytest.raises(psycopg.Error) as caught:
        engine.query(sql)
    assert caught.value.sqlstate == state


def test_predict_beside_the_function_itself_warns_once(engine: Engine) -> None:
    engine.query("SET ml_udf.on_error = 'null'")
    engine.query(f"SELECT udf_food_name(path), ml_udf.predict('udf_food_name', path) FROM {ROWS}")
    (warning,) = engine.warnings
    assert warning.message.startswith("udf_food_name: 2 inputs could not be answered")


@pytest.mark.parametrize("kind", ["mood", "float8", "integer", "jsonb", "few", "date"])
def test_an_answer_that_is_no_value_of_the_type_is_a_fault_of_its_row(engine: Engine, kind: str) -> None:
    engine.query(
        "CREATE TYPE mood AS ENUM ('c0', 'c1'); CREATE DOMAIN few AS text CHECK (VALUE IN ('c0', 'c1'))"
    )
    engine.query("SELECT ml_udf.create_function('feeling', 'food', returns => %s)", kind)
    bad = next(f"/{n}" for n in range(100) if label_of(f"/{n}") not in ("c0", "c1"))
    good = next(f"/{n}" for n in range(100) if label_of(f"/{n}") in ("c0", "c1"))
    if kind in ("mood", "few"):
        assert engine.value(f"SELECT feeling('{good}')::text") == label_of(good)
    with pytest.raises(psycopg.errors.DatatypeMismatch) as caught:
        engine.query(f"SELECT feeling(path) FROM (VALUES ('{bad}'), (NULL)) AS v(path)")
    told = caught.value.diag
    assert f"the answer '{label_of(bad)}' is no value of type " in (told.message_primary or "")
    assert f"food('{bad}')" in (told.message_detail or "")
    assert "returns => 'text'" in (told.message_hint or "")
    engine.query("SET ml_udf.on_error = 'null'")
    assert engine.value(f"SELECT feeling('{bad}')") is None
    (warning,) = engine.warnings
    assert warning.message.startswith(
        "food: 1 input could not be answered and gave NULL; the first: wrong_type"
    )


@pytest.mark.parametrize(
    ("row", "state", "said"),
    [("zero", "42804", "holds a zero character"), ("bytes", "22023", "are not text")],
)
def test_an_answer_that_no_text_holds_is_a_fault_of_its_row(
    engine: Engine, row: str, state: str, said: str
) -> None:
    calls = ["udf_food_name(x)", "ml_udf.predict('food', x)", "(ml_udf.predict_many('food', ARRAY[x]))[1]"]
    rows = f"FROM (VALUES ('/a'), ('{row}')) AS v(x)"
    for call in calls:
        with pytest.raises(psycopg.Error, match=said) as caught:
            engine.query(f"SELECT {call} {rows}")
        assert caught.value.sqlstate == state
    tried = engine.query(f"SELECT (ml_udf.try_predict('food', x)).* {rows}")
    assert tried[0] == (label_of("/a"), 0.5, "1", None)
    assert tried[1][:2] == (None, None)
    assert said in tried[1][3]
    engine.query("SET ml_udf.on_error = 'null'")
    for call in calls:
        assert engine.query(f"SELECT {call} {rows}") == [(label_of("/a"),), (None,)]
    assert [said in warning.message for warning in engine.warnings] == [True] * len(calls)


def test_an_array_of_two_dimensions_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.ArraySubscriptError, match="an array of one dimension"):
        engine.query("SELECT ml_udf.predict_many('food', ARRAY[['/a'], ['/b']])")


def test_each_statement_has_its_own_warning(engine: Engine) -> None:
    engine.query("SET ml_udf.on_error = 'null'")
    with engine.connection.transaction():
        for _ in range(2):
            engine.query("SELECT udf_food_name('missing')")
            assert len(engine.warnings) == 1  # at the end of the statement, not of the transaction
            engine.warnings.clear()
    engine.query("SELECT udf_food_name_batch(ARRAY['missing', '/a'])")
    assert len(engine.warnings) == 1


def test_a_statement_that_fails_warns_of_nothing(engine: Engine) -> None:
    engine.query("SET ml_udf.on_error = 'null'")
    with pytest.raises(psycopg.errors.DivisionByZero):
        engine.query("SELECT udf_food_name('missing' || n), 1 / (3 - n) FROM generate_series(1, 3) n")
    assert engine.warnings == []


def test_a_function_may_carry_its_own_setting(engine: Engine) -> None:
    engine.query("ALTER FUNCTION udf_food_name(text) SET ml_udf.on_error = 'null'")
    assert engine.value("SELECT udf_food_name('missing')") is None
    with pytest.raises(psycopg.errors.UndefinedFile):
        engine.query("SELECT udf_food_name_batch(ARRAY['missing'])")


def test_plpgsql_may_set_between_its_calls(engine: Engine) -> None:
    engine.query("""
        DO $$ BEGIN
            SET LOCAL ml_udf.on_error = 'null';
            ASSERT udf_food_name('missing') IS NULL;
            SET LOCAL ml_udf.on_error = 'error';
            PERFORM udf_food_name('missing');
            RAISE EXCEPTION 'not reached';
        EXCEPTION WHEN undefined_file THEN NULL;
        END $$""")


def test_a_stopped_server_is_an_error_that_says_where(engine: Engine, fake_server: OipServer) -> None:
    fake_server.stop()
    began_s = time.monotonic()
    with pytest.raises(psycopg.errors.SqlclientUnableToEstablishSqlconnection) as caught:
        engine.query(f"SELECT udf_food_name(path) FROM {ROWS}")
    assert time.monotonic() - began_s < 15
    assert fake_server.url in (caught.value.diag.message_primary or "")
    assert "udf_food_name" in (caught.value.diag.message_detail or "")
    assert caught.value.diag.message_hint


def test_with_on_error_null_a_stopped_server_is_tried_once(engine: Engine, fake_server: OipServer) -> None:
    fake_server.stop()
    engine.query("SET ml_udf.on_error = 'null'")
    began_s = time.monotonic()
    assert engine.value("SELECT count(udf_food_name('/' || n)) FROM generate_series(1, 1000) n") == 0
    assert time.monotonic() - began_s < 15
    (warning,) = engine.warnings
    assert warning.message.startswith("udf_food_name: 1,000 inputs could not be answered")
    assert "unreachable: nothing answers" in warning.message


@pytest.mark.parametrize(
    ("setting", "value"),
    [("batch_rows", "0"), ("batch_rows", "many"), ("on_error", "ignore"), ("timeout_ms", "-1")],
)
def test_a_setting_that_cannot_be_is_refused_by_name(engine: Engine, setting: str, value: str) -> None:
    engine.query(f"SET ml_udf.{setting} = '{value}'")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"ml_udf.{setting} = "):
        engine.query("SELECT udf_food_name('/a')")


def test_settings_travel_with_the_rows(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SET ml_udf.slo_ms = 250; SET ml_udf.min_accuracy = 0.8")
    engine.query("SELECT udf_food_name('/a')")
    (sent,) = fake_server.parameters
    assert sent["ml_udf_slo_ms"] == 250
    assert sent["ml_udf_min_accuracy"] == 0.8


def test_an_unknown_function_says_so(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject, match="no function or model 'nope'"):
        engine.query("SELECT ml_udf.predict('nope', '/a')")


def test_an_unknown_server_says_how_to_make_one(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject) as caught:
        engine.query("SELECT ml_udf.predict('food', '/a', 'elsewhere')")
    assert "CREATE SERVER" in (caught.value.diag.message_hint or "")


def test_an_error_leaves_the_session_as_it_was(engine: Engine) -> None:
    for _ in range(3):
        with pytest.raises(psycopg.errors.UndefinedFile):
            engine.query("SELECT udf_food_name('missing')")
        assert engine.value("SELECT udf_food_name('/a')") == label_of("/a")


def test_a_savepoint_takes_back_a_failed_call(engine: Engine) -> None:
    with engine.connection.transaction():
        with pytest.raises(psycopg.errors.UndefinedFile), engine.connection.transaction():
            engine.query("SELECT udf_food_name('missing')")
        assert engine.value("SELECT udf_food_name('/a')") == label_of("/a")
