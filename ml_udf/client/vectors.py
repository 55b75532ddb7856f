"""Answers that are vectors: one `array` of numbers a row, and how it is written as text. Pure."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable

__all__ = ["vector_text"]

_FLOAT = struct.Struct("<f")


def vector_text(vector: Iterable[float]) -> str:
    """`[0.1, 2.0, …]`, as pgvector and JSON read it.

    Of float32, no more digits than it takes to read back the same number.
    """
    is_float32 = isinstance(vector, array) and vector.typecode == "f"
    return json.dumps([*map(_shortest, vector)] if is_float32 else list(vector))


def _shortest(number: float) -> float:
    """The number of fewest digits that float32 takes for this one."""
    for digits in (6, 7, 8):
        found = float(f"{number:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(found))[0] == number:
            return found
    return float(f"{number:.9g}")
