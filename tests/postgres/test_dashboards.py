"""A dashboard's role: what it may, how its tools ask, and what they look up before they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of

MEALS, PHOTOS = 2000, 700
BARS = "SELECT food_name, count(*) FROM meals GROUP BY food_name ORDER BY count(*) DESC LIMIT 1000"


@pytest.fixture
def owner(batching_cluster: Sandbox, fake_server: OipServer) -> Iterator[Engine]:
    """A superuser's session, beside which the role `dashboards` reads the view `meals`."""
    if not batching_cluster.sql("SELECT 1 FROM pg_database WHERE datname = 'dashboards'"):
        batching_cluster.database("dashboards", url=fake_server.url, functions=["udf_food_name"])
    engine = Engine(batching_cluster.dsn("dashboards"))
    engine.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{fake_server.url}')")
    engine.query(
        "CREATE TABLE foodlog AS SELECT n AS id, timestamp '2025-01-01' + n * interval '4 hours' AS time,"
        f" n % 60 AS age, '/' || n % {PHOTOS} AS image_path FROM generate_series(1, {MEALS}) n"
    )
    engine.query(
        "CREATE VIEW meals AS SELECT id, time, age, udf_food_name(image_path) AS food_name FROM foodlog"
    )
    engine.query("CREATE ROLE dashboards LOGIN IN ROLE ml_udf_reader")
    engine.query("ALTER ROLE dashboards SET default_transaction_read_only = on")
    engine.query("GRANT SELECT ON meals TO dashboards")
    fake_server.forget()
    yield engine
    engine.query(
        "DROP VIEW meals; DROP TABLE foodlog CASCADE; DROP OWNED BY dashboards; DROP ROLE dashboards"
    )
    engine.query("DROP USER MAPPING IF EXISTS FOR PUBLIC SERVER ml_udf")
    engine.close()


@pytest.fixture
def dashboard(owner: Engine) -> Iterator[psycopg.Connection]:
    with psycopg.connect(owner.dsn, user="dashboards") as connection:
        yield connection


def photo(meal: int) -> str:
    return f"/{meal % PHOTOS}"


def dishes() -> Counter[str]:
    return Counter(label_of(photo(meal)) for meal in range(1, MEALS + 1))


def test_select_on_a_view_is_all_that_a_dashboard_needs(
    dashboard: psycopg.Connection, fake_server: OipServer
) -> None:
    assert dict(dashboard.execute(BARS).fetchall()) == dishes()
    assert Counter(fake_server.rows) == Counter({photo(meal): 1 for meal in range(PHOTOS)})
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="foodlog"):
        dashboard.execute("SELECT image_path FROM foodlog")


def test_it_writes_nothing(dashboard: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        dashboard.execute("CREATE TABLE mine AS SELECT * FROM meals")


def test_rows_that_are_counted_or_filtered_by_columns_ask_no_more_than_they_show(
    dashboard: psycopg.Connection, fake_server: OipServer
) -> None:
    assert dashboard.execute("SELECT count(*) FROM meals").fetchone() == (MEALS,)
    assert fake_server.rows == []
    shown = dashboard.execute("SELECT id, food_name FROM meals WHERE id <= 10").fetchall()
    assert sorted(fake_server.rows) == sorted(photo(meal) for meal, _ in shown)
    fake_server.forget()
    dashboard.rollback()
    latest = dashboard.execute("SELECT id, food_name FROM meals ORDER BY time DESC LIMIT 100").fetchall()
    assert latest == [(meal, label_of(photo(meal))) for meal in range(MEALS, MEALS - 100, -1)]
    assert len(fake_server.rows) == 100


def test_a_cursor_that_is_fetched_in_pieces_is_one_statement(
    dashboard: psycopg.Connection, fake_server: OipServer
) -> None:
    """As drivers do that read in portions: within a transaction, 500 rows at a time."""
    with dashboard.cursor(name="portions") as cursor:
        cursor.itersize = 500
        cursor.execute("SELECT id, food_name FROM meals")
        found = [cursor.fetchmany(500) for _ in range(MEALS // 500 + 1)]
    assert [len(portion) for portion in found] == [500] * (MEALS // 500) + [0]
    assert {meal: dish for portion in found for meal, dish in portion} == {
        meal: label_of(photo(meal)) for meal in range(1, MEALS + 1)
    }
    assert max(Counter(fake_server.rows).values()) == 1


@pytest.mark.parametrize("plan", ["auto", "force_generic_plan", "force_custom_plan"])
def test_a_prepared_statement_takes_its_filters_as_parameters(
    dashboard: psycopg.Connection, fake_server: OipServer, plan: str
) -> None:
    dashboard.execute(f"SET plan_cache_mode = {plan}".encode())
    sql = 'SELECT COUNT(*) AS "count" FROM "public"."meals" WHERE "age" > %s AND "food_name" = %s'
    for age in (10, 20, 30, 40, 50, 55, 58):  # PostgreSQL considers a generic plan from the sixth on
        fake_server.forget()
        found = dashboard.execute(sql, [age, "c3"], prepare=True).fetchone()
        meals = [meal for meal in range(1, MEALS + 1) if meal % 60 > age]
        assert found == (sum(label_of(photo(meal)) == "c3" for meal in meals),)
        assert set(fake_server.rows) == {photo(meal) for meal in meals}
        assert len(fake_server.requests) <= 4


def test_statement_timeout_of_the_role_ends_a_chart_and_the_next_one_is_answered(
    owner: Engine, fake_server: OipServer
) -> None:
    owner.query("ALTER ROLE dashboards SET statement_timeout = '400ms'")
    fake_server.delay_s = 5.0
    with psycopg.connect(owner.dsn, user="dashboards", autocommit=True) as dashboard:
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            dashboard.execute(BARS)
        fake_server.delay_s = 0.0
        dashboard.execute("SET statement_timeout = '60s'")
        assert dict(dashboard.execute(BARS).fetchall()) == dishes()


def test_the_role_asks_in_its_own_name_by_a_token_that_it_cannot_read(
    owner: Engine, fake_server: OipServer
) -> None:
    """Though the view is somebody else's."""
    owner.query("CREATE USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (token 'of-all')")
    owner.query("CREATE USER MAPPING FOR dashboards SERVER ml_udf OPTIONS (token 'of-dashboards')")
    with psycopg.connect(owner.dsn, user="dashboards") as dashboard:
        dashboard.execute(BARS)
        assert set(fake_server.tokens) - {None} == {"of-dashboards"}
        assert set(fake_server.claims) == {("dashboards", "dashboards")}
        assert dashboard.execute("SELECT DISTINCT umoptions FROM pg_user_mappings").fetchall() == [(None,)]


def test_a_pool_that_resets_its_connections_keeps_asking(
    dashboard: psycopg.Connection, fake_server: OipServer
) -> None:
    dashboard.autocommit = True
    for reset in ("ROLLBACK", "RESET ALL", "DISCARD ALL", "SET SESSION AUTHORIZATION DEFAULT"):
        fake_server.forget()
        assert dict(dashboard.execute(BARS).fetchall()) == dishes()
        assert len(fake_server.rows) == PHOTOS
        dashboard.execute(reset.encode())


def test_answers_that_are_kept_ask_nothing(owner: Engine, fake_server: OipServer) -> None:
    owner.query("CREATE MATERIALIZED VIEW kept AS SELECT * FROM meals")
    owner.query("CREATE UNIQUE INDEX ON kept (id)")
    owner.query("GRANT SELECT ON kept TO dashboards")
    fake_server.forget()
    with psycopg.connect(owner.dsn, user="dashboards") as dashboard:
        assert dict(dashboard.execute(BARS.replace("meals", "kept").encode()).fetchall()) == dishes()
    assert fake_server.rows == []
    owner.query(f"INSERT INTO foodlog VALUES ({MEALS + 1}, now(), 30, '/new')")
    owner.query("REFRESH MATERIALIZED VIEW CONCURRENTLY kept")
    assert owner.value(f"SELECT food_name FROM kept WHERE id = {MEALS + 1}") == label_of("/new")
    assert Counter(fake_server.rows) == Counter({"/new": 1} | {photo(meal): 1 for meal in range(PHOTOS)})
    owner.query("DROP MATERIALIZED VIEW kept")


# What tools look up before anybody asks for a chart, in the ways that they do it.
LOOK_UPS = {
    "schemas": "SELECT nspname, pg_get_userbyid(nspowner), nspacl, obj_description(oid, 'pg_namespace')"
    " FROM pg_namespace WHERE has_schema_privilege(oid, 'USAGE')",
    "tables": "SELECT table_schema, table_name, table_type FROM information_schema.tables",
    "sizes": "SELECT c.oid::regclass, c.relkind, c.reltuples, pg_relation_size(c.oid),"
    " pg_total_relation_size(c.oid)"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname IN ('public', 'ml_udf')",
    "columns": "SELECT a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
    " pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum) FROM pg_attribute a"
    " LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)"
    " WHERE a.attnum > 0 AND NOT a.attisdropped",
    "columns by the standard": "SELECT * FROM information_schema.columns",
    "views": "SELECT oid::regclass, pg_get_viewdef(oid, true) FROM pg_class WHERE relkind IN ('v', 'm')",
    "functions": "SELECT p.oid::regprocedure, pg_get_functiondef(p.oid), pg_get_function_result(p.oid),"
    " pg_get_function_identity_arguments(p.oid), obj_description(p.oid, 'pg_proc')"
    " FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
    " WHERE n.nspname IN ('public', 'ml_udf') AND p.prokind IN ('f', 'p')",
    "routines by the standard": "SELECT r.*, p.* FROM information_schema.routines r"
    " LEFT JOIN information_schema.parameters p USING (specific_schema, specific_name)"
    " WHERE r.routine_schema IN ('public', 'ml_udf')",
    "keys": "SELECT conname, pg_get_constraintdef(oid, true) FROM pg_constraint",
    "indexes": "SELECT indexrelid::regclass, pg_get_indexdef(indexrelid) FROM pg_index",
    "types": "SELECT t.oid, format_type(t.oid, NULL), e.enumlabel FROM pg_type t"
    " LEFT JOIN pg_enum e ON e.enumtypid = t.oid",
    "rights": "SELECT * FROM information_schema.role_table_grants WHERE table_schema IN ('public', 'ml_udf')",
    "what may be read": "SELECT c.oid::regclass, has_table_privilege(c.oid, 'SELECT'),"
    " has_any_column_privilege(c.oid, 'SELECT') FROM pg_class c WHERE relkind IN ('r', 'v', 'm', 'f', 'p')",
    "foreign servers": "SELECT s.srvname, s.srvoptions, w.fdwname, pg_get_userbyid(s.srvowner)"
    " FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw",
    "mappings": "SELECT * FROM information_schema.user_mapping_options",
    "extensions": "SELECT e.extname, e.extversion, x.default_version FROM pg_extension e"
    " JOIN pg_available_extensions x ON x.name = e.extname",
    "dependencies": "SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE deptype = 'e'",
    "activity": "SELECT pid, usename, application_name, state, query FROM pg_stat_activity",
    "is there something": 'SELECT TRUE AS "_" FROM "public"."meals" WHERE 1 <> 1 LIMIT 0',
    "columns of a query": "SELECT * FROM (SELECT * FROM meals) AS shape WHERE false",
    "a plan": "EXPLAIN (VERBOSE, FORMAT JSON) SELECT food_name, count(*) FROM meals GROUP BY food_name",
}


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_looking_around_asks_no_model(
    dashboard: psycopg.Connection, fake_server: OipServer, look_up: str
) -> None:
    found = dashboard.execute(LOOK_UPS[look_up].encode())
    names = [column.name for column in found.description or ()]
    assert names
    found.fetchall()
    assert fake_server.rows == []


def test_every_view_of_the_extension_can_be_opened_as_a_table(dashboard: psycopg.Connection) -> None:
    views = dashboard.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'ml_udf'::regnamespace AND relkind = 'v'"
        " AND has_table_privilege(oid, 'SELECT') ORDER BY 1"
    ).fetchall()
    assert ("functions",) in views
    for (view,) in views:
        sql = f'SELECT * FROM "ml_udf"."{view}" LIMIT 200'
        assert dashboard.execute(sql.encode()).description
        assert dashboard.execute(f'SELECT count(*) FROM "ml_udf"."{view}"'.encode()).fetchone()


def test_the_columns_of_the_view_have_the_types_that_a_chart_looks_for(dashboard: psycopg.Connection) -> None:
    found = dashboard.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'meals' ORDER BY 1"
    )
    assert found.fetchall() == [
        ("age", "integer"),
        ("food_name", "text"),
        ("id", "integer"),
        ("time", "timestamp without time zone"),
    ]
