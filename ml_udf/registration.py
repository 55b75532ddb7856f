"""A model's manifest and files → `POST /register`, which answers with the version that it became."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ml_udf.client import Client
from ml_udf.client.transport import HttpRequest

__all__ = ["register_model"]

_LONG_S = 3600.0  # large files over a slow network


def register_model(
    client: Client, manifest: Mapping[str, Any], content_of: Callable[[str], bytes]
) -> dict[str, Any]:
    """Uploads a model as the next version of its name. content_of: a file's, by its name in the manifest.

    Raises the errors of `ml_udf.errors`.
    """
    content = {field: value for field, value in manifest.items() if field != "version"}
    names = [file["name"] for file in manifest.get("files") or ()] or [manifest.get("weights")]
    boundary = uuid.uuid4().hex
    parts = [_part(boundary, "manifest", None, json.dumps(content).encode())]
    for place, name in enumerate(filter(None, names)):
        parts.append(_part(boundary, "files" if place else "weights", name, content_of(name)))
    body = b"".join([*parts, f"--{boundary}--\r\n".encode()])
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return client.ask(HttpRequest("POST", "/register", body, headers), timeout_s=_LONG_S)


def _part(boundary: str, field: str, name: str | None, content: bytes) -> bytes:
    file = "" if name is None else f'; filename="{name}"'
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"{file}\r\n'
    kind = "" if name is None else "Content-Type: application/octet-stream\r\n"
    return f"{head}{kind}\r\n".encode() + content + b"\r\n"
