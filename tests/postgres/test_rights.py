"""Who may do what: roles, servers, tokens. Every refusal is tried as the role that is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server

TOKEN = "s3cret-of-everybody"
_numbers = itertools.count(1)

Refused = psycopg.errors.InsufficientPrivilege


@pytest.fixture
def guarded() -> Iterator[OipServer]:
    with oip_server(token=TOKEN) as server:
        yield server


@pytest.fixture
def owner(postgres_engine: Callable[..., Engine], guarded: OipServer) -> Engine:
    """A superuser who has set up `udf_food_name` behind a token that a PUBLIC mapping holds."""
    return postgres_engine(guarded.url, token=TOKEN, functions=["udf_food_name"])


@pytest.fixture
def role(cluster: Sandbox, owner: Engine) -> Iterator[Callable[..., Engine]]:
    """Makes login roles: `role("ml_udf_reader")` is a connection of a new member of it."""
    made: list[tuple[str, Engine]] = []

    def new(*memberships: str) -> Engine:
        name = f"role_{next(_numbers)}"
        owner.query(f"CREATE ROLE {name} LOGIN")
        for membership in memberships:
            owner.query(f"GRANT {membership} TO {name}")
        owner.query(f"GRANT CREATE ON SCHEMA public TO {name}")
        engine = Engine(cluster.dsn(owner.connection.info.dbname, user=name))
        made.append((name, engine))
        return engine

    yield new
    for name, engine in made:
        engine.close()
        owner.query(f"DROP OWNED BY {name} CASCADE")
        owner.query(f"DROP ROLE {name}")


def user(engine: Engine) -> str:
    return engine.connection.info.user


def test_a_stranger_may_call_nothing(role: Callable[..., Engine]) -> None:
    stranger = role()
    for call in (
        "udf_food_name('/a')",
        "udf_food_name_batch('{/a}')",
        "ml_udf.predict('food', '/a')",
        "ml_udf.try_predict('food', '/a')",
        "ml_udf.predict_many('food', '{/a}'::text[])",
        "ml_udf.create_function('x')",
        "ml_udf.drop_function('udf_food_name')",
        "ml_udf._define()",
    ):
        with pytest.raises(Refused):
            stranger.query(f"SELECT {call}")
    for view in ("functions", "models", "stat_functions"):
        with pytest.raises(Refused):
            stranger.query(f"SELECT * FROM ml_udf.{view}")


def test_execute_on_one_function_is_enough_to_call_it(owner: Engine, role: Callable[..., Engine]) -> None:
    analyst = role()
    owner.query(f"GRANT EXECUTE ON FUNCTION udf_food_name(text) TO {user(analyst)}")
    assert analyst.value("SELECT udf_food_name('/a')") == label_of("/a")
    with pytest.raises(Refused):
        analyst.query("SELECT udf_food_name_batch('{/a}')")


def test_the_function_and_its_twin_are_granted_together(owner: Engine, role: Callable[..., Engine]) -> None:
    analyst = role()
    owner.query(f"GRANT EXECUTE ON FUNCTION udf_food_name, udf_food_name_batch TO {user(analyst)}")
    assert analyst.value("SELECT udf_food_name_batch('{/a}')") == [label_of("/a")]


def test_readers_may_call_every_made_function(role: Callable[..., Engine]) -> None:
    reader = role("ml_udf_reader")
    assert reader.value("SELECT udf_food_name('/a')") == label_of("/a")
    assert reader.value("SELECT udf_food_name_batch('{/a}')") == [label_of("/a")]


@pytest.mark.security
def test_what_datasets_tell_of_rows_is_for_those_who_may_train(role: Callable[..., Engine]) -> None:
    reader, trainer = role("ml_udf_reader"), role("ml_udf_trainer")
    for asked in ("SELECT * FROM ml_udf.datasets", "SELECT * FROM ml_udf._owned_datasets()"):
        with pytest.raises(Refused):
            reader.query(asked)
        assert trainer.query(asked) == []


def test_the_generic_functions_need_the_right_to_use_the_server(
    owner: Engine, role: Callable[..., Engine]
) -> None:
    reader = role("ml_udf_reader")
    with pytest.raises(Refused, match="permission denied for server"):
        reader.query("SELECT ml_udf.predict('food', '/a')")
    owner.query(f"GRANT USAGE ON FOREIGN SERVER ml_udf TO {user(reader)}")
    assert reader.value("SELECT ml_udf.predict('food', '/a')") == label_of("/a")


def test_no_role_can_read_the_token_of_everybody(owner: Engine, role: Callable[..., Engine]) -> None:
    reader = role("ml_udf_reader", "ml_udf_admin")
    owner.query(f"GRANT USAGE ON FOREIGN SERVER ml_udf TO {user(reader)}")
    assert reader.value("SELECT udf_food_name('/a')") == label_of("/a")  # the session now holds it
    assert reader.query("SELECT umoptions FROM pg_user_mappings") == [(None,)]
    with pytest.raises(Refused):
        reader.query("SELECT * FROM pg_user_mapping")
    with pytest.raises(Refused, match="for ml_udf's own use"):
        reader.query("SELECT ml_udf._read_mapping()")
    with pytest.raises(Refused):
        reader.query("DO LANGUAGE plpython3u $$ plpy.notice(GD) $$")


def test_no_role_can_read_or_change_anothers_token(
    owner: Engine, role: Callable[..., Engine], guarded: OipServer
) -> None:
    analyst, snoop = role("ml_udf_reader"), role("ml_udf_reader", "ml_udf_admin")
    owner.query(f"GRANT USAGE ON FOREIGN SERVER ml_udf TO {user(analyst)}, {user(snoop)}")
    analyst.query("CREATE USER MAPPING FOR CURRENT_USER SERVER ml_udf OPTIONS (token 'analysts-own')")
    theirs = f"SELECT umoptions FROM pg_user_mappings WHERE usename = '{user(analyst)}'"
    assert analyst.query(theirs) == [(["token=analysts-own"],)]
    assert snoop.query(theirs) == [(None,)]
    shown = f"""SELECT option_value FROM information_schema.user_mapping_options
                WHERE authorization_identifier = '{user(analyst)}'"""
    assert snoop.query(shown) in ([], [(None,)])
    for change in (
        f"ALTER USER MAPPING FOR {user(analyst)} SERVER ml_udf OPTIONS (SET token 'mine')",
        f"DROP USER MAPPING FOR {user(analyst)} SERVER ml_udf",
        f"SET ROLE {user(analyst)}",
    ):
        with pytest.raises(Refused):
            snoop.query(change)
    snoop.query("SELECT udf_food_name('/a')")
    assert guarded.tokens[-1] == TOKEN


def test_no_role_can_turn_the_endpoint_to_itself(owner: Engine, role: Callable[..., Engine]) -> None:
    admin = role("ml_udf_admin")
    owner.query(f"GRANT USAGE ON FOREIGN SERVER ml_udf TO {user(admin)}")
    with pytest.raises(Refused):
        admin.query("ALTER SERVER ml_udf OPTIONS (SET url 'http://127.0.0.1:1')")
    with pytest.raises(Refused):
        admin.query("DROP USER MAPPING FOR PUBLIC SERVER ml_udf")
    admin.query("SET ml_udf.url = 'http://127.0.0.1:1'; SET ml_udf.token = 'mine'")  # placeholders, unread
    assert admin.value("SELECT udf_food_name('/a')") == label_of("/a")


def test_a_role_sends_its_own_token_where_it_has_one(
    owner: Engine, role: Callable[..., Engine], guarded: OipServer
) -> None:
    analyst = role("ml_udf_reader")
    owner.query(f"CREATE USER MAPPING FOR {user(analyst)} SERVER ml_udf OPTIONS (token 'analysts-own')")
    guarded.token = "analysts-own"
    assert analyst.value("SELECT udf_food_name('/a')") == label_of("/a")
    with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification, match="token"):
        owner.query("SELECT udf_food_name('/a')")


def test_a_session_that_changes_its_role_changes_its_token(
    owner: Engine, role: Callable[..., Engine], guarded: OipServer
) -> None:
    analyst = role("ml_udf_reader")
    owner.query(f"CREATE USER MAPPING FOR {user(analyst)} SERVER ml_udf OPTIONS (token 'analysts-own')")
    owner.query("SELECT udf_food_name('/a')")
    guarded.token = None
    guarded.forget()
    owner.query(f"SET ROLE {user(analyst)}")
    owner.query("SELECT udf_food_name('/a')")
    owner.query("RESET ROLE")
    owner.query("SELECT udf_food_name('/b')")
    assert list(dict.fromkeys(guarded.tokens)) == ["analysts-own", TOKEN]


def test_a_changed_token_and_endpoint_count_from_the_next_statement(owner: Engine) -> None:
    assert owner.value("SELECT udf_food_name('/a')") == label_of("/a")
    with oip_server(token="other") as other:
        owner.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{other.url}')")
        owner.query("ALTER USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (SET token 'other')")
        owner.query("SELECT udf_food_name('/b')")
        assert other.rows == ["/b"]


def test_without_a_mapping_the_error_says_how_to_make_one(owner: Engine) -> None:
    owner.query("DROP USER MAPPING FOR PUBLIC SERVER ml_udf")
    with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification) as caught:
        owner.query("SELECT udf_food_name('/a')")
    assert "CREATE USER MAPPING" in (caught.value.diag.message_hint or "")


def test_the_token_is_in_no_error_and_in_no_log(cluster: Sandbox, owner: Engine, guarded: OipServer) -> None:
    owner.query("ALTER USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (SET token 'hush-hush')")
    logged = cluster.log().count("hush-hush")  # PostgreSQL's own log of that statement, as it is set up here
    for wrong in (lambda: None, guarded.stop):
        wrong()
        with pytest.raises(psycopg.Error) as caught:
            owner.query("SELECT udf_food_name('/a')")
        diag = caught.value.diag
        told = (diag.message_primary, diag.message_detail, diag.message_hint, diag.context)
        assert "hush-hush" not in "".join(part or "" for part in told)
    assert cluster.log().count("hush-hush") == logged
    assert owner.value("SELECT count(*) FROM pg_stat_activity WHERE query ~ 'hush-h[u]sh'") == 0


@pytest.mark.parametrize(
    ("statement", "state", "message"),
    [
        ("CREATE SERVER s FOREIGN DATA WRAPPER ml_udf", "22023", "needs the option url"),
        (
            "CREATE SERVER s FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'ftp://x')",
            "22023",
            "'ftp://x' is not an endpoint",
        ),
        (
            "CREATE SERVER s FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'http://x', host 'y')",
            "22023",
            "a server of ml_udf has no option 'host'",
        ),
        (
            "CREATE USER MAPPING FOR CURRENT_USER SERVER ml_udf OPTIONS (password 'p')",
            "22023",
            "a user mapping of ml_udf has no option 'password'",
        ),
        ("ALTER SERVER ml_udf OPTIONS (DROP url)", "22023", "needs the option url"),
        ("ALTER FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'http://x')", "22023", "has no option 'url'"),
    ],
)
def test_options_are_checked_when_they_are_given(
    owner: Engine, statement: str, state: str, message: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        owner.query(statement)
    assert (caught.value.sqlstate, message in str(caught.value)) == (state, True)


@pytest.mark.parametrize("token", ["", "two words", "line\\nbreak", "ümlaut"])
def test_a_token_that_could_not_be_sent_is_refused_without_showing_it(owner: Engine, token: str) -> None:
    owner.query("DROP USER MAPPING FOR PUBLIC SERVER ml_udf")
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        owner.query(f"CREATE USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (token E'{token}')")
    assert not token or token not in (caught.value.diag.message_primary or "")


def test_an_admin_may_set_up_servers_and_functions(role: Callable[..., Engine], guarded: OipServer) -> None:
    admin = role("ml_udf_admin")
    admin.query(f"CREATE SERVER mine FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{guarded.url}')")
    admin.query(f"CREATE USER MAPPING FOR PUBLIC SERVER mine OPTIONS (token '{TOKEN}')")
    made = admin.value("SELECT ml_udf.create_function('my_food', function => 'food', server => 'mine')::text")
    assert made == "my_food(text)"
    assert admin.value("SELECT my_food('/a')") == label_of("/a")
    assert role("ml_udf_reader").value("SELECT my_food('/a')") == label_of("/a")
    owners = admin.query("SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE proname ~ '^my_food'")
    assert owners == [(user(admin),)]


def test_local_endpoints_are_for_those_who_may_read_files(role: Callable[..., Engine]) -> None:
    with pytest.raises(Refused, match="read files on the database's host"):
        role("ml_udf_admin").query("CREATE SERVER l FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'local:/etc')")


def test_an_admin_needs_the_right_to_create_where_it_creates(
    owner: Engine, role: Callable[..., Engine]
) -> None:
    admin = role("ml_udf_admin")
    owner.query(f"GRANT USAGE ON FOREIGN SERVER ml_udf TO {user(admin)}; CREATE SCHEMA closed")
    with pytest.raises(Refused, match="permission denied for schema closed"):
        admin.query("SELECT ml_udf.create_function('closed.f', function => 'food')")
    with pytest.raises(Refused, match=r"must be owner of function public\.udf_food_name"):
        admin.query("SELECT ml_udf.create_function('udf_food_name')")
    with pytest.raises(Refused):
        admin.query("SELECT ml_udf.drop_function('udf_food_name')")


def test_an_admin_without_the_server_cannot_make_functions_of_it(role: Callable[..., Engine]) -> None:
    for verify in ("true", "false"):
        with pytest.raises(Refused, match="permission denied for server"):
            role("ml_udf_admin").query(
                f"SELECT ml_udf.create_function('f', function => 'food', verify => {verify})"
            )


def test_a_security_definer_function_asks_with_its_owners_mapping(
    owner: Engine, role: Callable[..., Engine]
) -> None:
    owner.query(
        "CREATE FUNCTION report() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER"
        " AS 'SELECT udf_food_name(''/a'')'"
    )
    assert role().value("SELECT report()") == label_of("/a")
