"""What `ml_udf.score_table` refuses, how it says so, and with whose rights it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer
from tests.postgres.scored import CALL, call, make_table, refused


@pytest.fixture
def table(engine: Engine) -> Engine:
    make_table(engine, 3000)
    return engine


@pytest.mark.parametrize(
    ("arguments", "state", "says"),
    [
        ("'nowhere', 'udf_food_name', 'image_path', output => 'food'", "42P01", "nowhere"),
        ("'foodlog', 'udf_nothing', 'image_path', output => 'food'", "42704", "create_function"),
        ("'foodlog', 'udf_food_name', 'photo', output => 'food'", "42703", "image_path"),
        ("'foodlog', 'udf_food_name', 'image_path', output => 'dish'", "42703", "ADD COLUMN dish text"),
        ("'foodlog', 'udf_food_name', 'age', output => 'food'", "42804", "integer"),
        ("'foodlog', 'udf_food_name', 'image_path', output => 'age'", "42804", "age"),
        ("'foodlog', 'udf_food_name', 'image_path', output => 'image_path'", "22023", "is the input"),
        ("'foodlog', 'udf_food_name', 'image_path', output => 'id'", "22023", "part of the key"),
        ("'foodlog', 'udf_food_name', 'image_path'", "22023", "result_table"),
        ("'foodlog', 'udf_food_name', 'image_path', 'food', 'scores'", "22023", "not two"),
        ("'foodlog', 'udf_food_name', 'image_path', 'food', key => ARRAY['age']", "42P10", "UNIQUE INDEX"),
        ("'foodlog', 'udf_food_name', 'image_path', 'food', batch_rows => 0", "22023", "batch_rows"),
        ("'foodlog', 'udf_food_name', 'image_path', 'food', rescore => 'often'", "22023", "changed"),
        ("'foodlog', 'udf_food_name', 'image_path', 'food', condition => 'nothing > 3'", "42703", "nothing"),
        ("'foodlog', 'food', 'image_path', 'food', server => 'nobody'", "42704", "nobody"),
        ("'food log', 'udf_food_name', 'image_path', 'food'", "22023", "not a name"),
        ("NULL, 'udf_food_name', 'image_path', 'food'", "22023", "relation"),
    ],
)
def test_what_cannot_be_scored_is_refused_clearly(
    table: Engine, fake_server: OipServer, arguments: str, state: str, says: str
) -> None:
    found, text = refused(table, f"CALL ml_udf.score_table({arguments})")
    assert (found, says in text) == (state, True), text
    assert fake_server.requests == []
    assert table.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []


def test_a_table_without_a_key_is_refused_and_told_what_to_do(table: Engine) -> None:
    table.query("CREATE TABLE keyless AS SELECT * FROM foodlog")
    sql = "CALL ml_udf.score_table('keyless', 'udf_food_name', 'image_path', output => 'food'"
    state, text = refused(table, sql + ")")
    assert state == "42P10"
    assert "ADD PRIMARY KEY" in text
    table.query("CREATE UNIQUE INDEX ON keyless (id)")
    for key in (
        "ARRAY['id']",
        "'id'",
        "'{id}'",
        "ARRAY['id']::varchar[]",
        "ARRAY['id']::name[]",
        "'id'::varchar",
    ):
        assert call(table, f"key => {key}, row_limit => 10", sql) == (10, 0, 0)
    assert refused(table, sql + ", key => 'id,')")[0] == "22023"


def test_inside_a_transaction_it_is_refused(table: Engine) -> None:
    with table.connection.transaction(force_rollback=True):
        state, text = refused(table, CALL + ")")
    assert state == "25001"
    assert "autocommit" in text


def test_a_function_of_the_server_needs_no_sql_function(table: Engine) -> None:
    sql = "CALL ml_udf.score_table('foodlog', 'food', 'image_path', output => 'food', server => 'ml_udf'"
    assert call(table, what=sql) == (3000, 0, 0)


@pytest.fixture
def analyst(table: Engine) -> Iterator[Engine]:
    table.query("DROP ROLE IF EXISTS analyst; CREATE ROLE analyst IN ROLE ml_udf_reader; SET ROLE analyst")
    yield table
    table.query("RESET ROLE; DROP OWNED BY analyst; DROP ROLE analyst")


def test_it_runs_with_the_callers_own_rights(analyst: Engine) -> None:
    assert refused(analyst, CALL + ")")[0] == "42501"
    analyst.query("RESET ROLE; GRANT SELECT ON foodlog TO analyst; SET ROLE analyst")
    assert refused(analyst, CALL + ")")[0] == "42501"
    analyst.query(
        "RESET ROLE; GRANT UPDATE ON foodlog TO analyst; GRANT INSERT ON audit TO analyst; SET ROLE analyst"
    )
    assert call(analyst) == (3000, 0, 0)


def test_row_security_holds(analyst: Engine, fake_server: OipServer) -> None:
    analyst.query(
        """RESET ROLE; GRANT SELECT, UPDATE ON foodlog TO analyst; GRANT INSERT ON audit TO analyst;
           ALTER TABLE foodlog ENABLE ROW LEVEL SECURITY;
           CREATE POLICY own ON foodlog TO analyst USING (id <= 100); SET ROLE analyst"""
    )
    assert call(analyst) == (100, 0, 0)
    assert set(fake_server.rows) == {f"/{n}" for n in range(1, 101)}


def test_without_execute_on_the_function_it_is_refused(analyst: Engine) -> None:
    analyst.query(
        "RESET ROLE; GRANT SELECT, UPDATE ON foodlog TO analyst;"
        "REVOKE ALL ON FUNCTION udf_food_name(text) FROM ml_udf_reader; SET ROLE analyst"
    )
    assert refused(analyst, CALL + ")")[0] == "42501"
