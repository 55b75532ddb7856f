"""Answers that are texts and mean more: a list of labels, boxes in a picture, JSON.

An output says so of itself (`FunctionInfo.output_content`). As long as an answer is on its way it is its
text; an engine makes of it what its SQL type wants. Pure.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ml_udf.client.vectors import vector_text
from ml_udf.errors import WrongType

__all__ = [
    "BOXES",
    "JSON",
    "LABELS",
    "boxes_of",
    "json_of_text",
    "json_text",
    "labels_of",
    "misfit_of",
    "value_of",
]

LABELS = "labels"  # a JSON array of texts
BOXES = "boxes"  # a JSON array of {"label": text, "score": number, "box": [x0, y0, x1, y1]}
JSON = "json"


def labels_of(text: str) -> list[str]:
    """The labels of a row. Raises `WrongType` for what is none."""
    found = json_of_text(text)
    if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
        raise WrongType(f"the answer {_short(text)} is no list of labels", hint=_NOT_AS_SAID)
    return found


def boxes_of(text: str) -> list[dict[str, Any]]:
    """The boxes of a row: a label, a score and [x0, y0, x1, y1] each. Raises `WrongType` for what is none."""
    found = json_of_text(text)
    try:
        if not isinstance(found, list):
            raise TypeError
        return [
            {
                "label": str(box["label"]),
                "score": float(box["score"]),
                "box": [float(edge) for edge in box["box"]],
            }
            for box in found
        ]
    except (TypeError, KeyError, ValueError) as exc:
        raise WrongType(f"the answer {_short(text)} is no list of boxes", hint=_NOT_AS_SAID) from exc


def json_text(value: Any, content: str = "") -> str:  # noqa: ANN401  # of the wire's types
    """An answer as JSON; a text that has a content is JSON already, and no number is null."""
    if isinstance(value, str):
        if content not in _CHECKS:
            return json.dumps(value, ensure_ascii=False)
        return "null" if misfit_of(value, content) else value
    if isinstance(value, bytes):
        return json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    if not isinstance(value, list | array):
        return json.dumps(value)
    if not all(map(math.isfinite, value)):
        return f"[{', '.join(map(json_text, value))}]"
    return vector_text(value)


def value_of(value: Any, content: str) -> Any:  # noqa: ANN401  # of the wire's types
    """An answer as Python has it: what a text of that content stands for. Raises `WrongType`."""
    read = _CHECKS.get(content)
    return read(value) if read is not None and isinstance(value, str) else value


def misfit_of(value: Any, content: str) -> WrongType | None:  # noqa: ANN401  # of the wire's types
    """What is wrong with an answer of that content; None where nothing is."""
    check = _CHECKS.get(content)
    if check is None:
        return None
    try:
        check(value if isinstance(value, str) else str(value))
    except WrongType as misfit:
        return misfit.with_traceback(None)
    return None


def json_of_text(text: str) -> Any:  # noqa: ANN401  # JSON
    """The value of a JSON text. Raises `WrongType` for what is none, NaN and its like too."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise WrongType(f"the answer {_short(text)} is no JSON", hint=_NOT_AS_SAID) from exc


_CHECKS: Mapping[str, Callable[[str], object]] = {LABELS: labels_of, BOXES: boxes_of, JSON: json_of_text}
_NOT_AS_SAID = "its server says that it is: the model behind it has to keep to what its metadata promise"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:60] + "…" + text[-19:])
