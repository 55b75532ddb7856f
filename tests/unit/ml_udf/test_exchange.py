"""One sub-batch out and its answers back: what is asked, and whose fault a fault is."""

from __future__ import annotations

import math
import threading
import time

import pytest

from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.column import SubBatch
from ml_udf.client.exchange import AnswerDetail, Exchange, Outcomes
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.config import Options
from ml_udf.errors import (
    BadOption,
    BulkHeld,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    InputInvalid,
    InputNotFound,
    ServerFault,
    ServerUnreachable,
)
from ml_udf.oip import InferRequest, InferResponse, Tensor, encode_response
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of
from tests.unit.ml_udf.infos import info_of


def exchange_of(transport: FakeTransport, *, ours: bool = True, deadline_s: float = math.inf, **options):
    return Exchange(transport, info_of(ours=ours), Options(**options), deadline_s)


def ask(exchange: Exchange, *rows: bytes) -> Outcomes:
    return exchange.answer(SubBatch(0, list(rows)), Abort())


def test_values_confidences_and_errors_stand_at_their_rows():
    answers = ask(exchange_of(FakeTransport()), b"a", b"bad", b"c")
    assert answers.values == [label_of(b"a"), None, label_of(b"c")]
    assert answers.confidences == [0.5, None, 0.5]
    assert [type(error) for error in answers.errors] == [type(None), InputNotFound, type(None)]


def test_ours_is_asked_with_the_goals_and_the_time_that_is_left():
    transport = FakeTransport()
    exchange = exchange_of(transport, slo_ms=40, min_accuracy=0.9, row_class="interactive", timeout_ms=5_000)
    ask(exchange, b"a")
    (asked,) = transport.requests
    assert [output.name for output in asked.outputs] == ["label", "confidence", "error"]
    assert asked.parameters["ml_udf_slo_ms"] == 40
    assert asked.parameters["ml_udf_min_accuracy"] == 0.9
    assert asked.parameters["ml_udf_class"] == "interactive"
    assert 4_000 < asked.parameters["ml_udf_deadline_ms"] <= 5_000


class Detailed(FakeTransport):
    """One that says of each row how it was answered: of the second nothing is expected."""

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        super().send(request, timeout_s=timeout_s, abort=abort)
        tensors = [
            Tensor.of_bytes("label", [b"laksa", b"none", b""]),
            Tensor.of_numbers("confidence", "FP32", [0.5, 0.25, 0.0]),
            Tensor.of_bytes("error", [b"", b"", b"input_not_found: gone"]),
            Tensor.of_bytes("answered_by", [b"a,b", b"default", b"a"]),
            Tensor.of_numbers("expected_accuracy", "FP64", [0.75, -1, -1]),
            Tensor.of_numbers("device_seconds", "FP64", [0.002, 0.001, 0.001]),
            Tensor.of_bytes("prediction", [b"id-of-a", b"", b""]),
        ]
        body, headers = encode_response(InferResponse("f", tensors, "3"), InferRequest([]))
        return HttpResponse(200, headers, body)


def test_how_a_row_was_answered_is_said_where_it_is_asked_for():
    transport = Detailed()
    exchange = exchange_of(transport)
    exchange.detail = True
    answers = ask(exchange, b"a", b"b", b"c")
    names = [output.name for output in transport.requests[0].outputs]
    details = ["answered_by", "expected_accuracy", "device_seconds", "prediction"]
    assert names == ["label", "confidence", "error", *details]
    assert answers.details == [
        AnswerDetail(("a", "b"), 0.75, 0.002, "id-of-a"),
        AnswerDetail(("default",), None, 0.001),
        None,
    ]


class Knowing(FakeTransport):
    """One that had answered some rows before, as its replies say."""

    def __init__(self, said: object) -> None:
        super().__init__()
        self._said = said

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        super().send(request, timeout_s=timeout_s, abort=abort)
        outputs = [
            Tensor.of_bytes("label", [b"laksa", b"satay"]),
            Tensor.of_numbers("confidence", "FP32", [0.5, 0.25]),
            Tensor.of_bytes("error", [b"", b""]),
        ]
        response = InferResponse("f", outputs, "3", parameters={"ml_udf_cached_rows": self._said})
        body, headers = encode_response(response, InferRequest([]))
        return HttpResponse(200, headers, body)


def test_rows_that_the_server_had_answered_before_are_counted_over_all_replies():
    exchange = exchange_of(Knowing(1))
    ask(exchange, b"a", b"b")
    ask(exchange, b"c", b"d")
    assert exchange.cached == 2


def test_a_count_that_is_none_counts_nothing():
    exchange = exchange_of(Knowing("many"))
    assert ask(exchange, b"a", b"b").values == ["laksa", "satay"]
    assert exchange.cached == 0


def test_goals_that_nobody_set_are_not_sent():
    transport = FakeTransport()
    ask(exchange_of(transport), b"a")
    assert not {"ml_udf_slo_ms", "ml_udf_min_accuracy"} & set(transport.requests[0].parameters)


def test_the_callers_deadline_counts_where_it_is_nearer():
    transport = FakeTransport()
    ask(exchange_of(transport, deadline_s=time.monotonic() + 2, timeout_ms=60_000), b"a")
    assert 1_000 < transport.requests[0].parameters["ml_udf_deadline_ms"] <= 2_000


def test_a_deadline_that_has_passed_sends_nothing():
    transport = FakeTransport()
    answers = ask(exchange_of(transport, deadline_s=time.monotonic() - 1), b"a", b"b")
    assert [type(error) for error in answers.errors] == [DeadlineExceeded] * 2
    assert transport.requests == []


def test_a_server_that_is_not_ours_answers_values_alone():
    transport = FakeTransport(ours=False)
    answers = ask(exchange_of(transport, ours=False), b"a")
    assert (answers.values, answers.confidences, answers.errors) == ([label_of(b"a")], [None], [None])
    assert not [name for name in transport.requests[0].parameters if name.startswith("ml_udf_")]


def test_once_the_server_is_gone_the_other_sub_batches_are_not_tried(monkeypatch):
    monkeypatch.setattr("ml_udf.client.retry._FIRST_PAUSE_S", 0.001)
    transport = FakeTransport()
    transport.faults = [ServerUnreachable("refused") for _ in range(5)]
    exchange = exchange_of(transport)
    assert [type(e) for e in ask(exchange, b"a").errors] == [ServerUnreachable]
    assert [type(e) for e in ask(exchange, b"b", b"c").errors] == [ServerUnreachable] * 2
    assert len(transport.requests) == 5
    assert exchange.retries == 4


def test_a_connection_that_broke_is_no_reason_to_give_up_the_others(monkeypatch):
    monkeypatch.setattr("ml_udf.client.retry._FIRST_PAUSE_S", 0.001)
    transport = FakeTransport()
    transport.faults = [ConnectionLost("broke") for _ in range(3)]
    exchange = exchange_of(transport)
    assert [type(e) for e in ask(exchange, b"a").errors] == [ConnectionLost]
    assert ask(exchange, b"b").values == [label_of(b"b")]


@pytest.mark.parametrize("status", [400, 404, 413])
def test_a_refusal_that_concerns_the_call_is_raised(status):
    transport = FakeTransport()
    transport.faults = [HttpResponse(status, {}, b'{"error": "bad_option: no"}')]
    with pytest.raises(BadOption):
        ask(exchange_of(transport), b"a")


@pytest.mark.parametrize(
    "body", [b"no json", b'{"model_name": "f", "outputs": []}', b'{"model_name": "f", "outputs": [{}]}']
)
def test_an_answer_that_cannot_be_read_is_the_servers_fault(body):
    transport = FakeTransport()
    transport.faults = [HttpResponse(200, {}, body)]
    assert [type(e) for e in ask(exchange_of(transport), b"a").errors] == [ServerFault]


def test_a_status_below_400_is_an_answer_and_400_is_not():
    transport = FakeTransport()
    transport.faults = [HttpResponse(399, {}, b"x"), HttpResponse(500, {}, b'{"error": "internal: broke"}')]
    exchange = exchange_of(transport)
    (unread,) = ask(exchange, b"a").errors
    (internal,) = ask(exchange, b"a").errors
    assert "cannot be read" in str(unread)
    assert "broke" in str(internal)


def test_a_row_that_does_not_fit_the_datatype_is_a_fault_of_its_rows():
    exchange = Exchange(FakeTransport(), info_of("FP32", (2,)), Options(), math.inf)
    answers = exchange.answer(SubBatch(0, [(1.0, 2.0, 3.0)]), Abort())
    assert [type(e) for e in answers.errors] == [InputInvalid]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("input_not_found: a is not there", "input_not_found", "a is not there"),
        ("input_not_found: ", "input_not_found", "input_not_found: "),
        ("something else", "internal", "something else"),
    ],
)
def test_a_rows_error_is_told_by_its_code_and_keeps_its_words(text, code, message):
    transport = FakeTransport()
    answers = InferResponse(
        "f",
        [
            Tensor.of_bytes("label", [b""]),
            Tensor.of_numbers("confidence", "FP32", [0.0]),
            Tensor.of_bytes("error", [text.encode()]),
        ],
        "3",
        "",
    )
    body, headers = encode_response(answers, InferRequest([]))
    transport.faults = [HttpResponse(200, {name.lower(): value for name, value in headers.items()}, body)]
    (error,) = ask(exchange_of(transport), b"a").errors
    assert error is not None
    assert (error.code, error.message) == (code, message)


def test_infer_requests_may_be_sent_again_on_a_new_connection():
    asked: list[HttpRequest] = []

    class Keeps(FakeTransport):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            asked.append(request)
            return super().send(request, timeout_s=timeout_s, abort=abort)

    ask(exchange_of(Keeps()), b"a")
    assert [request.may_repeat for request in asked] == [True]


def test_room_for_answers_and_for_one_error_of_all():
    assert Outcomes.empty(2) == Outcomes([None] * 2, [None] * 2, [None] * 2, [None] * 2)
    error = ServerFault("x")
    assert Outcomes.failed(2, error) == Outcomes([None] * 2, [None] * 2, [error] * 2, [None] * 2)


class Holding(FakeTransport):
    """One whose job is held back until it was looked at so often."""

    def __init__(self, looks: int, *, forever: bool = False) -> None:
        super().__init__()
        self.looks: list[str] = []
        self.jobs: list[str | None] = []
        self._until = looks
        self._forever = forever

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        if request.method == "GET":
            self.looks.append(request.path)
            wait = b"0" if len(self.looks) >= self._until and not self._forever else b"0.02"
            return HttpResponse(200, {}, b'{"wait_s": ' + wait + b"}")
        self.jobs.append(request.headers.get("ML-UDF-Job"))
        if self._forever or len(self.looks) < self._until:
            body = b'{"error": "bulk_held: bulk job j is paused"}'
            return HttpResponse(503, {"retry-after": "0.02"}, body)
        return super().send(request, timeout_s=timeout_s, abort=abort)


def test_a_job_that_is_held_back_is_waited_for_longer_than_a_request_may_take():
    transport = Holding(20)
    exchange = exchange_of(transport, timeout_ms=100)
    exchange.job = BulkJob("j", "table", "foodlog.food", 10, 5)
    assert ask(exchange, b"a").values == [label_of(b"a")]
    assert transport.looks == ["/v1/bulk-jobs/j"] * 20
    assert transport.jobs == ["id=j; kind=table; what=foodlog.food; rows=10; done=5"] * 2


def test_the_statements_own_time_goes_on_while_its_job_is_held_back():
    exchange = exchange_of(Holding(1, forever=True), deadline_s=time.monotonic() + 0.3)
    exchange.job = BulkJob("j", "statement")
    (error,) = ask(exchange, b"a").errors
    assert isinstance(error, DeadlineExceeded)
    assert "held it back: bulk job j is paused" in error.message


def test_a_cancelled_call_leaves_a_job_that_is_held_back():
    abort = Abort()
    exchange = exchange_of(Holding(1, forever=True))
    exchange.job = BulkJob("j", "statement")
    timer = threading.Timer(0.1, abort.set)
    timer.start()
    with pytest.raises(Cancelled):
        exchange.answer(SubBatch(0, [b"a"]), abort)
    timer.join()


def test_a_watch_does_not_wait_since_it_holds_notes():
    exchange = exchange_of(Holding(1, forever=True))
    exchange.job = BulkJob("j", "watch", lag_rows=3)
    (error,) = ask(exchange, b"a").errors
    assert isinstance(error, BulkHeld)
