"""One call's exchanges with the server: a sub-batch out, its answers back.

Owns what goes into a request and what is read from a reply. Knows neither threads nor NULLs: the caller
(`ml_udf.client`) hands it distinct values and spreads the answers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.column import SubBatch, input_tensor, values_of
from ml_udf.client.contents import json_text, misfit_of
from ml_udf.client.function_info import FunctionInfo, error_of, json_of
from ml_udf.client.retry import left_s, with_retries
from ml_udf.client.transport import Abort, HttpRequest, Transport
from ml_udf.config import Options
from ml_udf.errors import (
    BulkHeld,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    InputInvalid,
    MlUdfError,
    Overloaded,
    ServerFault,
    ServerUnreachable,
    error_from_code,
)
from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    RequestedOutput,
    WireError,
    decode_response,
    encode_request,
)

__all__ = ["ROW_FAULTS", "AnswerDetail", "Exchange", "Outcomes"]

# Faults that concern the rows of one request; every other error fails the whole call.
ROW_FAULTS = (ServerUnreachable, ConnectionLost, Overloaded, ServerFault, DeadlineExceeded)

_LOOK_S = 1.0  # between two looks at a job that is held back
_LEAST_LOOK_S = 0.02
_LOOK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class AnswerDetail:
    """How a row was answered, as a server of ours says it.

    answered_by: the members, or `default` · expected_accuracy: how often such answers are right on held-out
    rows; None where that is not known · device_seconds: that the members take for a row, by what was learned
    prediction: by which a label may be given for it later; None where one could teach nothing
    columns: everything that was answered, as the text of a JSON object by the names of the outputs
    decision: which model was chosen, and why, of a function by wish; else None
    """

    answered_by: tuple[str, ...]
    expected_accuracy: float | None
    device_seconds: float | None
    prediction: str | None = None
    columns: str | None = None
    decision: str | None = None


_DETAIL = ("answered_by", "expected_accuracy", "device_seconds", "prediction")
_DECISION = "decision"


@dataclass(slots=True)
class Outcomes:
    """One entry per row: a value with its confidence (None where the server gives none), or an error.

    details: None of a row where it was not asked for, or not said.
    """

    values: list[Any]
    confidences: list[float | None]
    errors: list[MlUdfError | None]
    details: list[AnswerDetail | None]

    @classmethod
    def empty(cls, rows: int) -> Outcomes:
        """Room for `rows` answers."""
        return cls([None] * rows, [None] * rows, [None] * rows, [None] * rows)

    @classmethod
    def failed(cls, rows: int, error: MlUdfError) -> Outcomes:
        """`rows` rows that all met the same error."""
        return cls([None] * rows, [None] * rows, [error] * rows, [None] * rows)

    def fill(self, batch: SubBatch, reply: Outcomes) -> None:
        """Put the answers to one sub-batch into their places."""
        rows = slice(batch.first, batch.first + len(batch.rows))
        self.values[rows] = reply.values
        self.confidences[rows] = reply.confidences
        self.errors[rows] = reply.errors
        self.details[rows] = reply.details


@dataclass(slots=True)
class Exchange:
    """The exchanges of one call; shared by the threads that carry its sub-batches."""

    transport: Transport
    info: FunctionInfo
    options: Options
    deadline_s: float  # on time.monotonic()'s clock; inf = none
    detail: bool = False  # whether to ask how each row was answered
    job: BulkJob | None = None  # that its requests are a part of
    retries: int = 0
    cached: int = 0  # rows that the server says it had answered before
    _down: MlUdfError | None = None  # once the server is found gone, the other sub-batches are not tried
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, batch: SubBatch, abort: Abort, on_sent: Callable[[], None] | None = None) -> Outcomes:
        """Ask for the rows of one sub-batch. Raises what concerns more than these rows.

        on_sent  called once the request has left; again if it is tried again, never if it cannot leave
        """
        try:
            if self._down is not None:
                raise self._down
            request = self._request(batch.rows)
            reply = self._reply(request, abort, on_sent)
            self._count_cached(reply)
            return self._read(reply, len(batch.rows))
        except (*ROW_FAULTS, InputInvalid) as error:
            if isinstance(error, ServerUnreachable):
                self._down = error
            return Outcomes.failed(len(batch.rows), error)

    def _reply(
        self, request: InferRequest, abort: Abort, on_sent: Callable[[], None] | None
    ) -> InferResponse:
        """The reply, however long the job is held back: `timeout_ms` begins anew when it goes on."""
        while True:
            deadline_s = min(self.deadline_s, time.monotonic() + self.options.timeout_ms / 1000)
            try:
                return with_retries(
                    partial(self._send, request, deadline_s, abort, on_sent),
                    deadline_s=deadline_s,
                    abort=abort,
                    on_retry=self._count_retry,
                )
            except BulkHeld as held:
                if self.job is not None and not self.job.waits:
                    raise
                self._wait_for_turn(held, abort)

    def _wait_for_turn(self, held: BulkHeld, abort: Abort) -> None:
        """Until something of the job may go on. Raises `Cancelled`; `DeadlineExceeded` of the statement."""
        wait_s: float | None = held.retry_after_s
        while True:
            pause_s = _LOOK_S if wait_s is None else min(max(wait_s, _LEAST_LOOK_S), _LOOK_S)
            if time.monotonic() + pause_s >= self.deadline_s:
                raise DeadlineExceeded(
                    f"the statement's time was over while the server held it back: {held.message}",
                    hint="resume the bulk job (ml_udf.resume_bulk), or raise statement_timeout",
                ) from held
            abort.sleep(pause_s)
            if abort:
                raise Cancelled("the call was cancelled")
            if self.job is None:
                return
            try:
                told = self.transport.send(
                    HttpRequest("GET", f"/v1/bulk-jobs/{self.job.id}"), timeout_s=_LOOK_TIMEOUT_S, abort=abort
                )
                wait_s = json_of(told)["wait_s"]
            except Cancelled:
                raise
            except (MlUdfError, KeyError):
                return  # the request itself will meet what is wrong, under the usual rules
            if wait_s == 0:
                return

    def _count_retry(self) -> None:
        with self._lock:
            self.retries += 1

    def _count_cached(self, reply: InferResponse) -> None:
        cached = reply.parameters.get("ml_udf_cached_rows")
        if isinstance(cached, int):
            with self._lock:
                self.cached += cached

    def _request(self, rows: list[Any]) -> InferRequest:
        request = InferRequest([input_tensor(self.info, rows)], [RequestedOutput(self.info.output_name)])
        if self.info.ours:
            told = ["confidence", "error"] if self.info.has_confidence else ["error"]
            if self.detail:
                told += _DETAIL
                told += [_DECISION] if self.info.by_wish else []
                asked = {self.info.output_name, *told}
                told += [name for name, _ in self.info.answered if name not in asked]
            request.outputs += [RequestedOutput(name) for name in told]
            request.parameters["ml_udf_class"] = self.options.row_class
            if self.options.slo_ms is not None:
                request.parameters["ml_udf_slo_ms"] = self.options.slo_ms
            if self.options.min_accuracy is not None:
                request.parameters["ml_udf_min_accuracy"] = self.options.min_accuracy
            if self.options.min_agreement is not None:
                request.parameters["ml_udf_min_agreement"] = self.options.min_agreement
            if self.options.context:
                request.parameters["ml_udf_context"] = self.options.context
            if self.options.answer_cache == "off":
                request.parameters["ml_udf_answer_cache"] = False
        return request

    def _send(
        self, request: InferRequest, deadline_s: float, abort: Abort, on_sent: Callable[[], None] | None
    ) -> InferResponse:
        timeout_s = left_s(deadline_s)
        if self.info.ours:
            request.parameters["ml_udf_deadline_ms"] = round(timeout_s * 1000)
        try:
            body, headers = encode_request(request, binary=self.info.binary)
        except WireError as exc:
            raise InputInvalid(str(exc), hint="the server takes JSON alone, and so text alone") from exc
        if self.job is not None:
            headers = {**headers, **self.job.headers()}
        asked = HttpRequest("POST", self.info.infer_path(), body, headers, on_sent, may_repeat=True)
        response = self.transport.send(asked, timeout_s=timeout_s, abort=abort)
        if response.status >= 400:
            raise error_of(response)
        try:
            return decode_response(response.body, response.headers.get(HEADER_LENGTH.lower()))
        except WireError as exc:
            raise ServerFault(f"the endpoint's answer cannot be read: {exc}") from exc

    def _read(self, reply: InferResponse, rows: int) -> Outcomes:
        try:
            values = _column(reply, self.info.output_name, rows)
            if not self.info.ours:
                return self._checked(Outcomes(values, [None] * rows, [None] * rows, [None] * rows))
            sure = self.info.has_confidence
            confidences = _column(reply, "confidence", rows) if sure else [None] * rows
            told = _column(reply, "error", rows)
            errors: list[MlUdfError | None] = [None] * rows
            if any(told):
                errors = [_row_error(text) if text else None for text in told]
            details: list[AnswerDetail | None] = [None] * rows
            if self.detail:
                details = _details(reply, rows, self.info)
        except WireError as exc:
            raise ServerFault(f"the endpoint's answer does not fit the question: {exc}") from exc
        return self._checked(Outcomes(values, confidences, errors, details))

    def _checked(self, answers: Outcomes) -> Outcomes:
        """Answers that are what the server says of them; a row at fault has nothing but its error."""
        if content := self.info.output_content:
            for row, value in enumerate(answers.values):
                answers.errors[row] = answers.errors[row] or misfit_of(value, content)
        for row, error in enumerate(answers.errors) if any(answers.errors) else ():
            if error is not None:
                answers.values[row] = answers.confidences[row] = answers.details[row] = None
        return answers


def _column(reply: InferResponse, output: str, rows: int) -> list[Any]:
    tensor = reply.output(output)
    if tensor is None:
        raise WireError(f"output {output!r} is missing")
    return values_of(tensor, rows)


def _details(reply: InferResponse, rows: int, info: FunctionInfo) -> list[AnswerDetail | None]:
    columns = [_column(reply, name, rows) for name in _DETAIL]
    decisions = _column(reply, _DECISION, rows) if info.by_wish else [None] * rows
    wholes = _wholes(reply, rows, info)
    return [
        AnswerDetail(
            tuple(who.split(",")) if who else (),
            _known(expected),
            _known(took_s),
            named or None,
            whole,
            decision or None,
        )
        for who, expected, took_s, named, whole, decision in zip(*columns, wholes, decisions, strict=True)
    ]


def _wholes(reply: InferResponse, rows: int, info: FunctionInfo) -> list[str | None]:
    """By row, all that was answered, as the text of a JSON object."""
    if not info.answered:
        return [None] * rows
    heads = [json.dumps(name) + ": " for name, _ in info.answered]
    columns = [
        [json_text(value, content) for value in _column(reply, name, rows)] for name, content in info.answered
    ]
    return [
        "{" + ", ".join(head + text for head, text in zip(heads, row, strict=True)) + "}"
        for row in zip(*columns, strict=True)
    ]


def _known(number: float) -> float | None:
    """A number that is −1 where it is not known."""
    return number if number >= 0 else None


def _row_error(text: str) -> MlUdfError:
    code, _, message = text.partition(": ")
    return error_from_code(code, message or text)
