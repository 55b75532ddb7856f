"""Which of a network's outputs an answer is made of, and what is still to be done to it: `outputs`.

Pure, standard library only: the server reads manifests by this module too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = ["ACTIVATIONS", "LAYOUTS", "OutputSpec", "outputs_from"]

ACTIVATIONS: Final = ("softmax", "sigmoid", "none")
# How boxes lie in a network's outputs (gpu_worker/networks/box_layouts.py).
LAYOUTS: Final = ("corners", "yolo", "yolov5", "separate", "detr", "centerface", "text_map")
_MOST_NAME_CHARS: Final = 500
_MOST_OUTPUTS: Final = 16


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Names of outputs of an ONNX graph, "" where the only one, or the file itself, says which.

    activation: what makes probabilities of the scores; "" = softmax, or sigmoid where classes do not exclude
    one another. boxes: the outputs that `layout` reads. threshold: the least score of a box; overlap: of two
    boxes, as intersection over union, from which the lesser one is left out (1 = never).
    """

    scores: str = ""
    features: str = ""
    values: str = ""
    boxes: tuple[str, ...] = ()
    activation: str = ""
    layout: str = ""
    threshold: float = 0.25
    overlap: float = 0.45

    def to_json(self) -> dict[str, Any]:
        """The fields that say something: {} of one that says nothing."""
        silent = asdict(OutputSpec())
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != silent[name]
        }


def outputs_from(content: object) -> OutputSpec:
    """What `outputs` of a manifest says; None says nothing. Raises `ValueError` with the field."""
    silent = OutputSpec()
    if content is None:
        return silent
    if not isinstance(content, Mapping):
        raise ValueError("'outputs' is not an object")
    unknown = sorted(set(map(str, content)) - set(asdict(silent)))
    if unknown:
        raise ValueError(f"'outputs' has no {unknown[0]!r}; there are {', '.join(asdict(silent))}")
    return OutputSpec(
        scores=_name(content.get("scores", ""), "scores"),
        features=_name(content.get("features", ""), "features"),
        values=_name(content.get("values", ""), "values"),
        boxes=_names(content.get("boxes", ())),
        activation=_one_of(content.get("activation", ""), "activation", ACTIVATIONS),
        layout=_one_of(content.get("layout", ""), "layout", LAYOUTS),
        threshold=_share(content.get("threshold", silent.threshold), "threshold"),
        overlap=_share(content.get("overlap", silent.overlap), "overlap"),
    )


def _name(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_NAME_CHARS:
        raise ValueError(f"'outputs.{field}' must be the name of an output, not {str(value)[:100]!r}")
    return value


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_name(value, "boxes"),)
    if not isinstance(value, list | tuple) or len(value) > _MOST_OUTPUTS:
        raise ValueError("'outputs.boxes' must list names of outputs")
    return tuple(_name(each, "boxes") for each in value)


def _one_of(value: object, field: str, known: tuple[str, ...]) -> str:
    if value and value not in known:
        raise ValueError(f"'outputs.{field}' must be one of {', '.join(known)}, not {value!r}")
    return str(value or "")


def _share(value: object, field: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"'outputs.{field}' must be a number from 0 to 1, not {value!r}")
