from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_udf.client import Client, Options
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.errors import (
    BadOption,
    ConnectionLost,
    DeadlineExceeded,
    InputInvalid,
    InputNotFound,
    InputTooLarge,
    Overloaded,
    ServerFault,
    ServerUnreachable,
    UnknownFunction,
    VersionGone,
)
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of

NULLS = Options(on_error="null")


def client_of(transport: FakeTransport) -> Client:
    return Client("http://fake", transport=transport)


def test_an_empty_column_sends_nothing_and_answers_nothing():
    transport = FakeTransport()
    prediction = client_of(transport).predict("f", [])
    assert prediction.values == []
    assert transport.sent == []


def test_a_column_of_nulls_sends_nothing():
    transport = FakeTransport()
    prediction = client_of(transport).predict("f", [None, None])
    assert prediction.values == [None, None]
    assert prediction.errors == [None, None]
    assert transport.sent == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=3), st.binary(max_size=3)), max_size=60))
def test_order_and_length_are_kept_and_equal_values_are_sent_once(values):
    transport = FakeTransport()
    values = [v for v in values if v is None or not v.startswith("bad" if isinstance(v, str) else b"bad")]
    prediction = client_of(transport).predict("f", values, Options(batch_rows=7))
    wire = [None if v is None else v.encode() if isinstance(v, str) else v for v in values]
    assert prediction.values == [None if w is None else label_of(w) for w in wire]
    sent = [row for batch in transport.sent for row in batch]
    assert sorted(sent) == sorted({w for w in wire if w is not None})
    assert all(len(batch) <= 7 for batch in transport.sent)


def test_several_sub_batches_are_in_flight_but_never_more_than_allowed():
    transport = FakeTransport(delay_s=0.12)  # longer than a slice of the wait
    client_of(transport).predict("f", [str(i) for i in range(40)], Options(batch_rows=4, max_in_flight=3))
    assert transport.most_in_flight == 3
    assert len(transport.sent) == 10


def test_the_lowest_faulty_row_fails_the_call_and_is_named():
    transport = FakeTransport()
    with pytest.raises(InputNotFound) as caught:
        client_of(transport).predict("f", ["a", "bad1", "bad2"], Options(batch_rows=1))
    assert "bad1 is not there" in caught.value.message
    assert "f('bad1')" in caught.value.detail
    assert "row 2" in caught.value.detail


def test_with_on_error_null_a_faulty_row_spoils_no_other():
    prediction = client_of(FakeTransport()).predict("f", ["a", "bad", None, "b"], NULLS)
    assert prediction.values == [label_of(b"a"), None, None, label_of(b"b")]
    assert [type(e) for e in prediction.errors] == [type(None), InputNotFound, type(None), type(None)]
    assert prediction.confidences == [0.5, None, None, 0.5]
    assert prediction.stats.failed_rows == 1


def test_a_value_that_cannot_be_sent_is_a_fault_of_its_own_row():
    prediction = client_of(FakeTransport()).predict("f", ["a", 3.5, "\ud800", b"x" * (33 << 20)], NULLS)
    assert prediction.values[0] == label_of(b"a")
    assert [type(e) for e in prediction.errors[1:]] == [InputInvalid, InputInvalid, InputTooLarge]


def test_a_faulty_row_that_is_seen_before_sending_sends_nothing():
    transport = FakeTransport()
    with pytest.raises(InputInvalid):
        client_of(transport).predict("f", ["a", 3.5])
    assert transport.sent == []


def test_a_full_queue_is_waited_for():
    transport = FakeTransport()
    transport.faults = [HttpResponse(503, {"retry-after": "0.05"}, b'{"error": "overloaded: full"}')] * 7
    prediction = client_of(transport).predict("f", ["a"])
    assert prediction.values == [label_of(b"a")]
    assert prediction.stats.retries == 7


def test_a_queue_that_stays_full_until_the_deadline_says_so():
    transport = FakeTransport()
    transport.faults = [HttpResponse(503, {"retry-after": "30"}, b'{"error": "overloaded: 9000 rows wait"}')]
    with pytest.raises(DeadlineExceeded, match="9000 rows wait"):
        client_of(transport).predict("f", ["a"], deadline_s=time.monotonic() + 1)


def test_a_broken_connection_is_tried_again():
    transport = FakeTransport()
    transport.faults = [ConnectionLost("broke")]
    assert client_of(transport).predict("f", ["a"]).values == [label_of(b"a")]


def test_a_dead_server_is_found_dead_once_for_all_sub_batches():
    transport = FakeTransport()
    transport.faults = [ServerUnreachable("refused") for _ in range(100)]
    options = Options(batch_rows=1, max_in_flight=1, on_error="null")
    prediction = client_of(transport).predict("f", ["a", "b", "c"], options)
    assert [type(error) for error in prediction.errors] == [ServerUnreachable] * 3
    assert len(transport.requests) == 5  # the tries of the first sub-batch alone


def test_a_bad_request_is_not_tried_again():
    transport = FakeTransport()
    transport.faults = [HttpResponse(400, {}, b'{"error": "bad_option: no"}')]
    with pytest.raises(BadOption, match="no"):
        client_of(transport).predict("f", ["a"], NULLS)
    assert len(transport.requests) == 1


def test_an_unknown_function_fails_the_call_even_where_errors_become_null():
    with pytest.raises(UnknownFunction):
        client_of(FakeTransport()).predict("g", ["a"], NULLS)


def test_a_version_that_is_gone_is_said_to_be_gone():
    client = client_of(FakeTransport(version="7"))
    with pytest.raises(VersionGone, match="version 6 of f"):
        client.predict("f", ["a"], version="6")


def test_the_version_stands_in_the_path_and_deadline_and_class_travel():
    transport = FakeTransport(version="7")
    client_of(transport).predict("f", ["a"], Options(slo_ms=20, row_class="interactive"))
    assert transport.paths[-1] == "/v2/models/f/versions/7/infer"
    parameters = transport.requests[0].parameters
    assert parameters["ml_udf_slo_ms"] == 20
    assert parameters["ml_udf_class"] == "interactive"
    assert 0 < parameters["ml_udf_deadline_ms"] <= 60_000


def test_a_server_that_is_not_ours_gets_no_parameter_of_ours():
    transport = FakeTransport(ours=False)
    prediction = client_of(transport).predict("f", ["a", None])
    assert prediction.values == [label_of(b"a"), None]
    assert prediction.confidences == [None, None]
    assert transport.paths[-1] == "/v2/models/f/infer"
    assert transport.requests[0].parameters == {}
    assert [output.name for output in transport.requests[0].outputs] == ["label"]


def test_an_answer_of_the_wrong_length_is_a_fault_of_the_server():
    transport = FakeTransport()
    body = b'{"model_name": "f", "outputs": []}'
    transport.faults = [HttpResponse(200, {}, body)]
    with pytest.raises(ServerFault, match="does not fit"):
        client_of(transport).predict("f", ["a"])


def test_what_on_wait_raises_aborts_the_call_at_once():
    class Interrupted(Exception):
        pass

    transport = FakeTransport(delay_s=30)
    began_s = time.monotonic()

    def on_wait() -> None:
        if time.monotonic() - began_s > 0.1:
            raise Interrupted

    with pytest.raises(Interrupted):
        client_of(transport).predict("f", ["a"], on_wait=on_wait)
    assert time.monotonic() - began_s < 5


def test_threads_are_born_with_all_signals_blocked():
    import signal

    masks: list[set[int]] = []
    transport = FakeTransport()
    transport.on_infer = lambda: masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    client_of(transport).predict("f", ["a"])
    assert signal.SIGINT in masks[0]
    assert signal.SIGTERM in masks[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_one_client_serves_many_threads():
    client = client_of(FakeTransport(delay_s=0.01))
    results: dict[int, list[object]] = {}

    def call(number: int) -> None:
        results[number] = client.predict(
            "f", [f"{number}-{i}" for i in range(20)], Options(batch_rows=5)
        ).values

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [label_of(f"{n}-{i}".encode()) for i in range(20)] for n in range(8)}


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://", "http://u:p@host", "http://h:99999"])
def test_an_endpoint_that_is_none_is_refused_at_once(url):
    with pytest.raises(BadOption):
        Client(url)


def test_overloaded_carries_the_servers_own_estimate():
    transport = FakeTransport()
    transport.faults = [HttpResponse(503, {"retry-after": "12"}, b'{"error": "overloaded: full"}')]
    with pytest.raises(DeadlineExceeded) as caught:
        client_of(transport).predict("f", ["a"], Options(timeout_ms=500))
    assert isinstance(caught.value.__cause__, Overloaded)
    assert caught.value.__cause__.retry_after_s == 12


class Listing(FakeTransport):
    """Answers each path with what `told` says, by method and path."""

    def __init__(self, told: dict[tuple[str, str], object], *, ours: bool) -> None:
        super().__init__(ours=ours)
        self.told = told

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        told = self.told.get((request.method, request.path))
        if told is None:
            return super().send(request, timeout_s=timeout_s, abort=abort)
        return HttpResponse(200, {}, json.dumps(told).encode())


def test_a_server_of_ours_lists_what_is_asked_for():
    rows = [{"name": "f"}, {"name": "g"}]
    client = client_of(Listing({("GET", "/v1/jobs"): {"jobs": rows}}, ours=True))
    assert client.listed("jobs") == rows


def test_another_server_lists_its_models_as_its_functions_and_trains_nothing():
    index = [{"name": "m", "version": "2", "state": "READY"}, {"name": "n"}]
    client = client_of(Listing({("POST", "/v2/repository/index"): index}, ours=False))
    rows = [
        {"name": "m", "version": "2", "resident": True},
        {"name": "n", "version": "", "resident": False},
    ]
    assert client.listed("functions") == client.listed("models") == rows
    assert client.listed("jobs") == []
