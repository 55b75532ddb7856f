"""Whose rows a dataset is made of: the caller's own, or those of a source that the operator gave them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.client import Client
from tests.inference_server import InferenceServer, inference_server

pytestmark = pytest.mark.security

ROWS = 60  # of each of two owners
MADE = "target => 'mood', key => 'id', task => 'text-classification', input => 'comment'"
QUERY = "SELECT id, comment, mood FROM opinions"
Refused = psycopg.errors.InvalidParameterValue


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    home = tmp_path_factory.mktemp("home")
    with inference_server(home, flags=[f"--connections-file={home / 'connections.toml'}"]) as running:
        yield running


@pytest.fixture(scope="module")
def owner(cluster: Sandbox, server: InferenceServer) -> Iterator[psycopg.Connection[Any]]:
    """A superuser; table `opinions` shows each role its own rows, and role `rows_of_all` all of them."""
    dsn = cluster.database("dataset_rights", url=server.url)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            """CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE analysts;
               GRANT ml_udf_trainer TO alice, bob; GRANT analysts TO bob;
               GRANT USAGE ON FOREIGN SERVER ml_udf TO alice, bob;
               CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO PUBLIC;
               CREATE TABLE opinions (id int PRIMARY KEY, who text, comment text, mood text);
               ALTER TABLE opinions ENABLE ROW LEVEL SECURITY;
               CREATE POLICY own ON opinions USING (who = current_user OR current_user = 'rows_of_all');
               GRANT SELECT ON opinions TO alice, bob;
               CREATE ROLE rows_of_all LOGIN; GRANT SELECT ON opinions TO rows_of_all;
               CREATE TABLE hidden (id int, comment text, mood text)"""
        )
        connection.execute(
            f"""INSERT INTO opinions
               SELECT n, CASE n % 2 WHEN 0 THEN 'alice' ELSE 'bob' END, 'comment ' || n,
                      CASE n % 2 WHEN 0 THEN 'mild' ELSE 'SECRET' END || n % 3
               FROM generate_series(1, {2 * ROWS}) AS n"""
        )
        yield connection


@pytest.fixture
def as_role(cluster: Sandbox, owner: psycopg.Connection[Any]) -> Iterator[Callable[[str], Any]]:
    made: list[psycopg.Connection[Any]] = []

    def connect(role: str) -> psycopg.Connection[Any]:
        made.append(psycopg.connect(cluster.dsn("dataset_rights", user=role), autocommit=True))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


@pytest.fixture
def sources(cluster: Sandbox, server: InferenceServer, owner: psycopg.Connection[Any]) -> Path:
    """The server's connections file: `all` for analysts, `plain` for nobody of a database, `root` for all."""
    reader, superuser = cluster.dsn("dataset_rights", user="rows_of_all"), cluster.dsn("dataset_rights")
    file = server.home / "connections.toml"
    file.write_text(
        f'all = {{dsn = "{reader}", roles = ["analysts"]}}\n'
        f'plain = "{reader}"\n'
        f'root = {{dsn = "{superuser}", roles = ["*"]}}\n'
    )
    return file


def made(
    connection: psycopg.Connection[Any], name: str, query: str = QUERY, how: str = MADE
) -> dict[str, Any]:
    connection.execute(f"SELECT ml_udf.create_dataset(%s, %s, {how})", [name, query])
    return told(connection, name)


def told(connection: psycopg.Connection[Any], name: str) -> dict[str, Any]:
    row = connection.execute("SELECT to_jsonb(d) FROM ml_udf.datasets d WHERE name = %s", [name]).fetchone()
    assert row is not None
    return dict(row[0])


def test_a_dataset_holds_the_rows_that_its_caller_may_see(as_role: Callable[[str], Any]) -> None:
    known = made(as_role("alice"), "of_alice")
    assert known["rows"] == ROWS
    assert known["classes"] == ["mild0", "mild1", "mild2"]
    assert made(as_role("bob"), "of_bob")["classes"] == ["SECRET0", "SECRET1", "SECRET2"]


@pytest.mark.parametrize(
    "query", ["DELETE FROM comments", "SELECT 1; SELECT 2", "SELECT 1) AS x; SELECT 2 --", "SELEC 1"]
)
def test_a_query_that_is_not_one_select_is_told_so(as_role: Callable[[str], Any], query: str) -> None:
    with pytest.raises(psycopg.Error, match="PostgreSQL refused the query") as caught:
        made(as_role("alice"), "bad", query)
    assert caught.value.sqlstate == "42601"
    assert caught.value.diag.message_hint == "give one SELECT"


def test_what_the_caller_may_not_read_is_refused_by_postgresql(as_role: Callable[[str], Any]) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table hidden"):
        made(as_role("alice"), "bad", "SELECT * FROM hidden")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        made(as_role("alice"), "bad", "SELECT pg_read_file('/etc/passwd') AS comment, 1 AS id, '' AS mood")


def test_names_are_found_as_in_the_callers_other_queries(
    owner: psycopg.Connection[Any], as_role: Callable[[str], Any]
) -> None:
    owner.execute("CREATE VIEW shop.goods WITH (security_invoker = true) AS TABLE opinions")
    owner.execute("GRANT SELECT ON shop.goods TO alice")
    alice = as_role("alice")
    with pytest.raises(psycopg.errors.UndefinedTable):
        made(alice, "goods", QUERY.replace("opinions", "goods"))
    alice.execute("SET search_path = shop, public")
    assert made(alice, "goods", QUERY.replace("opinions", "goods"))["rows"] == ROWS
    assert alice.execute("SHOW search_path").fetchone() == ("shop, public",)


def test_uncommitted_and_temporary_rows_are_the_callers_too(as_role: Callable[[str], Any]) -> None:
    alice = as_role("alice")
    alice.execute("BEGIN; CREATE TEMP TABLE mine AS SELECT * FROM opinions")
    assert made(alice, "temporary", "SELECT id, comment, mood FROM mine")["rows"] == ROWS
    alice.execute("ROLLBACK")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS id; DROP TABLE opinions",
        "SELECT 1) AS x; DROP TABLE opinions; SELECT * FROM (SELECT 1",
        "DELETE FROM opinions RETURNING id, comment, mood",
        "COPY opinions TO STDOUT",
        "",
    ],
)
def test_a_dataset_is_one_query_that_reads(
    owner: psycopg.Connection[Any], as_role: Callable[[str], Any], query: str
) -> None:
    for connection in (as_role("alice"), owner):
        with pytest.raises(psycopg.Error):
            made(connection, "bad", query)
    assert owner.execute("SELECT count(*) FROM opinions").fetchone() == (2 * ROWS,)


def test_a_column_that_is_missing_is_named_before_anything_is_sent(as_role: Callable[[str], Any]) -> None:
    with pytest.raises(Refused, match="no column 'mood', which 'target' names; it has id, comment"):
        made(as_role("alice"), "bad", "SELECT id, comment FROM opinions")


def test_a_source_is_for_the_roles_that_the_operator_names(
    as_role: Callable[[str], Any], sources: Path
) -> None:
    by_source = MADE + ", source => 'all'"
    assert made(as_role("bob"), "all_rows", QUERY, by_source)["rows"] == 2 * ROWS  # a member of analysts
    with pytest.raises(Refused, match="the connection 'all' is not for 'alice'") as caught:
        made(as_role("alice"), "all_rows_too", QUERY, by_source)
    assert "plain" not in str(caught.value)
    with pytest.raises(Refused, match="not for 'alice'"):
        as_role("alice").execute("SELECT ml_udf.refresh_dataset('all_rows')")
    as_role("bob").execute("SELECT ml_udf.refresh_dataset('all_rows')")
    for role in ("alice", "bob"):
        with pytest.raises(Refused, match="the connection 'plain' is not for"):
            made(as_role(role), "bad", QUERY, MADE + ", source => 'plain'")


def test_the_holder_of_the_token_in_person_may_use_every_source(
    server: InferenceServer, sources: Path
) -> None:
    client = Client(server.url)
    form = {"name": "in_person", "query": QUERY, "target": "mood", "key": "id", "input": "comment"}
    known = client.post("/v1/datasets", {**form, "task": "text-classification", "source": "plain"})
    assert known["rows"] == 2 * ROWS
    client.close()


@pytest.mark.parametrize(
    "power",
    ["SUPERUSER", "BYPASSRLS", "CREATEROLE", "IN ROLE pg_read_server_files", "IN ROLE pg_signal_backend"],
)
def test_a_source_whose_role_may_more_than_read_is_not_used(
    cluster: Sandbox, owner: psycopg.Connection[Any], server: InferenceServer, sources: Path, power: str
) -> None:
    owner.execute("DROP ROLE IF EXISTS strong")
    owner.execute(f"CREATE ROLE strong LOGIN {power}")
    dsn = cluster.dsn("dataset_rights", user="strong")
    sources.write_text(sources.read_text() + f'strong = {{dsn = "{dsn}", roles = ["*"]}}\n')
    with pytest.raises(Refused, match="the connection 'strong' is not used: its role"):
        made(
            owner,
            "bad",
            "SELECT pg_read_file('/etc/passwd') AS comment, 1 AS id, 'x' AS mood",
            MADE + ", source => 'strong'",
        )
    client = Client(server.url)
    known = {source["name"]: source["problem"] for source in client.get("/v1/sources")["sources"]}
    client.close()
    assert known["all"] == ""
    assert known["strong"].startswith("its role ")
    assert known["root"] == "its role is a superuser"
    owner.execute("DROP ROLE strong")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, comment, mood::int::text AS mood FROM opinions",
        "SELECT id, comment, (1 / (length(mood) - length(mood)))::text AS mood FROM opinions",
        "SELECT id, comment, mood FROM opinions WHERE mood::json IS NOT NULL",
    ],
)
def test_a_sources_errors_tell_no_value(as_role: Callable[[str], Any], sources: Path, query: str) -> None:
    with pytest.raises(Refused, match="the database refused the query") as caught:
        made(as_role("bob"), "bad", query, MADE + ", source => 'all'")
    diag = caught.value.diag
    assert "SECRET" not in f"{diag.message_primary}{diag.message_detail}{diag.message_hint}{diag.context}"


def test_the_query_of_somebody_else_is_not_run_with_the_callers_rights(
    owner: psycopg.Connection[Any], as_role: Callable[[str], Any]
) -> None:
    made(as_role("alice"), "trap")
    with pytest.raises(Refused, match="was not registered by you in this session") as caught:
        owner.execute("SELECT ml_udf.refresh_dataset('trap')")
    assert "ml_udf.create_dataset" in (caught.value.diag.message_hint or "")


def test_a_session_reads_its_own_query_again_with_the_role_that_registered_it(
    owner: psycopg.Connection[Any], as_role: Callable[[str], Any]
) -> None:
    known = made(owner, "again", QUERY + " WHERE who = 'alice'")
    refresh = "SELECT ml_udf.refresh_dataset('again')"
    assert owner.execute(refresh).fetchone() == (known["snapshot"],)
    owner.execute("SET ROLE alice")
    with pytest.raises(Refused, match="was not registered by you"):
        owner.execute(refresh)
    owner.execute("RESET ROLE")
    with pytest.raises(Refused, match="was not registered by you"):
        as_role("bob").execute(refresh)


def test_every_type_arrives_as_by_a_source(owner: psycopg.Connection[Any], sources: Path) -> None:
    owner.execute(
        """CREATE TABLE kinds AS
           SELECT n AS id, (n % 2)::text AS mood, n::smallint AS small, n::bigint AS big,
               (n / 10.0)::float4 AS real, n / 3.0::float8 AS double, (n / 7.0)::numeric(10, 4) AS exact,
               (n % 4 / 2.0)::numeric(4, 2) AS rating,
               CASE WHEN n > 9 THEN n * 1e307 WHEN n > 3 THEN 9e400 * (n - 6) WHEN n > 2 THEN 'NaN'
                   WHEN n > 1 THEN '-infinity' ELSE 1e-400 END::numeric AS huge,
               n % 3 = 0 AS flag, '2026-01-01'::date + n AS day,
               '2026-01-01'::timestamp + n * '1h'::interval AS at,
               '2026-01-01Z'::timestamptz + n * '1h 0.000001s'::interval AS moment,
               ('2026-01-01Z'::timestamptz + n * '1h'::interval)::timestamptz(0) AS hour,
               CASE WHEN n % 5 > 0 THEN 'ünï"\\' || n END AS word,
               odd::date AS ends, odd::timestamp AS ended, odd::timestamptz AS over
           FROM generate_series(1, 40) n,
               LATERAL (SELECT (ARRAY['infinity', '-infinity', '0044-03-15 BC', '12026-01-01', '2026-01-01',
                                      NULL])[1 + n % 6] AS odd) o;
           UPDATE kinds SET over = '9999-12-31 23:59:59Z' WHERE id % 7 = 0;
           UPDATE kinds SET over = '0001-01-01 00:00:00Z' WHERE id % 7 = 1;
           GRANT SELECT ON kinds TO rows_of_all"""
    )
    owner.execute("SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo'; SET extra_float_digits = 0")
    owner.execute("ALTER ROLE rows_of_all SET DateStyle = 'SQL, DMY'")
    owner.execute("ALTER ROLE rows_of_all SET TimeZone = 'America/New_York'")
    for input, rest in (
        (
            "small, big, real, double, exact, flag, word",
            "task => 'tabular-classification', \"time\" => 'moment'",
        ),
        ("real", "task => 'text-classification', \"time\" => 'day'"),
        ("exact", "task => 'text-classification', \"time\" => 'at'"),
        ("small", "task => 'tabular-regression', target => 'exact'"),
        ("small, huge", "task => 'tabular-classification', target => 'rating'"),
        ("small, ends, ended, over, hour", "task => 'tabular-classification'"),
    ):
        target = "" if "target" in rest else "target => 'mood', "
        how = f"{target}key => 'id', input => '{input}', {rest}"
        query = "SELECT * FROM kinds"
        own = made(owner, "kinds", query, how)["snapshot"]
        sources.write_text(sources.read_text().replace('"analysts"', '"postgres"'))
        assert made(owner, "kinds", query, how + ", source => 'all'")["snapshot"] == own
    owner.execute("RESET ALL; ALTER ROLE rows_of_all RESET ALL")


def test_memory_does_not_depend_on_the_rows(owner: psycopg.Connection[Any]) -> None:
    def most_kb() -> int:
        status = Path(f"/proc/{owner.info.backend_pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    def wide(rows: int) -> str:
        return (
            "SELECT n AS id, (n % 2)::text AS mood, n || repeat(md5(n::text), 60) AS comment"
            f" FROM generate_series(1, {rows}) AS n"
        )

    made(owner, "wide", wide(5_000))
    before_kb = most_kb()
    assert made(owner, "wide", wide(40_000))["rows"] == 40_000  # 77 MB
    assert most_kb() - before_kb < 30_000


def test_a_cancelled_dataset_leaves_nothing_behind(
    owner: psycopg.Connection[Any], server: InferenceServer
) -> None:
    owner.execute("SET statement_timeout = '2s'")
    slow = (
        "SELECT n AS id, 'x' || n % 2 AS mood, pg_sleep(0.01)::text || n AS comment"
        " FROM generate_series(1, 9999) AS n"
    )
    try:
        with pytest.raises(psycopg.errors.QueryCanceled):
            made(owner, "slow", slow)
    finally:
        owner.execute("RESET statement_timeout")
    assert owner.execute("SELECT count(*) FROM ml_udf.datasets WHERE name = 'slow'").fetchone() == (0,)
    end_s = time.monotonic() + 10
    while left := list(server.home.rglob("slow/.taking-*")):
        assert time.monotonic() < end_s, left
        time.sleep(0.1)


def test_doctor_says_which_sources_may_more_than_read(server: InferenceServer, sources: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--endpoint", server.url], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    told = " ".join(done.output.split())
    assert "source root (*): its role is a superuser" in told
    assert "source all reads as a role that may no more; it is for analysts" in told
    assert "source plain reads as a role that may no more; it is for no database role" in told
