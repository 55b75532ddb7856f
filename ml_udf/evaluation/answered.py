"""What a function answered to labelled rows, in a form that metrics read. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from ml_udf.client.answer_type import answer_kind
from ml_udf.client.contents import labels_of
from ml_udf.client.function_info import FunctionInfo
from ml_udf.errors import BadOption
from ml_udf.evaluation.average_precision import EvaluatedBox

__all__ = ["Answered", "Target", "target_of"]

# One of a few labels, several of them, a number, or boxes in a picture.
Target: TypeAlias = Literal["label", "labels", "number", "boxes"]

_EXACT = 2**53  # whole numbers below it are what they say
_WHAT: Mapping[Target, str] = {
    "number": "number",
    "labels": "list of labels",
    "boxes": 'list of boxes [{"label": "plate", "box": [x0, y0, x1, y1]}, …]',
}


@dataclass(slots=True)
class Answered:
    """Rows that were answered, in one order. probabilities: by row and class; [] where there are none."""

    target: Target
    classes: tuple[str, ...] = ()
    targets: list[Any] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    probabilities: list[Sequence[float]] = field(default_factory=list)

    def add(self, targets: Sequence[Any], answers: Sequence[Any], probabilities: Sequence[Any] = ()) -> None:
        """Take rows, as SQL and the wire have their values; one without an answer is left out.

        Raises `BadOption` for a target that is no value of what the function answers.
        """
        for row, (wanted, answer) in enumerate(zip(targets, answers, strict=True)):
            if answer is None or wanted is None or (probabilities and probabilities[row] is None):
                continue
            self.targets.append(_read(self.target, wanted, "target"))
            self.answers.append(_read(self.target, answer, "answer"))
            if probabilities:
                self.probabilities.append(probabilities[row])

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.targets)


def target_of(info: FunctionInfo) -> Target:
    """What a function's answers are compared as. Raises `BadOption` for those that nothing is."""
    kind = answer_kind(info)
    if kind in ("number", "whole"):
        return "number"
    if kind in ("labels", "boxes"):
        return kind
    if kind == "text" and info.classes:
        return "label"
    raise BadOption(
        f"{info.name} answers with no class, labels, number or boxes, so there is nothing to count",
        hint="evaluate classifications, multi-label functions, regressions and object detection",
    )


def _read(target: Target, value: Any, what: str) -> Any:  # noqa: ANN401  # of SQL or the wire
    try:
        if target == "number":
            return _number(value)
        if target == "labels":
            return frozenset(labels_of(value) if isinstance(value, str) else map(str, value))
        if target == "boxes":
            return [_box(box) for box in (json.loads(value) if isinstance(value, str) else value)]
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError, RecursionError) as exc:
        wanted = _WHAT[target]
        raise BadOption(
            f"the {what} {value!r:.80} is no {wanted}", hint=f"the function answers a {wanted}"
        ) from exc
    return _label(value)


def _box(told: Mapping[str, Any]) -> EvaluatedBox:
    """A box; one that somebody has drawn needs no score."""
    x0, y0, x1, y1 = map(_number, told["box"])
    if x0 > x1 or y0 > y1:
        raise ValueError("the lower right corner lies above or left of the upper left one")
    score = told.get("score")
    return EvaluatedBox(str(told["label"]), 1.0 if score is None else _number(score), (x0, y0, x1, y1))


def _label(value: Any) -> str:  # noqa: ANN401  # of SQL
    """A label as datasets have it: the text that SQL shows, of 4.50 that of 4.5 and of 1.0 that of 1."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == 0:
        return str(value)  # a whole number, of any size
    if isinstance(value, float | Decimal):
        number = float(value)
        return f"{number:.0f}" if number.is_integer() and abs(number) < _EXACT else _arrow_text(number)
    is_json = isinstance(value, int | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)


def _arrow_text(number: float) -> str:
    """A number as Arrow writes it: 0.00001, where Python writes 1e-05, and 1e-7."""
    shortest = Decimal(repr(number))
    if not shortest.is_finite():
        return repr(number)
    shortest = shortest.normalize()
    return f"{shortest:f}" if -6 <= shortest.adjusted() < 10 else f"{shortest:e}"


def _number(value: Any) -> float:  # noqa: ANN401  # of SQL
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} is not finite")
    return found
