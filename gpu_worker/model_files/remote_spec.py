"""What a manifest says of a model behind another server: `remote`, and how it is asked there.

Pure, standard library only: the server reads manifests by this module too. Knows fields, not HTTP.

    {"runtime": "oip", "remote": {"url": "http://127.0.0.1:8000/v2/models/food", "input": "text"}, …}
    {"runtime": "openai", "remote": {"url": "https://api.example.org/v1", "model": "small"}, …}
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_worker.model_files.endpoints import Endpoint
from gpu_worker.model_files.json_schema import SchemaError, check_schema

__all__ = [
    "PLACE",
    "REMOTE_RUNTIMES",
    "RemoteSpec",
    "inputs_of",
    "is_remote",
    "placeholders",
    "remote_from",
    "remote_sha256",
    "tensors_of",
]

REMOTE_RUNTIMES: Final = ("oip", "openai")
"""The Open Inference Protocol (Triton, MLServer, KServe); chat completions and embeddings as OpenAI's."""

OIP_DATATYPES: Final = ("", "BYTES", "FP32", "FP64", "UINT8", "INT64", "INT32")
_MIB = 1 << 20
PLACE: Final = re.compile(r"\{\{\s*([^{}]{1,200}?)\s*\}\}")
"""A place in a prompt's template where a value of the row goes."""
_MOST_TEXT_CHARS: Final = 100_000


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """Where a model is, what it is called there, and the bounds of asking it.

    concurrency: requests at a time · batch_rows: rows of one request, where a request takes several ·
    timeout_ms: of one request · retries: of a request that may be repeated, within the rows' deadline ·
    max_reply_bytes: of one reply.
    oip: version "" = the server's choice; input, output "" = its only one, or as `outputs` of the
    manifest says; datatype "" = what its metadata say.
    openai: prompt: with {{text}}, or {{name}} for each column of a row; schema: of a generated text.
    """

    protocol: str
    url: str
    model: str = ""
    version: str = ""
    input: str = ""
    output: str = ""
    datatype: str = ""
    system: str = ""
    prompt: str = ""
    schema: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int = 512
    logprobs: bool = True
    concurrency: int = 4
    batch_rows: int = 64
    timeout_ms: float = 30_000.0
    retries: int = 2
    max_reply_bytes: int = 16 * _MIB

    @property
    def endpoint(self) -> Endpoint:
        """Its URL, parsed. Raises `ValueError`."""
        return Endpoint.parse(self.url)


_TEXTS: Final = {
    "oip": ("version", "input", "output", "datatype"),
    "openai": ("model", "system", "prompt"),
}
_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "concurrency": (1, 32),
    "batch_rows": (1, 4096),
    "timeout_ms": (10, 600_000),
    "retries": (0, 10),
    "max_reply_bytes": (1024, 256 * _MIB),
    "max_tokens": (1, 1_000_000),
    "temperature": (0, 2),
}
_WHOLE: Final = ("concurrency", "batch_rows", "retries", "max_reply_bytes", "max_tokens")


def is_remote(runtime: object) -> bool:
    """Whether models of that runtime are behind another server."""
    return runtime in REMOTE_RUNTIMES


def remote_from(manifest: Mapping[str, Any]) -> RemoteSpec | None:
    """What the manifest says; None of a model that runs here. Raises `ValueError` with the field."""
    protocol = manifest.get("runtime")
    if not is_remote(protocol):
        return None
    content = manifest.get("remote")
    if not isinstance(content, Mapping):
        raise ValueError(f"'remote' is missing: a model of runtime {protocol!r} says there where it is")
    if manifest.get("weights") or manifest.get("files"):
        raise ValueError(f"a model of runtime {protocol!r} has no files of its own")
    protocol = str(protocol)
    known = {"url", "schema", "logprobs", *_TEXTS[protocol], *_NUMBERS}
    if unknown := sorted(set(map(str, content)) - known):
        hint = (
            ": a key is no part of a manifest, see --allow-remote URL=KEYFILE" if "key" in unknown[0] else ""
        )
        raise ValueError(f"'remote' has no {unknown[0]!r}{hint}; there are {', '.join(sorted(known))}")
    values: dict[str, Any] = {name: _text(content, name) for name in _TEXTS[protocol]}
    values |= {name: _number(content, name) for name in _NUMBERS if content.get(name) is not None}
    if not isinstance(content.get("logprobs", True), bool):
        raise ValueError("'remote.logprobs' must be true or false")
    spec = RemoteSpec(
        protocol,
        str(Endpoint.parse(content.get("url"))),
        schema=_schema(content.get("schema"), manifest),
        logprobs=content.get("logprobs", True),
        **values,
    )
    return _checked(spec, manifest)


def remote_sha256(manifest: Mapping[str, Any]) -> str:
    """What stands in the place of a hash of weights: that of where the model is and how it is asked."""
    said = [manifest.get("remote"), manifest.get("outputs"), manifest.get("classes")]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def placeholders(template: str) -> list[str]:
    """The names in {{…}} of a template, in order."""
    return PLACE.findall(template)


def _checked(spec: RemoteSpec, manifest: Mapping[str, Any]) -> RemoteSpec:
    if spec.protocol == "oip":
        if spec.datatype not in OIP_DATATYPES:
            raise ValueError(f"'remote.datatype' must be one of {', '.join(OIP_DATATYPES[1:])}")
        return spec
    if not spec.model:
        raise ValueError("'remote.model' is missing: what the endpoint calls the model")
    given = manifest.get("input")
    is_row = isinstance(given, Mapping) and given.get("form") == "row"
    names = {*_columns(given), "row"} if is_row else {"text"}
    if unknown := [name for name in placeholders(spec.prompt) if name not in names]:
        raise ValueError(f"'remote.prompt' has no value for {{{{{unknown[0]}}}}}; there are {sorted(names)}")
    return spec


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name, "")
    if isinstance(value, int) and name == "version" and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or len(value) > _MOST_TEXT_CHARS:
        raise ValueError(f"'remote.{name}' must be a text, not {str(value)[:100]!r}")
    if name == "version" and not re.fullmatch(r"[A-Za-z0-9_.-]{0,100}", value):
        raise ValueError(f"'remote.version' must be a number or a name, not {value[:100]!r}")
    return value


def _number(content: Mapping[str, Any], name: str) -> float:
    value, (least, most) = content[name], _NUMBERS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not least <= value <= most or (name in _WHOLE and value != int(value)):
        kind = "a whole number" if name in _WHOLE else "a number"
        raise ValueError(f"'remote.{name}' must be {kind} from {least:g} to {most:g}, not {value!r}")
    return int(value) if name in _WHOLE else float(value)


def _schema(schema: object, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if schema is None:
        return None
    if manifest.get("runtime") != "openai" or manifest.get("task") != "text-generation":
        raise ValueError(
            "'remote.schema' is of a generated text; of other tasks the schema follows from them"
        )
    try:
        return check_schema(schema)
    except SchemaError as exc:
        raise ValueError(f"'remote.schema': {exc}") from exc


def _columns(given: object) -> tuple[str, ...]:
    columns = given.get("columns") if isinstance(given, Mapping) else None
    listed = columns if isinstance(columns, list) else []
    return tuple(str(each.get("name")) for each in listed if isinstance(each, Mapping))


def inputs_of(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By name, the inputs of a model at an OIP server that rows may be sent as; metadata: what it says of it.

    Of a function of paths at an ml_udf that is the one for whole pictures: it sees no files of whoever asks.
    """
    parameters = metadata.get("parameters")
    said = parameters if isinstance(parameters, dict) else {}
    forms = said.get("inputs")
    if said.get("form") == "path" and isinstance(forms, dict):
        pictures = [str(name) for name, form in forms.items() if form == "image"]
        if pictures:
            return {name: {"name": name, "datatype": "BYTES", "shape": [-1]} for name in pictures}
    return tensors_of(metadata.get("inputs"))


def tensors_of(listed: object) -> dict[str, Mapping[str, Any]]:
    """By name, the tensors of a list as the protocol has them; what is none is passed over."""
    each = listed if isinstance(listed, list) else []
    return {str(one["name"]): one for one in each if isinstance(one, Mapping) and "name" in one}
