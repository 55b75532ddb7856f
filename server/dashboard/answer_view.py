"""One row's answer as a page shows it, whatever the task. Pure: from columns to plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpu_worker.tasks import Task
from gpu_worker.wire.columns import JSON, Column

__all__ = ["AnswerView", "Box", "Kind", "Scored", "answer_of", "kind_of"]

Kind = Literal["class", "labels", "number", "vector", "boxes", "text"]

_SCORES = 5
_NUMBERS = 12
_BOXES = 30
_SURE_BOX = 0.25  # below which a box is drawn only where there is no surer one


@dataclass(frozen=True, slots=True)
class Scored:
    """A class and how probable it is."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Box:
    """Something in a picture, in the picture's own pixels."""

    label: str
    score: float
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class AnswerView:
    """value: in one line · scores: the most probable first · numbers: the first of `size`, and their norm"""

    kind: Kind
    value: str
    confidence: float | None = None
    scores: tuple[Scored, ...] = ()
    low: float | None = None
    high: float | None = None
    numbers: tuple[float, ...] = ()
    size: int = 0
    norm: float = 0.0
    boxes: tuple[Box, ...] = ()
    more_boxes: int = 0


def kind_of(task: Task) -> Kind:
    """How answers of a task are shown."""
    if task.value.content == JSON:  # objects of a pipeline
        return "boxes"
    if task.reads == "scores":
        return "class" if task.picks_one else "labels"
    kinds: Mapping[str, Kind] = {
        "features": "vector",
        "values": "number",
        "boxes": "boxes",
        "texts": "text",
    }
    return kinds[task.reads]


def answer_of(task: Task, classes: Sequence[str], columns: Mapping[str, Column]) -> AnswerView:
    """The only row of these columns. classes: in the order of `scores`."""
    kind = kind_of(task)
    value = columns.get(task.value.name)
    first = value.values[0] if value is not None and value.rows else None
    if kind == "class":
        return _class(first, columns, _scores(classes, columns))
    if kind == "labels":
        labels = _parsed(first)
        return AnswerView(kind, ", ".join(map(str, labels)) or "none", scores=_scores(classes, columns))
    if kind == "number":
        low, high = (_number(columns.get(name)) for name in ("low", "high"))
        return AnswerView(kind, f"{float(first or 0.0):.6g}", low=low, high=high)
    if kind == "vector":
        numbers = [] if value is None else [float(each) for each in value.values]
        norm = math.sqrt(sum(each * each for each in numbers))
        return AnswerView(
            kind, f"{len(numbers)} numbers", numbers=tuple(numbers[:_NUMBERS]), size=len(numbers), norm=norm
        )
    if kind == "boxes":
        return _boxes(_parsed(first))
    return AnswerView(kind, str(first or ""))


def _class(first: Any, columns: Mapping[str, Column], scores: tuple[Scored, ...]) -> AnswerView:  # noqa: ANN401  # a column's
    confidence = _number(columns.get("confidence"))
    if not first and scores:  # a member that was asked for its scores alone
        return AnswerView("class", scores[0].label, scores[0].score, scores)
    if confidence is None and scores:
        confidence = scores[0].score
    return AnswerView("class", str(first or ""), confidence, scores)


def _scores(classes: Sequence[str], columns: Mapping[str, Column]) -> tuple[Scored, ...]:
    column = columns.get("scores")
    if column is None or len(column.values) != len(classes):
        return ()
    ranked = sorted(zip(column.values, classes, strict=True), key=lambda pair: -pair[0])
    return tuple(Scored(label, float(score)) for score, label in ranked[:_SCORES])


def _number(column: Column | None) -> float | None:
    if column is None or not column.rows:
        return None
    number = float(column.values[0])
    return number if math.isfinite(number) else None


def _parsed(text: object) -> list[Any]:
    found = json.loads(text) if isinstance(text, str) and text else []
    return found if isinstance(found, list) else []


def _said_of(box: Mapping[str, Any]) -> str:
    """What a box is called: by what a later stage said of it in a word or a number, where one did."""
    said = box.get("answer") or {}
    found = said.get("label", said.get("labels", said.get("value")))
    if isinstance(found, list):
        return ", ".join(map(str, found))
    if isinstance(found, float):
        return f"{found:.6g}"
    return str(box["label"] if found is None else found)


def _boxes(found: Sequence[Mapping[str, Any]]) -> AnswerView:
    boxes = []
    for each in found:
        x0, y0, x1, y1 = map(float, each["box"])
        boxes.append(Box(_said_of(each), float(each["score"]), x0, y0, x1 - x0, y1 - y0))
    boxes.sort(key=lambda box: -box.score)
    sure = [box for box in boxes if box.score >= _SURE_BOX] or boxes[:3]
    drawn = tuple(sure[:_BOXES])
    named: dict[str, int] = {}
    for box in drawn:
        named[box.label] = named.get(box.label, 0) + 1
    value = ", ".join(f"{times} × {label}" if times > 1 else label for label, times in named.items())
    return AnswerView("boxes", value or "nothing", boxes=drawn, more_boxes=len(boxes) - len(drawn))
