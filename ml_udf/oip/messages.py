"""Infer requests and responses of the Open Inference Protocol v2, JSON and binary extension.

A message is a JSON part and, after it, the raw tensors in order; `HEADER_LENGTH` says where the JSON
ends (KServe's "Open Inference Protocol", Triton's "Binary Tensor Data Extension").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ml_udf.oip.tensor import (
    Tensor,
    WireError,
    data_from_json,
    json_data,
    pack_bytes,
    unpack_bytes,
    width_bytes,
)

__all__ = [
    "HEADER_LENGTH",
    "InferRequest",
    "InferResponse",
    "RequestedOutput",
    "ResponseTemplate",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

_MOST_DIMENSIONS = 16
_LARGEST_DIMENSION = 1 << 48
_MOST_DIGITS = 18  # of a length; Python reads no number of thousands of them
_as_json = json.JSONEncoder(separators=(",", ":")).encode  # `dumps` would make an encoder for each message
_SIZE = 10**15  # in a template, where the size of a tensor's data will stand
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(slots=True)
class RequestedOutput:
    """An output that the caller asks for; `binary` None follows the request's default."""

    name: str
    binary: bool | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class InferRequest:
    """One infer call: its inputs, the outputs asked for (empty = all), request parameters."""

    inputs: list[Tensor]
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def wants_binary(self, output: str) -> bool:
        """Whether the reply's tensor `output` is to be binary, by output, then by request."""
        for asked in self.outputs:
            if asked.name == output and asked.binary is not None:
                return asked.binary
        return bool(self.parameters.get("binary_data_output", False))


@dataclass(slots=True)
class InferResponse:
    """The answer to one infer call."""

    model_name: str
    outputs: list[Tensor]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def output(self, name: str) -> Tensor | None:
        """The output of that name, or None."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)


def encode_request(request: InferRequest, *, binary: bool = True) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request whose inputs and outputs are binary, or all JSON.

    Raises `WireError` where `binary` is false and a BYTES input is not UTF-8.
    """
    head: dict[str, Any] = {}
    if request.id:
        head["id"] = request.id
    parameters = {"binary_data_output": True, **request.parameters} if binary else request.parameters
    if parameters:
        head["parameters"] = parameters
    head["inputs"], blobs = _encode_tensors(request.inputs, {t.name: binary for t in request.inputs})
    if request.outputs:
        head["outputs"] = [_output_head(output, binary) for output in request.outputs]
    return _join(head, blobs)


def _output_head(output: RequestedOutput, binary: bool) -> dict[str, Any]:
    parameters = dict(output.parameters)
    if binary:
        parameters["binary_data"] = output.binary is not False
    return {"name": output.name, "parameters": parameters} if parameters else {"name": output.name}


def encode_response(response: InferResponse, request: InferRequest) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a response, each output in the form that `request` asked for."""
    return _join(*_response_head(response, request))


def _response_head(
    response: InferResponse, request: InferRequest
) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """The JSON of a response, and the bytes that follow it."""
    head: dict[str, Any] = {"model_name": response.model_name}
    if response.model_version:
        head["model_version"] = response.model_version
    if response.id:
        head["id"] = response.id
    if response.parameters:
        head["parameters"] = response.parameters
    binary = {tensor.name: request.wants_binary(tensor.name) for tensor in response.outputs}
    head["outputs"], blobs = _encode_tensors(response.outputs, binary)
    return head, blobs


class ResponseTemplate:
    """Responses that differ in nothing but the data of their tensors, all of which are binary."""

    __slots__ = ("_parts",)

    def __init__(self, response: InferResponse, request: InferRequest) -> None:
        """Of responses like this one. Raises ValueError if an output of it is not binary, or names a size."""
        head, _ = _response_head(response, request)
        for place, output in enumerate(head["outputs"]):
            if not request.wants_binary(output["name"]):
                raise ValueError(f"the output {output['name']!r} is not binary")
            output["parameters"]["binary_data_size"] = _SIZE + place
        text = _as_json(head).encode()
        parts: list[bytes] = []
        for place in range(len(response.outputs)):
            part, size, text = text.partition(b"%d" % (_SIZE + place))
            if not size or b"%d" % (_SIZE + place) in text:
                raise ValueError("the response has the number of a template in it")
            parts.append(part)
        self._parts = [*parts, text]

    def fill(self, blobs: Sequence[bytes | bytearray | memoryview]) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the response with that data, by output, as `encode_response` writes it."""
        text = self._text([len(blob) for blob in blobs])
        return b"".join((text, *blobs)), _binary_headers(len(text))

    def fill_each(
        self, rows: Iterable[Sequence[bytes | bytearray | memoryview]]
    ) -> list[tuple[bytes, dict[str, str]]]:
        """The same of many responses; those whose data is as long share their headers."""
        found: list[tuple[bytes, dict[str, str]]] = []
        known: dict[tuple[int, ...], tuple[bytes, dict[str, str]]] = {}
        for blobs in rows:
            sizes = tuple(map(len, blobs))
            if (head := known.get(sizes)) is None:
                text = self._text(sizes)
                head = known[sizes] = text, _binary_headers(len(text))
            found.append((b"".join((head[0], *blobs)), head[1]))
        return found

    def _text(self, sizes: Sequence[int]) -> bytes:
        pieces: list[bytes] = []
        for part, size in zip(self._parts, sizes, strict=False):
            pieces += (part, b"%d" % size)
        pieces.append(self._parts[-1])
        return b"".join(pieces)


def _binary_headers(json_size: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(json_size)}


def decode_request(body: bytes | memoryview, header_length: str | None) -> InferRequest:
    """Parse an infer request; `header_length` is the value of `HEADER_LENGTH`, None if absent.

    Raises `WireError`. A header length of 0 (raw body, one input) needs the model's metadata and is
    the server's business, not this function's.
    """
    head, tail = _split(body, header_length)
    inputs = head.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise WireError("the request has no 'inputs'")
    outputs = []
    for raw in _objects(head.get("outputs", []), "outputs"):
        parameters = _parameters(raw)
        outputs.append(RequestedOutput(_name(raw), parameters.pop("binary_data", None), parameters))
    return InferRequest(_decode_tensors(inputs, tail), outputs, str(head.get("id", "")), _parameters(head))


def decode_response(body: bytes | memoryview, header_length: str | None) -> InferResponse:
    """Parse an infer response. Raises `WireError`."""
    head, tail = _split(body, header_length)
    if "outputs" not in head:
        raise WireError("the response has no 'outputs'")
    return InferResponse(
        model_name=str(head.get("model_name", "")),
        outputs=_decode_tensors(head["outputs"], tail),
        model_version=str(head.get("model_version", "")),
        id=str(head.get("id", "")),
        parameters=_parameters(head),
    )


# ── the two halves of a message ────────────────────────────────────────────────────────────────────


def _join(head: Mapping[str, Any], blobs: list[bytes | memoryview]) -> tuple[bytes, dict[str, str]]:
    text = _as_json(head).encode()
    if not blobs:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *blobs]), headers


def _split(body: bytes | memoryview, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(body)
    length = len(view)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or len(header_length) > _MOST_DIGITS:
            raise WireError(f"{HEADER_LENGTH} is not a whole number: {header_length!r:.40}")
        length = int(header_length)
        if length > len(view):
            raise WireError(f"{HEADER_LENGTH} is {length}, but the body has {len(view)} bytes")
    try:
        head = json.loads(bytes(view[:length]))
    except (ValueError, RecursionError) as exc:
        raise WireError(f"the JSON part cannot be parsed: {exc}") from exc
    if not isinstance(head, dict):
        raise WireError("the JSON part is not an object")
    return head, view[length:]


# ── tensors ──────────────────────────────────────────────────────────────────────────────────────


def _encode_tensors(
    tensors: Sequence[Tensor], binary: Mapping[str, bool]
) -> tuple[list[dict[str, Any]], list[bytes | memoryview]]:
    heads: list[dict[str, Any]] = []
    blobs: list[bytes | memoryview] = []
    for tensor in tensors:
        head: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        parameters = {k: v for k, v in tensor.parameters.items() if k != "binary_data_size"}
        if binary[tensor.name]:
            blob = pack_bytes(tensor.data) if isinstance(tensor.data, list) else tensor.data
            blobs.append(blob)
            parameters["binary_data_size"] = len(blob)
        else:
            head["data"] = json_data(tensor)
        if parameters:
            head["parameters"] = parameters
        heads.append(head)
    return heads, blobs


def _decode_tensors(raw_tensors: object, tail: memoryview) -> list[Tensor]:
    tensors: list[Tensor] = []
    at = 0
    for raw in _objects(raw_tensors, "tensors"):
        name, datatype = _name(raw), str(raw.get("datatype"))
        shape = _shape(raw, name)
        count = math.prod(shape)
        parameters = _parameters(raw)
        size = parameters.pop("binary_data_size", None)
        data: list[bytes] | bytes | memoryview
        if size is None:
            data = data_from_json(name, datatype, raw.get("data"), count)
        else:
            if not isinstance(size, int) or size < 0 or at + size > len(tail):
                raise WireError(f"tensor {name!r}: binary_data_size {size!r} does not fit the body")
            blob = tail[at : at + size]
            at += size
            data = unpack_bytes(name, blob, count) if datatype == "BYTES" else blob
            if datatype != "BYTES" and len(blob) != count * width_bytes(datatype):
                raise WireError(
                    f"tensor {name!r}: {len(blob)} bytes do not make {datatype} of shape {list(shape)}"
                )
        tensors.append(Tensor(name, datatype, shape, data, parameters))
    if at != len(tail):
        raise WireError(f"{len(tail) - at} bytes of the body belong to no tensor")
    return tensors


# ── fields of the JSON part, each checked once ─────────────────────────────────────────────────────


def _objects(raw: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise WireError(f"{what} must be a list of objects")
    return raw


def _name(raw: Mapping[str, Any]) -> str:
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise WireError("a tensor has no 'name'")
    return name


def _shape(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    shape = raw.get("shape")
    whole = isinstance(shape, list) and all(type(n) is int and 0 <= n <= _LARGEST_DIMENSION for n in shape)
    if not whole:
        raise WireError(f"tensor {name!r}: 'shape' must be a list of whole numbers, got {str(shape)[:100]}")
    if len(shape) > _MOST_DIMENSIONS:  # type: ignore[arg-type]  # a list
        raise WireError(f"tensor {name!r}: a shape has at most {_MOST_DIMENSIONS} dimensions")
    return tuple(shape)  # type: ignore[arg-type]  # checked just above


def _parameters(raw: Mapping[str, Any]) -> dict[str, Any]:
    parameters = raw.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise WireError("'parameters' must be an object")
    return dict(parameters)
