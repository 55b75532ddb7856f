"""From an infer request of the protocol to a call, and from a reply to a response.

Pure. Owns the names of inputs, outputs and parameters of docs/architecture.md; knows no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gpu_worker.wire.columns import number_bytes
from ml_udf.oip import InferRequest, InferResponse, RequestedOutput, Tensor
from server.access.caller import NOBODY, Caller
from server.access.masking import masked_fault, masked_text
from server.access.view import folders_of
from server.catalog.functions import INPUT_NAMES, Form, Function, ModelVersion
from server.ensemble.gearing import FollowedPlans
from server.ensemble.select import Limits, MemberEstimate, members_within, subset_within
from server.errors import (
    BadInput,
    BadOption,
    BodyTooLarge,
    DeadlineExceeded,
    Forbidden,
    NoMembers,
    RemoteUnavailable,
    Unsupported,
    WorkerLost,
)
from server.scheduling.policy import RowClass
from server.scheduling.terms import Latency
from server.serving.answers import device_seconds, expected_accuracies
from server.serving.calls import Call, Reply
from server.serving.contexts import Contexts
from server.serving.prediction_ids import PredictionIds, ids_of

__all__ = ["OWN_OUTPUTS", "Codec", "deadline_s", "raw_request"]

# Beside the columns of the function's task, of each row: the members that answered it, how often such answers
# are right, the seconds of a device that they take for a row, by what a label may be given for it later, and,
# of a function by wish, why it was these members.
OWN_OUTPUTS = ("error", "answered_by", "expected_accuracy", "device_seconds", "prediction", "decision")
_FORMS: Mapping[str, Form] = {name: form for form, name in INPUT_NAMES.items()}  # type: ignore[misc]  # keys are Forms
_OWN_PARAMETERS = {
    "ml_udf_deadline_ms",
    "ml_udf_slo_ms",
    "ml_udf_min_accuracy",
    "ml_udf_min_agreement",
    "ml_udf_class",
    "ml_udf_context",
    "ml_udf_answer_cache",
}
# Triton's priority 1 is the most urgent; the core's highest number is. None named comes after all of them.
_MOST_URGENT = 1 << 32
_LARGEST = 1e30  # of a number among the parameters
_JSON_NUMBER_BYTES = 24  # of a float32 as JSON has it
_NOT_KNOWN = -1.0
_FOR_EVER_S = 1e7  # a deadline so far away is none; timers cannot count to it


@dataclass(frozen=True, slots=True)
class Codec:
    """The limits and the knowledge with which requests are read.

    `latency_of(model, form)`: l̂ of rows of that form. `saved_s(function, form, rows)`: what each member after
    the first takes less than alone. `workers()`: the models that each worker holds. `plans(function, form)`:
    those that its rows follow; None where they follow none yet. `context(function's name, context)`: as
    `Contexts.digest`. `ids`: how predictions are named.
    """

    max_rows: int
    latency_of: Callable[[ModelVersion, Form], Latency]
    max_reply_bytes: int = 64 << 20
    saved_s: Callable[[Function, Form, int], float] = lambda function, form, rows: 0.0
    workers: Callable[[], Collection[Collection[str]]] = lambda: ()
    plans: Callable[[Function, Form], FollowedPlans | None] = lambda function, form: None
    context: Callable[[str, object], str] = Contexts().digest
    ids: PredictionIds = field(default_factory=lambda: PredictionIds(b""))

    def call_of(
        self, function: Function, request: InferRequest, now_s: float, caller: Caller = NOBODY
    ) -> Call:
        """What a request asks for.

        Raises `BadOption`, `Unsupported`, `BodyTooLarge`, `Forbidden` for what its caller may not claim;
        `DeadlineExceeded` if its time is over already.
        """
        form, rows, nbytes = self._rows(function, request)
        parameters = request.parameters
        outputs = _wanted(function, request)
        self._check_reply(function, outputs, request, len(rows))
        is_named = any(output.name == "prediction" for output in request.outputs)
        with_members = is_named and function.takes_feedback and form != "tensor"
        if with_members:
            self._check_told(function, len(rows))
            outputs = tuple(spec.name for spec in function.task.columns)  # what members said is in them
        if parameters.keys() <= {"binary_data_output"}:
            row_class: RowClass = "bulk" if caller.bulk_only else "interactive"
            return Call(
                function,
                form,
                rows,
                nbytes,
                outputs,
                row_class=row_class,
                caller=caller.key,
                in_name_of=caller.in_name_of,
                shares=caller.shares,
                with_members=with_members,
                media_roots=folders_of(caller.grants.media_roots),
            )
        _check_parameters(parameters)
        slo_ms = _number(parameters, "ml_udf_slo_ms", above=0.0)
        accuracy = _number(parameters, "ml_udf_min_accuracy", above=-math.inf)
        limits = Limits(None if slo_ms is None else slo_ms / 1000, accuracy)
        asked_class = _row_class(parameters.get("ml_udf_class"), caller)
        members = self._members(function, form, len(rows), limits, asked_class)
        return Call(
            function,
            form,
            rows,
            nbytes,
            outputs=outputs,
            deadline_s=deadline_s(parameters, now_s),
            row_class=asked_class,
            priority=_priority(parameters.get("priority", 0), caller),
            slo_s=limits.slo_s,
            members=members,
            min_accuracy=limits.min_accuracy,
            min_agreement=self._agreement(function, parameters, limits.min_accuracy),
            caller=caller.key,
            in_name_of=caller.in_name_of,
            shares=caller.shares,
            context=self.context(function.name, parameters.get("ml_udf_context")),
            with_members=with_members,
            media_roots=folders_of(caller.grants.media_roots),
            answer_cache=_truth(parameters, "ml_udf_answer_cache", default=True),
        )

    def _check_reply(
        self, function: Function, outputs: tuple[str, ...], request: InferRequest, rows: int
    ) -> None:
        """Of the columns that are many numbers a row."""
        for spec in function.task.columns:
            if not spec.dims or spec.name not in (outputs or function.task.default_outputs):
                continue
            numbers = math.prod(spec.shape(function.sizes))
            binary_bytes = number_bytes(spec.datatype)
            nbytes = (
                rows * numbers * (binary_bytes if request.wants_binary(spec.name) else _JSON_NUMBER_BYTES)
            )
            if nbytes > self.max_reply_bytes:
                leave = f", or do not ask for {spec.name!r}" if spec.on_request else ""
                raise BodyTooLarge(
                    f"the {spec.name} of {rows} rows of {numbers} numbers would be {nbytes} bytes, and the "
                    f"limit of a reply is {self.max_reply_bytes}; send fewer rows{leave}"
                )

    def _check_texts(self, reply: Reply, names: Collection[str]) -> None:
        """Of what was written or drawn, whose length nobody knows beforehand. Raises `BodyTooLarge`."""
        for name, column in reply.columns.items():
            if name in names and isinstance(column.data, list) and column.nbytes > self.max_reply_bytes:
                raise BodyTooLarge(
                    f"the {name} of {reply.rows} rows are {column.nbytes} characters, and the limit of a "
                    f"reply is {self.max_reply_bytes} bytes; send fewer rows"
                )

    def _check_told(self, function: Function, rows: int) -> None:
        """Of what the members say: it is kept until the reply is written, though the ids are short."""
        numbers = 2 if function.answers_numbers else len(function.classes)  # one of FP64
        nbytes = 4 * rows * len(function.members) * numbers
        if nbytes > self.max_reply_bytes:
            raise BodyTooLarge(
                f"what the members say of {rows} rows, which a prediction's id is made of, would be {nbytes} "
                f"bytes, and the limit of a reply is {self.max_reply_bytes}; send fewer rows, or do not ask "
                "for 'prediction'"
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
        self, function: Function, form: Form, rows: int, limits: Limits, row_class: RowClass
    ) -> tuple[str, ...] | None:
        """The members that the call's limits leave; None for as many as answer without any.

        Rows that follow plans keep the limits by themselves: their goal is their own, the plan asks nobody
        who cannot keep it, and is never poorer than their accuracy.
        """
        if limits == Limits() or function.wants is not None:  # then they choose the model
            return None
        if function.pipeline is not None:
            if limits.min_accuracy is None:
                return None  # its goal is split among its stages
            stages = ", ".join(stage.name for stage in function.pipeline.stages)
            raise BadOption(f"{function.name} is a pipeline, whose accuracy was never measured; ask {stages}")
        candidates = [MemberEstimate(m.key, m.accuracy, self.latency_of(m, form)) for m in function.members]
        rows = min(rows, function.max_batch)
        saved_s = self.saved_s(function, form, rows)
        accuracies = function.held_out
        if limits.min_accuracy is not None and not function.task.picks_one and not accuracies:
            raise BadOption(
                f"{function.name} answers {function.task.name}, and what its members' answers are worth was "
                "not measured on held-out rows; ask for no accuracy, or deploy it from a training job"
            )
        if not accuracies:
            return _by_members(function, candidates, rows, limits, saved_s)
        planned = function.follows_plans and row_class == "interactive"
        if planned and self._plan_is_right(function, form, limits.min_accuracy):
            return None
        try:
            chosen = subset_within(
                candidates, accuracies, rows, limits, workers=self.workers(), saved_s=saved_s
            )
        except ValueError as exc:
            worth = "" if function.task.picks_one else f" (its accuracy is its {function.task.worth})"
            raise NoMembers(f"{function.name}: {exc}{worth}") from exc
        return chosen if planned or len(chosen) < len(candidates) else None

    def _agreement(
        self, function: Function, parameters: Mapping[str, Any], accuracy: float | None
    ) -> float | None:
        """How often a proxy's answers have to be those of the full function; None: as it was deployed.

        So often, too, that the answers are right as often as is asked for. Raises `BadOption`.
        """
        asked = _number(parameters, "ml_udf_min_agreement", above=-math.inf)
        if asked is not None and not 0 <= asked <= 1:
            raise BadOption(f"parameter 'ml_udf_min_agreement' must be a number from 0 to 1, not {asked:g}")
        if function.proxy is None or accuracy is None:
            return asked
        full = function.full_accuracy
        return max(asked or 0.0, 1.0 if full is None else 1 - max(0.0, full - accuracy))

    def _plan_is_right(self, function: Function, form: Form, least: float | None) -> bool:
        """Whether the richest plan is expected to be right so often."""
        if function.proxy is not None:
            return least is None or least <= (function.full_accuracy or 0.0)
        followed = self.plans(function, form)
        return least is None or (followed is not None and least <= followed.plans[0].accuracy)

    def response_of(
        self,
        reply: Reply,
        request: InferRequest,
        hidden: Mapping[str, str] = MappingProxyType({}),
        decision: str = "",
    ) -> InferResponse:
        """The response to a call. Raises `BadInput` for a row's error if `error` was not asked for.

        hidden: names of members that its caller does not see → what they are called instead. decision: which
        model was chosen for the call, and why.
        """
        names = [output.name for output in request.outputs] or reply.function.task.default_outputs
        if reply.errors and "error" not in names:
            row = min(reply.errors)
            more = f" ({len(reply.errors)} rows at fault)" if len(reply.errors) > 1 else ""
            message = f"row {row}: {reply.errors[row].message}{more}"
            if reply.errors[row].code == WorkerLost.code:
                raise WorkerLost(message)
            if reply.errors[row].code == RemoteUnavailable.code:
                raise RemoteUnavailable(message)
            raise BadInput(reply.errors[row].code, message)
        self._check_texts(reply, names)
        return InferResponse(
            model_name=reply.function.name,
            model_version=str(reply.function.version),
            id=request.id,
            outputs=[
                _same_text(name, masked_text(decision, hidden), reply.rows)
                if name == "decision"
                else self._output(name, reply, request, hidden)
                for name in names
            ],
            parameters={"ml_udf_cached_rows": reply.cached} if reply.cached else {},
        )

    def _output(self, name: str, reply: Reply, request: InferRequest, hidden: Mapping[str, str]) -> Tensor:
        if name == "expected_accuracy":
            return _numbers(name, expected_accuracies(reply))
        if name == "device_seconds":
            form = _FORMS[request.inputs[0].name]
            return _numbers(name, device_seconds(reply, lambda model: self.latency_of(model, form)))
        if name == "prediction":
            form = _FORMS[request.inputs[0].name]
            context = self.context(reply.function.name, request.parameters.get("ml_udf_context"))
            rows = request.inputs[0].elements if form != "tensor" else []
            ids = ids_of(self.ids, reply, form, rows, context)
            return Tensor.of_bytes(name, [each.encode() for each in ids])
        return _output(name, reply, hidden)


def _by_members(
    function: Function, candidates: Sequence[MemberEstimate], rows: int, limits: Limits, saved_s: float
) -> tuple[str, ...] | None:
    """As `Codec._members`, where it is not known what the members answer together."""
    chosen = members_within(
        candidates, rows, slo_s=limits.slo_s, min_accuracy=limits.min_accuracy, saved_s=saved_s
    )
    if not chosen:
        best = max(model.accuracy for model in function.members)
        raise BadOption(
            f"no model of {function.name} has an accuracy of {limits.min_accuracy:g}; the best has {best:g}"
        )
    return None if len(chosen) == len(candidates) else chosen


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


def _wanted(function: Function, request: InferRequest) -> tuple[str, ...]:
    """The task's columns that a request asks for; none where the default ones do."""
    on_request = False
    for output in request.outputs:
        on_request = _check_output(function, output) or on_request
    return (
        tuple(output.name for output in request.outputs if output.name not in OWN_OUTPUTS)
        if on_request
        else ()
    )


def _check_output(function: Function, output: RequestedOutput) -> bool:
    """Whether it is one that is there on request alone. Raises `BadOption`, `Unsupported`."""
    spec = function.task.column(output.name)
    if spec is None and output.name not in OWN_OUTPUTS:
        names = [*(each.name for each in function.task.columns), *OWN_OUTPUTS]
        raise BadOption(f"there is no output {output.name[:100]!r}; there are {', '.join(names)}")
    for name in output.parameters:
        if name == "classification" or name.startswith("shared_memory"):
            raise Unsupported(f"the output parameter {name!r} is not supported")
    return spec is not None and spec.on_request


def _output(name: str, reply: Reply, hidden: Mapping[str, str]) -> Tensor:
    rows = reply.rows
    spec = next((each for each in reply.function.outputs if each.name == name), None)
    if spec is not None:
        answered = reply.columns.get(name) or spec.empty(rows, reply.function.sizes)
        shape = (rows, *spec.shape(reply.function.sizes))
        parameters = {"content": spec.content} if spec.content else {}
        if isinstance(answered.data, list):
            texts = [text.encode() for text in answered.data]
            return Tensor(name, answered.datatype, shape, texts, parameters)
        return Tensor(name, answered.datatype, shape, bytes(answered.data), parameters)
    column = [b""] * rows
    if name == "error":
        for row, error in reply.errors.items():
            of_stage = reply.function.pipeline is not None
            text = masked_fault(error.code, error.message, hidden, of_stage=of_stage)
            column[row] = f"{error.code}: {text}".encode("utf-8", "surrogateescape")
    else:
        for first, end, members in reply.answered_by:
            column[first:end] = [masked_text(members, hidden).encode()] * (end - first)
        for row in reply.defaulted:
            column[row] = b"default"
    return Tensor(name, "BYTES", (rows,), column)


def _same_text(name: str, text: str, rows: int) -> Tensor:
    """The same text for all rows."""
    return Tensor(name, "BYTES", (rows,), [text.encode()] * rows)


def _numbers(name: str, values: Sequence[float]) -> Tensor:
    """What is not known is −1: JSON has no word for what is no number."""
    return Tensor.of_numbers(name, "FP64", [_NOT_KNOWN if math.isnan(value) else value for value in values])


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


def _truth(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadOption(f"parameter {name!r} must be true or false, not {str(value)[:40]!r}")
    return value


def deadline_s(parameters: Mapping[str, Any], now_s: float) -> float:
    """When a request that came at `now_s` is too late, on that clock; inf = never.

    The nearer of the protocol's `timeout` (µs) and our own remaining time (ms). Raises `BadOption`;
    `DeadlineExceeded` where that is over already.
    """
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
