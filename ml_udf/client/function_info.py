"""What a server says of a function: the metadata of the Open Inference Protocol, read once per version.

Owns the reading of `GET /v2`, `GET /v2/models/F` and, on servers that are not ours, `/config`; and the
mapping of error replies to `ml_udf.errors`. Knows no rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml_udf.client.transport import HttpResponse
from ml_udf.errors import (
    BadOption,
    ConnectionLost,
    InputTooLarge,
    MlUdfError,
    NoSpace,
    Overloaded,
    QuotaExceeded,
    ServerFault,
    Unauthorized,
    UnknownFunction,
    VersionGone,
    error_from_code,
)

__all__ = [
    "REPOSITORY_INDEX",
    "SCORES",
    "FunctionInfo",
    "ServerInfo",
    "error_of",
    "function_info",
    "json_of",
    "repository_rows",
]

REPOSITORY_INDEX = "/v2/repository/index"
SCORES = "scores"  # the output of one probability for each class
_WHAT_HAS_SCORES = (
    "classifications and multi-label functions have them; ml_udf.detail shows all that this one answers"
)

_REPLY_BYTES = 8 << 20
_NUMBER_BYTES = 8  # the widest
_MOST_CHARS = 2_000  # of an error's text
_BY_STATUS: dict[int, type[MlUdfError]] = {
    400: BadOption,
    401: Unauthorized,
    403: Unauthorized,
    404: UnknownFunction,
    410: VersionGone,
    413: InputTooLarge,
    415: BadOption,
    429: QuotaExceeded,
    502: ConnectionLost,
    503: Overloaded,
    504: ConnectionLost,
    507: NoSpace,
}


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """One version of a function as a client sees it.

    `ours` says whether the server is an ml_udf server, with per-row errors, versions and deadlines.
    `row_shape` is the shape of one row of the input tensor: () for [n], (1,) for [n, 1], (k,) for vectors.
    """

    name: str
    version: str
    input_name: str
    input_datatype: str
    row_shape: tuple[int, ...]
    output_name: str
    output_datatype: str
    output_width: int  # numbers per row; 0 = as many as the server likes
    ours: bool
    binary: bool = True  # whether the server takes the binary extension; else JSON
    form: str = ""  # of the input: "path", "image", "text", …; "" where the server does not say
    classes: tuple[str, ...] = ()
    max_batch_rows: int = 0  # 0 = the server names none
    has_confidence: bool = True  # whether a server of ours says how sure an answer is
    by_wish: bool = False  # whether it names no models, and says of each answer which one was chosen
    columns: tuple[tuple[str, str], ...] = ()  # (name, kind) of each value, where an input is a table's row
    output_content: str = ""  # what the texts of the output are: "labels", "boxes", "json"; "" = themselves
    # (name, content) of the outputs of ours, without the vectors that are there on request alone
    answered: tuple[tuple[str, str], ...] = ()
    has_scores: bool = False  # whether it gives the probabilities of its classes

    @property
    def column_names(self) -> list[str]:
        """Of a table's row, where an input is one."""
        return [name for name, _ in self.columns]

    @property
    def most_rows(self) -> int:
        """Rows of a request at most, so that its reply is of a size like that of its rows; 0 = any number."""
        vectors = _REPLY_BYTES // (_NUMBER_BYTES * self.output_width) if self.output_width > 1 else 0
        bounds = [rows for rows in (self.max_batch_rows, vectors and max(1, vectors)) if rows]
        return min(bounds, default=0)

    def infer_path(self) -> str:
        """Where this version answers; a server that is not ours chooses the version itself."""
        version = f"/versions/{self.version}" if self.ours and self.version else ""
        return f"/v2/models/{self.name}{version}/infer"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What `GET /v2` says: whether the server is ours, and whether it takes binary tensors."""

    ours: bool
    binary: bool

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> ServerInfo:
        """From the server's metadata; a server that lists no extensions gets none used."""
        extensions = metadata.get("extensions") or []
        ours = "ml_udf" in extensions
        return cls(ours, ours or "binary_tensor_data" in extensions)


def function_info(
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    server: ServerInfo,
    version: str | None,
    input_name: str | None = None,
    output_name: str | None = None,
) -> FunctionInfo:
    """Read a model's metadata (and Triton's config, {} where there is none).

    Raises `BadOption` where the model has several inputs and none was named, `VersionGone` where
    `version` is no longer served.
    """
    name = str(metadata.get("name", ""))
    versions = [str(v) for v in metadata.get("versions") or []]
    if version is not None and server.ours and version not in versions:
        raise VersionGone(
            f"version {version} of {name} is no longer served",
            hint="run the statement again to use the current one",
        )
    parameters = metadata.get("parameters") or {}
    forms = parameters.get("inputs") or {}  # of ours: every input that may be sent instead of the listed one
    inputs = [*(_other_inputs(forms) if input_name else []), *(metadata.get("inputs") or [])]
    source = _pick(inputs, name, "input", input_name, needs_one=True)
    outputs = [output for output in metadata.get("outputs") or [] if isinstance(output, dict)]
    if output_name == SCORES and not any(output.get("name") == SCORES for output in outputs):
        raise BadOption(f"{name} answers with no probabilities of classes", hint=_WHAT_HAS_SCORES)
    target = _pick(outputs, name, "output", output_name, needs_one=False)
    on_request = set(parameters.get("outputs_on_request") or ())
    shape = [int(n) for n in source.get("shape") or [-1]]
    output_shape = [int(n) for n in target.get("shape") or [-1]][1:]
    return FunctionInfo(
        name=name,
        version=version or (versions[-1] if versions else ""),
        input_name=source["name"],
        input_datatype=str(source.get("datatype", "BYTES")),
        row_shape=tuple(1 if n < 0 else n for n in shape[1:]) if len(shape) > 1 else (),
        output_name=target["name"],
        output_datatype=str(target.get("datatype", "BYTES")),
        output_width=0 if -1 in output_shape else math.prod(output_shape),
        ours=server.ours,
        binary=server.binary,
        has_scores=any(output.get("name") == SCORES for output in outputs),
        has_confidence=any(output.get("name") == "confidence" for output in outputs),
        output_content=_content_of(target),
        answered=tuple(
            (str(output["name"]), _content_of(output))
            for output in outputs
            if server.ours and output.get("name") and not (output["name"] in on_request and _is_wide(output))
        ),
        by_wish=parameters.get("by_wish") is True,
        form=str(forms.get(source["name"], parameters.get("form", ""))),
        classes=tuple(parameters.get("classes") or ()),
        columns=tuple((str(c["name"]), str(c["kind"])) for c in parameters.get("columns") or ()),
        max_batch_rows=max(0, int(config.get("max_batch_size") or 0)),
    )


def _other_inputs(forms: Mapping[str, str]) -> list[dict[str, Any]]:
    """The inputs of byte strings among {input name: form}."""
    return [
        {"name": name, "datatype": "BYTES", "shape": [-1]} for name, form in forms.items() if form != "tensor"
    ]


def _is_wide(output: Mapping[str, Any]) -> bool:
    return len(output.get("shape") or ()) > 1


def _content_of(output: Mapping[str, Any]) -> str:
    told = output.get("parameters")
    return str(told.get("content") or "") if isinstance(told, dict) else ""


def _pick(tensors: Any, model: str, what: str, wanted: str | None, *, needs_one: bool) -> dict[str, Any]:  # noqa: ANN401  # JSON
    named = {t["name"]: t for t in tensors or [] if isinstance(t, dict) and t.get("name")}
    if wanted is not None:
        if wanted in named:
            return dict(named[wanted])
        raise BadOption(f"{model} has no {what} {wanted!r}", hint=f"its {what}s: " + ", ".join(named))
    if not named:
        raise BadOption(f"the server names no {what}s for {model}", hint="is the model loaded there?")
    if needs_one and len(named) > 1:
        raise BadOption(
            f"{model} has {len(named)} {what}s: " + ", ".join(named), hint=f"name the one to use ({what})"
        )
    return dict(next(iter(named.values())))


def json_of(response: HttpResponse) -> dict[str, Any]:
    """The JSON object of a reply. Raises the error that the reply stands for."""
    if response.status >= 400:
        raise error_of(response)
    try:
        value = json.loads(response.body or b"{}")
    except ValueError as exc:
        raise ConnectionLost(
            "the endpoint answered something that is not JSON",
            hint="is it an Open Inference Protocol server?",
        ) from exc
    if not isinstance(value, dict):
        raise ConnectionLost("the endpoint answered JSON that is not an object")
    return value


def repository_rows(response: HttpResponse) -> list[dict[str, Any]]:
    """The models of the protocol's repository index. Raises the error that the reply stands for."""
    if response.status >= 400:
        raise error_of(response)
    try:
        told = json.loads(response.body)
        return [
            {
                "name": str(model["name"]),
                "version": str(model.get("version", "")),
                "resident": str(model.get("state", "")).upper() == "READY",
            }
            for model in told
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConnectionLost(
            "the endpoint's list of models cannot be read", hint="is it an Open Inference Protocol server?"
        ) from exc


def error_of(response: HttpResponse) -> MlUdfError:
    """The error that a reply with status ≥ 400 stands for: by our code, else by the status.

    The body is `{"error": "code: message"}`, with `"hint"` where the server knows better what to do.
    """
    hint = ""
    try:
        told = json.loads(response.body)
        text, hint = told["error"], told.get("hint", "")
        if not isinstance(text, str) or not isinstance(hint, str):
            raise TypeError
        text, hint = text[:_MOST_CHARS], hint[:_MOST_CHARS]
    except (ValueError, KeyError, TypeError, AttributeError):
        # What else answers is not ours to show: whoever names an endpoint would read the network by it.
        text, hint = f"HTTP status {response.status}, without an error of the protocol", ""
    code, colon, message = text.partition(": ")
    error = error_from_code(code, message, hint=hint) if colon and code.isidentifier() else None
    if error is None or (type(error) is ServerFault and code != ServerFault.code):
        error = _BY_STATUS.get(response.status, ServerFault)(text, hint=hint)
    if isinstance(error, Overloaded):
        error.retry_after_s = _seconds(response.headers.get("retry-after"))
    return error


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # an HTTP date: rare, and the backoff serves as well
        return None
