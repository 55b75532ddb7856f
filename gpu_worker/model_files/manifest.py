"""model.json: what a stored model version says of itself. Knows its fields, not how weights are loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.regular import (
    FORMAT,
    FORMS,
    MANIFEST_FILE,
    MOST_FEATURES,
    RUNTIMES,
    read_json,
)
from gpu_worker.tasks import task_named

__all__ = ["FeaturesSpec", "InputSpec", "Manifest", "read_manifest"]

_MAX_SIDE = 4096


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What an image becomes before the network: size in pixels, then (x / 255 − mean) / std per channel.

    `form` is what SQL sends by default. Models that take no pixels have height and width 0.
    """

    form: str = "path"
    height: int = 0
    width: int = 0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class FeaturesSpec:
    """What a network gives before its classifier. output: its name in an ONNX file. width: 0 = as it is."""

    output: str = ""
    width: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model version; `weights` is a file name inside `directory`, or None where none is needed."""

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
            "input": {
                "form": self.input.form,
                "height": self.input.height,
                "width": self.input.width,
                "mean": list(self.input.mean),
                "std": list(self.input.std),
            },
            "accuracy": self.accuracy,
            "sha256": self.sha256,
        } | ({"features": asdict(self.features)} if self.features != FeaturesSpec() else {})


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
    weights = content.get("weights") or None
    if weights is not None and (
        not isinstance(weights, str)
        or os.path.basename(weights) != weights
        or weights in (".", "..")
        or "\0" in weights
    ):
        raise ValueError(f"'weights' must name a file beside it, not {weights!r}")
    sha256 = content.get("sha256") or None
    if sha256 is not None and not isinstance(sha256, str):
        raise ValueError(f"'sha256' must be a text, not {sha256!r}")
    task = str(content["task"])
    needs_classes = task_named(task).needs_classes
    classes = tuple(map(str, content["classes"] if needs_classes else content.get("classes") or ()))
    if needs_classes and not classes:
        raise ValueError("'classes' is empty")
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
        weights=weights,
        sha256=sha256,
        accuracy=float(content.get("accuracy") or 0.0),
        architecture_options=options,
        features=_parse_features(content.get("features") or {}),
    )


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
    )
    if spec.form not in FORMS:
        raise ValueError(f"'input.form' is {spec.form!r}, and only {', '.join(FORMS)} are known")
    if not (0 <= spec.height <= _MAX_SIDE and 0 <= spec.width <= _MAX_SIDE):
        raise ValueError(f"'input' asks for {spec.width}×{spec.height} pixels; {_MAX_SIDE} a side at most")
    if 0.0 in spec.std:
        raise ValueError("'input.std' holds a zero")
    return spec


def _channels(
    content: dict[str, Any], key: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    values = tuple(map(float, content.get(key) or default))
    if len(values) != 3 or not all(map(math.isfinite, values)):
        raise ValueError(f"'input.{key}' needs three numbers, one per channel")
    return values[0], values[1], values[2]
