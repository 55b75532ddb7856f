"""SQL over TLS, on every engine: whom it believes, what it shows, and what it says where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.certificates import LONG_AGO, Certificates, give
from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, database_user, inference_server
from tests.models import hashing_model, label_of

TOKEN = "a-token-for-the-tests-0123456789"


class Files(NamedTuple):
    own: Certificates  # the server's authority, and that of clients
    other: Certificates


@pytest.fixture(scope="module")
def files(open_folder: Path) -> Files:
    own, other = Certificates(open_folder / "tls"), Certificates(open_folder / "tls", "other")
    own.issue("server")
    own.issue("expired", ends=LONG_AGO)
    own.issue("elsewhere", "ml.example.org")
    for certificates, name in ((own, "client"), (other, "stranger")):
        _, key = certificates.issue(name, "client@example.org")
        give(key, database_user())
    _, key = own.issue("late", "client@example.org", ends=LONG_AGO)
    give(key, database_user())
    (open_folder / "tls" / "token").write_text(TOKEN)
    return Files(own, other)


def _serving(open_folder: Path, name: str, *flags: str, **connect: str) -> Iterator[InferenceServer]:
    tls = open_folder / "tls"
    flags = (
        f"--token-file={tls / 'token'}",
        f"--tls-cert={tls / name}.pem",
        f"--tls-key={tls / name}.key",
        *flags,
    )
    connect = {"token": TOKEN, "sslrootcert": str(tls / "ca.pem"), **connect}
    with inference_server(open_folder / f"tls-{name}-{len(flags)}", flags=flags, connect=connect) as server:
        yield server


@pytest.fixture(scope="module")
def closed(open_folder: Path, files: Files) -> Iterator[InferenceServer]:
    """A server that wants a token and a certificate of its clients."""
    ca, tls = files.own.ca, open_folder / "tls"
    shown = {"sslcert": str(tls / "client.pem"), "sslkey": str(tls / "client.key")}
    for server in _serving(open_folder, "server", f"--tls-client-ca={ca}", **shown):
        server.deploy(hashing_model(open_folder / "made-tls"), "udf_text")
        yield server


@pytest.fixture(scope="module")
def expired(open_folder: Path, files: Files) -> Iterator[InferenceServer]:
    yield from _serving(open_folder, "expired")


@pytest.fixture(scope="module")
def elsewhere(open_folder: Path, files: Files) -> Iterator[InferenceServer]:
    """A server whose certificate is for another host."""
    yield from _serving(open_folder, "elsewhere")


class Sql:
    """Makes engines that ask a server by the names of the files of TLS."""

    def __init__(self, engine_name: str, folder: Path, request: pytest.FixtureRequest) -> None:
        self._engine_name = engine_name
        self._folder = folder
        self._request = request
        self._made: list[Engine] = []

    def connect(self, url: str, **options: str) -> Engine:
        """Options that end with .pem or .key are files of the folder."""
        whole = {
            name: str(self._folder / value) if value.endswith((".pem", ".key")) else value
            for name, value in options.items()
        }
        made = make_engine(self._engine_name, url, self._request, ["udf_text"], {"token": TOKEN, **whole})
        self._made.append(made)
        return made

    def fault(self, url: str, **options: str) -> str:
        """What the user reads where that fails."""
        with pytest.raises(SqlError) as caught:
            self.connect(url, **options).query("SELECT udf_text('x')")
        assert TOKEN not in caught.value.text
        assert "PRIVATE KEY" not in caught.value.text
        return f"{caught.value.sqlstate}: {caught.value.text.removeprefix('ml_udf: ')}"

    def close(self) -> None:
        for engine in self._made:
            engine.close()


@pytest.fixture
def sql(engine_name: str, open_folder: Path, request: pytest.FixtureRequest) -> Iterator[Sql]:
    made = Sql(engine_name, open_folder / "tls", request)
    yield made
    made.close()


def test_rows_go_through_tls_with_a_private_authority_and_a_certificate_of_the_client(
    sql: Sql, closed: InferenceServer
) -> None:
    engine = sql.connect(closed.url, sslrootcert="ca.pem", sslcert="client.pem", sslkey="client.key")
    assert engine.query("SELECT udf_text('x')") == [(label_of("x"),)]


def test_without_a_certificate_where_one_is_wanted_it_says_so(sql: Sql, closed: InferenceServer) -> None:
    said = sql.fault(closed.url, sslrootcert="ca.pem")
    assert said.startswith(f"08001: {closed.url} wants a certificate of its clients, and none was shown")
    assert "sslcert and sslkey name the files (PEM) of one that an authority of its --tls-client-ca" in said


@pytest.mark.parametrize(("name", "why"), [("stranger", "unknown ca"), ("late", "certificate expired")])
def test_a_certificate_that_the_server_does_not_take_is_named_with_the_reason(
    sql: Sql, closed: InferenceServer, name: str, why: str
) -> None:
    said = sql.fault(closed.url, sslrootcert="ca.pem", sslcert=f"{name}.pem", sslkey=f"{name}.key")
    assert said.startswith(f"08001: {closed.url} refused TLS: {why}")
    assert "it may want another certificate than that of sslcert and sslkey" in said


def test_a_server_of_another_authority_is_not_believed(sql: Sql, closed: InferenceServer) -> None:
    for options in ({"sslrootcert": "other.pem"}, {}):
        said = sql.fault(closed.url, **options)
        assert said.startswith(f"08001: the certificate of {closed.url} is not trusted: ")
        assert "sslrootcert names the file of the authorities (PEM) that may vouch for it" in said


def test_an_expired_certificate_is_said_to_have_expired(sql: Sql, expired: InferenceServer) -> None:
    said = sql.fault(expired.url, sslrootcert="ca.pem")
    assert f"08001: the certificate of {expired.url} is not trusted: certificate has expired" in said
    assert "renew it and send the server SIGHUP (docs/tls.md)" in said
    assert "the certificate of localhost, 127.0.0.1 has expired, on 2001-01-01" in expired.log


def test_a_certificate_for_another_name_is_said_to_be_one(sql: Sql, elsewhere: InferenceServer) -> None:
    said = sql.fault(elsewhere.url, sslrootcert="ca.pem")
    assert "is not trusted: ip address mismatch, certificate is not valid for '127.0.0.1'" in said
    assert "write in the url a name that the certificate is for" in said


def test_a_plain_server_behind_https_and_the_reverse_are_told_apart(
    sql: Sql, closed: InferenceServer, server: InferenceServer
) -> None:
    said = sql.fault(server.url.replace("http:", "https:"), sslrootcert="ca.pem")
    assert "failed: what answers does not speak it" in said
    assert "does it serve https (ml-udf serve --tls-cert)? where it does not, write http://" in said
    said = sql.fault(closed.url.replace("https:", "http:"))
    assert "22023: this port speaks TLS; ask it by https://, not http://" in said


@pytest.mark.security
@pytest.mark.parametrize("host", ["ml.example.org", "192.0.2.7", "127.0.0.1.nip.io"])
def test_plain_text_beyond_loopback_is_refused_before_anybody_is_asked(sql: Sql, host: str) -> None:
    said = sql.fault(f"http://{host}:8080")
    assert said.startswith(f"22023: http://{host} would carry token and rows over the network in the clear")
    assert "use https:// (sslrootcert names the file of an authority of your own), or set allow_plain" in said


@pytest.mark.security
def test_a_private_key_that_others_may_read_is_refused(
    sql: Sql, closed: InferenceServer, files: Files
) -> None:
    _, key = files.own.issue("open", "client@example.org")
    give(key, database_user()).chmod(0o640)
    said = sql.fault(closed.url, sslrootcert="ca.pem", sslcert="open.pem", sslkey="open.key")
    assert said.startswith("22023: sslkey ")
    assert "holds a private key that other users may read" in said
    assert "chmod 600" in said


def test_a_certificate_that_is_none_is_named(sql: Sql, closed: InferenceServer) -> None:
    said = sql.fault(closed.url, sslrootcert="token.pem")
    assert "22023: sslrootcert " in said
    assert "cannot be read as certificates (PEM): no such file or directory" in said
    said = sql.fault(closed.url, sslrootcert="ca.pem", sslcert="client.pem", sslkey="late.key")
    assert "cannot be read as a certificate (PEM) with its own private key: key values mismatch" in said
    said = sql.fault(closed.url, sslrootcert="ca.pem", sslcert="client.pem")
    assert "sslkey names the file of the key, where that is not in sslcert" in said
    assert "sslkey is the key of a certificate, and none is named" in sql.fault(
        closed.url, sslrootcert="ca.pem", sslkey="client.key"
    )
    assert "sslcert is for https:// endpoints alone" in sql.fault("http://127.0.0.1:1", sslcert="client.pem")
