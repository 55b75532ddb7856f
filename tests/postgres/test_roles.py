"""Roles belong to the whole cluster: one that is there already gets no rights quietly, nor do its members."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of

pytestmark = pytest.mark.security

CREATE = "CREATE EXTENSION ml_udf CASCADE"
ROLES = ("ml_udf_reader", "ml_udf_trainer", "ml_udf_admin")


@pytest.fixture(scope="module")
def own_cluster(postgres_server: PostgresServer) -> Iterator[Sandbox]:
    """A cluster in which nobody has created the extension yet."""
    with sandbox(postgres_server, local=False) as running:
        yield running


@pytest.fixture
def fresh(own_cluster: Sandbox) -> Iterator[Callable[[], Engine]]:
    """Makes databases without the extension, and afterwards a cluster without its roles."""
    made: list[Engine] = []

    def new() -> Engine:
        name = f"fresh_{len(made)}"
        own_cluster.sql(f"CREATE DATABASE {name}")
        made.append(Engine(own_cluster.dsn(name)))
        return made[-1]

    yield new
    for engine in made:
        engine.query("DROP EXTENSION IF EXISTS ml_udf CASCADE")
        name = engine.connection.info.dbname
        engine.close()
        own_cluster.sql(f"DROP DATABASE {name}")
    for role in (*ROLES, "snoop", "other"):
        own_cluster.sql(f"DROP ROLE IF EXISTS {role}")


@pytest.mark.parametrize(
    "before",
    [
        "CREATE ROLE ml_udf_admin; CREATE ROLE snoop LOGIN; GRANT ml_udf_admin TO snoop",
        "CREATE ROLE ml_udf_reader LOGIN",
        "CREATE ROLE ml_udf_trainer CREATEROLE",
        "CREATE ROLE ml_udf_admin SUPERUSER",
        "CREATE ROLE other; CREATE ROLE ml_udf_reader IN ROLE other",
        "CREATE ROLE ml_udf_reader LOGIN; COMMENT ON ROLE ml_udf_reader IS 'ml_udf: mine'",
    ],
)
def test_a_role_that_would_carry_rights_further_is_refused(fresh: Callable[[], Engine], before: str) -> None:
    engine = fresh()
    engine.query(before)
    with pytest.raises(psycopg.errors.DuplicateObject, match="exists already") as caught:
        engine.query(CREATE)
    assert caught.value.diag.message_hint
    assert engine.value("SELECT count(*) FROM pg_extension WHERE extname = 'ml_udf'") == 0


def test_a_role_that_exists_and_gives_nothing_is_used_and_said(fresh: Callable[[], Engine]) -> None:
    engine = fresh()
    told: list[str] = []
    engine.connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    engine.query("CREATE ROLE ml_udf_reader")
    engine.query(CREATE)
    assert [text for text in told if "ml_udf_reader exists already" in text]


def test_a_second_database_uses_the_roles_of_the_first_and_names_their_members(
    fresh: Callable[[], Engine],
) -> None:
    first, second = fresh(), fresh()
    first.query(CREATE)
    first.query("CREATE ROLE snoop LOGIN; GRANT ml_udf_reader TO snoop")
    told: list[str] = []
    second.connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    second.query(CREATE)
    assert "role ml_udf_reader exists already and is used in this database too; its members: snoop" in told
    assert "role ml_udf_admin exists already and is used in this database too; its members: none" in told


def test_roles_of_an_older_version_are_adopted_when_they_are_said_to_be_ours(
    fresh: Callable[[], Engine],
) -> None:
    engine = fresh()
    engine.query("CREATE ROLE ml_udf_reader; CREATE ROLE snoop LOGIN; GRANT ml_udf_reader TO snoop")
    with pytest.raises(psycopg.errors.DuplicateObject) as caught:
        engine.query(CREATE)
    engine.query((caught.value.diag.message_hint or "").partition("are in the way: ")[2])
    engine.query(CREATE)


# ── who may execute a function ───────────────────────────────────────────────────────────────────────


ACL = """SELECT array_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
         FROM pg_proc p, aclexplode(p.proacl) a
         WHERE p.proname IN ('dish', 'dish_batch') AND a.grantee <> p.proowner"""


@pytest.mark.parametrize(
    ("grant_to", "who"),
    [
        ("", ["ml_udf_reader"]),
        (", grant_to => 'ml_udf_admin'", ["ml_udf_admin"]),
        (", grant_to => 'public'", ["PUBLIC"]),
        (", grant_to => NULL", None),
    ],
)
def test_a_new_function_is_for_those_it_is_granted_to(
    engine: Engine, fake_server: OipServer, grant_to: str, who: list[str] | None
) -> None:
    engine.query(f"SELECT ml_udf.create_function('dish', function => 'food'{grant_to})")
    assert engine.value(ACL) == who
    assert engine.value("SELECT dish('/a')") == label_of("/a")


def test_replacing_a_function_changes_no_grant(engine: Engine) -> None:
    engine.query("SELECT ml_udf.create_function('dish', function => 'food', grant_to => NULL)")
    engine.query("SELECT ml_udf.create_function('dish', function => 'food')")
    assert engine.value(ACL) is None


def test_a_role_that_does_not_exist_leaves_no_function(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject, match="nobody_here"):
        engine.query("SELECT ml_udf.create_function('dish', function => 'food', grant_to => 'nobody_here')")
    assert engine.value("SELECT count(*) FROM pg_proc WHERE proname = 'dish'") == 0
