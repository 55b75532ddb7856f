"""What a target column holds, by the task: classes, numbers, sets of labels, or boxes. Pure; knows Arrow.

A snapshot keeps the target as it is compared with answers: texts, float64, or JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from server.errors import BadOption
from server.training.datasets.box_targets import BoxTargets
from server.training.datasets.spec import DatasetSpec
from server.training.recipes import TargetKind, recipe_for, regression_beside

__all__ = ["TargetColumn", "target_column"]

_MOST_CLASSES = 10_000
_MANY_NUMBERS = 50  # different ones: no classes that somebody has numbered by hand
_MANY_FRACTIONS = 10
_MOST_LABELS_OF_A_ROW = 1_000
_LARGEST = 3.4e38  # models answer in float32
_FEWEST_STEPS = 32  # of float32, from the least number to the greatest: fewer hide what there is to tell
_EXACT = 2**53  # whole numbers below it are what they say


class TargetColumn(Protocol):
    """The target of a draft's rows. Values that are missing are None, and counted by the draft."""

    stored: pa.DataType

    def texts(self, values: pa.Array) -> list[str | None]:
        """Each value as the text that stands for it in the snapshot's hash. Raises `BadOption`."""
        ...

    def check_picture(self, text: str, width: int, height: int) -> None:
        """A row of a picture of that size. Raises `BadOption` for what cannot be in it."""
        ...

    def code(self, text: str) -> int:
        """A number for what a row is stratified by; called for each row that is kept, in their order."""
        ...

    def value(self, text: str) -> Any:  # noqa: ANN401  # of the type `stored`
        """What the snapshot keeps."""
        ...

    def strata(self) -> Sequence[str]:
        """What the codes stand for."""
        ...

    def check(self) -> None:
        """All rows were taken. Raises `BadOption` where there is nothing to learn, or not by this task."""
        ...

    def classes(self, sides: Mapping[int, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
        """What a model can learn to name, and the splits of what it cannot. sides: the splits of each code.

        Raises `BadOption`.
        """
        ...


def target_column(spec: DatasetSpec) -> TargetColumn:
    """The target of a dataset's task."""
    return _COLUMNS[recipe_for(spec.task).target](spec)


class _Placeless:
    """What has no place in its picture."""

    def check_picture(self, text: str, width: int, height: int) -> None:
        """Whatever the size, it may be."""


class _Classes(_Placeless):
    """Names of classes."""

    stored = pa.string()

    def __init__(self, spec: DatasetSpec) -> None:
        self._spec = spec
        self._codes: dict[str, int] = {}
        self._is_number = False
        self._has_fractions = False

    def texts(self, values: pa.Array) -> list[str | None]:
        self._is_number |= _is_number(values.type)
        is_exact = pa.types.is_decimal(values.type) and not values.type.scale
        if is_exact or pa.types.is_integer(values.type) or not _is_number(values.type):
            return _as_texts(values, self._spec)
        numbers = values.cast(pa.float64()).to_pylist()
        known = [number for number in numbers if number is not None]
        _check_finite(known, self._spec)
        self._has_fractions |= any(not number.is_integer() for number in known)
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())  # 4.50 and 4.5 are one class
        texts = _as_texts(values, self._spec)
        return [
            f"{number:.0f}" if number is not None and _is_whole(number) else text
            for number, text in zip(numbers, texts, strict=True)
        ]

    def code(self, text: str) -> int:
        if not text:
            raise BadOption(
                f"dataset {self._spec.name}: the target {self._spec.target!r} is an empty text in some rows, "
                f"which is no name of a class; add WHERE {self._spec.target} <> '', or give it one"
            )
        found = self._codes.setdefault(text, len(self._codes))
        if found >= _MOST_CLASSES:
            self._check_numbers()
            raise BadOption(
                f"dataset {self._spec.name}: the target {self._spec.target!r} has more than {_MOST_CLASSES} "
                "different values; is it the column to be predicted?"
            )
        return found

    def value(self, text: str) -> str:
        return text

    def strata(self) -> Sequence[str]:
        return list(self._codes)

    def check(self) -> None:
        if len(self._codes) < 2:
            raise BadOption(
                f"dataset {self._spec.name}: every row's {self._spec.target!r} is "
                f"{next(iter(self._codes))!r}; at least two classes are needed"
            )
        self._check_numbers()

    def classes(self, sides: Mapping[int, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
        taught = {label for label, code in self._codes.items() if "train" in sides.get(code, ())}
        if len(taught) < 2:
            raise BadOption(
                f"dataset {self._spec.name}: the training rows, which are the earliest, are all of one "
                "class; at least two are needed: give more rows, or leave 'time' out"
            )
        untaught = {
            label: list(sides.get(code, ()))
            for label, code in sorted(self._codes.items())
            if label not in taught
        }
        return sorted(taught), untaught

    def _check_numbers(self) -> None:
        """A number of many values is a quantity: each of its values would be a class of its own."""
        most = _MANY_FRACTIONS if self._has_fractions else _MANY_NUMBERS
        if self._is_number and len(self._codes) > most:
            target = self._spec.target
            other = regression_beside(self._spec.task)
            instead = f"say task => {other!r}" if other else f"{self._spec.task} does not learn numbers"
            raise BadOption(
                f"dataset {self._spec.name}: the target {target!r} is numeric and has {len(self._codes)} "
                f"different values, which looks like regression: {instead}; or, where the numbers are "
                f"names of classes, select {target}::text AS {target}"
            )


class _Numbers(_Placeless):
    """Finite numbers."""

    stored = pa.float64()

    def __init__(self, spec: DatasetSpec) -> None:
        self._spec = spec
        self._least = math.inf
        self._most = -math.inf

    def texts(self, values: pa.Array) -> list[str | None]:
        name, target = self._spec.name, self._spec.target
        try:
            is_text = pa.types.is_string(values.type)  # as of a file of comma-separated values
            if not (is_text or _is_number(values.type) or pa.types.is_null(values.type)):
                raise pa.ArrowInvalid("no number")
            numbers: list[float | None] = values.cast(pa.float64(), safe=False).to_pylist()
        except pa.ArrowInvalid:
            raise BadOption(
                f"dataset {name}: {self._spec.task} learns numbers, and the target {target!r} is of type "
                f"{values.type}; select a number, such as {target}::float8, or of a time its epoch"
            ) from None
        known = [number for number in numbers if number is not None]
        _check_finite(known, self._spec)
        if max(map(abs, known), default=0.0) > _LARGEST:
            raise BadOption(
                f"dataset {name}: the target {target!r} is beyond {_LARGEST:.2g} in some rows, which no "
                "model answers; leave them out, or select a larger unit"
            )
        self._least = min(self._least, min(known, default=math.inf))
        self._most = max(self._most, max(known, default=-math.inf))
        return [None if number is None else repr(number) for number in numbers]

    def code(self, text: str) -> int:
        return 0

    def value(self, text: str) -> float:
        return float(text)

    def strata(self) -> Sequence[str]:
        return [""]

    def check(self) -> None:
        if self._least == self._most:
            raise BadOption(
                f"dataset {self._spec.name}: every row's {self._spec.target!r} is {self._least:g}; "
                "there is nothing to learn"
            )
        step = _step(max(abs(self._least), abs(self._most)))
        if self._most - self._least < _FEWEST_STEPS * step:
            raise BadOption(
                f"dataset {self._spec.name}: the target {self._spec.target!r} is between {self._least:.15g} "
                f"and {self._most:.15g}, and models answer in single precision, whose numbers are {step:.2g} "
                f"apart there; select the difference from a number near by, {self._spec.target} - "
                f"{self._least:.15g}, or a smaller unit"
            )

    def classes(self, sides: Mapping[int, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
        return [], {}


class _LabelSets(_Placeless):
    """Any number of labels of a row: a list of texts, or the text of a JSON array of them."""

    stored = pa.string()

    def __init__(self, spec: DatasetSpec) -> None:
        self._spec = spec
        self._rows: dict[str, int] = {}  # of each label
        self._count = 0

    def texts(self, values: pa.Array) -> list[str | None]:
        return [None if value is None else self._written(value) for value in values.to_pylist()]

    def code(self, text: str) -> int:
        self._count += 1
        for label in json.loads(text):
            self._rows[label] = self._rows.get(label, 0) + 1
        if len(self._rows) > _MOST_CLASSES:
            raise BadOption(
                f"dataset {self._spec.name}: the target {self._spec.target!r} has more than {_MOST_CLASSES} "
                "different labels; is it the column to be predicted?"
            )
        return 0

    def value(self, text: str) -> str:
        return text

    def strata(self) -> Sequence[str]:
        return [""]

    def check(self) -> None:
        if not any(rows < self._count for rows in self._rows.values()):
            raise BadOption(
                f"dataset {self._spec.name}: no label of {self._spec.target!r} is there in some rows and not "
                "in others; there is nothing to learn"
            )

    def classes(self, sides: Mapping[int, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
        return sorted(self._rows), {}

    def _written(self, value: object) -> str:
        labels = value
        if isinstance(value, str):
            try:
                labels = json.loads(value)
            except (ValueError, RecursionError):
                labels = None
        if not isinstance(labels, list) or not all(isinstance(label, str) and label for label in labels):
            raise BadOption(
                f"dataset {self._spec.name}: {self._spec.task} learns sets of labels, and the target "
                f"{self._spec.target!r} is no list of texts in some rows; select a list, or the text of a "
                'JSON array: ["spicy", "soup"]'
            )
        if len(labels) > _MOST_LABELS_OF_A_ROW:
            raise BadOption(
                f"dataset {self._spec.name}: a row has {len(labels)} labels; "
                f"{_MOST_LABELS_OF_A_ROW} is the most"
            )
        return json.dumps(sorted(set(labels)), ensure_ascii=False, separators=(",", ":"))


_COLUMNS: Mapping[TargetKind, Callable[[DatasetSpec], TargetColumn]] = {
    "boxes": BoxTargets,
    "class": _Classes,
    "number": _Numbers,
    "labels": _LabelSets,
}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _check_finite(numbers: Sequence[float], spec: DatasetSpec) -> None:
    if not all(map(math.isfinite, numbers)):
        raise BadOption(
            f"dataset {spec.name}: the target {spec.target!r} is not a finite number in some rows; "
            "leave them out"
        )


def _step(number: float) -> float:
    """From a float32 number to the next."""
    return math.ldexp(1.0, max(math.frexp(number)[1] - 24, -149))


def _is_whole(number: float) -> bool:
    return number.is_integer() and abs(number) < _EXACT


def _as_texts(values: pa.Array, spec: DatasetSpec) -> list[str | None]:
    try:
        found: list[str | None] = values.cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadOption(
            f"dataset {spec.name}: {spec.target!r} is of type {values.type}, which has no text form"
        ) from None
    return found
