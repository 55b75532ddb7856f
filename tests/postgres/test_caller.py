"""In whose name PostgreSQL asks: its current_user and database, said with each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine, connect
from tests.postgres.oip_server import OipServer

pytestmark = pytest.mark.security

ROLES = ("claims_ana", "claims_owner", "Größe, 50%")


@pytest.fixture
def owner(postgres_engine: Callable[..., Engine], fake_server: OipServer) -> Iterator[Engine]:
    """A superuser, with `udf_food_name`, and roles that may call it."""
    engine = postgres_engine(fake_server.url, functions=["udf_food_name"])
    for role in ROLES:
        engine.query(f'CREATE ROLE "{role}"; GRANT ml_udf_reader TO "{role}"')
        engine.query(f'GRANT USAGE ON FOREIGN SERVER ml_udf TO "{role}"')
    fake_server.forget()
    yield engine
    engine.query("RESET ROLE")
    for role in ROLES:
        engine.query(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


def said(server: OipServer) -> set[tuple[str, str]]:
    """In whose names requests have come since the last look."""
    found = set(server.claims)
    server.forget()
    return found


def test_every_request_says_the_current_user_and_the_database(owner: Engine, fake_server: OipServer) -> None:
    database = owner.connection.info.dbname
    for statement in (
        "SELECT udf_food_name('/a')",
        "SELECT ml_udf.predict_many('food', ARRAY['/b'])",
        "SELECT count(*) FROM ml_udf.functions",
        "SELECT ml_udf.create_function('food')",
    ):
        owner.query(statement)
        assert said(fake_server) == {("postgres", database)}


def test_after_set_role_that_role_is_said_and_names_of_any_letters_arrive_whole(
    owner: Engine, fake_server: OipServer
) -> None:
    database = owner.connection.info.dbname
    for role in ROLES:
        owner.query(f'SET ROLE "{role}"')
        owner.query("SELECT udf_food_name('/a')")
        assert said(fake_server) == {(role, database)}
    owner.query("RESET ROLE")
    owner.query("SELECT udf_food_name('/a')")
    assert said(fake_server) == {("postgres", database)}
    owner.query("SET SESSION AUTHORIZATION claims_ana")
    owner.query("SELECT udf_food_name('/a')")
    assert said(fake_server) == {("claims_ana", database)}
    owner.query("RESET SESSION AUTHORIZATION")


def test_inside_a_security_definer_function_its_owner_is_said_and_behind_it_the_caller(
    owner: Engine, fake_server: OipServer
) -> None:
    owner.query(
        "CREATE FUNCTION definers(p text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER"
        " AS 'BEGIN RETURN udf_food_name(p); END';"
        "ALTER FUNCTION definers OWNER TO claims_owner; SET ROLE claims_ana"
    )
    owner.query("SELECT definers('/a'), udf_food_name('/b')")
    database = owner.connection.info.dbname
    assert said(fake_server) == {("claims_owner", database), ("claims_ana", database)}
    owner.query("SELECT udf_food_name('/c')")
    assert said(fake_server) == {("claims_ana", database)}


def test_a_view_of_another_asks_in_the_name_of_who_looks(owner: Engine, fake_server: OipServer) -> None:
    owner.query("CREATE VIEW looked AS SELECT udf_food_name('/a') AS food; GRANT SELECT ON looked TO PUBLIC")
    owner.query("SET ROLE claims_ana")
    owner.query("SELECT food FROM looked")
    assert said(fake_server) == {("claims_ana", owner.connection.info.dbname)}


def test_a_parallel_worker_asks_in_nobodys_name(owner: Engine, fake_server: OipServer) -> None:
    """It may not ask at all: who forces one there is refused, and nothing leaves."""
    owner.query(
        "CREATE FUNCTION wrongly(p text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE"
        " AS 'BEGIN RETURN udf_food_name(p); END'"
    )
    owner.query(
        "CREATE TABLE paths AS SELECT '/' || n AS path FROM generate_series(1, 5000) n; ANALYZE paths"
    )
    for name, value in (
        ("parallel_setup_cost", 0),
        ("parallel_tuple_cost", 0),
        ("min_parallel_table_scan_size", 0),
        ("max_parallel_workers_per_gather", 2),
    ):
        owner.query(f"SET {name} = {value}")
    with pytest.raises(psycopg.Error) as caught:
        owner.query("SELECT count(wrongly(path)) FROM paths")
    assert caught.value.sqlstate == "25000"
    assert said(fake_server) == set()


def test_users_that_change_in_a_session_share_its_connections(owner: Engine, fake_server: OipServer) -> None:
    for _ in range(5):
        for role in ROLES:
            owner.query(f'SET ROLE "{role}"')
            owner.query("SELECT udf_food_name('/a')")
    assert "/v2" not in fake_server.paths  # what the session knows of the server is not asked anew
    assert len(said(fake_server)) == len(ROLES)
    assert len(fake_server.connections) <= 4  # its own, of functions' names, and of rows under way


def test_no_setting_says_another_user(owner: Engine, fake_server: OipServer) -> None:
    owner.query("SET ROLE claims_ana; SET ml_udf.caller = 'postgres'; SET application_name = 'postgres'")
    owner.query("SELECT udf_food_name('/a')")
    assert said(fake_server) == {("claims_ana", owner.connection.info.dbname)}


def test_the_plan_node_asks_in_the_name_of_who_runs_it(
    batching_cluster: Sandbox, fake_server: OipServer
) -> None:
    batching_cluster.sql("CREATE DATABASE claims")
    batching_cluster.sql("CREATE EXTENSION ml_udf CASCADE", "claims")
    batching_cluster.sql("CREATE ROLE ana; GRANT ml_udf_reader TO ana", "claims")
    engine = Engine(batching_cluster.dsn("claims"))
    try:
        connect(engine, fake_server.url)
        engine.query("SELECT ml_udf.create_function('udf_food_name')")
        engine.query("CREATE TABLE paths AS SELECT '/' || n AS path FROM generate_series(1, 300) n")
        engine.query("GRANT SELECT ON paths TO PUBLIC")
        engine.query(
            "CREATE FUNCTION counted() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
            " AS 'SELECT count(udf_food_name(path)) FROM paths'"
        )
        engine.query("SET ROLE ana")
        fake_server.forget()
        assert engine.value("SELECT count(udf_food_name(path)) FROM paths") == 300
        assert len(fake_server.requests) < 50
        assert said(fake_server) == {("ana", "claims")}
        assert engine.value("SELECT counted()") == 300
        assert said(fake_server) == {("postgres", "claims")}
    finally:
        engine.close()
