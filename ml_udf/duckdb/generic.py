"""Calls that name their function by a value: `ml_udf.predict`, `detail`, `scores`, and their like.

Each takes columns of any type: texts, images' bytes, and rows of a table as structs or JSON. What does not
fit is said in our words and under the function's own name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ml_udf.client.column import Value, asked_by_key
from ml_udf.client.scores import Scores, check_k, score_of, top_of
from ml_udf.client.statement import Binding, Outcome
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.faults import spelled_out
from ml_udf.duckdb.scalar import parted
from ml_udf.duckdb.vectors import (
    BYTES,
    NUMBER,
    SCORED,
    SCORES,
    TEXT,
    TEXTS,
    WHOLE,
    ArrowVector,
    VectorType,
    column_of,
    detail_array,
    fitting,
    try_array,
)
from ml_udf.errors import MlUdfError

__all__ = ["GenericFunctions", "asked_function", "input_column"]

# What becomes of a row's scores and its argument, and the type of that.
_OF_SCORES: Mapping[str, tuple[VectorType, Callable[[Scores, Any], Any]]] = {
    "scores": (SCORES, lambda scores, _: list(scores.items())),
    "score": (NUMBER, score_of),
    "top_k": (SCORED, lambda scores, k: [{"label": name, "score": each} for name, each in top_of(scores, k)]),
}
_ARGUMENTS = {"score": TEXT, "top_k": WHOLE}


class GenericFunctions:
    """The bodies of the generic functions over one connection's calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def call(self, name: str, vectors: Sequence[ArrowVector]) -> pa.Array:
        """`ml_udf.NAME` over columns: functions, inputs, what it takes beside them, and the statement."""
        (functions, inputs, *others), statement = parted(vectors)
        try:
            names: list[str | None] = fitting(name, functions, TEXT).to_pylist()
            if name == "predict_many":
                return self._predict_many(names, fitting(name, inputs, TEXTS), statement)
            values = input_column(name, inputs)
            if not others:
                return self._asked(name, names, values, statement)
            arguments = column_of(fitting(name, others[0], _ARGUMENTS[name]))
            if name == "top_k":
                for k in set(arguments) - {None}:
                    check_k(int(k))  # type: ignore[arg-type]  # whole numbers
        except MlUdfError as error:
            self._calls.note(error)
            raise spelled_out(error, asked_function(functions) or name) from None
        return self._scored(name, names, list(zip(values, arguments, strict=True)), statement)

    def _asked(
        self, name: str, names: Sequence[str | None], values: Sequence[Value], statement: str | None
    ) -> pa.Array:
        if name in _OF_SCORES:
            return self._scored(name, names, [(value, 0) for value in values], statement)
        if name == "predict":
            return TEXT.array(self._predicted(names, values, statement))
        detail = name == "detail"

        def ask(function: str, own: list[Value]) -> list[tuple[Outcome, str | None]]:
            return self._calls.answers(Binding(function, detail=detail), statement, own)

        nothing: tuple[Outcome, str | None] = (Outcome(), None)
        found = asked_by_key(names, values, ask, nothing)
        return detail_array(found) if detail else try_array(found)

    def _predicted(
        self, names: Sequence[str | None], values: Sequence[Value], statement: str | None
    ) -> list[Any]:
        def ask(function: str, own: list[Value]) -> list[Any]:
            return self._calls.values(Binding(function), statement, own)

        return asked_by_key(names, values, ask, None)

    def _scored(
        self,
        name: str,
        names: Sequence[str | None],
        rows: Sequence[tuple[Value, Any]],
        statement: str | None,
    ) -> pa.Array:
        target, read = _OF_SCORES[name]

        def ask(function: str, own: list[tuple[Value, Any]]) -> list[Any]:
            return self._calls.scores(
                function,
                statement,
                [value for value, _ in own],
                lambda scores, row: read(scores, own[row][1]),
            )

        known = [None if row[1] is None else function for function, row in zip(names, rows, strict=True)]
        return target.array(asked_by_key(known, rows, ask, None))

    def _predict_many(
        self, names: Sequence[str | None], inputs: ArrowVector, statement: str | None
    ) -> pa.Array:
        lists: list[list[Any] | None] = inputs.to_pylist()
        flat_names = [name for name, row in zip(names, lists, strict=True) for _ in row or ()]
        flat = [value for row in lists for value in row or ()]
        answers = iter(TEXT.array(self._predicted(flat_names, flat, statement)).to_pylist())
        return TEXTS.array([None if row is None else [next(answers) for _ in row] for row in lists])


def input_column(name: str, inputs: ArrowVector) -> list[Value]:
    """The inputs of `ml_udf.NAME`: texts, bytes, or rows of a table. Raises `WrongType` for others."""
    if pa.types.is_struct(inputs.type):
        return [
            None if row is None else json.dumps(row, ensure_ascii=False, default=_plain)
            for row in inputs.to_pylist()
        ]
    is_binary = pa.types.is_binary(inputs.type) or pa.types.is_large_binary(inputs.type)
    return column_of(fitting(name, inputs, BYTES if is_binary else TEXT))


def asked_function(functions: ArrowVector) -> str | None:
    """The first function that a column names: the one that a user has written, who knows no `predict`."""
    named = column_of(functions) if pa.types.is_string(functions.type) else []
    return next((str(function) for function in named if function is not None), None)


def _plain(value: object) -> float | str:
    """What JSON has no type for: a DECIMAL is a number, a date a text."""
    return float(value) if isinstance(value, Decimal) else str(value)
