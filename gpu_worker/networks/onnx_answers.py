"""What a task is made of, out of what an ONNX graph answers: outputs by their names, and what is left to do.

Scikit-learn's classifiers answer a list of dictionaries (ZipMap), networks of pictures answer [n, c, 1, 1],
and a classifier of two classes may answer one number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.box_layouts import BoxRules, boxes_from
from gpu_worker.networks.network import Floats, activated
from gpu_worker.tasks import Task, task_named
from gpu_worker.tasks.task import Activation, Reads

__all__ = ["Answers", "Pass"]

# Runs the graph for these outputs: the arrays, or lists of dictionaries, that it answers.
Pass = Callable[[Sequence[str]], Sequence[Any]]


class Answers:
    """By what is read of a network, the outputs that give it, and how. Raises `ModelUnusable`.

    known: names that outputs have where nobody says which, by what is read of them. activation: what makes
    probabilities where the manifest does not say; None = that of the task.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        manifest: Manifest,
        path: str,
        known: Mapping[Reads, Sequence[str]] = MappingProxyType({}),
        activation: Activation | None = None,
    ) -> None:
        self._path = path
        self._manifest = manifest
        self._names = [str(output.name) for output in session.get_outputs()]
        self.task: Task = task_named(manifest.task)
        said = manifest.outputs
        self._activation: Activation = said.activation or activation or self.task.activation  # type: ignore[assignment]  # one of them
        features = said.features or manifest.features.output
        self._known = known
        self._outputs: dict[Reads, tuple[str, ...]] = {}
        if features:
            self._outputs["features"] = (self._checked(features, "features"),)
        reads = self.task.reads
        own = {
            "scores": (said.scores,),
            "values": (said.values,),
            "boxes": said.boxes,
            "features": (features,),
        }
        if reads not in own:
            raise ModelUnusable(f"{path}: a graph gives no {reads}, of which {self.task.name} is made")
        names = tuple(name for name in own[reads] if name)
        self._outputs[reads] = tuple(self._checked(name, reads) for name in names) or self._guessed(reads)

    @property
    def gives(self) -> frozenset[Reads]:
        """What can be read of the graph."""
        return frozenset(self._outputs)

    def read(self, reads: Reads, run: Pass, rows: int, size: tuple[int, int] = (0, 0)) -> Floats:
        """float32 [rows, width]; not of that shape where the graph does not answer so. size: (H, W)."""
        found = [_plain(each, self._manifest.classes) for each in run(self._outputs[reads])]
        if reads == "boxes":
            return self._boxes(found, rows, size)
        lines = _lines(found[0], rows)
        if reads == "values":
            return lines.reshape(rows, -1) if lines.shape[:1] == (rows,) else lines
        if reads == "features":
            return lines
        return _of_both(activated(lines, self._activation), len(self._manifest.classes))

    def _boxes(self, found: list[NDArray[Any]], rows: int, size: tuple[int, int]) -> Floats:
        said = self._manifest.outputs
        if not said.layout:
            floats: Floats = np.asarray(found[0], np.float32)
            return floats.reshape(rows, -1) if floats.shape[:1] == (rows,) else floats
        try:
            return boxes_from(said.layout, found, BoxRules(size, said.threshold, said.overlap))
        except ValueError as exc:
            raise ModelUnusable(f"{self._path}: {exc}") from exc

    def _checked(self, name: str, reads: str) -> str:
        if name not in self._names:
            raise ModelUnusable(
                f"{self._path} has no output {name!r} for its {reads}; there are {', '.join(self._names)}"
            )
        return name

    def _guessed(self, reads: Reads) -> tuple[str, ...]:
        others = [name for name in self._names if (name,) not in self._outputs.values()]
        for name in self._known.get(reads, ()):
            if name in others:
                return (name,)
        if reads == "boxes" and self._manifest.outputs.layout:
            return tuple(others)
        if len(others) == 1:
            return (others[0],)
        field = "features.output" if reads == "features" else f"outputs.{reads}"
        raise ModelUnusable(
            f"{self._path} has the outputs {', '.join(self._names)}; say in model.json, {field!r}, "
            f"which of them gives the {reads}"
        )


def _plain(found: Any, classes: Sequence[str]) -> NDArray[Any]:  # noqa: ANN401  # an array, or what ZipMap gives
    """An array, of a list of dictionaries too: by class, as the manifest orders them, or as they come."""
    if not isinstance(found, list):
        return np.asarray(found)
    if not found:
        return np.zeros((0, len(classes)), np.float32)
    keys = list(found[0])
    by_name = {str(key): key for key in keys}
    order = [by_name[label] for label in classes] if set(classes) == by_name.keys() else keys
    return np.array([[row[key] for key in order] for row in found], np.float32)


def _lines(found: NDArray[Any], rows: int) -> Floats:
    """[rows, width] of [rows] and [rows, width, 1, 1]; else as it is."""
    floats: Floats = np.asarray(found, np.float32)
    is_line = floats.shape[:1] == (rows,) and sum(size > 1 for size in floats.shape[1:]) <= 1
    return floats.reshape(rows, -1) if is_line else floats


def _of_both(scores: Floats, classes: int) -> Floats:
    """Of two classes, of which a graph says how likely the second one is."""
    if classes == 2 and scores.ndim == 2 and scores.shape[1] == 1:
        return np.concatenate([1 - scores, scores], axis=1)
    return scores
