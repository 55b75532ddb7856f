"""Several endpoints, the same on every engine: statements go on with the next, and name all that failed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.engines import Engine, Postgres, SqlError, make_engine
from tests.inference_server import InferenceServer
from tests.models import label_of

ROWS = 400
_DRAINING = (
    b"HTTP/1.1 503 Service Unavailable\r\nML-UDF-Draining: 1\r\nRetry-After: 5\r\nContent-Length: 45\r\n\r\n"
    b'{"error":"overloaded: the server shuts down"}'
)


class Front:
    """A port of its own before a server. After `sound` requests for rows it is as dead as a killed process,
    or says to each that it shuts down.
    """

    def __init__(self, port: int, *, sound: int, drains: bool) -> None:
        self._port = port
        self._left = sound
        self._drains = drains
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_gone(self) -> bool:
        return self._left < 0

    def stop(self) -> None:
        with self._lock:
            for each in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[caller], daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as server:
            self._open += [caller, server]
            back = threading.Thread(target=self._copy, args=[server, caller], daemon=True)
            back.start()
            while data := caller.recv(1 << 16):
                if data.startswith(b"POST /v2/models/") and self._turns_away():
                    if not self._drains:
                        self.stop()
                        return
                    caller.sendall(_DRAINING)
                    break
                server.sendall(data)
        with contextlib.suppress(OSError):
            caller.shutdown(socket.SHUT_RDWR)

    def _turns_away(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left < 0

    def _copy(self, server: socket.socket, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                caller.sendall(data)


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """An endpoint at which nobody listens: bound, so that nobody else takes the port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(params=["killed", "draining"])
def front(request: pytest.FixtureRequest, server: InferenceServer) -> Iterator[Front]:
    made = Front(server.port, sound=3, drains=request.param == "draining")
    yield made
    made.stop()


@pytest.fixture(scope="module", params=["duckdb", "postgres", "postgres-by-row"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def postgres(
    engine_name: str, server: InferenceServer, request: pytest.FixtureRequest
) -> Iterator[Postgres | None]:
    """One session for all tests."""
    made = None if engine_name == "duckdb" else make_engine(engine_name, server.url, request, ["udf_text"])
    assert made is None or isinstance(made, Postgres)
    yield made
    if made is not None:
        made.close()


@contextlib.contextmanager
def asking(postgres: Postgres | None, endpoint: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine whose functions are those of `endpoint`."""
    if postgres is not None:
        postgres.begin(endpoint, ["udf_text"])
        yield postgres
        return
    with contextlib.closing(make_engine("duckdb", endpoint, request, ["udf_text"])) as made:
        yield made


def test_a_server_that_is_not_there_is_passed_over(
    postgres: Postgres | None, nobody: str, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    with asking(postgres, f"{nobody}, {server.url}", request) as engine:
        assert engine.query("SELECT udf_text('a')") == [(label_of("a"),)]


def test_a_server_that_stops_in_the_middle_of_a_statement_loses_no_row(
    postgres: Postgres | None, front: Front, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    with asking(postgres, f"{front.url},{server.url}", request) as engine:
        engine.set("batch_rows", "16")
        many = f"SELECT 'row ' || n AS t, n FROM generate_series(1, {ROWS}) AS s(n)"
        found = engine.query(f"SELECT t, udf_text(t) FROM ({many}) AS rows ORDER BY n")
    assert found == [(f"row {n}", label_of(f"row {n}")) for n in range(1, ROWS + 1)]
    assert front.is_gone


def test_where_none_answers_the_error_names_all(
    postgres: Postgres | None, nobody: str, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    gone = Front(server.port, sound=0, drains=False)
    with asking(postgres, f"{gone.url},{nobody}", request) as engine, pytest.raises(SqlError) as caught:
        engine.query("SELECT udf_text('a')")
    assert caught.value.sqlstate in ("08001", "08006")
    assert "none of 2 endpoints took the request" in caught.value.text
    assert gone.url in caught.value.text
    assert nobody in caught.value.text


def test_a_list_that_is_none_is_refused_where_it_is_written(
    postgres: Postgres | None, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    refused = pytest.raises(SqlError, match="empty place")
    with refused as caught, asking(postgres, f"{server.url},", request):
        pytest.fail("it was taken")
    assert caught.value.sqlstate == "22023"
