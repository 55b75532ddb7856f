"""SQL functions made by `ml_udf.create_function`: names, types, what they become, what is refused."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of

MADE = """
    SELECT p.provolatile, p.proisstrict, p.procost, p.proparallel, p.proconfig,
           p.prosecdef, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
    FROM pg_proc p WHERE p.proname = %s"""


def test_the_function_is_what_the_planner_should_see(engine: Engine) -> None:
    parallel = "u" if engine.connection.info.server_version < 170000 else "r"
    path = "search_path=pg_catalog, pg_temp"
    common = ("s", True, 10000.0, parallel)
    assert engine.query(MADE, "udf_food_name") == [(*common, [path], False, "input text", "text")]
    assert engine.query(MADE, "udf_food_name_batch") == [
        (*common, [path, "ml_udf.answers_later=on"], False, "inputs text[]", "text[]")
    ]


def test_the_twin_has_the_same_owner_schema_and_rights(engine: Engine) -> None:
    twins = engine.query(
        "SELECT DISTINCT pronamespace, proowner, proacl::text, proparallel FROM pg_proc"
        " WHERE proname IN ('udf_food_name', 'udf_food_name_batch')"
    )
    assert len(twins) == 1


def test_the_comment_tells_what_it_answers(engine: Engine) -> None:
    comment = engine.value("SELECT obj_description('udf_food_name(text)'::regprocedure)")
    assert comment == (
        "udf_food_name of server ml_udf: one of c0, c1, c2, c3, c4, c5, c6 (made by ml_udf.create_function)"
    )


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("Plain", "plain"),
        ('"Two Words"', '"Two Words"'),
        ('"quote "" and \\ and $$"', '"quote "" and \\ and $$"'),
        ('"it\'s"', '"it\'s"'),
        ('"naïve 😀"', '"naïve 😀"'),
        ("shop.food", "shop.food"),
        ('shop."Food"', 'shop."Food"'),
    ],
)
def test_names_mean_what_sql_says(engine: Engine, fake_server: OipServer, name: str, made: str) -> None:
    engine.query("CREATE SCHEMA shop")
    signature = engine.value("SELECT ml_udf.create_function(%s, function => 'food')::text", name)
    assert signature == f"{made}(text)"
    assert engine.value(f"SELECT {made}('/a')") == label_of("/a")
    engine.query("SELECT ml_udf.drop_function(%s)", name)
    assert engine.value("SELECT count(*) FROM ml_udf._wrappers()") == 2  # udf_food_name and its twin


def test_a_name_of_the_server_may_hold_anything(engine: Engine, fake_server: OipServer) -> None:
    name = 'it\'s "q\\uot{e}d" \n 😀'
    engine.query("SELECT ml_udf.create_function('odd', function => %s, verify => false)", name)
    ((record,),) = engine.query("SELECT record FROM ml_udf._wrappers() WHERE oid = 'odd(text)'::regprocedure")
    assert record["function"] == name
    with pytest.raises(psycopg.errors.UndefinedObject, match="no function or model"):
        engine.query("SELECT odd('/a')")


def test_the_current_schema_is_the_callers(engine: Engine) -> None:
    engine.query("CREATE SCHEMA shop")
    engine.query("SET search_path = shop, public")
    engine.query("SELECT ml_udf.create_function('f', function => 'food')")
    assert engine.value("SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'f'") == "shop"
    engine.query("SELECT ml_udf.drop_function('f')")


def test_creating_again_replaces_and_keeps_grants(engine: Engine) -> None:
    engine.query("REVOKE EXECUTE ON FUNCTION udf_food_name(text) FROM ml_udf_reader")
    before = engine.value("SELECT proacl::text FROM pg_proc WHERE proname = 'udf_food_name'")
    engine.query("SELECT ml_udf.create_function('udf_food_name', options => %s)", json.dumps({"slo_ms": 90}))
    assert engine.value("SELECT proacl::text FROM pg_proc WHERE proname = 'udf_food_name'") == before
    assert engine.value("SELECT options ->> 'slo_ms' FROM ml_udf.functions WHERE sql_function IS NOT NULL")


def test_a_functions_own_options_yield_to_the_session(engine: Engine, fake_server: OipServer) -> None:
    options = json.dumps({"slo_ms": 90, "on_error": "null"})
    engine.query("SELECT ml_udf.create_function('f', function => 'food', options => %s)", options)
    assert engine.value("SELECT f('missing')") is None
    engine.query("SET ml_udf.slo_ms = 10")
    engine.query("SELECT f('/a')")
    assert [sent["ml_udf_slo_ms"] for sent in fake_server.parameters] == [90, 10]


def test_a_renamed_and_moved_function_is_still_ours(engine: Engine) -> None:
    engine.query("CREATE SCHEMA shop")
    engine.query("ALTER FUNCTION udf_food_name(text) RENAME TO dish")
    engine.query("ALTER FUNCTION dish(text) SET SCHEMA shop")
    assert engine.value("SELECT shop.dish('/a')") == label_of("/a")
    listed = "SELECT sql_function::text FROM ml_udf.functions WHERE name = 'udf_food_name'"
    assert engine.value(listed) == "shop.dish(text)"


@pytest.mark.parametrize(
    ("call", "state", "message"),
    [
        ("'mine', function => 'food'", "42723", "was not made by ml_udf.create_function"),
        ("'nope'", "42704", "no function or model 'nope'"),
        ("'f', function => 'food', server => 'nope'", "42704", "there is no server 'nope'"),
        ("'f', function => 'food', options => '{\"slo\": 1}'", "22023", "there is no setting 'slo'"),
        ("'f', function => 'food', options => '{\"slo_ms\": -1}'", "22023", "out of bounds"),
        ("'f', function => 'food', options => '[1]'", "22023", "options is not an object"),
        ("'f', function => 'food', input => 'date'", "0A000", "cannot take date"),
        ("'f', function => 'food', returns => 'record'", "0A000", "cannot be a function's type"),
        ("'f', function => 'food', returns => 'pg_class'", "0A000", "cannot be a function's type"),
        ("'a.b.c', function => 'food'", "42601", "too many parts"),
        ("'two words', function => 'food'", "22023", "not a valid identifier"),
        ("'nowhere.f', function => 'food'", "3F000", 'schema "nowhere" does not exist'),
        ("'ml_udf.f', function => 'food'", "42939", "not for functions of users"),
        ("'pg_catalog.f', function => 'food'", "42939", "not for functions of users"),
        (f"'{'x' * 58}', function => 'food'", "42622", "too long"),
        ("NULL", "22004", "name is NULL"),
        ("'udf_food_name', returns => 'float8'", "42P13", "returns text, not double precision"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(
    engine: Engine, call: str, state: str, message: str
) -> None:
    engine.query("CREATE FUNCTION mine(text) RETURNS text LANGUAGE sql AS 'SELECT $1'")
    with pytest.raises(psycopg.Error) as caught:
        engine.query(f"SELECT ml_udf.create_function({call})")
    assert caught.value.sqlstate == state
    assert message in (caught.value.diag.message_primary or "")
    assert engine.value("SELECT mine('left alone')") == "left alone"


def test_a_foreign_twin_is_not_overwritten_either(engine: Engine) -> None:
    engine.query("CREATE FUNCTION f_batch(text[]) RETURNS text[] LANGUAGE sql AS 'SELECT $1'")
    with pytest.raises(psycopg.errors.DuplicateFunction, match="f_batch"):
        engine.query("SELECT ml_udf.create_function('f', function => 'food')")


def test_without_verify_nothing_is_asked(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SELECT ml_udf.create_function('later', verify => false)")
    assert fake_server.paths == []


def test_all_functions_of_a_server_are_made_by_one_query(engine: Engine) -> None:
    missing = "FROM ml_udf.functions WHERE sql_function IS NULL"
    assert engine.query(f"SELECT ml_udf.create_function(name)::text {missing}") == [("food(text)",)]
    assert engine.query(f"SELECT name {missing}") == []


def test_dropping_takes_the_twin_along_and_nothing_else(engine: Engine) -> None:
    engine.query("CREATE FUNCTION udf_food_name(int) RETURNS int LANGUAGE sql AS 'SELECT $1'")
    engine.query("SELECT ml_udf.drop_function('udf_food_name')")
    left = engine.query("SELECT oid::regprocedure::text FROM pg_proc WHERE proname ~ '^udf_food'")
    assert left == [("udf_food_name(integer)",)]
    with pytest.raises(psycopg.errors.UndefinedFunction):
        engine.query("SELECT ml_udf.drop_function('udf_food_name')")
    engine.query("SELECT ml_udf.drop_function('udf_food_name', if_exists => true)")


def test_a_view_keeps_its_function(engine: Engine) -> None:
    engine.query("CREATE VIEW v AS SELECT udf_food_name('/a') AS food")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as caught:
        engine.query("SELECT ml_udf.drop_function('udf_food_name')")
    assert "view public.v" in (caught.value.diag.message_detail or "")
