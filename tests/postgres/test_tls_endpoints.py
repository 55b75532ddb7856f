"""The files of TLS on the database's host: who reads them, when, and what follows where they change."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.certificates import LONG_AGO, Certificates, give
from tests.inference_server import database_user
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server

pytestmark = pytest.mark.security


@pytest.fixture(scope="module")
def certificates(open_folder: Path) -> Certificates:
    return Certificates(open_folder / "tls-endpoints")


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[OipServer]:
    """It wants a certificate of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("server"))
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with oip_server(tls=context) as running:
        yield running


@pytest.fixture
def client(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A client's certificate and key, which the database's user alone may read."""
    certificate, key = certificates.issue("client", "client@example.org")
    for path in (certificate, key):
        give(path, database_user()).chmod(0o400)
    return certificate, key


def options(certificates: Certificates, server: OipServer, client: tuple[Path, Path]) -> str:
    return f"url '{server.url}', sslrootcert '{certificates.ca}', sslcert '{client[0]}', sslkey '{client[1]}'"


@pytest.fixture
def engine(
    postgres_engine: Callable[..., Engine],
    certificates: Certificates,
    server: OipServer,
    client: tuple[Path, Path],
) -> Engine:
    made = postgres_engine("http://127.0.0.1:1")
    made.query("DROP SERVER ml_udf")
    made.query(
        f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS ({options(certificates, server, client)})"
    )
    made.query("SELECT ml_udf.create_function('udf_food_name')")
    return made


def test_files_that_the_databases_user_alone_may_read_do_for_every_role(
    engine: Engine, cluster: Sandbox, certificates: Certificates
) -> None:
    give(certificates.ca, database_user()).chmod(0o400)
    try:
        engine.query("CREATE ROLE tls_ana LOGIN; GRANT ml_udf_reader TO tls_ana")
        ana = Engine(cluster.dsn(engine.connection.info.dbname, user="tls_ana"))
        try:
            assert ana.value("SELECT udf_food_name('/a')") == label_of("/a")
        finally:
            ana.close()
    finally:
        certificates.ca.chmod(0o644)
        engine.query("DROP OWNED BY tls_ana; DROP ROLE tls_ana")


def test_a_session_shows_a_renewed_certificate_without_reconnecting(
    engine: Engine, certificates: Certificates, server: OipServer, client: tuple[Path, Path]
) -> None:
    assert engine.value("SELECT udf_food_name('/a')") == label_of("/a")
    late = certificates.issue("late", "client@example.org", ends=LONG_AGO)
    kept = client[0].read_bytes(), client[1].read_bytes()
    for new, path in zip(late, client, strict=True):
        shutil.copyfile(new, path)
    _close_connections(server)
    with pytest.raises(psycopg.Error, match="refused TLS: certificate expired") as caught:
        engine.query("SELECT udf_food_name('/b')")
    assert caught.value.sqlstate == "08001"
    for content, path in zip(kept, client, strict=True):
        path.write_bytes(content)
    assert engine.value("SELECT udf_food_name('/c')") == label_of("/c")


def test_a_server_that_is_not_trusted_gives_no_nulls(engine: Engine, certificates: Certificates) -> None:
    other = Certificates(certificates.folder, "other")
    engine.query(f"ALTER SERVER ml_udf OPTIONS (SET sslrootcert '{other.ca}')")
    engine.query("SET ml_udf.on_error = 'null'")
    for call in ("udf_food_name('/a')", "ml_udf.try_predict('udf_food_name', '/a')"):
        with pytest.raises(psycopg.Error, match="is not trusted"):
            engine.query(f"SELECT {call}")


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make a file of another user")
def test_a_file_that_the_databases_user_may_not_read_is_named(
    engine: Engine, certificates: Certificates
) -> None:
    hidden = certificates.folder / "hidden.pem"
    shutil.copy(certificates.ca, hidden)
    hidden.chmod(0o600)
    with pytest.raises(psycopg.Error, match="cannot be read as certificates \\(PEM\\): permission denied"):
        engine.query(f"ALTER SERVER ml_udf OPTIONS (SET sslrootcert '{hidden}')")


def test_a_server_that_was_made_before_the_rule_is_refused_when_it_is_asked(engine: Engine) -> None:
    engine.query("UPDATE pg_foreign_server SET srvoptions = '{url=http://ml.example:8080}'")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="in the clear") as caught:
        engine.query("SELECT udf_food_name('/a')")
    assert "use https:// (sslrootcert" in (caught.value.diag.message_hint or "")
    assert "allow_plain" in (caught.value.diag.message_hint or "")


def _close_connections(server: OipServer) -> None:
    """As a server that is started again does."""
    for connection in list(server.connections):
        connection.shutdown(socket.SHUT_RDWR)
