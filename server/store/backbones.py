"""Which registered model a head stands on, and whether it is still the one. Blocking: reads model.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpu_worker.model_files.backbone import Backbone, backbone_sha256
from gpu_worker.model_files.regular import MANIFEST_FILE, read_json
from server.catalog.catalog import Models
from server.catalog.functions import ModelVersion
from server.errors import BadOption, UnknownFunction

__all__ = ["backbone_named", "check_backbone"]

_VERSION = re.compile(r"[1-9][0-9]{0,9}")


def backbone_named(catalog: Models, said: object, form: str) -> Backbone:
    """The model on which a head is to stand: the newest of a name, "name/version", or as a job has stored it.

    form: of the rows that it must take. Raises `BadOption`, `UnknownFunction`.
    """
    told = f"{said.get('name')}/{said.get('version')}" if isinstance(said, Mapping) else said
    if not isinstance(told, str) or not told:
        raise BadOption(f"'backbone' must name a registered model, or NAME/VERSION, not {str(told)[:100]!r}")
    name, _, version = told.partition("/")
    if version and not _VERSION.fullmatch(version):
        raise BadOption(f"'backbone' must be NAME or NAME/VERSION, not {told[:100]!r}")
    model = catalog.model(name, int(version) if version else None)
    if model.endpoint or model.backbone is not None:
        what = "behind another server" if model.endpoint else "a head itself"
        raise BadOption(f"the model {model.key} is {what}, and no head can stand on it")
    if model.input.form != form:
        raise BadOption(f"the model {model.key} takes {model.input.form}, and the rows are {form}")
    found = Backbone(model.name, model.version, backbone_sha256(_manifest(model)))
    if isinstance(said, Mapping) and said.get("sha256") not in (None, found.sha256):
        raise BadOption(f"the model {model.key} was replaced since: name another version, or train anew")
    return found


def check_backbone(catalog: Models, head: ModelVersion) -> None:
    """Raises `BadOption` where a head's backbone is not registered here, or is another one."""
    wanted = head.backbone
    if wanted is None:
        return
    try:
        model = catalog.model(wanted.name, wanted.version)
    except UnknownFunction:
        raise BadOption(
            f"{head.key} is a head on the model {wanted.key}, which is not here; register that first"
        ) from None
    if backbone_sha256(_manifest(model)) != wanted.sha256:
        raise BadOption(
            f"{head.key} was trained on another model than the {wanted.key} that is registered here; "
            "register the former one under a version of its own, or train again"
        )


def _manifest(model: ModelVersion) -> dict[str, Any]:
    try:
        return read_json(model.directory / MANIFEST_FILE)
    except ValueError as exc:
        raise BadOption(f"the model {model.key} cannot be read: {exc}") from exc
