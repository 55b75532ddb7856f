"""SIGHUP: a new certificate and new authorities of clients, while rows are asked for."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import LONG_AGO, Certificates, soon
from tests.contract.oip_wire import infer_body
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model
from tests.waiting import wait_until

INFER = "/v2/models/udf_text/infer"


class Served:
    """A server with a certificate that can be replaced, and the files of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first, self.second = Certificates(folder, "first"), Certificates(folder, "second")
        self.client = {name: getattr(self, name).issue(f"client-{name}") for name in ("first", "second")}
        self.put(*self.first.issue("server"))
        self.trust_clients_of(self.first)
        self.flags = [
            f"--tls-{part.replace('_', '-')}={folder / 'live' / part}"
            for part in ("cert", "key", "client-ca")
        ]
        self.server: InferenceServer

    def put(self, certificate: Path, key: Path) -> None:
        """Make these the server's files."""
        live = self.folder / "live"
        live.mkdir(exist_ok=True)
        shutil.copy(certificate, live / "cert")
        shutil.copy(key, live / "key")

    def trust_clients_of(self, authority: Certificates) -> None:
        shutil.copy(authority.ca, self.folder / "live" / "client-ca")

    def hang_up(self) -> None:
        self.server.signal(signal.SIGHUP)

    def context(self, client: str = "first") -> ssl.SSLContext:
        """Of a client that trusts both authorities, with a certificate of one."""
        context = ssl.create_default_context(cafile=str(self.first.ca))
        context.load_verify_locations(self.second.ca)
        context.load_cert_chain(*self.client[client])
        return context

    def connected(self, client: str = "first") -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.server.port, timeout=60, context=self.context(client)
        )
        connection.connect()
        return connection

    def wait_for_issuer(self, issuer: str) -> None:
        wait_until(lambda: self.issuer() == issuer)

    def issuer(self, client: str = "first") -> str:
        """Whose the certificate is that a new connection meets."""
        with contextlib.closing(self.connected(client)) as connection:
            shown = connection.sock.getpeercert()
            assert shown is not None
            return str(dict(part[0] for part in shown["issuer"])["organizationName"])  # type: ignore[misc]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("reload"))
    certificate, key = made.client["first"]
    connect = {"sslrootcert": str(made.first.ca), "sslcert": str(certificate), "sslkey": str(key)}
    home = made.folder / "home"
    with inference_server(home, flags=made.flags, connect=connect) as made.server:
        made.server.deploy(hashing_model(made.folder, "text_hash"), "udf_text")
        yield made


def asked(connection: http.client.HTTPSConnection) -> int:
    body = json.dumps(infer_body("x"))
    connection.request("POST", INFER, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    return response.status


@contextlib.contextmanager
def load(one: Callable[[], None], callers: int) -> Iterator[list[int]]:
    """`one` again and again, by so many callers; yields how often it was done. Raises what they raised."""
    done, faults, ended = [0], list[BaseException](), threading.Event()

    def run() -> None:
        try:
            while not ended.is_set():
                one()
                done[0] += 1
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert faults == []


def test_a_renewed_certificate_is_met_by_who_connects_next_and_no_request_is_lost(served: Served) -> None:
    open_since_before = served.connected()
    assert asked(open_since_before) == 200

    def one() -> None:
        with contextlib.closing(served.connected()) as connection:
            assert asked(connection) == 200

    def is_asked_on() -> None:
        before = done[0]
        wait_until(lambda: done[0] > before + 10)

    with load(one, callers=3) as done:
        for certificates in (served.second, served.first, served.second, served.first):
            organization = "second" if certificates is served.second else "first"
            served.put(*certificates.issue(f"server-{organization}"))
            served.hang_up()
            served.wait_for_issuer(organization)
            is_asked_on()
    assert asked(open_since_before) == 200
    open_since_before.close()


def test_clients_of_an_authority_that_was_taken_away_are_refused_from_then_on(served: Served) -> None:
    with contextlib.closing(served.connected()) as open_since_before:
        served.trust_clients_of(served.second)
        served.hang_up()
        wait_until(lambda: is_refused(served, "first"))
        assert served.issuer("second") == "first"
        assert asked(open_since_before) == 200
    served.trust_clients_of(served.first)
    served.hang_up()
    wait_until(lambda: not is_refused(served, "first"))
    assert is_refused(served, "second")


def is_refused(served: Served, client: str) -> bool:
    with contextlib.closing(served.connected(client)) as connection:
        try:
            return asked(connection) != 200
        except ssl.SSLError as error:
            return "UNKNOWN_CA" in str(error.reason)


@pytest.mark.parametrize("fault", ["no certificate", "another key", "gone", "expired", "no authority"])
def test_with_a_broken_new_certificate_the_old_one_goes_on_and_the_log_says_why(
    served: Served, fault: str
) -> None:
    live, before = served.folder / "live", len(served.server.log)
    kept = {name: (live / name).read_bytes() for name in ("cert", "key", "client-ca")}
    if fault == "no certificate":
        (live / "cert").write_text("nothing")
        said = f"--tls-cert {live / 'cert'} holds no certificate (PEM)"
    elif fault == "another key":
        shutil.copy(served.client["first"][1], live / "key")
        said = "must hold a certificate and its own private key"
    elif fault == "gone":
        (live / "key").unlink()
        said = f"--tls-key {live / 'key'} cannot be read: No such file or directory"
    elif fault == "expired":
        served.put(*served.first.issue("late", ends=LONG_AGO))
        said = "--tls-cert: the certificate of localhost, 127.0.0.1 has expired, on 2001-01-01"
    else:
        (live / "client-ca").write_text("nothing")
        said = f"--tls-client-ca {live / 'client-ca'} holds no certificate (PEM)"
    served.hang_up()
    wait_until(lambda: "the old one goes on" in served.server.log[before:])
    assert said in served.server.log[before:]
    assert "PRIVATE KEY" not in served.server.log
    assert served.issuer() == "first"
    for name, content in kept.items():
        (live / name).write_bytes(content)


def test_a_certificate_that_expires_soon_is_warned_of(served: Served) -> None:
    served.put(*served.first.issue("soon", ends=soon(9.5)))
    (served.folder / "live" / "key").chmod(0o644)
    before = len(served.server.log)
    served.hang_up()
    wait_until(
        lambda: "the certificate of localhost, 127.0.0.1 expires in 9 days" in served.server.log[before:]
    )
    assert "key is for other users to read: chmod 600 it" in served.server.log[before:]
