"""Labels on their way to the server: what is sent, in how many requests, and what comes back of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

from ml_udf.client import Client
from ml_udf.client.statement import Binding, Statement
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.config import Options
from ml_udf.errors import (
    BadOption,
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    InputInvalid,
    UnknownLabel,
    UnknownPrediction,
)
from ml_udf.feedback import give_feedback
from tests.unit.ml_udf.fake_transport import FakeTransport

CLASSES = ("x", "y")


class Learning(FakeTransport):
    """A server that takes feedback on `f`; of a label that is no class it says so."""

    def __init__(self, *, form: str = "text", ours: bool = True) -> None:
        super().__init__(ours=ours)
        self.form = form
        self.given: list[dict[str, Any]] = []
        self.refusals: list[HttpResponse] = []

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        if request.path != "/v1/feedback":
            return super().send(request, timeout_s=timeout_s, abort=abort)
        assert request.repeatable
        if self.refusals:
            return self.refusals.pop(0)
        asked = json.loads(request.body)
        self.given.append(asked)
        errors = [
            {"row": row, "code": "unknown_label", "message": f"{label!r} is no class of f"}
            for row, label in enumerate(asked["labels"])
            if label not in CLASSES
        ]
        at_fault = {error["row"] for error in errors}
        outcomes = [None if row in at_fault else "counted" for row in range(len(asked["labels"]))]
        return HttpResponse(200, {}, json.dumps({"outcomes": outcomes, "errors": errors}).encode())

    def _metadata(self) -> dict[str, object]:
        return {**super()._metadata(), "parameters": {"form": self.form}}


def give(
    transport: FakeTransport,
    rows: Sequence[tuple[Any, str | None]],
    endpoint: str = "http://fake",
    *,
    by_id: bool = False,
    **fields: Any,
) -> tuple[list[str | None], Statement]:
    client = Client(endpoint, transport=transport)
    statement = Statement(client, Binding("f"), Options(**fields))
    try:
        inputs, labels = [value for value, _ in rows], [label for _, label in rows]
        told = give_feedback(client, statement, inputs, labels, by_id=by_id)
    finally:
        client.close()
    return told, statement


def test_null_is_not_sent_and_rows_keep_their_order() -> None:
    server = Learning()
    told, _ = give(server, [("a", "x"), (None, "x"), ("b", None), ("a", "y")])
    assert told == ["counted", None, None, "counted"]
    assert server.given == [{"function": "f", "inputs": ["a", "a"], "labels": ["x", "y"]}]
    nothing = Learning()
    assert give(nothing, [(None, "x"), ("a", None)])[0] == [None, None]
    assert nothing.paths == [], "nobody is asked for nothing"


def test_ids_of_predictions_are_sent_as_such_and_bring_their_context_themselves() -> None:
    server = Learning(form="path")
    rows = [("an-id", "x"), (None, "x"), ("other", "z")]
    told, _ = give(server, rows, by_id=True, context="me", on_error="null")
    assert told == ["counted", None, None]
    assert server.given == [{"function": "f", "predictions": ["an-id", "other"], "labels": ["x", "z"]}]
    for odd in (b"an-id", 17, "x" * 10_001):
        with pytest.raises(UnknownPrediction):
            give(Learning(), [(odd, "x")], by_id=True)


def test_a_context_is_sent_with_the_labels() -> None:
    server = Learning()
    give(server, [("a", "x")], context="me")
    assert server.given == [{"function": "f", "inputs": ["a"], "labels": ["x"], "context": "me"}]


def test_many_rows_are_few_requests_bounded_by_rows_and_by_bytes() -> None:
    server = Learning()
    told, _ = give(server, [(str(n), "x") for n in range(2500)], batch_rows=5000)
    assert told == ["counted"] * 2500
    assert [len(asked["inputs"]) for asked in server.given] == [2048, 452]
    server = Learning()
    give(server, [(str(n), "x") for n in range(25)], batch_rows=10)
    assert [len(asked["inputs"]) for asked in server.given] == [10, 10, 5]
    server = Learning()
    give(server, [("w" * 200_000, "x")] * 5)
    assert [len(asked["inputs"]) for asked in server.given] == [2, 2, 1]


def test_bytes_travel_in_base64_and_are_images_where_the_function_takes_paths() -> None:
    content = b"\xff\xd8\0"
    text = base64.b64encode(content).decode()
    server = Learning(form="path")
    give(server, [("a.jpg", "x"), (content, "x"), (content, "y")])
    assert server.given == [
        {"function": "f", "inputs": ["a.jpg"], "labels": ["x"]},
        {"function": "f", "inputs": [text, text], "labels": ["x", "y"], "input": "image"},
    ]
    server = Learning(form="image")
    give(server, [(content, "x")])
    assert server.given == [{"function": "f", "inputs": [text], "labels": ["x"]}]
    with pytest.raises(InputInvalid, match="not valid Unicode"):
        give(Learning(), [(content, "x")])
    with pytest.raises(InputInvalid, match="not float"):
        give(Learning(), [(1.5, "x")])


def test_the_first_row_at_fault_raises_or_is_null_and_warned_of() -> None:
    rows: list[tuple[Any, str | None]] = [("a", "x"), ("b", "z"), ("c", "q"), ("d", "y")]
    with pytest.raises(UnknownLabel, match="'z' is no class of f") as caught:
        give(Learning(), rows)
    assert caught.value.detail == "first at row 2 of the call: feedback on f('b')"
    told, statement = give(Learning(), rows, on_error="null")
    assert told == ["counted", None, None, "counted"]
    report = statement.fault_report()
    assert report is not None
    assert report.message == (
        "f: 2 inputs could not be answered and gave NULL; the first: unknown_label: 'z' is no class of f"
    )


def test_a_full_server_is_asked_again_within_the_time_and_a_refusal_is_told_at_once() -> None:
    full = HttpResponse(503, {"retry-after": "0"}, b'{"error": "overloaded: the queue is full"}')
    server = Learning()
    server.refusals = [full, full]
    assert give(server, [("a", "x")])[0] == ["counted"]
    server.refusals = [full] * 1000
    with pytest.raises(DeadlineExceeded):
        give(server, [("a", "x")], timeout_ms=300)
    server.refusals = [HttpResponse(403, {}, b'{"error": "forbidden: the token may ask and read"}')]
    with pytest.raises(Forbidden):
        give(server, [("a", "x")], on_error="null")
    assert server.refusals == []


def test_a_cancel_is_felt_while_a_full_server_is_waited_for() -> None:
    server = Learning()
    server.refusals = [HttpResponse(503, {"retry-after": "30"}, b'{"error": "overloaded: full"}')]
    client = Client("http://fake", transport=server)
    client.look_up("f")

    def cancelled() -> None:
        raise Cancelled("by the user")

    try:
        with pytest.raises(Cancelled):
            give_feedback(client, Statement(client, Binding("f"), Options()), ["a"], ["x"], cancelled)
    finally:
        client.close()
    assert server.given == []


def test_who_cannot_learn_says_so() -> None:
    with pytest.raises(BadOption, match="takes no feedback"):
        give(Learning(ours=False), [("a", "x")])
    with pytest.raises(BadOption, match="feedback on f is given to a server"):
        give(Learning(), [("a", "x")], endpoint="local:/home/of/models")
