"""The frozen network that a head stands on, as model.json names it: `backbone`.

A head is a small model over another model's features. It names that one by name and version, and by a hash of
all that its features depend on, so that one that was replaced is never taken for what the head has learnt on.
Standard library only: the server reads manifests by this module too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["HEAD", "Backbone", "backbone_from", "backbone_sha256"]

HEAD: Final = "head"
"""The runtime of models that have a backbone."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# What of model.json decides a row's features; its files count by their hashes.
_DECIDES: Final = ("runtime", "architecture", "architecture_options", "input", "features", "outputs")


@dataclass(frozen=True, slots=True)
class Backbone:
    """A version of a model that stands beside the head. sha256: of `backbone_sha256`."""

    name: str
    version: int
    sha256: str

    @property
    def key(self) -> str:
        """As models are called."""
        return f"{self.name}/{self.version}"

    def to_json(self) -> dict[str, Any]:
        """As model.json has it."""
        return {"name": self.name, "version": self.version, "sha256": self.sha256}


def backbone_from(manifest: Mapping[str, Any]) -> Backbone | None:
    """That of a manifest; None of a model that is no head. Raises `ValueError` with the field."""
    said, is_head = manifest.get("backbone"), manifest.get("runtime") == HEAD
    if said is None and not is_head:
        return None
    if not is_head:
        raise ValueError(f"'backbone' is for models of the runtime {HEAD!r}")
    if not isinstance(said, Mapping):
        raise ValueError(
            'a head needs its \'backbone\': {"name": …, "version": …, "sha256": …}, a model of features'
        )
    name, version, sha256 = (said.get(field) for field in ("name", "version", "sha256"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"'backbone.name' must name a model, not {str(name)[:100]!r}")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 2**31 - 1:
        raise ValueError(f"'backbone.version' must be a whole number from 1, not {str(version)[:100]!r}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError("'backbone.sha256' must be 64 hexadecimal digits")
    return Backbone(name, version, sha256)


def backbone_sha256(manifest: Mapping[str, Any]) -> str:
    """The hash by which heads know a model: of its files, and of what of model.json decides its features."""
    listed = manifest.get("files") or [{"name": manifest.get("weights"), "sha256": manifest.get("sha256")}]
    files = sorted((str(file.get("name")), str(file.get("sha256") or "").lower()) for file in listed)
    told = {"files": files} | {field: manifest.get(field) or None for field in _DECIDES}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
