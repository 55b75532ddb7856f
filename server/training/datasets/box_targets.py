"""Boxes as the target of a dataset: what is where in each picture. Pure; knows Arrow.

A row's boxes are a list of {"label": …, "box": [x0, y0, x1, y1]} in pixels of the picture as it is shown,
from its upper left corner: jsonb, STRUCT(label VARCHAR, box DOUBLE[])[], or the text of a JSON array. What a
function answered (with scores) will do. NULL and [] are a picture without any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from server.errors import BadOption
from server.training.datasets.spec import DatasetSpec

__all__ = ["BoxTargets"]

_MOST_BOXES = 1_000  # of a picture; a detector finds 100
_MOST_LABELS = 1_000
_MOST_CHARS = 200
_SLACK = 1.0  # pixels that a box may lie outside, by rounding
_FORM = '[{"label": "plate", "box": [x0, y0, x1, y1]}]'


class BoxTargets:
    """See `targets.TargetColumn`."""

    stored = pa.string()

    def __init__(self, spec: DatasetSpec) -> None:
        self._spec = spec
        self._rows: dict[str, int] = {}  # of each label
        self._seen = 0  # rows so far

    def texts(self, values: pa.Array) -> list[str | None]:
        """Each row's boxes as JSON, by label and place: the same boxes are the same text."""
        first, self._seen = self._seen, self._seen + len(values)
        return [self._written(value, row) for row, value in enumerate(values.to_pylist(), first + 1)]

    def check_picture(self, text: str, width: int, height: int) -> None:
        """Every box lies in it."""
        for told in json.loads(text):
            x0, y0, x1, y1 = told["box"]
            if min(x0, y0) < -_SLACK or x1 > width + _SLACK or y1 > height + _SLACK:
                raise self._bad(
                    f"the box {told['box']} of a {told['label']!r} does not lie in its picture, which is "
                    f"{width} × {height} pixels; boxes are in pixels of the picture as it is shown"
                )

    def code(self, text: str) -> int:
        """All pictures are of one kind."""
        for label in {told["label"] for told in json.loads(text)}:
            self._rows[label] = self._rows.get(label, 0) + 1
        if len(self._rows) > _MOST_LABELS:
            raise self._bad(
                f"there are more than {_MOST_LABELS} different labels; are they names of classes?"
            )
        return 0

    def value(self, text: str) -> str:
        """The text itself."""
        return text

    def strata(self) -> Sequence[str]:
        """See `code`."""
        return [""]

    def check(self) -> None:
        """There is something to find."""
        if not self._rows:
            raise self._bad("no row has a box; there is nothing to learn")

    def classes(self, sides: Mapping[int, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
        """All labels: which of them the test rows alone show is not known here."""
        return sorted(self._rows), {}

    def _written(self, value: object, row: int) -> str:
        if value is None:
            return "[]"
        told = value
        if isinstance(value, str):
            try:
                told = json.loads(value)
            except (ValueError, RecursionError):
                told = None
        if told is None and isinstance(value, str) and value.strip() == "null":
            return "[]"  # as jsonb has it
        if not isinstance(told, list) or not all(isinstance(box, dict) for box in told):
            raise self._bad(f"row {row} has no list of boxes such as {_FORM}, but {str(value)[:80]!r}")
        if len(told) > _MOST_BOXES:
            raise self._bad(f"row {row} has {len(told)} boxes; {_MOST_BOXES} is the most")
        boxes = sorted((self._box(box, row) for box in told), key=lambda box: (box["label"], box["box"]))
        return json.dumps(boxes, ensure_ascii=False, separators=(",", ":"))

    def _box(self, told: Mapping[str, Any], row: int) -> dict[str, Any]:
        label, corners = told.get("label"), told.get("box")
        if not isinstance(label, str) or not label or len(label) > _MOST_CHARS:
            raise self._bad(
                f"a box of row {row} has the 'label' {str(label)[:80]!r}; it must be a text of 1 to "
                f"{_MOST_CHARS} characters"
            )
        if not isinstance(corners, list) or len(corners) != 4 or not all(map(_is_finite, corners)):
            raise self._bad(
                f"the 'box' of a {label!r} in row {row} is {str(corners)[:80]}; it must be four numbers, "
                "x0, y0, x1, y1"
            )
        x0, y0, x1, y1 = map(float, corners)
        if not (x0 < x1 and y0 < y1):
            raise self._bad(
                f"the box {corners} of a {label!r} in row {row} has no area: x0 must be below x1, and "
                "y0 below y1 (corners, not a corner and a size)"
            )
        return {"label": label, "box": [x0, y0, x1, y1]}

    def _bad(self, what: str) -> BadOption:
        return BadOption(f"dataset {self._spec.name}: of the target {self._spec.target!r}, {what}")


def _is_finite(number: object) -> bool:
    return (
        isinstance(number, int | float | Decimal) and not isinstance(number, bool) and math.isfinite(number)
    )
