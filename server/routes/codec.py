"""From an infer request of the protocol to a call, and from a reply to a response.

Pure. Owns the names of inputs, outputs and parameters of docs/architecture.md; knows no HTTP.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_udf.oip import InferRequest, InferResponse, RequestedOutput, Tensor
from server.access.rules import NOBODY, Caller
from server.catalog.functions import INPUT_NAMES, Form, Function, ModelVersion
from server.ensemble.select import Candidate, within
from server.errors import (
    BadInput,
    BadOption,
    BodyTooLarge,
    DeadlineExceeded,
    Forbidden,
    Unsupported,
    WorkerLost,
)
from server.scheduling.policy import RowClass
from server.scheduling.terms import Latency
from server.serving.calls import Call, Reply

__all__ = ["OUTPUTS", "Codec", "raw_request"]

OUTPUTS: Mapping[str, str] = {
    "label": "BYTES",
    "confidence": "FP32",
    "scores": "FP32",
    "error": "BYTES",
    "answered_by": "BYTES",
}
_DEFAULT_OUTPUTS = ("label", "confidence")  # scores are as many as there are classes: for who asks for them
_FORMS: Mapping[str, Form] = {name: form for form, name in INPUT_NAMES.items()}  # type: ignore[misc]  # keys are Forms
_OWN_PARAMETERS = {"ml_udf_deadline_ms", "ml_udf_slo_ms", "ml_udf_min_accuracy", "ml_udf_class"}
# Triton's priority 1 is the most urgent; the core's highest number is. None named comes after all of them.
_MOST_URGENT = 1 << 32
_LARGEST = 1e30  # of a number among the parameters
_JSON_NUMBER_BYTES = 24  # of a float32 as JSON has it
_FOR_EVER_S = 1e7  # a deadline so far away is none; timers cannot count to it


@dataclass(frozen=True, slots=True)
class Codec:
    """The limits and the knowledge with which requests are read.

    `latency_of(model, form)`: l̂ of rows of that form.
    """

    max_rows: int
    latency_of: Callable[[ModelVersion, Form], Latency]
    max_reply_bytes: int = 64 << 20

    def call_of(
        self, function: Function, request: InferRequest, now_s: float, caller: Caller = NOBODY
    ) -> Call:
        """What a request asks for.

        Raises `BadOption`, `Unsupported`, `BodyTooLarge`, `Forbidden` for what its caller may not claim;
        `DeadlineExceeded` if its time is over already.
        """
        form, rows, nbytes = self._rows(function, request)
        parameters = request.parameters
        scores = _wants_scores(request)
        if scores:
            self._check_reply(function, request, len(rows))
        if parameters.keys() <= {"binary_data_output"}:
            row_class: RowClass = "bulk" if caller.bulk_only else "interactive"
            return Call(function, form, rows, nbytes, scores=scores, row_class=row_class, caller=caller.key)
        _check_parameters(parameters)
        slo_ms = _number(parameters, "ml_udf_slo_ms", above=0.0)
        accuracy = _number(parameters, "ml_udf_min_accuracy", above=-math.inf)
        slo_s = None if slo_ms is None else slo_ms / 1000
        return Call(
            function,
            form,
            rows,
            nbytes,
            scores=scores,
            deadline_s=_deadline_s(parameters, now_s),
            row_class=_row_class(parameters.get("ml_udf_class"), caller),
            priority=_priority(parameters.get("priority", 0), caller),
            slo_s=slo_s,
            members=self._members(function, form, len(rows), slo_s, accuracy),
            caller=caller.key,
        )

    def _check_reply(self, function: Function, request: InferRequest, rows: int) -> None:
        width = 4 if request.wants_binary("scores") else _JSON_NUMBER_BYTES
        nbytes = rows * len(function.classes) * width
        if nbytes > self.max_reply_bytes:
            raise BodyTooLarge(
                f"the scores of {rows} rows and {len(function.classes)} classes would be {nbytes} bytes, and "
                f"the limit of a reply is {self.max_reply_bytes}; send fewer rows, or ask for no scores"
            )

    def _rows(self, function: Function, request: InferRequest) -> tuple[Form, list[bytes], int]:
        if len(request.inputs) != 1:
            names = ", ".join(INPUT_NAMES[form] for form in function.forms)
            raise BadOption(
                f"{function.name} takes exactly one input, one of {names}; {len(request.inputs)} came"
            )
        tensor = request.inputs[0]
        form = _FORMS.get(tensor.name)
        if form is None or (form != function.form and form not in function.forms):
            names = ", ".join(INPUT_NAMES[form] for form in function.forms)
            raise BadOption(f"{function.name} has no input {tensor.name[:100]!r}; there are {names}")
        if any(name.startswith("shared_memory") for name in tensor.parameters):
            raise Unsupported("shared memory is not supported; send the tensor's data")
        count = tensor.shape[0] if tensor.shape else 0
        if count > self.max_rows:
            raise BodyTooLarge(
                f"{count} rows in one request, and the limit is {self.max_rows}; send fewer at a time"
            )
        row_shape = function.row_shape(form)
        if form == "tensor":
            return form, *_pixel_rows(function, tensor, row_shape)
        if tensor.datatype != "BYTES" or tensor.shape not in {(count,), (count, 1)}:
            raise BadOption(
                f"input {tensor.name!r} must be BYTES of shape [n], "
                f"not {tensor.datatype} of {list(tensor.shape)}"
            )
        rows = tensor.elements
        return form, rows, sum(map(len, rows))

    def _members(
        self,
        function: Function,
        form: Form,
        rows: int,
        slo_s: float | None,
        min_accuracy: float | None,
    ) -> tuple[str, ...] | None:
        if slo_s is None and min_accuracy is None:
            return None
        candidates = [Candidate(m.key, m.accuracy, self.latency_of(m, form)) for m in function.members]
        chosen = within(candidates, min(rows, function.max_batch), slo_s=slo_s, min_accuracy=min_accuracy)
        if not chosen:
            best = max(model.accuracy for model in function.members)
            raise BadOption(
                f"no model of {function.name} has an accuracy of {min_accuracy:g}; the best has {best:g}"
            )
        return None if len(chosen) == len(candidates) else chosen

    def response_of(self, reply: Reply, request: InferRequest) -> InferResponse:
        """The response to a call. Raises `BadInput` for a row's error if `error` was not asked for."""
        names = [output.name for output in request.outputs] or _DEFAULT_OUTPUTS
        if reply.errors and "error" not in names:
            row = min(reply.errors)
            more = f" ({len(reply.errors)} rows at fault)" if len(reply.errors) > 1 else ""
            message = f"row {row}: {reply.errors[row].message}{more}"
            if reply.errors[row].code == WorkerLost.code:
                raise WorkerLost(message)
            raise BadInput(reply.errors[row].code, message)
        return InferResponse(
            model_name=reply.function.name,
            model_version=str(reply.function.version),
            id=request.id,
            outputs=[_output(name, reply) for name in names],
        )


def raw_request(function: Function, body: bytes) -> InferRequest:
    """The request that a raw body is (header length 0): one row of the function's own input, binary replies.

    Pixels may be several rows: their size says how many. Raises `BadOption` for a part of a row.
    """
    parameters: dict[str, Any] = {"binary_data_output": True}
    row_bytes = function.row_bytes(function.form)
    if not row_bytes:
        return InferRequest([Tensor.of_bytes(function.input_name, [body])], parameters=parameters)
    count, rest = divmod(len(body), row_bytes)
    if rest:
        raise BadOption(f"a raw body of {len(body)} bytes is no whole number of rows of {row_bytes} bytes")
    shape = (count, *function.row_shape(function.form))
    return InferRequest([Tensor(function.input_name, "FP32", shape, body)], parameters=parameters)


def _pixel_rows(function: Function, tensor: Tensor, row_shape: tuple[int, ...]) -> tuple[list[bytes], int]:
    if tensor.datatype != "FP32" or tensor.shape[1:] != row_shape:
        raise BadOption(
            f"input {tensor.name!r} must be FP32 of shape {['n', *row_shape]}, "
            f"not {tensor.datatype} of {list(tensor.shape)}"
        )
    view = memoryview(tensor.raw)
    width = function.row_bytes("tensor")
    return [bytes(view[at : at + width]) for at in range(0, len(view), width)], len(view)


def _wants_scores(request: InferRequest) -> bool:
    wanted = False
    for output in request.outputs:
        _check_output(output)
        wanted = wanted or output.name == "scores"
    return wanted


def _check_output(output: RequestedOutput) -> None:
    if output.name not in OUTPUTS:
        raise BadOption(f"there is no output {output.name[:100]!r}; there are {', '.join(OUTPUTS)}")
    for name in output.parameters:
        if name == "classification" or name.startswith("shared_memory"):
            raise Unsupported(f"the output parameter {name!r} is not supported")


def _output(name: str, reply: Reply) -> Tensor:
    rows = len(reply.labels)
    if name == "label":
        return Tensor("label", "BYTES", (rows,), [label.encode() for label in reply.labels])
    if name == "confidence":
        return Tensor("confidence", "FP32", (rows,), _float32(reply.confidences))
    if name == "scores":
        width = len(reply.function.classes)
        return Tensor("scores", "FP32", (rows, width), reply.scores or bytes(4 * rows * width))
    column = [b""] * rows
    if name == "error":
        for row, error in reply.errors.items():
            column[row] = f"{error.code}: {error.message}".encode("utf-8", "surrogateescape")
    else:
        for first, end, members in reply.answered_by:
            column[first:end] = [members.encode()] * (end - first)
        for row in reply.defaulted:
            column[row] = b"default"
    return Tensor(name, "BYTES", (rows,), column)


def _float32(values: Any) -> bytes:  # noqa: ANN401  # any iterable of floats
    numbers = array.array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


# ── parameters ────────────────────────────────────────────────────────────────────────────────────


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    for name in parameters:
        if name.startswith("ml_udf_") and name not in _OWN_PARAMETERS:
            raise BadOption(
                f"unknown parameter {name[:100]!r}; there are {', '.join(sorted(_OWN_PARAMETERS))}"
            )
    if parameters.get("sequence_id"):
        raise Unsupported("sequences of requests are not supported")


def _number(parameters: Mapping[str, Any], name: str, *, above: float) -> float | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < _LARGEST:
        limit = f" above {above:g}" if above > -math.inf else ""
        raise BadOption(f"parameter {name!r} must be a number{limit}, not {str(value)[:40]!r}")
    return float(value)


def _deadline_s(parameters: Mapping[str, Any], now_s: float) -> float:
    """The nearer of the protocol's `timeout` (µs) and our own remaining time (ms)."""
    timeout_us = _number(parameters, "timeout", above=-math.inf) or 0.0
    left_s = timeout_us / 1e6 if timeout_us > 0 else math.inf  # 0 = none, as in Triton
    own_ms = _number(parameters, "ml_udf_deadline_ms", above=-math.inf)
    if own_ms is not None:
        left_s = min(left_s, own_ms / 1000)
    if left_s <= 0:
        raise DeadlineExceeded("the request came after its deadline")
    return now_s + left_s if left_s < _FOR_EVER_S else math.inf


def _priority(raw: object, caller: Caller) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < _MOST_URGENT:
        raise BadOption(f"parameter 'priority' must be a whole number from 0, not {str(raw)[:40]!r}")
    if raw and not 0 < caller.most_urgent <= raw:
        least = f"be less than {caller.most_urgent}" if caller.most_urgent else "name one"
        raise Forbidden(f"the 'priority' of rows with this token may not {least}")
    return _MOST_URGENT - raw if raw else 0


def _row_class(raw: object, caller: Caller) -> RowClass:
    if raw == "bulk" or (raw is None and caller.bulk_only):
        return "bulk"
    if raw == "interactive" and caller.bulk_only:
        raise Forbidden("rows with this token may not be 'interactive'")
    if raw is None or raw == "interactive":
        return "interactive"
    raise BadOption(f"parameter 'ml_udf_class' must be 'interactive' or 'bulk', not {str(raw)[:40]!r}")
