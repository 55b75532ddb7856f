"""The files of a model version, as the server stores them and the worker reads them.

What both must say alike stands here once: the names and words of model.json, and how such a file is opened,
read and made to last.
Standard library only: the server imports this module.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from io import BufferedReader
from typing import Any

__all__ = [
    "COLUMN_KINDS",
    "FORMAT",
    "FORMS",
    "MANIFEST_FILE",
    "MOST_FEATURES",
    "RUNTIMES",
    "file_sha256",
    "flush",
    "open_regular",
    "optimiser_file",
    "read_json",
    "read_regular",
]

MANIFEST_FILE = "model.json"
_MOST_JSON_BYTES = 8 << 20
MOST_FEATURES = 65_536  # numbers of an embedding
FORMAT = 1
FORMS = ("path", "image", "tensor", "text", "row")
RUNTIMES = ("torch", "onnx", "static", "xgboost", "lightgbm", "transformers", "timm", "head", "oip", "openai")
COLUMN_KINDS = ("number", "text", "boolean", "date", "timestamp", "timestamptz")

# O_NONBLOCK: opening a FIFO waits for somebody to write; opening a device or a terminal may do anything.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Opens a regular file and nothing else: no link, which may point anywhere, no FIFO, device or folder.

    Raises `OSError`, always with a `strerror` that says why.
    """
    _require_regular(os.lstat(path).st_mode)  # a device must not even be opened
    descriptor = os.open(path, _FLAGS)
    try:
        _require_regular(os.fstat(descriptor).st_mode)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def file_sha256(path: str) -> str:
    """The file's SHA-256, in hexadecimal. Raises `OSError` as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """What a regular file holds. Raises `ValueError`, which names the file and says why."""
    try:
        with open_regular(path) as file:
            content = file.read(most_bytes + 1)
    except OSError as exc:
        raise ValueError(f"{path} cannot be read: {exc.strerror}") from exc
    if len(content) > most_bytes:
        raise ValueError(f"{path} is too large: over {most_bytes} bytes")
    return content


def read_json(path: str | os.PathLike[str], most_bytes: int = _MOST_JSON_BYTES) -> dict[str, Any]:
    """The JSON object that a regular file holds. Raises `ValueError`, which names the file and says why."""
    text = read_regular(path, most_bytes)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def optimiser_file(checkpoint: str) -> str:
    """Where the optimiser's state of a paused trial lies: beside its weights."""
    return f"{checkpoint}.optimiser"


def flush(path: str | os.PathLike[str]) -> None:
    """Returns when a file's content, or the names in a folder, are on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no file"
        raise OSError(None, f"it is not a regular file but {kind}")
