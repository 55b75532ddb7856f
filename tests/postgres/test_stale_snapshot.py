"""What privileged code looked up may be old: a transaction keeps its snapshot as long as it likes.

Each attack is the attacker's own statements, as a member of `ml_udf_admin` who owns nothing but what it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of

pytestmark = pytest.mark.security

OWNER = "SELECT proowner::regrole::text FROM pg_proc WHERE oid = to_regprocedure(%s)"
OPEN = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"
AUDIT = """CREATE FUNCTION shop.audit(input text) RETURNS text LANGUAGE sql SECURITY DEFINER
           AS 'SELECT current_user::text'"""


@pytest.fixture
def owner(postgres_engine: Callable[..., Engine], fake_server: OipServer) -> Engine:
    """A superuser; schema `shop` is open to the attacker, as schemas that teams share are."""
    made = postgres_engine(fake_server.url)
    made.query("CREATE SCHEMA shop")
    return made


@pytest.fixture
def attacker(owner: Engine, cluster: Sandbox) -> Iterator[Engine]:
    owner.query("CREATE ROLE attacker LOGIN; GRANT ml_udf_admin TO attacker")
    owner.query("GRANT ALL ON SCHEMA shop TO attacker; GRANT USAGE ON FOREIGN SERVER ml_udf TO attacker")
    engine = Engine(cluster.dsn(owner.connection.info.dbname, user="attacker"))
    yield engine
    engine.close()
    owner.query("DROP OWNED BY attacker CASCADE; DROP ROLE attacker")


@pytest.mark.parametrize(
    ("made", "signature"),
    [
        (AUDIT, "shop.audit(text)"),
        (AUDIT.replace("audit(input text) RETURNS text", "audit(text) RETURNS text"), "shop.audit(text)"),
        (
            "CREATE FUNCTION shop.audit_batch(inputs text[]) RETURNS text[] LANGUAGE sql SECURITY DEFINER"
            " AS 'SELECT ARRAY[current_user::text]'",
            "shop.audit_batch(text[])",
        ),
    ],
    ids=["the function", "with another parameter", "the twin"],
)
def test_a_function_younger_than_the_snapshot_keeps_its_owner_and_text(
    owner: Engine, attacker: Engine, made: str, signature: str
) -> None:
    attacker.query(OPEN)
    owner.query(made)
    text = "SELECT prosrc, prosecdef FROM pg_proc WHERE oid = to_regprocedure(%s)"
    before = owner.query(text, signature)
    with pytest.raises(psycopg.Error, match=r"already exists|must be owner"):
        attacker.query("SELECT ml_udf.create_function('shop.audit', verify => false)")
    attacker.query("ROLLBACK")
    assert owner.value(OWNER, signature) == "postgres"
    assert owner.query(text, signature) == before


def test_a_function_that_changed_hands_since_the_snapshot_is_not_replaced(
    owner: Engine, attacker: Engine
) -> None:
    attacker.query("SELECT ml_udf.create_function('shop.dish', function => 'food')")
    attacker.query(OPEN)
    owner.query("ALTER FUNCTION shop.dish(text) OWNER TO postgres")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
        attacker.query("SELECT ml_udf.create_function('shop.dish', verify => false)")
    attacker.query("ROLLBACK")
    assert owner.value(OWNER, "shop.dish(text)") == "postgres"
    assert owner.value("SELECT record ->> 'function' FROM ml_udf._wrappers() WHERE kind = 'scalar'") == "food"


def test_a_right_that_was_taken_back_since_the_snapshot_is_gone(owner: Engine, attacker: Engine) -> None:
    attacker.query(OPEN)
    owner.query("REVOKE ALL ON SCHEMA shop FROM attacker")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema shop"):
        attacker.query("SELECT ml_udf.create_function('shop.dish', verify => false)")
    attacker.query("ROLLBACK")


def test_what_is_made_belongs_to_the_caller_with_both_rights(owner: Engine, attacker: Engine) -> None:
    attacker.query("SELECT ml_udf.create_function('shop.dish', function => 'food')")
    attacker.query(
        "SELECT ml_udf.create_function('shop.dish', function => 'food', options => '{\"slo_ms\": 9}')"
    )
    for signature in ("shop.dish(text)", "shop.dish_batch(text[])"):
        assert owner.value(OWNER, signature) == "attacker"
    assert attacker.value("SELECT shop.dish('/a')") == label_of("/a")
