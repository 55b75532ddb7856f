"""What a client remembers of functions, what it asks of JSON routes, calls begun and waited for later."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from ml_udf.client import Client, Options
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.errors import (
    BadOption,
    InputNotFound,
    ServerUnreachable,
    UnknownFunction,
    VersionGone,
)
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of


def client_of(transport: Any) -> Client:
    return Client("http://fake", transport=transport)


class Routes:
    """A transport that keeps what it was asked, and answers each request by the next of `replies`."""

    def __init__(self, *replies: HttpResponse) -> None:
        self.asked: list[HttpRequest] = []
        self.timeouts_s: list[float] = []
        self.closed = False
        self._replies = list(replies)

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        self.asked.append(request)
        self.timeouts_s.append(timeout_s)
        return self._replies.pop(0) if self._replies else HttpResponse(200, {}, b'{"ok": true}')

    def close(self) -> None:
        self.closed = True


def test_a_version_that_was_seen_is_known_without_asking():
    transport = FakeTransport(version="7")
    client = client_of(transport)
    info = client.describe("f")
    asked = len(transport.paths)
    assert client.describe("f", version="7") is info
    assert len(transport.paths) == asked


def test_the_current_version_is_asked_anew_each_time():
    transport = FakeTransport(version="7")
    client = client_of(transport)
    assert client.describe("f").version == "7"
    transport.version = "8"
    assert client.describe("f").version == "8"
    assert transport.paths.count("/v2/models/f") == 2
    assert transport.paths.count("/v2") == 1


def test_inputs_and_outputs_of_other_names_are_other_functions():
    client = client_of(FakeTransport())
    info = client.describe("f")
    assert client.describe("f", version="1", input_name="text") is not info
    with pytest.raises(BadOption, match="no input 'other'"):
        client.describe("f", version="1", input_name="other")
    with pytest.raises(BadOption, match="no output 'other'"):
        client.describe("f", version="1", output_name="other")


def test_what_is_known_of_functions_is_bounded(monkeypatch):
    monkeypatch.setattr("ml_udf.client.client._MAX_KNOWN", 2)
    transport = FakeTransport()
    client = client_of(transport)
    for version in ("1", "2", "3"):
        transport.version = version
        client.describe("f")
    asked = len(transport.paths)
    client.describe("f", version="3")
    assert len(transport.paths) == asked
    with pytest.raises(VersionGone):
        client.describe("f", version="1")  # forgotten, so asked, and it is no longer served


def test_a_functions_name_is_quoted_in_the_path():
    transport = FakeTransport()
    with pytest.raises(UnknownFunction):
        client_of(transport).describe("a/b c")
    assert transport.paths[-1] == "/v2/models/a%2Fb%20c"


def test_tritons_config_is_read_where_the_server_is_not_ours():
    transport = FakeTransport(ours=False)
    client_of(transport).describe("f")
    assert transport.paths == ["/v2", "/v2/models/f", "/v2/models/f/config"]


def test_a_triton_that_takes_no_batches_larger_than_its_own_gets_none():
    class Triton(FakeTransport):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            if request.path.endswith("/config"):
                return HttpResponse(200, {}, b'{"max_batch_size": 3}')
            return super().send(request, timeout_s=timeout_s, abort=abort)

    transport = Triton(ours=False)
    values = [f"{n}" for n in range(8)]
    assert client_of(transport).predict("f", values, Options(batch_rows=5)).values == [
        label_of(value.encode()) for value in values
    ]
    assert [len(rows) for rows in sorted(transport.sent)] == [3, 3, 2]


def test_what_is_begun_keeps_to_that_limit_too():
    class Triton(FakeTransport):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            if request.path.endswith("/config"):
                return HttpResponse(200, {}, b'{"max_batch_size": 3}')
            return super().send(request, timeout_s=timeout_s, abort=abort)

    transport = Triton(ours=False)
    begun = client_of(transport).begin("f", [f"{n}" for n in range(4)], Options(batch_rows=5), version="1")
    assert begun is not None
    begun.wait()
    assert sorted(len(rows) for rows in transport.sent) == [1, 3]
    ours = FakeTransport()
    begun = client_of(ours).begin("f", [f"{n}" for n in range(4)], Options(batch_rows=2), version="1")
    assert begun is not None
    begun.wait()
    assert [len(rows) for rows in ours.sent] == [2, 2]


def test_json_routes_are_asked_as_they_say():
    transport = Routes()
    client = client_of(transport)
    assert client.get("/v1/functions") == {"ok": True}
    client.put("/v1/functions/f", {"slo_ms": 5})
    client.post("/v1/jobs", {"dataset": "d"}, timeout_s=7)
    client.delete("/v1/functions/f", timeout_s=8)
    assert [(asked.method, asked.path) for asked in transport.asked] == [
        ("GET", "/v1/functions"),
        ("PUT", "/v1/functions/f"),
        ("POST", "/v1/jobs"),
        ("DELETE", "/v1/functions/f"),
    ]
    assert [json.loads(asked.body or b"null") for asked in transport.asked] == [
        None,
        {"slo_ms": 5},
        {"dataset": "d"},
        None,
    ]
    assert transport.asked[1].headers["Content-Type"] == "application/json"
    assert transport.timeouts_s == [10.0, 60.0, 7, 8]


def test_a_refused_route_raises_what_it_says():
    client = client_of(Routes(HttpResponse(404, {}, b'{"error": "unknown_function: no f"}')))
    with pytest.raises(UnknownFunction, match="no f"):
        client.get("/v1/functions/f")


def test_any_request_can_be_aborted_by_what_on_wait_raises():
    class Stop(Exception):
        pass

    class Slow(Routes):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            abort.sleep(30)
            return super().send(request, timeout_s=timeout_s, abort=abort)

    def stop() -> None:
        raise Stop

    began_s = time.monotonic()
    with pytest.raises(Stop):
        client_of(Slow()).ask(HttpRequest("GET", "/v1/jobs"), timeout_s=60, on_wait=stop)
    assert time.monotonic() - began_s < 10


def test_closed_it_lets_go_of_its_connections_and_threads():
    transport = Routes()
    client = client_of(transport)
    before = set(threading.enumerate())
    client.ask(HttpRequest("GET", "/v1/jobs"), timeout_s=5)
    mine = set(threading.enumerate()) - before
    client.close()
    assert transport.closed
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()


def test_a_call_begun_leaves_at_once_and_is_waited_for_later():
    transport = FakeTransport()
    client = client_of(transport)
    begun = client.begin("f", ["a", None, "bad", "a"], Options(batch_rows=1), version="1")
    assert begun is not None
    prediction = begun.wait()
    assert prediction.values == [label_of(b"a"), None, None, label_of(b"a")]
    assert prediction.confidences == [0.5, None, None, 0.5]
    assert [type(error) for error in prediction.errors] == [type(None), type(None), InputNotFound, type(None)]
    assert prediction.model_version == "1"
    stats = prediction.stats
    assert (stats.rows, stats.distinct, stats.batches, stats.retries, stats.failed_rows) == (4, 2, 2, 0, 1)


def test_more_requests_than_may_be_begun_with_are_not_begun():
    transport = FakeTransport()
    options = Options(batch_rows=1, max_in_flight=2)
    assert client_of(transport).begin("f", ["1", "2", "3", "4"], options, version="1") is not None
    transport = FakeTransport()
    assert client_of(transport).begin("f", ["1", "2", "3", "4", "5"], options, version="1") is None
    assert transport.sent == []


def test_the_stats_tell_what_a_call_cost():
    transport = FakeTransport()
    transport.faults = [ServerUnreachable("refused")]
    options = Options(batch_rows=2, max_in_flight=1, on_error="null")
    stats = client_of(transport).predict("f", ["a", "b", None, "a", "bad"], options).stats
    assert (stats.rows, stats.nulls, stats.distinct, stats.batches) == (5, 1, 3, 2)
    assert (stats.retries, stats.failed_rows) == (1, 1)
    assert 0 < stats.elapsed_s < 60


def test_after_an_error_nothing_new_is_sent():
    transport = FakeTransport()
    options = Options(batch_rows=1, max_in_flight=1)
    with pytest.raises(InputNotFound, match="bad1"):
        client_of(transport).predict("f", ["a", "bad1", "c", "d", "e"], options)
    assert [rows for rows in transport.sent if rows[0] not in (b"a", b"bad1")] == []


def test_a_server_that_is_gone_when_its_function_is_looked_up_is_every_rows_fault(monkeypatch):
    monkeypatch.setattr("ml_udf.client.retry._FIRST_PAUSE_S", 0.001)

    class Gone(FakeTransport):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            raise ServerUnreachable("refused")

    prediction = client_of(Gone()).predict("f", ["a", None], Options(on_error="null"))
    assert [type(error) for error in prediction.errors] == [ServerUnreachable, type(None)]
    assert (prediction.stats.rows, prediction.stats.nulls, prediction.stats.failed_rows) == (2, 1, 1)
    with pytest.raises(ServerUnreachable):
        client_of(Gone()).predict("f", ["a", None])


def test_a_look_up_ends_at_the_deadline():
    class Slow(FakeTransport):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            self.timeout_s = timeout_s
            return super().send(request, timeout_s=timeout_s, abort=abort)

    transport = Slow()
    client = client_of(transport)
    client.look_up("f", deadline_s=time.monotonic() + 3)
    assert 1 < transport.timeout_s <= 3
    client.look_up("f")
    assert 8 < transport.timeout_s <= 10
