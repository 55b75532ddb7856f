"""HTTP over kept connections: what is sent once, what may be sent again, what a deadline bounds."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_udf.client import Client
from ml_udf.client.transport import Abort, HttpRequest, HttpTransport
from ml_udf.errors import (
    BadOption,
    ConnectionLost,
    DeadlineExceeded,
    InputTooLarge,
    MlUdfError,
    TlsFailed,
)
from ml_udf.training import TrainingCalls
from tests.in_a_fork import said_by_fork

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class BreakingServer:
    """Answers `{}`; breaks the connection of the request after `sound` ones, at the point that it is told.

    point  "idle"    as soon as the answer before is out     "head"  when the request's head is there
           "body"    when all of it is there                 "status", "part"  in the middle of the answer
           "never"
    """

    def __init__(self, point: str, sound: int = 1) -> None:
        self.point = point
        self.sound = sound
        self.heads: list[str] = []  # the first line of every request whose head arrived
        self.accepted = 0  # connections
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            while (first := lines.readline()).strip():
                length = 0
                while header := lines.readline().strip():
                    name, _, value = header.lower().partition(b":")
                    length = int(value) if name == b"content-length" else length
                with self._lock:
                    self.heads.append(first.decode().rsplit(" ", 1)[0])
                    breaks = len(self.heads) == self.sound + 1
                if breaks and self.point == "head":
                    return
                lines.read(length)
                if breaks and self.point == "body":
                    return
                if breaks and self.point in ("status", "part"):
                    connection.sendall(OK[: 12 if self.point == "status" else -1])
                    return
                connection.sendall(OK)
                if not breaks and self.point == "idle" and len(self.heads) == self.sound:
                    return


@pytest.fixture
def breaking() -> Iterator[Callable[..., BreakingServer]]:
    made: list[BreakingServer] = []

    def new(point: str, sound: int = 1) -> BreakingServer:
        made.append(BreakingServer(point, sound))
        return made[-1]

    yield new
    for server in made:
        server.stop()


def posts(calls: TrainingCalls) -> dict[str, Callable[[], object]]:
    """Every request of the client's that changes something, by the line with which it arrives."""
    return {
        "POST /v1/datasets": lambda: calls.pull({}),
        "POST /v1/datasets/uploads": lambda: calls.push({}, []),
        "POST /v1/datasets/food/refresh": lambda: calls.refresh("food"),
        "POST /v1/jobs": lambda: calls.train({}),
        "POST /v1/jobs/7/cancel": lambda: calls.cancel(7),
        "POST /v1/jobs/7/pause": lambda: calls.pause(7),
        "POST /v1/jobs/7/resume": lambda: calls.resume(7),
        "POST /v1/jobs/7/extend": lambda: calls.extend(7, 9),
        "POST /v1/jobs/7/deploy": lambda: calls.deploy(7, "f"),
        "POST /v1/functions/f/retrain": lambda: calls.retrain("f"),
        "POST /v1/functions/f/rollback": lambda: calls.rollback("f"),
        "PUT /v1/functions/f": lambda: calls.wish("f", {}),
    }


READS = {"answers", "dataset", "datasets", "job", "jobs", "retrainings", "trials", "watch"}
CHANGES = sorted(
    posts(TrainingCalls(Client("http://127.0.0.1")))
)  # names alone: nothing is asked of the client


def test_every_call_that_changes_something_is_tried_here() -> None:
    verbs = {name for name in vars(TrainingCalls) if not name.startswith("_")}
    assert len(verbs - READS) == len(CHANGES)


@pytest.mark.parametrize("point", ["head", "body", "status", "part"])
@pytest.mark.parametrize("line", CHANGES)
def test_what_changes_something_arrives_once_wherever_the_connection_breaks(
    breaking: Callable[..., BreakingServer], line: str, point: str
) -> None:
    server = breaking(point)
    with contextlib.closing(Client(server.url)) as client:
        client.get("/v2")  # leaves a kept connection
        with pytest.raises(ConnectionLost) as caught:
            posts(TrainingCalls(client))[line]()
    assert server.heads == ["GET /v2", line]
    assert "look before you ask again" in caught.value.hint


@pytest.mark.parametrize("line", CHANGES)
def test_a_connection_that_the_server_closed_meanwhile_disturbs_no_change(
    breaking: Callable[..., BreakingServer], line: str
) -> None:
    server = breaking("idle")
    with contextlib.closing(Client(server.url)) as client:
        client.get("/v2")
        with contextlib.suppress(KeyError):  # `{}` is no upload's name
            posts(TrainingCalls(client))[line]()
    assert server.heads.count(line) == 1


@pytest.mark.parametrize("change", ["put", "post", "delete"])
def test_every_change_by_a_json_route_arrives_once(
    breaking: Callable[..., BreakingServer], change: str
) -> None:
    server = breaking("body")
    with contextlib.closing(Client(server.url)) as client:
        client.get("/v2")
        with pytest.raises(ConnectionLost):
            getattr(client, change)("/v1/functions/f", *([] if change == "delete" else [{}]))
    assert server.heads == ["GET /v2", f"{change.upper()} /v1/functions/f"]


@pytest.mark.parametrize("point", ["idle", "head", "body", "status", "part"])
def test_what_may_be_repeated_is_sent_again_on_a_new_connection(
    breaking: Callable[..., BreakingServer], point: str
) -> None:
    server = breaking(point)
    transport = HttpTransport(server.url)
    send(transport, HttpRequest("GET", "/v2"))
    assert send(transport, HttpRequest("POST", "/v2/models/f/infer", b"{}", may_repeat=True)) == 200
    transport.close()
    assert server.heads.count("POST /v2/models/f/infer") == (1 if point == "idle" else 2)


def test_a_fork_shares_no_connection_with_its_parent(breaking: Callable[..., BreakingServer]) -> None:
    server = breaking("never")
    transport = HttpTransport(server.url)
    get = HttpRequest("GET", "/v2")
    send(transport, get)
    assert said_by_fork(lambda: f"{send(transport, get)} {send(transport, get)}") == "200 200"
    send(transport, get)
    transport.close()
    assert server.accepted == 2  # each has kept its own


@pytest.mark.alone
def test_the_timeout_is_for_all_tries_together() -> None:
    """The first try uses up 0.4 s and breaks; the second, which hangs, gets what is left."""
    listener = socket.create_server(("127.0.0.1", 0))
    transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}")

    def serve() -> None:
        with contextlib.suppress(OSError):
            first, _ = listener.accept()
            first.recv(65536)
            first.sendall(OK)
            first.recv(65536)
            time.sleep(0.4)
            first.close()
            second, _ = listener.accept()
            second.recv(65536)
            time.sleep(5)

    threading.Thread(target=serve, daemon=True).start()
    send(transport, HttpRequest("GET", "/v2"))
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        transport.send(HttpRequest("GET", "/v2"), timeout_s=0.8, abort=Abort())
    assert time.monotonic() - began_s < 1.1
    listener.close()


@pytest.mark.alone
@pytest.mark.parametrize("dribbled", [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100, OK[:-2] + b"{}" * 50])
def test_an_answer_in_small_pieces_keeps_no_one_beyond_the_timeout(dribbled: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    if b"Length: 2" in dribbled:
        dribbled = dribbled.replace(b"Length: 2", b"Length: 1000")

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        with contextlib.suppress(OSError):
            for at in range(len(dribbled)):
                connection.sendall(dribbled[at : at + 1])
                time.sleep(0.05)

    threading.Thread(target=serve, daemon=True).start()
    transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}")
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        transport.send(HttpRequest("GET", "/v2"), timeout_s=0.5, abort=Abort())
    assert time.monotonic() - began_s < 1.5
    listener.close()


def test_a_refusal_that_comes_before_all_was_sent_is_told() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        reply = b'{"error": "input_too_large: 64 MiB is the most"}'
        head = f"HTTP/1.1 413 X\r\nConnection: close\r\nContent-Length: {len(reply)}\r\n\r\n"
        connection.sendall(head.encode() + reply)
        connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=serve, daemon=True).start()
    client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
    # What was sent meanwhile may make the kernel throw the answer away: then the connection broke.
    with pytest.raises(MlUdfError) as caught:
        client.post("/v1/jobs", {"text": "x" * 50_000_000})
    assert isinstance(caught.value, InputTooLarge | ConnectionLost)
    listener.close()


@pytest.mark.security
@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "http://10.0.0.1:8080",
        "http://127.0.0.1.nip.io",
        "http://127.evil.example",
        "http://localhost.evil.example",
        "http://0.0.0.0:8080",
        "http://[2001:db8::1]:8080",
    ],
)
def test_a_token_leaves_this_machine_in_the_clear_only_where_that_was_allowed(url: str) -> None:
    with pytest.raises(BadOption, match="in the clear") as caught:
        Client(url, token="t")
    assert "allow_plain" in caught.value.hint
    Client(url, token="t", allow_plain=True).close()
    Client(url.replace("http:", "https:"), token="t").close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "[::1]", "a.localhost", "LOCALHOST"])
def test_this_machine_needs_no_tls(host: str) -> None:
    Client(f"http://{host}:8080", token="t").close()


def test_authorities_are_for_https_and_have_to_be_there() -> None:
    with pytest.raises(BadOption, match="https:// endpoints alone"):
        Client("http://127.0.0.1", sslrootcert="/etc/ca.pem")
    for wrong in ("/nowhere/ca.pem", __file__):
        with pytest.raises(BadOption, match="cannot be read as certificates"):
            Client("https://example.org", sslrootcert=wrong)


def send(transport: HttpTransport, request: HttpRequest) -> int:
    return transport.send(request, timeout_s=10.0, abort=Abort()).status


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody but itself vouches for, with its key."""
    path = tmp_path_factory.mktemp("tls") / "own.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ml_udf"
    made = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"]
    path.write_bytes(subprocess.run(made, check=True, capture_output=True).stdout)
    return path


@pytest.mark.security
def test_a_server_is_believed_by_the_authority_that_was_named_alone(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except ssl.SSLError:
                continue  # a client that did not believe it
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(OK)

    threading.Thread(target=serve, daemon=True).start()
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.closing(Client(url, token="t", sslrootcert=str(certificate))) as client:
        assert client.get("/v2") == {}
    with contextlib.closing(Client(url, token="t")) as client, pytest.raises(TlsFailed) as caught:
        client.get("/v2")
    assert "certificate" in caught.value.message
    assert "sslrootcert" in caught.value.hint
    listener.close()


def test_a_server_without_tls_that_is_called_by_https_is_said_to_be_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad HttpRequest\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.closing(Client(url, token="t")) as client, pytest.raises(TlsFailed) as caught:
            client.get("/v2")
    assert caught.value.message == f"TLS with {url} failed: what answers does not speak it"
    assert "write http://" in caught.value.hint
