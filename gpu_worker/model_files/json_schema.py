"""The part of JSON Schema (draft 2020-12) that answers of a remote model are held to.

A schema with another keyword is refused when it is registered: nothing that it says goes unchecked. Pure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["SchemaError", "check_schema", "fault_of"]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES: Final = ("title", "description", "examples", "default", "$schema", "$id", "$comment")
_BOUNDS: Final = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_KEYWORDS: Final = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
    *_BOUNDS,
)
_DEEPEST: Final = 32


class SchemaError(ValueError):
    """A schema that cannot be followed; the text names the keyword."""


def check_schema(schema: object, at: str = "$", depth: int = 0) -> dict[str, Any]:
    """The schema, if all that it says can be checked. Raises `SchemaError`."""
    if not isinstance(schema, dict):
        raise SchemaError(f"{at} is no object")
    if depth > _DEEPEST:
        raise SchemaError(f"it is nested more than {_DEEPEST} deep")
    if unknown := sorted(set(schema) - set(_KEYWORDS) - set(_NOTES)):
        raise SchemaError(
            f"the keyword {unknown[0]!r} at {at} is not checked here; use {', '.join(_KEYWORDS)}"
        )
    said = schema.get("type", [])
    if not isinstance(said, str | list) or any(kind not in _TYPES for kind in _types(schema)):
        raise SchemaError(f"the type at {at} must be one of {', '.join(_TYPES)}")
    for name in _BOUNDS:
        if name in schema and (isinstance(schema[name], bool) or not isinstance(schema[name], int | float)):
            raise SchemaError(f"{name!r} at {at} must be a number")
    for name in ("enum", "required", "anyOf"):
        if name in schema and (not isinstance(schema[name], list) or not schema[name]):
            raise SchemaError(f"{name!r} at {at} must be a list that is not empty")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise SchemaError(f"'required' at {at} must list names")
    if not isinstance(schema.get("properties", {}), dict):
        raise SchemaError(f"'properties' at {at} must be an object")
    for name, each in schema.get("properties", {}).items():
        check_schema(each, f"{at}.{name}", depth + 1)
    if "items" in schema:
        check_schema(schema["items"], f"{at}[]", depth + 1)
    for each in schema.get("anyOf", ()):
        check_schema(each, at, depth + 1)
    if isinstance(more := schema.get("additionalProperties", True), dict):
        check_schema(more, f"{at}.*", depth + 1)
    elif not isinstance(more, bool):
        raise SchemaError(f"'additionalProperties' at {at} must be true, false or a schema")
    return schema


def fault_of(value: object, schema: Mapping[str, Any], at: str = "$") -> str | None:
    """Where and how a value breaks a schema that `check_schema` took; None where it keeps to it."""
    kinds = _types(schema)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{at} is {_shown(value)}, not of type {' or '.join(kinds)}"
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return f"{at} is {_shown(value)}, none of {_shown(schema['enum'])}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at} is {_shown(value)}, not {_shown(schema['const'])}"
    if "anyOf" in schema:
        faults = [fault_of(value, each, at) for each in schema["anyOf"]]
        if all(fault is not None for fault in faults):
            return faults[0]
    if isinstance(value, dict):
        return _fault_of_object(value, schema, at)
    if isinstance(value, list):
        return _fault_of_size(len(value), schema, "Items", at) or next(
            (
                fault
                for place, each in enumerate(value if "items" in schema else ())
                if (fault := fault_of(each, schema["items"], f"{at}[{place}]")) is not None
            ),
            None,
        )
    if isinstance(value, str):
        return _fault_of_size(len(value), schema, "Length", at)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # JSON's numbers have no end
            return f"{at} is {_shown(value)}, no finite number"
        if value < schema.get("minimum", -math.inf) or value > schema.get("maximum", math.inf):
            return f"{at} is {value}, outside {schema.get('minimum', '')}…{schema.get('maximum', '')}"
    return None


def _fault_of_object(value: dict[str, Any], schema: Mapping[str, Any], at: str) -> str | None:
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{at} has no {missing[0]!r}"
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, each in value.items():
        if name in properties:
            fault = fault_of(each, properties[name], f"{at}.{name}")
        elif more is False:
            fault = f"{at} has {_shown(name)}, which the schema does not know"
        else:
            fault = fault_of(each, more, f"{at}.{name}") if isinstance(more, dict) else None
        if fault is not None:
            return fault
    return None


def _fault_of_size(size: int, schema: Mapping[str, Any], what: str, at: str) -> str | None:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}", math.inf)
    return None if least <= size <= most else f"{at} has {size} {what.lower()}, not {least}…{most}"


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    said = schema.get("type", ())
    return (said,) if isinstance(said, str) else tuple(map(str, said))


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
