"""model.json, read and checked: what docs/architecture.md says of it, field by field.

Pure. Knows no folder but the one it is given; raises `BadOption` with the field that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.model_files.backbone import backbone_from, backbone_sha256
from gpu_worker.model_files.file_list import files_from
from gpu_worker.model_files.outputs import outputs_from
from gpu_worker.model_files.parity_spec import parity_from
from gpu_worker.model_files.preprocess import preprocess_from
from gpu_worker.model_files.regular import COLUMN_KINDS, FORMAT, FORMS, MOST_FEATURES, RUNTIMES
from gpu_worker.model_files.remote_spec import remote_from
from gpu_worker.model_files.run_spec import run_from
from gpu_worker.tasks import Task, task_named
from gpu_worker.tasks.thresholds import thresholds_from
from gpu_worker.wire.columns import JSON
from server.catalog.functions import InputShape, ModelVersion
from server.catalog.variants import base_of, is_variant, variant_model, variant_of
from server.errors import BadOption

__all__ = ["check_model_name", "check_name", "model_from_manifest"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST_CHARACTERS = 100


def check_name(name: object, what: str) -> str:
    """`name` if it can name a model or a function, and so a folder and a URL part. Raises `BadOption`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadOption(
            f"{what} {str(name)[:100]!r} is not a name: up to 100 letters, digits, '_', '-', '.', "
            "not beginning with '-' or '.'"
        )
    return name


def check_model_name(name: object, what: str) -> str:
    """`name` if it can name a model, or a variant of one. Raises `BadOption`."""
    if not isinstance(name, str) or not is_variant(name):
        return check_name(name, what)
    try:
        is_whole = variant_model(base_of(name), variant_of(name)) == name
    except ValueError as exc:
        raise BadOption(f"{what} {name[:100]!r} is not a name: {exc}") from exc
    if not is_whole:
        raise BadOption(f"{what} {name[:100]!r} is not a name: it names no variant")
    check_name(base_of(name), what)
    if len(name) > _MOST_CHARACTERS:
        raise BadOption(f"{what} {name[:100]!r} is longer than {_MOST_CHARACTERS} characters")
    return name


def model_from_manifest(manifest: Mapping[str, Any], directory: Path) -> ModelVersion:
    """The model version that a manifest describes. Raises `BadOption`."""
    if manifest.get("format") != FORMAT:
        raise BadOption(f"model.json: 'format' must be {FORMAT}, not {manifest.get('format')!r}")
    name = check_model_name(manifest.get("name"), "model.json: 'name'")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 2**31 - 1:
        raise BadOption(f"model.json of {name}: 'version' must be a whole number from 1, not {version!r}")
    runtime = manifest.get("runtime", "torch")
    if runtime not in RUNTIMES:
        raise BadOption(f"model.json of {name}: 'runtime' must be one of {RUNTIMES}, not {runtime!r}")
    try:
        files = files_from(manifest)
        outputs_from(manifest.get("outputs"))
        remote = remote_from(manifest)
        backbone = backbone_from(manifest)
        run_from(manifest)
        parity = parity_from(manifest)
    except ValueError as exc:
        raise BadOption(f"model.json of {name}: {exc}") from exc
    task = task_named(_text(manifest, "task", name))
    classes = _classes(manifest.get("classes"), name, task)
    return ModelVersion(
        name=name,
        version=version,
        task=task.name,
        classes=classes,
        input=_input(manifest.get("input"), name),
        accuracy=_accuracy(manifest.get("accuracy", 0.0), name),
        directory=directory,
        runtime=runtime,
        architecture=str(manifest.get("architecture") or ""),
        sha256=files[0].sha256 if files else str(manifest.get("sha256") or ""),
        files=files,
        features=_features(manifest.get("features"), name, task),
        endpoint="" if remote is None else remote.url,
        concurrency=0 if remote is None else remote.concurrency,
        backbone=backbone,
        as_backbone=backbone_sha256(manifest),
        parity=parity,
        score=_score(manifest.get("score"), name),
        thresholds=_thresholds(manifest.get("thresholds"), classes, name),
        **_trained(manifest.get("trained")),
        content=_content(manifest.get("content"), name, is_json=remote is not None and bool(remote.schema)),
    )


def _trained(raw: object) -> dict[str, Any]:
    """By which job, on which rows, as far as it says so."""
    told = raw if isinstance(raw, Mapping) else {}
    job, snapshot = told.get("job"), told.get("snapshot")
    is_known = type(job) is int and job > 0 and isinstance(snapshot, str)
    return {"job": job, "snapshot": snapshot} if is_known else {}


def _text(manifest: Mapping[str, Any], field: str, name: str) -> str:
    value = manifest.get(field)
    if not isinstance(value, str) or not 1 <= len(value) <= 100:
        raise BadOption(f"model.json of {name}: {field!r} must be a text of up to 100 characters")
    return value


def _features(raw: object, name: str, task: Task) -> int:
    """How many numbers its features are, where it is said; it must be where its own task is made of them."""
    if raw is not None and not isinstance(raw, dict):
        raise BadOption(f"model.json of {name}: 'features' must be an object, such as {{\"width\": 512}}")
    width = (raw or {}).get("width")
    if width is None and not task.needs_features:
        return 0
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= MOST_FEATURES:
        raise BadOption(
            f"model.json of {name}: 'features.width' must be a whole number from 1 to {MOST_FEATURES}, "
            f"not {width!r}"
        )
    return width


def _classes(raw: object, name: str, task: Task) -> tuple[str, ...]:
    if not raw and not task.needs_classes:
        return ()
    if not isinstance(raw, list) or not raw or not all(isinstance(label, str) and label for label in raw):
        raise BadOption(f"model.json of {name}: 'classes' must be a list of texts, none of them empty")
    if len(set(raw)) != len(raw):
        raise BadOption(f"model.json of {name}: 'classes' names a class twice")
    return tuple(raw)


def _thresholds(raw: object, classes: tuple[str, ...], name: str) -> dict[str, float]:
    """By class, from which score on it is answered; only of those that do not have their task's."""
    try:
        return thresholds_from(raw, classes)
    except ValueError as exc:
        raise BadOption(f"model.json of {name}: {exc}") from exc


def _content(raw: object, name: str, *, is_json: bool) -> str:
    if raw and raw != JSON:
        raise BadOption(f"model.json of {name}: 'content' must be {JSON!r} or left out, not {raw!r}")
    return JSON if raw or is_json else ""


def _score(raw: object, name: str) -> Mapping[str, Any] | None:
    """What it reached on held-out rows, and by which metric."""
    if raw is not None and not isinstance(raw, dict):
        raise BadOption(f'model.json of {name}: \'score\' must be an object: {{"metric": …, "value": …}}')
    return raw


def _accuracy(raw: object, name: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0.0 <= raw <= 1.0:
        raise BadOption(f"model.json of {name}: 'accuracy' must be a number from 0 to 1, not {raw!r}")
    return float(raw)


def _input(raw: object, name: str) -> InputShape:
    if not isinstance(raw, dict) or raw.get("form") not in FORMS:
        raise BadOption(f"model.json of {name}: 'input.form' must be one of {', '.join(FORMS)}")
    sizes = [raw.get(side, 0) for side in ("height", "width")]
    if not all(isinstance(size, int) and 0 <= size <= 1 << 16 for size in sizes):
        raise BadOption(f"model.json of {name}: 'input.height' and 'input.width' must be pixels")
    try:
        mean, std = (tuple(float(v) for v in raw.get(field, ())) for field in ("mean", "std"))
    except (TypeError, ValueError, OverflowError) as exc:
        raise BadOption(
            f"model.json of {name}: 'input.mean' and 'input.std' must be lists of numbers"
        ) from exc
    try:
        preprocess = preprocess_from(raw.get("preprocess"))
    except ValueError as exc:
        raise BadOption(f"model.json of {name}: {exc}") from exc
    return InputShape(raw["form"], sizes[0], sizes[1], mean, std, _columns(raw, name), preprocess)


def _columns(raw: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    """Those of a row of a table; none for other inputs."""
    if raw["form"] != "row":
        return ()
    given = raw.get("columns")
    if not isinstance(given, list) or not given:
        raise BadOption(f"model.json of {name}: 'input.columns' must list the columns of a row")
    columns = []
    for column in given:
        if (
            not isinstance(column, dict)
            or not isinstance(column.get("name"), str)
            or not column["name"]
            or column.get("kind") not in COLUMN_KINDS
        ):
            raise BadOption(
                f"model.json of {name}: each of 'input.columns' needs a 'name' and a 'kind', "
                f"one of {', '.join(COLUMN_KINDS)}"
            )
        columns.append((column["name"], column["kind"]))
    return tuple(columns)
