"""The files of a model version, as its manifest lists them: `files`, or `weights` and `sha256` alone.

Standard library only: the server reads manifests by this module too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_worker.model_files.regular import MANIFEST_FILE

__all__ = ["MOST_FILES", "PICKLES", "WEIGHTS", "ModelFile", "files_from"]

WEIGHTS: Final = "weights"
"""The role of the file that holds a model's numbers; its others have words of their runtime."""

MOST_FILES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
# Whoever reads such a file runs what whoever wrote it has put in.
PICKLES: Final = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
_ROLE: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file beside model.json. sha256: "" while it is not known. role: what its runtime wants of it."""

    name: str
    sha256: str = ""
    role: str = WEIGHTS

    def to_json(self) -> dict[str, Any]:
        """The file as `files` lists it."""
        return {"name": self.name, "sha256": self.sha256, "role": self.role}


def files_from(manifest: Mapping[str, Any]) -> tuple[ModelFile, ...]:
    """The files of a manifest; none of a model that needs none. Raises `ValueError` with the field.

    `weights` and `sha256` are the first of them, and may say it alone, or once more.
    """
    weights, sha256 = manifest.get("weights") or "", manifest.get("sha256") or ""
    if not isinstance(sha256, str) or (sha256 and not _SHA256.fullmatch(sha256)):
        raise ValueError(f"'sha256' must be 64 hexadecimal digits, not {str(sha256)[:100]!r}")
    listed = manifest.get("files")
    if not listed:
        return (ModelFile(_name(weights, "weights"), sha256.lower()),) if weights else ()
    if not isinstance(listed, list) or len(listed) > MOST_FILES:
        raise ValueError(f"'files' must be a list of at most {MOST_FILES} files")
    files = tuple(_file(entry) for entry in listed)
    names = [file.name for file in files]
    if len(set(names)) != len(names):
        raise ValueError("'files' names a file twice")
    if weights and weights != files[0].name:
        raise ValueError(f"'weights' names {weights!r}, and the first of 'files' is {files[0].name!r}")
    first = files[0].sha256
    if sha256 and first and sha256.lower() != first:
        raise ValueError("'sha256' is not that of the first of 'files'")
    return (ModelFile(files[0].name, first or sha256.lower(), files[0].role), *files[1:])


def _file(entry: object) -> ModelFile:
    if not isinstance(entry, Mapping):
        raise ValueError("each of 'files' must be an object with a 'name'")
    sha256, role = entry.get("sha256") or "", entry.get("role", WEIGHTS)
    name = _name(entry.get("name"), "files.name")
    if not isinstance(sha256, str) or (sha256 and not _SHA256.fullmatch(sha256)):
        raise ValueError(f"'sha256' of the file {name} must be 64 hexadecimal digits")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise ValueError(f"'role' of the file {name} must be a word, not {str(role)[:100]!r}")
    return ModelFile(name, sha256.lower(), role)


def _name(value: object, field: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value == MANIFEST_FILE:
        raise ValueError(
            f"{field!r} must name a file beside it, with letters, digits, '_', '-' and '.', "
            f"not {str(value)[:100]!r}"
        )
    if value.lower().endswith(PICKLES):
        raise ValueError(
            f"{field!r} is {value!r}: a pickle by its name, which runs code when it is read; "
            "store the weights as safetensors or ONNX"
        )
    return value
