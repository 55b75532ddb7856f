"""What a foreign server may name, what is learned by naming it, and that functions ask their own alone."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.errors import MlUdfError
from ml_udf.postgres.allowed import check_allowed, is_listed
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server

pytestmark = pytest.mark.security

Denied = psycopg.errors.InsufficientPrivilege
_numbers = itertools.count(1)


@pytest.fixture
def owner(postgres_engine: Callable[..., Engine], fake_server: OipServer) -> Engine:
    """A superuser, with server `ml_udf` and function `udf_food_name`."""
    return postgres_engine(fake_server.url, functions=["udf_food_name"])


@pytest.fixture
def admin(cluster: Sandbox, owner: Engine) -> Iterator[Callable[[], Engine]]:
    """Makes members of `ml_udf_admin`."""
    made: list[tuple[str, Engine]] = []

    def new() -> Engine:
        name = f"admin_{next(_numbers)}"
        owner.query(f"CREATE ROLE {name} LOGIN; GRANT ml_udf_admin TO {name}")
        owner.query(f"GRANT ALL ON SCHEMA public TO {name}")
        made.append((name, Engine(cluster.dsn(owner.connection.info.dbname, user=name))))
        return made[-1][1]

    yield new
    for name, engine in made:
        engine.close()
        owner.query(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def create_server(name: str, url: str, options: str = "") -> str:
    return f"CREATE SERVER {name} FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{url}'{options})"


# ── which endpoints ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("url", ["http://127.0.0.2:8080", "https://169.254.169.254", "https://intranet"])
def test_an_admin_makes_the_host_connect_to_listed_servers_alone(
    owner: Engine, admin: Callable[[], Engine], fake_server: OipServer, url: str
) -> None:
    attacker = admin()
    with pytest.raises(Denied, match="permission denied for the endpoint") as caught:
        attacker.query(create_server("probe", url))
    assert "servers.allow" in (caught.value.diag.message_hint or "")
    attacker.query(create_server("probe", fake_server.url))
    with pytest.raises(Denied, match="permission denied for the endpoint"):
        attacker.query(f"ALTER SERVER probe OPTIONS (SET url '{url}')")
    owner.query(create_server("anywhere", url))  # a superuser may


def test_a_host_that_is_taken_off_the_list_is_asked_no_more(
    admin: Callable[[], Engine], cluster: Sandbox, fake_server: OipServer
) -> None:
    assert cluster.installed is not None
    listed = cluster.installed.python_dir.parent / "servers.allow"
    attacker = admin()
    attacker.query(create_server("mine", fake_server.url))
    attacker.query("SELECT ml_udf.create_function('f', function => 'food', server => 'mine')")
    before = listed.read_text()
    try:
        listed.write_text("other.example\n")
        with pytest.raises(Denied, match="permission denied for the endpoint"):
            attacker.query("SELECT f('/a')")
        listed.write_text(before)
        listed.chmod(0o666)
        with pytest.raises(Denied, match="could have been written by others"):
            attacker.query("SELECT f('/a')")
    finally:
        listed.write_text(before)
        listed.chmod(0o644)
    assert attacker.value("SELECT f('/a')") == label_of("/a")


@pytest.mark.parametrize(
    ("url", "line", "named"),
    [
        ("http://ml.example", "ml.example", True),
        ("https://ML.example:9", "ml.example", True),
        ("https://ml.example", "ml.example:443", True),
        ("http://ml.example", "ml.example:443", False),
        ("https://a.ml.example", "*.ml.example", True),
        ("https://ml.example", "*.ml.example", False),
        ("https://evilml.example", "*.ml.example", False),
        ("http://[::1]:8080", "[::1]:8080   # this machine", True),
        ("http://127.0.0.1:22", "127.0.0.1:8080", False),
        ("http://ml.example", "# ml.example", False),
        ("http://ml.example", "http://ml.example", False),
        ("http://ml.example", "user@ml.example", False),
        ("http://ml.example", "", False),
        ("http://ml.example", "ml.example:port", False),
    ],
)
def test_a_line_names_a_host_or_a_domain_with_or_without_a_port(url: str, line: str, named: bool) -> None:
    assert is_listed(url, ["", line]) is named


def test_without_a_list_nothing_is_listed(tmp_path: Path) -> None:
    with pytest.raises(MlUdfError, match="permission denied"):
        check_allowed("http://127.0.0.1:8080", tmp_path / "servers.allow")


# ── what may be learned ──────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The address of something that answers so to whatever comes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    "reply",
    [
        http("403 Forbidden", "<html>SECRET of another service</html>"),
        http("200 OK", "SECRET"),
        http("200 OK", '["SECRET"]'),
        http("500 X", '{"error": {"reason": "SECRET"}}'),
        http("404 X", '{"message": "SECRET"}'),
        b"SSH-2.0-SECRET\r\n",
        b"-ERR SECRET\r\n",
        b"HTTP/9.9 SECRET\r\n\r\n",
    ],
)
def test_what_does_not_speak_the_protocol_is_not_repeated(admin: Callable[[], Engine], reply: bytes) -> None:
    attacker = admin()
    with answering(reply) as url:
        attacker.query(create_server("probe", url))
        for call in (
            "ml_udf.create_function('f', server => 'probe')",
            "ml_udf.try_predict('f', '/a', 'probe')",
        ):
            try:
                told = str(attacker.query(f"SELECT {call}"))
            except psycopg.Error as error:
                diag = error.diag
                told = f"{diag.message_primary} {diag.message_detail} {diag.message_hint} {diag.context}"
            assert "SECRET" not in told


# ── the network ──────────────────────────────────────────────────────────────────────────────────────


def test_a_server_beyond_this_machine_needs_tls_or_leave(owner: Engine) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="in the clear"):
        owner.query(create_server("far", "http://ml.example:8080"))
    owner.query(create_server("far", "http://ml.example:8080", ", allow_plain 'true'"))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="in the clear"):
        owner.query("ALTER SERVER far OPTIONS (DROP allow_plain)")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="true or false"):
        owner.query("ALTER SERVER far OPTIONS (SET allow_plain 'maybe')")


def test_authorities_are_files_of_the_host_so_not_for_everybody_to_name(
    owner: Engine, admin: Callable[[], Engine]
) -> None:
    attacker = admin()
    for option in ("sslrootcert", "sslcert", "sslkey"):
        for path in ("/etc/passwd", "/nowhere"):
            with pytest.raises(Denied, match="read files on the database's host"):
                attacker.query(create_server("s", "https://127.0.0.1", f", {option} '{path}'"))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="cannot be read as certificates"):
        owner.query(create_server("s", "https://ml.example", ", sslrootcert '/nowhere'"))


# ── whose server ─────────────────────────────────────────────────────────────────────────────────────


def test_a_function_does_not_ask_another_server_that_took_the_name(
    owner: Engine, admin: Callable[[], Engine], fake_server: OipServer
) -> None:
    attacker = admin()
    owner.query("DROP SERVER ml_udf CASCADE")
    with oip_server() as evil:
        attacker.query(create_server("ml_udf", evil.url))
        attacker.query("GRANT USAGE ON FOREIGN SERVER ml_udf TO PUBLIC")
        for call in ("SELECT udf_food_name('/secret')", "SELECT udf_food_name_batch('{/secret}')"):
            with pytest.raises(Denied, match="not the one that this function was made for"):
                owner.query(call)
        assert evil.rows == []


def test_a_function_follows_its_own_server_and_its_owners_next(
    owner: Engine, admin: Callable[[], Engine], fake_server: OipServer
) -> None:
    heir = admin()
    owner.query(f"ALTER SERVER ml_udf OWNER TO {heir.connection.info.user}")
    assert owner.value("SELECT udf_food_name('/a')") == label_of("/a")
    owner.query("DROP SERVER ml_udf")
    owner.query(create_server("ml_udf", fake_server.url))
    assert owner.value("SELECT udf_food_name('/b')") == label_of("/b")


def test_scoring_asks_the_functions_own_server_alone(owner: Engine, admin: Callable[[], Engine]) -> None:
    attacker = admin()
    owner.query("CREATE TABLE log (id int PRIMARY KEY, path text, food text)")
    owner.query("INSERT INTO log VALUES (1, '/secret')")
    owner.query("DROP SERVER ml_udf CASCADE")
    with oip_server() as evil:
        attacker.query(create_server("ml_udf", evil.url))
        with pytest.raises(Denied, match="not the one that this function was made for"):
            owner.query("CALL ml_udf.score_table('log', 'udf_food_name', 'path', output => 'food')")
        assert evil.rows == []


def test_a_function_that_names_no_owner_asks_a_superusers_server_alone(
    owner: Engine, admin: Callable[[], Engine], fake_server: OipServer
) -> None:
    """As functions of earlier versions are in a dump that is restored."""
    owner.query(
        r"UPDATE pg_proc SET prosrc = regexp_replace(prosrc, '\"server_o\w+\": \"[^\"]*\", ', '', 'g')"
        " WHERE oid IN (SELECT oid FROM ml_udf._wrappers())"
    )
    assert not owner.value("SELECT bool_or(record ? 'server_oid') FROM ml_udf._wrappers()")
    assert owner.value("SELECT udf_food_name('/a')") == label_of("/a")
    attacker = admin()
    owner.query("DROP SERVER ml_udf CASCADE")
    attacker.query(create_server("ml_udf", fake_server.url))
    with pytest.raises(Denied, match="not the one that this function was made for"):
        owner.query("SELECT udf_food_name('/a')")
