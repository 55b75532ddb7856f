"""Answers as values of SQL types, where PL/Python's own way, through the value's text, would not do.

Pure.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from ml_udf.client.contents import labels_of
from ml_udf.client.statement import Outcome
from ml_udf.client.vectors import vector_text
from ml_udf.errors import BadOption, MlUdfError
from ml_udf.scoring.texts import has_escaped_zero, holds_zero

__all__ = [
    "Composite",
    "are_plain_texts",
    "composite",
    "detailed",
    "fitted",
    "fitted_text",
    "unwrapped",
    "wrapped",
]

Composite = dict[str, Any]

_PGVECTOR = {"vector", "halfvec"}
_VECTORS = {"real[]", "double precision[]"}
_TEXTS = {"text[]", "character varying[]"}
_WHOLE = {"smallint", "integer", "bigint"}
_TRUE = {"true", "t", "yes", "y", "on", "1"}
_FALSE = {"false", "f", "no", "n", "off", "0"}
_OF_TEXTS = {str, type(None)}


def fitted(values: Sequence[Any], sql_type: str) -> list[Any]:
    """`values` for a result of `sql_type`, named as PostgreSQL prints it. Raises `BadOption`, `WrongType`."""
    return [None if value is None else _fit(value, sql_type) for value in values]


def are_plain_texts(values: Sequence[Any]) -> bool:
    """Whether these are texts, and NULLs, that a `text` holds as they are."""
    return set(map(type, values)) <= _OF_TEXTS and "\0" not in "".join(filter(None, values))


def fitted_text(value: Any) -> Any:  # noqa: ANN401  # of the wire's types
    """An answer for a result of type `text`. Raises `BadOption`, `WrongType`."""
    return _fit(value, "text")


def composite(answer: Outcome, version: str | None) -> Composite | None:
    """An answer as `ml_udf.prediction`; None for a NULL row."""
    if answer.error is None and answer.value is None:
        return None
    answer = _as_text(answer)
    return {
        "value": answer.value,
        "confidence": answer.confidence,
        "model_version": version or None,
        "error": None if answer.error is None else f"{answer.error.code}: {answer.error.message}",
    }


def detailed(answer: Outcome, version: str | None) -> Composite | None:
    """An answer as `ml_udf.detailed_prediction`; None for a NULL row."""
    answer = _as_text(answer)
    tried, told = composite(answer, version), answer.detail
    if tried is None:
        return None
    return tried | {
        "answered_by": None if told is None else list(told.answered_by),
        "expected_accuracy": None if told is None else told.expected_accuracy,
        "device_seconds": None if told is None else told.device_seconds,
        "prediction": None if told is None else told.prediction,
        "columns": None if told is None else told.columns,
        "decision": None if told is None else told.decision,
    }


def unwrapped(values: Sequence[Any]) -> list[Any]:
    """Rows as a twin receives them: vectors come as `ml_udf.float8_vector`, one per row."""
    return [value["vector"] if isinstance(value, dict) else value for value in values]


def wrapped(values: Sequence[Any]) -> list[Any]:
    """Vectors as the twins return them that were made before `binary_array`."""
    return [None if value is None else {"vector": value} for value in values]


def _as_text(answer: Outcome) -> Outcome:
    """With its value as text; what no text holds is a fault of its row."""
    if answer.value is None:
        return answer
    try:
        if answer.detail is not None and has_escaped_zero(answer.detail.columns or ""):
            raise holds_zero(answer.detail.columns)
        return answer._replace(value=fitted_text(answer.value))
    except MlUdfError as misfit:
        return Outcome(error=misfit.with_traceback(None))


def _fit(value: Any, sql_type: str) -> Any:  # noqa: ANN401  # of the wire's types, to the SQL type's
    if sql_type == "bytea":
        return value.encode() if isinstance(value, str) else bytes(value)
    if isinstance(value, bytes):
        raise BadOption(
            "the function answered bytes that are not text", hint="create it with returns => 'bytea'"
        )
    if isinstance(value, str) and ("\0" in value or (has_escaped_zero(value) and sql_type in _TEXTS)):
        raise holds_zero(value)  # PL/Python would end the text there
    if sql_type in _TEXTS and isinstance(value, str):
        return labels_of(value)
    if sql_type in ("json", "jsonb"):
        if isinstance(value, list | array):
            return vector_text(value)
        return value if isinstance(value, str) else json.dumps(value)
    if sql_type in _VECTORS and isinstance(value, int | float):
        return [value]  # of one number, which the wire does not distinguish from a number
    if isinstance(value, list | array):
        if sql_type.endswith("[]"):
            return list(value)
        if sql_type.rpartition(".")[2] in _PGVECTOR or sql_type == "text":
            return vector_text(value)
        raise BadOption(
            f"the function answered a vector of {len(value)} numbers, not one {sql_type}",
            hint="create it with returns => 'float4[]' or returns => 'jsonb'",
        )
    if sql_type == "boolean":
        return _truth(value)
    if sql_type in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _truth(value: Any) -> bool:  # noqa: ANN401  # a label or a number
    # PL/Python would take any non-empty text, "false" too, as true.
    if not isinstance(value, str):
        return bool(value)
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise BadOption(
        f"the answer {value!r} is not a boolean", hint="create the function with returns => 'text'"
    )
