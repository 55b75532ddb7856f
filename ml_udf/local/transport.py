"""The protocol, answered in this process: requests in, responses out, no socket between.

Owns the few routes that a client uses and the codec's other half. The engine decodes, runs and cancels;
`server.ensemble` combines, so that a function answers as its server would.

torch and numpy are imported by the first call for rows, in the client's own thread: inside a database
backend that thread has all signals blocked, its children inherit the mask, and the main thread goes on
looking for a cancel meanwhile.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from gpu_worker.errors import Cancelled as EngineCancelled
from gpu_worker.errors import NoRoom, WorkerError
from gpu_worker.settings import Settings
from gpu_worker.tasks import task_named
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.errors import BadOption, Cancelled, DeadlineExceeded, MlUdfError, VersionGone
from ml_udf.local.catalog import LocalCatalog, LocalFunction, LocalMember
from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    Tensor,
    WireError,
    decode_request,
    encode_response,
)

if TYPE_CHECKING:
    from gpu_worker.engine import Engine
    from gpu_worker.pipeline.batch import Batch
    from gpu_worker.wire.protocol import Answer, Column, RowError
    from server.ensemble.answer import AnswerRule
    from server.ensemble.by_plan import AnsweredRows

__all__ = ["LocalTransport"]

_NOT_KNOWN = -1.0
_LOOK_S = 0.05  # between two looks whether the call still waits
DEFAULT_HOME = "~/.ml_udf"
_STATUS = {"bad_option": 400, "unknown_function": 404, "version_gone": 410}
_OPTIONS = {"media_root", "device", "threads", "max_pixels", "max_input_bytes"}


class LocalTransport:
    """See `ml_udf.client.transport.Transport`. Cheap to make: the engine starts at the first call for rows.

    Raises `BadOption` for an endpoint with an unknown option or a home folder that is none.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        options = parse_qs(parts.query, keep_blank_values=True)
        if unknown := options.keys() - _OPTIONS:
            raise BadOption(
                f"local: has no option {sorted(unknown)[0]!r}", hint="options: " + ", ".join(sorted(_OPTIONS))
            )
        home = Path(unquote(parts.path) or DEFAULT_HOME).expanduser()
        self._catalog = LocalCatalog(home)
        self._rules: dict[str, tuple[LocalFunction, AnswerRule]] = {}  # by function, and of which reading
        self._settings = replace(_settings(options), prepared=str(home.absolute() / "prepared"))
        self._engine: Engine | None = None
        self._sizes: dict[str, int] = {}  # of models that once found no room
        self._lock = threading.Lock()

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        """Answer a request as a server would; aborts and the timeout are felt within about 100 ms."""
        try:
            return self._route(request, time.monotonic() + timeout_s, abort)
        except (Cancelled, DeadlineExceeded):
            raise
        except EngineCancelled as exc:
            raise Cancelled("the call was cancelled") from exc
        except WireError as exc:
            return _failure(400, "bad_option", str(exc))
        except MlUdfError as exc:
            return _failure(_STATUS.get(exc.code, 500), exc.code, exc.message, exc.hint)
        except WorkerError as exc:
            return _failure(_STATUS.get(exc.code, 500), exc.code, str(exc))

    def close(self) -> None:
        """Let go of the models and the decode threads."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def _route(self, request: HttpRequest, deadline_s: float, abort: Abort) -> HttpResponse:
        match [request.method, *request.path.strip("/").split("/")]:
            case ["GET", "v2"]:
                return _json({"name": "ml_udf local", "version": "0", "extensions": ["ml_udf"]})
            case ["GET", "v2", "models", name]:
                return _json(_metadata(self._catalog.function(unquote(name))))
            case ["POST", "v2", "models", name, "versions", version, "infer"]:
                return self._infer(self._function(unquote(name), version), request, deadline_s, abort)
            case ["POST", "v2", "models", name, "infer"]:
                return self._infer(self._function(unquote(name), None), request, deadline_s, abort)
            case ["GET", "v1", "functions"]:
                functions = [self._catalog.function(name) for name in self._catalog.functions()]
                return _json({"functions": [_function_row(function) for function in functions]})
            case ["GET", "v1", "models"]:
                models = [self._catalog.function(name) for name in self._catalog.models()]
                return _json({"models": [self._model_row(model) for model in models]})
            case ["GET", "v1", ("workers" | "capacity") as what]:  # it answers in the process that asks
                return _json({what: []})
            case ["GET", "v1", "residency"]:
                return _json({"residency": self._held(), "residency_events": []})
        return _failure(501, "bad_option", f"local: does not do {request.method} {request.path}")

    def _function(self, name: str, version: str | None) -> LocalFunction:
        function = self._catalog.function(name)
        if version not in (None, function.version):
            raise VersionGone(f"version {version} of {name} is no longer deployed; run the statement again")
        return function

    def _infer(
        self, function: LocalFunction, request: HttpRequest, deadline_s: float, abort: Abort
    ) -> HttpResponse:
        asked = decode_request(request.body, request.headers.get(HEADER_LENGTH))
        if len(asked.inputs) != 1 or asked.inputs[0].name not in function.inputs:
            raise BadOption(f"{function.name} takes one input of {', '.join(function.inputs)}")
        rows = asked.inputs[0].elements

        def cancelled() -> bool:
            if time.monotonic() > deadline_s:
                raise DeadlineExceeded(
                    f"{function.name} did not finish within the deadline",
                    hint="raise statement_timeout or ml_udf.timeout_ms, or run a server with an accelerator",
                )
            return bool(abort)

        spec = task_named((function.stages or (function,))[-1].task).columns
        more = {each.name for each in spec if each.on_request} & {output.name for output in asked.outputs}
        form = function.inputs[asked.inputs[0].name]
        answered = self._piped if function.stages else self._answered
        found = answered(function, form, rows, more, cancelled)
        response = InferResponse(function.name, found, function.version, asked.id)
        body, headers = encode_response(response, _binary(asked))
        return HttpResponse(200, {name.lower(): value for name, value in headers.items()}, body)

    def _answered(
        self,
        function: LocalFunction,
        form: str,
        rows: Sequence[bytes],
        more: Collection[str],
        cancelled: Callable[[], bool],
    ) -> list[Tensor]:
        """The columns of the answer. more: those beside what an answer has unless it is said which."""
        rule = self._rule(function)
        return _outputs(rule, self._found(function, rule, form, rows, more, cancelled), more)

    def _piped(
        self,
        function: LocalFunction,
        form: str,
        rows: Sequence[bytes],
        more: Collection[str],
        cancelled: Callable[[], bool],
    ) -> list[Tensor]:
        """The same of a function of functions."""
        from gpu_worker.engine import Engine
        from gpu_worker.pipeline.crops import crops_in
        from gpu_worker.wire.protocol import Crop
        from ml_udf.local.pipeline import answer_pipeline

        first, last = function.stages[0], function.stages[-1]

        def ask(stage: LocalFunction, own_form: str, some: Sequence[bytes]) -> AnsweredRows:
            wanted: Collection[str] = more if stage is last else ()
            if stage is last and function.crop is not None:
                wanted = {spec.name for spec in task_named(stage.task).columns if spec.name != "scores"}
            return self._found(stage, self._rule(stage), own_form, some, wanted, cancelled)

        def cut(
            own_form: str, some: Sequence[bytes], boxes: list[list[list[float]]], margin: float
        ) -> tuple[list[list[bytes]], list[RowError], list[int]]:
            if self._engine is None:
                self._engine = Engine(self._settings)
            roots = None if first.media_roots is None else list(first.media_roots)
            return crops_in(
                self._engine, Crop(0, list(some), own_form, boxes, margin, media_roots=roots), cancelled
            )

        answer = answer_pipeline(function, form, rows, ask, cut)
        errors = {row: f"{error.code}: {error.message}" for row, error in answer.errors.items()}
        who = [",".join(names) for names in answer.by]
        return [
            *(_tensor(column) for column in answer.columns.values()),
            *_beside(
                len(rows),
                errors,
                ["default" if row in answer.defaulted else who[row] for row in range(len(rows))],
            ),
            Tensor.of_numbers("expected_accuracy", "FP64", [_NOT_KNOWN for _ in rows]),
        ]

    def _found(
        self,
        function: LocalFunction,
        rule: AnswerRule,
        form: str,
        rows: Sequence[bytes],
        more: Collection[str],
        cancelled: Callable[[], bool],
    ) -> AnsweredRows:
        """What is answered: by all members, or as the function's plan says of each row."""
        from server.ensemble.by_plan import answer_by_plan, answered_rows

        def ask(members: Sequence[LocalMember], some: Sequence[bytes]) -> Answer:
            engine, batch = self._begun(function, members, form, some, more, cancelled)
            return engine.answer(batch, cancelled)

        if not function.plan or not rows:
            return answered_rows(rule.answer(ask(function.members, rows)))
        members = {member.key: member for member in function.members}

        def ask_one(key: str, numbers: Sequence[int]) -> Answer:
            return ask([members[key]], [rows[number] for number in numbers])

        return answer_by_plan(rule, function.plan, len(rows), ask_one)

    def _begun(
        self,
        function: LocalFunction,
        members: Sequence[LocalMember],
        form: str,
        rows: Sequence[bytes],
        more: Collection[str],
        cancelled: Callable[[], bool],
    ) -> tuple[Engine, Batch]:
        """Set the rows on their way through these. Raises `Cancelled`, and what `cancelled` raises.

        One thread at a time: else another could load its own models, and evict these, before the batch holds
        them.
        """
        from gpu_worker.engine import Engine

        task = task_named(function.task)
        needed = self._rule(function).needs(len(function.members))
        keys = [member.key for member in members]
        while not self._lock.acquire(timeout=_LOOK_S):
            _check(cancelled)
        try:
            if self._engine is None:
                self._engine = Engine(self._settings)
            for member in members:
                while member.key not in self._engine.resident():
                    try:
                        self._engine.load(member.key, str(member.directory), cancelled)
                    except NoRoom as refused:
                        self._sizes[member.key] = refused.wanted_bytes
                        if not self._make_room(self._engine, function, members):
                            _check(cancelled)
                            time.sleep(_LOOK_S)
            outputs = tuple(dict.fromkeys((*task.default_outputs, *needed, *more)))
            batch = self._engine.begin(
                keys, form, rows, outputs=outputs, task=task.name, media_roots=function.media_roots
            )
            return self._engine, batch
        finally:
            self._lock.release()

    def _rule(self, function: LocalFunction) -> AnswerRule:
        """How it answers. Raises `BadOption` where what was fitted of it cannot be read."""
        read, rule = self._rules.get(function.name, (None, None))
        if read is not function or rule is None:
            rule = _rule_of(function)
            self._rules[function.name] = (function, rule)
        return rule

    def _make_room(self, engine: Engine, function: LocalFunction, wanted: Sequence[LocalMember]) -> bool:
        """Unload what a server's `lru` would, of the models that no batch is using; False if they must end.

        Raises `BadOption` if the function's models can never fit together.
        """
        from server.placement.policies.lru import Capacity, Stay, evictions

        residents = engine.residents()
        sizes = self._sizes | {there.key: there.network.resident_bytes for there in residents}
        members = {member.key: sizes.get(member.key, 0) for member in wanted}
        staying = {there.key: sizes[there.key] for there in residents if there.users}
        order = {there.key: Stay(sizes[there.key], turn) for turn, there in enumerate(residents)}
        capacity = Capacity(engine.device.capacity_bytes, engine.settings.resident_models)
        if evictions(0.0, members, order, capacity) is None:
            raise BadOption(
                f"the {len(members)} models of {function.name} do not fit into memory together",
                hint="deploy it with fewer or smaller models",
            )
        leaving = evictions(0.0, staying | members, order, capacity)
        if not isinstance(leaving, tuple):
            return False
        for key in leaving:
            engine.unload(key)
        return bool(leaving)

    def _held(self) -> list[dict[str, Any]]:
        """What the engine holds: it is its own worker, and remembers nothing else of its models."""
        if self._engine is None:
            return []
        return [
            {
                "worker": "local",
                "device": self._engine.device.description,
                "tier": "device",
                "model": resident.key,
                "size_bytes": resident.network.resident_bytes,
            }
            for resident in self._engine.residents()
        ]

    def _model_row(self, model: LocalFunction) -> dict[str, Any]:
        member = model.members[0]
        manifest = json.loads((member.directory / "model.json").read_bytes())
        resident = self._engine is not None and member.key in self._engine.resident()
        return {
            "name": model.name,
            "version": model.version,
            "task": model.task,
            "architecture": manifest.get("architecture", ""),
            "accuracy": member.accuracy,
            "resident": resident,
        }


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise Cancelled("the call was cancelled")


def _settings(options: dict[str, list[str]]) -> Settings:
    def whole(name: str, default: int) -> int:
        try:
            return int(options.get(name, [str(default)])[-1])
        except ValueError as exc:
            raise BadOption(f"local: {name} is not a whole number: {options[name][-1]!r}") from exc

    defaults = Settings()
    return Settings(
        device=options.get("device", [defaults.device])[-1],
        media_roots=tuple(options.get("media_root", [])),
        threads=whole("threads", defaults.threads),
        max_pixels=whole("max_pixels", defaults.max_pixels),
        max_input_bytes=whole("max_input_bytes", defaults.max_input_bytes),
    )


def _rule_of(function: LocalFunction) -> AnswerRule:
    from server.ensemble.answer import AnswerRule
    from server.ensemble.by_plan import check_plan
    from server.ensemble.error_weights import error_weights
    from server.ensemble.fit import Fit

    try:
        fit = None if function.fit is None else Fit.from_json(function.fit)
        names = {member.model for member in function.members}
        if fit is not None and not names <= set(fit.members):
            raise ValueError(f"it is of {', '.join(fit.members)}")
        if function.plan:
            if fit is not None and names != set(fit.members):
                raise ValueError(f"its plan asks {', '.join(fit.members)}")
            check_plan(function.plan, None if fit is None else fit.evidence)
    except ValueError as exc:
        raise BadOption(
            f"what was fitted of {function.name} cannot be read: {exc}",
            hint="deploy the function anew, or read its home folder by the version of ml_udf that wrote it",
        ) from exc
    return AnswerRule(
        function.name,
        task_named(function.task),
        function.combine,
        function.classes,
        {member.key: (member.model, member.accuracy) for member in function.members},
        function.min_confidence,
        function.default,
        fit,
        function.thresholds,
        error_weights(dict(function.scores)),
    )


def _outputs(rule: AnswerRule, found: AnsweredRows, more: Collection[str]) -> list[Tensor]:
    from server.ensemble.by_plan import expected_accuracies

    rows = range(len(found.answered_by))
    errors = {row: f"{error.code}: {error.message}" for row, error in found.errors.items()}
    who = ["default" if row in found.defaulted else found.answered_by[row] for row in rows]
    expected = [_NOT_KNOWN if math.isnan(each) else each for each in expected_accuracies(rule, found)]
    return [
        *(_tensor(found.columns[name]) for name in (*rule.task.default_outputs, *sorted(more))),
        *_beside(len(rows), errors, who),
        Tensor.of_numbers("expected_accuracy", "FP64", expected),
    ]


def _beside(rows: int, errors: Mapping[int, str], who: Sequence[str]) -> list[Tensor]:
    """What is said of each row beside its answer. errors: by row."""
    return [
        Tensor.of_bytes("error", [errors.get(row, "").encode() for row in range(rows)]),
        Tensor.of_bytes("answered_by", [names.encode() for names in who]),
        Tensor.of_numbers("device_seconds", "FP64", [_NOT_KNOWN] * rows),  # nobody learns them here
        Tensor.of_bytes("prediction", [b""] * rows),  # nor from labels
    ]


def _tensor(column: Column) -> Tensor:
    shape = (column.rows, *column.shape)
    parameters = {"content": column.content} if column.content else {}
    if isinstance(column.data, list):
        texts = [text.encode() for text in column.data]
        return Tensor(column.name, column.datatype, shape, texts, parameters)
    return Tensor(column.name, column.datatype, shape, bytes(column.data), parameters)


def _metadata(function: LocalFunction) -> dict[str, Any]:
    return {
        "name": function.name,
        "versions": [function.version],
        "platform": "ml_udf_local",
        "inputs": [{"name": function.input_name, "datatype": "BYTES", "shape": [-1]}],
        "outputs": _described_outputs(function),
        "parameters": {
            "form": function.form,
            "columns": list(function.columns),
            "inputs": function.inputs,
            "classes": list(function.classes) if _has_classes(function) else [],
            "outputs_on_request": _on_request(function),
        },
    }


def _has_classes(function: LocalFunction) -> bool:
    answering = function.stages[-1] if function.stages else function
    return function.crop is None and task_named(answering.task).needs_classes


def _on_request(function: LocalFunction) -> list[str]:
    if function.crop is not None:
        return []
    answering = function.stages[-1] if function.stages else function
    return [spec.name for spec in task_named(answering.task).columns if spec.on_request]


def _described_outputs(function: LocalFunction) -> list[dict[str, Any]]:
    if function.stages:
        return list(function.outputs)
    return [spec.described(function.sizes) for spec in task_named(function.task).columns_of(function.content)]


def _function_row(function: LocalFunction) -> dict[str, Any]:
    return {
        "name": function.name,
        "version": function.version,
        "task": function.task,
        "models": [member.model for member in function.members],
        "outputs": _described_outputs(function),
        "combine": function.combine,
        "selection": {"policy": "richest plan" if function.plan else "all"},
    }


def _binary(asked: InferRequest) -> InferRequest:
    # Nothing is gained by text between two functions, unless somebody wants to read it.
    asked.parameters.setdefault("binary_data_output", True)
    return asked


def _json(body: dict[str, Any]) -> HttpResponse:
    return HttpResponse(200, {"content-type": "application/json"}, json.dumps(body).encode())


def _failure(status: int, code: str, message: str, hint: str = "") -> HttpResponse:
    body = {"error": f"{code}: {message}"} | ({"hint": hint} if hint else {})
    return HttpResponse(status, {}, json.dumps(body).encode())
