"""The servers that are compared: where each comes from, how it is started and how it is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

OURS = "ours"
FRONTS = {OURS: "python", "ours, native": "native"}  # ours, by what reads the connections
_FUNCTION = "photo"
_INFER = f"/v2/models/{_FUNCTION}/infer"
_BOUNDARY = "photo-boundary"


@dataclass(frozen=True)
class Contender:
    """`request` makes the HTTP request for a photo, `label` reads the answer out of a reply's body."""

    name: str
    packages: tuple[str, ...]
    request: Callable[[bytes], bytes]
    label: Callable[[bytes], str]
    interpreter: str = sys.executable
    urgent: Callable[[bytes, int], bytes] | None = (
        None  # the same with a deadline in ms, where there are such
    )


def _post(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _raw(path: str, **headers: str) -> Callable[[bytes], bytes]:
    named = {"Content-Type": "application/octet-stream"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda photo: _post(path, photo, named)


def _form(path: str, field: str) -> Callable[[bytes], bytes]:
    def request(photo: bytes) -> bytes:
        head = (
            f"--{_BOUNDARY}\r\n"
            f'Content-Disposition: form-data; name="{field}"; filename="photo.jpg"\r\n'
            "Content-Type: image/jpeg\r\n\r\n"
        )
        body = head.encode() + photo + f"\r\n--{_BOUNDARY}--\r\n".encode()
        return _post(path, body, {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"})

    return request


def _oip_label(body: bytes) -> str:
    """The first output's first row: the JSON part ends where the braces do, then u32 length and bytes."""
    _, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    length = int.from_bytes(body[end : end + 4], "little")
    return body[end + 4 : end + 4 + length].decode()


def _json_label(body: bytes) -> str:
    answer = json.loads(body)
    return str(answer["label"] if isinstance(answer, dict) else answer)


def _listed_label(body: bytes) -> str:
    (label,) = json.loads(body)
    return str(label)


def _oip_urgent(photo: bytes, deadline_ms: int) -> bytes:
    """The binary form, whose head has room for the protocol's own `timeout`, in µs."""
    tensor = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": 4 + len(photo)},
    }
    parameters = {"binary_data_output": True, "timeout": 1000 * deadline_ms}
    head = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
    body = head + len(photo).to_bytes(4, "little") + photo
    return _post(_INFER, body, {"Inference-Header-Content-Length": str(len(head))})


_RAW_OIP = _raw(_INFER, Inference_Header_Content_Length="0")

CONTENDERS = (
    *(Contender(name, (), _RAW_OIP, _oip_label, urgent=_oip_urgent) for name in FRONTS),
    Contender("mosec", ("mosec==0.9.8",), _raw("/inference"), _json_label),
    Contender(
        "litserve", ("litserve==0.2.19", "python-multipart==0.0.32"), _form("/predict", "image"), _json_label
    ),
    Contender("bentoml", ("bentoml==1.4.38",), _form("/classify", "images"), _listed_label),
    Contender("ray", ("ray[serve]==2.60.0",), _raw("/"), bytes.decode),
    # Its Python stub does not run under every build of CPython 3.11; it does under Debian's own.
    Contender("triton", ("nvidia-pytriton==0.7.0",), _RAW_OIP, _oip_label, "/usr/bin/python3.11"),
)
