"""The server's door from outside: TLS, tokens, web pages, and clients that vanish, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from ml_udf.oip import HEADER_LENGTH, InferRequest, RequestedOutput, Tensor, encode_request
from tests.contract.oip_wire import Reply, call, infer_body, metric
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model
from tests.waiting import wait_until

TOKEN = "a-token-for-the-tests-0123456789"
ASK = "another-token-that-may-only-ask"
INFER = "/v2/models/udf_text/infer"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Path:
    """Tokens, and the server's certificate."""
    made = tmp_path_factory.mktemp("door")
    (made / "token").write_text(TOKEN)
    (made / "ask").write_text(ASK)
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(made / "key.pem")
    for number, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(made / "cert.pem", append=number > 0)
    authority.cert_pem.write_to_path(made / "ca.pem")
    return made


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server without a token."""
    made = tmp_path_factory.mktemp("open")
    with inference_server(made / "home") as server:
        server.deploy(hashing_model(made, "text_hash"), "udf_text")
        yield server


@pytest.fixture(scope="module")
def closed_server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server with two tokens, TLS, and client certificates."""
    flags = [
        f"--token-file={folder / 'token'}",
        f"--ask-token-file={folder / 'ask'}",
        "--ask-class=bulk",
        f"--tls-cert={folder / 'cert.pem'}",
        f"--tls-key={folder / 'key.pem'}",
        f"--tls-client-ca={folder / 'ca.pem'}",
    ]
    with inference_server(tmp_path_factory.mktemp("closed") / "home", flags=flags) as server:
        yield server


def call_tls(
    server: InferenceServer,
    context: ssl.SSLContext,
    method: str,
    path: str,
    body: object = None,
    token: str = TOKEN,
) -> Reply:
    connection = http.client.HTTPSConnection("localhost", server.port, timeout=60, context=context)
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def trusted(authority: trustme.CA) -> ssl.SSLContext:
    """A client that trusts the server, and shows a certificate that the server trusts."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("client@example.org").configure_cert(context)
    return context


@pytest.mark.security
def test_rows_are_answered_over_tls(
    closed_server: InferenceServer, trusted: ssl.SSLContext, tmp_path: Path
) -> None:
    assert "listening on https://127.0.0.1:" in closed_server.log
    model = hashing_model(tmp_path, "text_hash")
    directory = {"directory": str(model)}
    assert call_tls(closed_server, trusted, "POST", "/register", directory).status == 200
    put = call_tls(closed_server, trusted, "PUT", "/v1/functions/udf_text", {"models": ["text_hash"]})
    assert put.status == 200
    large = infer_body(*[f"{number} " + "x" * 200 for number in range(3000)], outputs=("label",))
    reply = call_tls(closed_server, trusted, "POST", INFER, large)
    assert len(reply.json()["outputs"][0]["data"]) == 3000
    # What the second token may: ask, in bulk, and look; nothing else.
    assert call_tls(closed_server, trusted, "POST", INFER, infer_body("x"), ASK).status == 200
    assert call_tls(closed_server, trusted, "GET", "/v1/functions", token=ASK).status == 200
    asked = infer_body("x", ml_udf_class="interactive")
    assert call_tls(closed_server, trusted, "POST", INFER, asked, ASK).status == 403
    for method, path in (
        ("POST", "/register"),
        ("DELETE", "/v1/functions/udf_text"),
        ("GET", "/v1/datasets"),
    ):
        refused = call_tls(closed_server, trusted, method, path, directory, ASK)
        assert (refused.status, refused.error.partition(":")[0]) == (403, "forbidden")


@pytest.mark.security
def test_a_client_without_a_certificate_of_the_authority_gets_nowhere_and_is_told_why(
    closed_server: InferenceServer, authority: trustme.CA
) -> None:
    stranger = ssl.create_default_context()
    authority.configure_trust(stranger)
    other = ssl.create_default_context()
    authority.configure_trust(other)
    trustme.CA().issue_cert("client@example.org").configure_cert(other)
    for context, reason in ((stranger, "CERTIFICATE_REQUIRED"), (other, "UNKNOWN_CA")):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.maximum_version = version
            with pytest.raises(ssl.SSLError) as caught:
                call_tls(closed_server, context, "GET", "/v2/health/live")
            old = version == ssl.TLSVersion.TLSv1_2 and context is stranger  # it has no word for that
            assert ("HANDSHAKE_FAILURE" if old else reason) in str(caught.value.reason)
    assert "TLS refused reason=peer_did_not_return_a_certificate" in closed_server.log


@pytest.mark.security
def test_plain_http_is_not_spoken_where_tls_is_but_told_so(closed_server: InferenceServer) -> None:
    reply = call(closed_server.port, "GET", "/v2/health/live")
    assert (reply.status, reply.error) == (
        400,
        "bad_option: this port speaks TLS; ask it by https://, not http://",
    )
    with socket.create_connection(("127.0.0.1", closed_server.port), timeout=30) as connection:
        connection.sendall(b"\x00" * 100)
        assert not connection.recv(65536).startswith(b"HTTP")


@pytest.mark.security
def test_beyond_loopback_the_server_wants_tls_or_to_be_told_that_a_proxy_does_it(
    folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "server", "--host=0.0.0.0", "--port=0", f"--home={tmp_path}"]
    command.append(f"--token-file={folder / 'token'}")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 2
    assert "without TLS" in ended.stderr
    assert "--allow-plain" in ended.stderr


@pytest.mark.security
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.evil.example", "Content-Type": "text/plain"}, 403),
        ({"Origin": "http://127.0.0.1.nip.io", "Content-Type": "application/json"}, 403),
        ({"Host": "rebound.evil.example", "Content-Type": "application/json"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": ""}, 415),
    ],
)
def test_a_web_page_changes_nothing(
    open_server: InferenceServer, headers: dict[str, str], status: int
) -> None:
    """What a page of somebody else can make a browser send to this machine."""
    body = json.dumps({"models": ["text_hash"], "slo_ms": 1}).encode()
    before = call(open_server.port, "GET", "/v1/functions").json()
    for method, path in (("PUT", "/v1/functions/udf_text"), ("POST", "/register"), ("POST", "/v1/jobs")):
        reply = call(open_server.port, method, path, body, headers)
        assert (path, reply.status) == (path, status)
    assert call(open_server.port, "GET", "/v1/functions").json() == before


@pytest.mark.security
def test_a_form_of_a_page_registers_no_model(open_server: InferenceServer) -> None:
    manifest = json.dumps({"name": "evil", "version": 1})
    form = f'--x\r\nContent-Disposition: form-data; name="manifest"\r\n\r\n{manifest}\r\n--x--\r\n'.encode()
    content = {"Content-Type": "multipart/form-data; boundary=x"}
    for said in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
        assert call(open_server.port, "POST", "/register", form, content | said).status == 403
    reply = call(open_server.port, "POST", "/v1/functions/udf_text/rollback", form, content)
    assert reply.status == 415


@pytest.mark.security
def test_what_is_smuggled_behind_a_bare_line_feed_is_never_read(open_server: InferenceServer) -> None:
    hidden = b"DELETE /v1/functions/udf_text HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chunks = b"0\r\n\r\n" + hidden
    rows = json.dumps(infer_body("x")).encode()
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nX: y%bTransfer-Encoding: chunked\r\n"
    head += b"Content-Length: %d\r\n\r\n%b"
    for path in (INFER.encode(), b"/v2/repository/index"):
        for line_end, body in ((b"\r\n", chunks), (b"\n", chunks), (b"\n", rows), (b"\r", rows)):
            with socket.create_connection(("127.0.0.1", open_server.port), timeout=30) as connection:
                connection.sendall(head % (path, line_end, len(body), body))
                replied = b""
                while part := connection.recv(65536):
                    replied += part
            assert replied.startswith(b"HTTP/1.1 400 ")
            assert replied.count(b"HTTP/1.1 ") == 1
    assert call(open_server.port, "GET", "/v1/functions/udf_text").status == 200


def test_clients_that_vanish_while_their_reply_is_written_leave_no_error_in_the_log(
    open_server: InferenceServer,
) -> None:
    rows = [b"x" * 20] * 20_000
    asked = InferRequest([Tensor.of_bytes("text", rows)], [RequestedOutput("scores")])
    body, headers = encode_request(asked)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
    partly = f"PUT /v1/functions/f HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n{lines}\r\n".replace(
        "application/octet-stream", "application/json"
    )
    wants = [
        head.encode() + body,
        partly.encode() + b"{",
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    begun = open_server.log
    for number in range(12):
        connection = socket.create_connection(("127.0.0.1", open_server.port), timeout=30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Closing sends a reset: what the server writes then fails.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        connection.sendall(wants[number % 3])
        if number % 2:
            connection.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                connection.recv(100)
        connection.close()
    wait_until(lambda: metric(open_server.port, "ml_udf_queue_rows", function="udf_text") == 0)
    assert call(open_server.port, "POST", INFER, infer_body("x")).status == 200
    new = open_server.log[len(begun) :]
    assert "ERROR" not in new
    assert "Traceback" not in new


def test_without_being_asked_for_scores_are_not_computed_and_not_sent(open_server: InferenceServer) -> None:
    outputs = call(open_server.port, "POST", INFER, infer_body("x")).json()["outputs"]
    assert [output["name"] for output in outputs] == ["label", "confidence"]


def test_a_reply_over_the_limit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home", flags=["--max-reply-bytes=10000"]) as server:
        server.deploy(hashing_model(tmp_path, "text_hash"), "udf_text")
        asked = infer_body(*map(str, range(500)), outputs=("scores",))
        refused = call(server.port, "POST", INFER, asked)
        assert (refused.status, "do not ask for 'scores'" in refused.error) == (413, True)
        assert metric(server.port, "ml_udf_batches_total", function="udf_text") == 0
        assert call(server.port, "POST", INFER, infer_body("x", outputs=("scores",))).status == 200
        head_length = {HEADER_LENGTH: "0"}
        assert call(server.port, "POST", INFER, b"a whole text", head_length).status == 200


@pytest.mark.security
def test_one_address_leaves_upload_places_to_another(open_server: InferenceServer) -> None:
    form = {"name": "d", "query": "SELECT 1", "target": "label", "key": "k", "input": "k"}
    begun: list[str] = []
    try:
        for _ in range(16):
            reply = _call_from("127.0.0.2", open_server, "POST", "/v1/datasets/uploads", form)
            begun += [reply.json()["upload"]] if reply.status == 201 else []
        assert 1 <= len(begun) < 16
        assert reply.status == 503
        reply = _call_from("127.0.0.3", open_server, "POST", "/v1/datasets/uploads", form)
        assert reply.status == 201
        begun.append(reply.json()["upload"])
    finally:
        for upload in begun:
            call(open_server.port, "DELETE", f"/v1/datasets/uploads/{upload}")


def _call_from(address: str, server: InferenceServer, method: str, path: str, body: object) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60, source_address=(address, 0))
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
