"""The answers of batches find their way to the rows of requests, however the rows were cut."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_worker.wire.protocol import RowError
from server.ensemble.answer import FunctionAnswer
from server.errors import ServiceError
from server.scheduling.core import Slice
from server.serving.calls import Call, PendingReply, Reply
from server.serving.outcomes import Outcomes
from tests.answers import confidences_of, label_columns, labels_of, scores_of
from tests.unit.server.served import function


def pending(rows: int) -> PendingReply:
    loop = asyncio.new_event_loop()
    loop.close()
    return PendingReply(Outcomes(loop), 7, Call(function(), "text", [b""] * rows, 0), 0.0)


def answers(
    labels: Sequence[str], *, scores: bool = False, errors: Sequence[RowError] = ()
) -> FunctionAnswer:
    raw = struct.pack(f"<{len(labels)}f", *range(len(labels))) if scores else b""
    columns = label_columns(labels, [0.1 * i for i in range(len(labels))], raw)
    return FunctionAnswer(len(labels), columns, errors, "net")


def test_a_request_that_was_one_batch_is_answered_without_a_copy() -> None:
    request = pending(3)
    batch = answers(["a", "b", "c"])
    request.answer(Slice(7, 0, 3), 0, batch)
    columns = request.future.result().columns
    assert all(columns[name] is column for name, column in batch.columns.items())


def test_a_request_that_shared_a_batch_has_its_own_rows_of_it() -> None:
    request = pending(2)
    batch = answers(["x", "a", "", "y"], scores=True, errors=[RowError(2, "input_invalid", "m")])
    request.answer(Slice(7, 0, 2), 1, batch)
    reply: Reply = request.future.result()
    assert labels_of(reply) == ["a", ""]
    assert confidences_of(reply) == pytest.approx([0.1, 0.2])
    assert struct.unpack("<2f", scores_of(reply)) == (1.0, 2.0)
    assert list(reply.errors) == [1]
    assert reply.answered_by == [(0, 2, "net")]


def test_parts_that_come_back_in_any_order_end_up_in_the_rows_order() -> None:
    request = pending(5)
    request.answer(Slice(7, 3, 2), 1, answers(["x", "d", "e", "y"], scores=True))
    assert not request.done
    request.answer(Slice(7, 0, 3), 0, answers(["a", "b", "c"], scores=True))
    reply: Reply = request.future.result()
    assert labels_of(reply) == ["a", "b", "c", "d", "e"]
    assert confidences_of(reply) == pytest.approx([0.0, 0.1, 0.2, 0.1, 0.2])
    assert struct.unpack("<5f", scores_of(reply)) == (0.0, 1.0, 2.0, 1.0, 2.0)
    assert reply.answered_by == [(0, 3, "net"), (3, 5, "net")]


def test_a_row_error_is_told_to_its_own_request_at_its_own_row() -> None:
    batch = answers(["a", "", "", "d"], errors=[RowError(1, "input_invalid", "m"), RowError(2, "x", "n")])
    first, second = pending(2), pending(4)
    first.answer(Slice(7, 0, 2), 0, batch)
    second.answer(Slice(7, 2, 2), 2, batch)
    second.answer(Slice(7, 0, 2), 0, answers(["p", "q"]))
    assert {row: error.message for row, error in first.future.result().errors.items()} == {1: "m"}
    assert {row: error.message for row, error in second.future.result().errors.items()} == {2: "n"}


def test_a_default_answer_is_noted_at_its_own_row() -> None:
    batch = FunctionAnswer(3, label_columns(["a", "none", "c"], [0.9, 0.1, 0.9]), [], "net", frozenset({1}))
    request = pending(3)
    request.answer(Slice(7, 2, 1), 1, batch)
    request.answer(Slice(7, 0, 2), 0, answers(["a", "b"]))
    assert request.future.result().defaulted == {2}


def test_answers_for_a_request_that_has_failed_are_dropped() -> None:
    request = pending(2)
    request.fail(ServiceError("gone"))
    request.answer(Slice(7, 0, 2), 0, answers(["a", "b"]))
    request.fail(ServiceError("again"))
    with pytest.raises(ServiceError, match="gone"):
        request.future.result()


def test_a_call_that_another_form_of_the_function_answers_is_the_same_call_otherwise() -> None:
    other = function(name="other")
    call = Call(
        function(), "text", [b"a"], 1, slo_s=0.2, caller="ana", bulk=None, turn="ana", turn_weight=2.0
    )
    assert call.answered_by(other, "why") == replace(call, function=other, decision="why")
