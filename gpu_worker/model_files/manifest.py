"""model.json: what a stored model version says of itself. Knows its fields, not how weights are loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.backbone import Backbone, backbone_from, backbone_sha256
from gpu_worker.model_files.file_list import ModelFile, files_from
from gpu_worker.model_files.outputs import OutputSpec, outputs_from
from gpu_worker.model_files.parity_spec import ParitySpec, parity_from
from gpu_worker.model_files.preprocess import MOST_SIDE, PLAIN, Frame, Preprocess, preprocess_from
from gpu_worker.model_files.regular import (
    COLUMN_KINDS,
    FORMAT,
    FORMS,
    MANIFEST_FILE,
    MOST_FEATURES,
    RUNTIMES,
    read_json,
)
from gpu_worker.model_files.remote_spec import RemoteSpec, remote_from
from gpu_worker.model_files.run_spec import AS_IT_IS, RunSpec, run_from
from gpu_worker.tasks import Task, task_named
from gpu_worker.tasks.thresholds import thresholds_from, thresholds_of
from gpu_worker.wire.columns import JSON

__all__ = ["FeaturesSpec", "InputSpec", "Manifest", "read_manifest"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What an input becomes before the network: of a picture, (x · scale − mean) / std per channel.

    `form` is what SQL sends by default. Models that take no pixels have height and width 0. columns: (name,
    kind) of each value of a table's row, where the manifest lists them.
    """

    form: str = "path"
    height: int = 0
    width: int = 0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    preprocess: Preprocess = PLAIN
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def frame(self) -> Frame:
        """How a picture becomes the pixels that the network takes."""
        return self.preprocess.frame(self.height, self.width)

    def to_json(self) -> dict[str, Any]:
        """The `input` of model.json."""
        content: dict[str, Any] = {
            "form": self.form,
            "height": self.height,
            "width": self.width,
            "mean": list(self.mean),
            "std": list(self.std),
        }
        if self.preprocess != PLAIN:
            content["preprocess"] = self.preprocess.to_json()
        if self.columns:
            content["columns"] = [{"name": name, "kind": kind} for name, kind in self.columns]
        return content


@dataclass(frozen=True, slots=True)
class FeaturesSpec:
    """What a network gives before its classifier. output: its name in an ONNX file. width: 0 = as it is."""

    output: str = ""
    width: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model version; `weights` is a file name inside `directory`, or None where none is needed.

    files: all of them, the weights first; where it is left out, the weights alone.
    thresholds: of the classes that do not have their task's; content: of what it writes, "" for plain text.
    as_backbone: the hash by which heads know it, where it was read.
    """

    directory: str
    name: str
    version: int
    task: str
    runtime: str
    architecture: str
    classes: tuple[str, ...]
    input: InputSpec
    weights: str | None = None
    sha256: str | None = None
    accuracy: float = 0.0
    architecture_options: Mapping[str, Any] = field(default_factory=dict)
    features: FeaturesSpec = FeaturesSpec()
    outputs: OutputSpec = field(default_factory=OutputSpec)
    files: tuple[ModelFile, ...] = ()
    remote: RemoteSpec | None = None  # where it is, of one behind another server
    backbone: Backbone | None = None  # what it stands on, of a head
    thresholds: Mapping[str, float] = field(default_factory=dict)
    content: str = ""
    run: RunSpec = AS_IT_IS  # how it runs, of a model's variant
    parity: ParitySpec | None = None  # whose rows are groups of its model's
    as_backbone: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.files and self.weights is not None:
            object.__setattr__(self, "files", (ModelFile(self.weights, self.sha256 or ""),))

    def thresholds_of(self, task: Task) -> tuple[float, ...]:
        """By class, from which score on the task answers it; none where a row has one class."""
        return thresholds_of(task, self.classes, (self.thresholds,), {})

    def path_of(self, file: ModelFile) -> str:
        """Where one of its files lies."""
        return os.path.join(self.directory, file.name)

    def path_of_role(self, role: str) -> str:
        """The path of its file of that role. Raises `ModelUnusable` where there is none."""
        for file in self.files:
            if file.role == role:
                return self.path_of(file)
        raise ModelUnusable(f"{self.directory}/{MANIFEST_FILE}: 'files' lists none whose role is {role!r}")

    def path_of_weights(self) -> str:
        """The weights' path. Raises `ModelUnusable` when the manifest names none."""
        if self.weights is None:
            raise ModelUnusable(f"{self.directory}/{MANIFEST_FILE}: 'weights' is missing")
        return os.path.join(self.directory, self.weights)

    def to_json(self) -> dict[str, Any]:
        """The manifest as the JSON object of model.json."""
        return {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "task": self.task,
            "runtime": self.runtime,
            "architecture": self.architecture,
            "architecture_options": dict(self.architecture_options),
            "weights": self.weights,
            "classes": list(self.classes),
            "input": self.input.to_json(),
            "accuracy": self.accuracy,
            "sha256": self.sha256,
        } | {
            field: told
            for field, told, is_said in (
                ("features", asdict(self.features), self.features != FeaturesSpec()),
                ("outputs", self.outputs.to_json(), self.outputs != OutputSpec()),
                ("files", [file.to_json() for file in self.files], len(self.files) > 1),
                ("thresholds", dict(self.thresholds), bool(self.thresholds)),
                ("content", self.content, bool(self.content)),
                ("run", self.run.to_json(), self.run != AS_IT_IS),
                ("parity", self.parity and self.parity.to_json(), self.parity is not None),
                ("backbone", self.backbone and self.backbone.to_json(), self.backbone is not None),
            )
            if is_said
        }


def read_manifest(directory: str) -> Manifest:
    """The manifest of the model version stored in `directory`. Raises `ModelUnusable`."""
    path = os.path.join(directory, MANIFEST_FILE)
    try:
        content = read_json(path)
    except ValueError as exc:
        raise ModelUnusable(str(exc)) from exc
    try:
        return _parse(directory, content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        reason = f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)
        raise ModelUnusable(f"{path} is not a model manifest: {reason}") from exc


def _parse(directory: str, content: dict[str, Any]) -> Manifest:
    if content["format"] != FORMAT:
        raise ValueError(f"'format' is {content['format']!r}, and this worker reads {FORMAT}")
    runtime = str(content["runtime"])
    if runtime not in RUNTIMES:
        raise ValueError(f"'runtime' is {runtime!r}, and only {', '.join(RUNTIMES)} are known")
    files = files_from(content)
    task = str(content["task"])
    needs_classes = task_named(task).needs_classes
    classes = tuple(map(str, content["classes"] if needs_classes else content.get("classes") or ()))
    if needs_classes and not classes:
        raise ValueError("'classes' is empty")
    remote = remote_from(content)
    options = content.get("architecture_options") or {}
    if not isinstance(options, dict):
        raise ValueError("'architecture_options' is not an object")
    return Manifest(
        directory=directory,
        name=str(content["name"]),
        version=int(content["version"]),
        task=task,
        runtime=runtime,
        architecture=str(content.get("architecture") or ""),
        classes=classes,
        input=_parse_input(content.get("input") or {}),
        weights=files[0].name if files else None,
        sha256=(files[0].sha256 or None) if files else None,
        files=files,
        accuracy=float(content.get("accuracy") or 0.0),
        architecture_options=options,
        features=_parse_features(content.get("features") or {}),
        outputs=outputs_from(content.get("outputs")),
        remote=remote,
        backbone=backbone_from(content),
        thresholds=thresholds_from(content.get("thresholds"), classes),
        run=run_from(content),
        parity=parity_from(content),
        content=JSON if remote and remote.schema else _parse_content(content.get("content") or ""),
        as_backbone=backbone_sha256(content),
    )


def _parse_content(content: object) -> str:
    if content not in ("", JSON):
        raise ValueError(f"'content' must be {JSON!r} or left out, not {content!r}")
    return str(content)


def _parse_features(content: dict[str, Any]) -> FeaturesSpec:
    spec = FeaturesSpec(str(content.get("output") or ""), int(content.get("width") or 0))
    if not 0 <= spec.width <= MOST_FEATURES:
        raise ValueError(f"'features.width' must be from 1 to {MOST_FEATURES}, not {spec.width}")
    return spec


def _parse_input(content: dict[str, Any]) -> InputSpec:
    spec = InputSpec(
        form=str(content.get("form", "path")),
        height=int(content.get("height") or 0),
        width=int(content.get("width") or 0),
        mean=_channels(content, "mean", (0.0, 0.0, 0.0)),
        std=_channels(content, "std", (1.0, 1.0, 1.0)),
        preprocess=preprocess_from(content.get("preprocess")),
        columns=_parse_columns(content.get("columns") or ()),
    )
    if spec.form not in FORMS:
        raise ValueError(f"'input.form' is {spec.form!r}, and only {', '.join(FORMS)} are known")
    if not (0 <= spec.height <= MOST_SIDE and 0 <= spec.width <= MOST_SIDE):
        raise ValueError(f"'input' asks for {spec.width}×{spec.height} pixels; {MOST_SIDE} a side at most")
    if 0.0 in spec.std:
        raise ValueError("'input.std' holds a zero")
    return spec


def _parse_columns(content: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    columns = tuple((str(column["name"]), str(column["kind"])) for column in content)
    for name, kind in columns:
        if kind not in COLUMN_KINDS:
            raise ValueError(
                f"the column {name!r} is a {kind!r}, and only {', '.join(COLUMN_KINDS)} are known"
            )
    return columns


def _channels(
    content: dict[str, Any], key: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    values = tuple(map(float, content.get(key) or default))
    if len(values) != 3 or not all(map(math.isfinite, values)):
        raise ValueError(f"'input.{key}' needs three numbers, one per channel")
    return values[0], values[1], values[2]
