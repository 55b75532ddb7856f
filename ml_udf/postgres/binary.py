"""Vectors in PostgreSQL's binary format of arrays, as the plan node takes them from a twin.

PL/Python makes the numbers of an array one by one from their texts, 2.7 ms for 1,024 of them; bytes it hands
over as they are. Source: `array_recv` and `array_send` of PostgreSQL's utils/adt/arrayfuncs.c: three words
(dimensions, whether there are NULLs, the element type's OID), two for each dimension (its length, its first
index), then each element's size and bytes, all in network order. Pure.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from ml_udf.errors import WrongType

__all__ = ["binary_array"]

_ELEMENTS = {"real[]": ("f", 4, 700), "double precision[]": ("d", 8, 701)}  # struct's code, bytes, OID
_WORD = 4


def binary_array(numbers: Sequence[float], sql_type: str) -> bytes:
    """A vector of any length as a `real[]` or a `double precision[]`.

    Raises `WrongType` where it holds something that is no number, or one that is too large for the type.
    """
    code, size, oid = _ELEMENTS[sql_type]
    length = len(numbers)
    if not length:
        return struct.pack(">iiI", 0, 0, oid)
    try:
        packed = struct.pack(f">{length}{code}", *numbers)
    except OverflowError as error:
        raise WrongType(
            f"the answer has a number that is out of range for type {sql_type.removesuffix('[]')}",
            hint="create the function with returns => 'float8[]'",
        ) from error
    except struct.error as error:
        raise WrongType(
            f"the answer {numbers!r:.80} is no vector of numbers",
            hint="create the function with returns => 'text' or 'jsonb'",
        ) from error
    # Words, whatever their order in memory: they are only moved.
    words, sizes = array("I", packed), array("I", struct.pack(">I", size) * length)
    width = size // _WORD
    elements = array("I", bytes((_WORD + size) * length))
    elements[:: width + 1] = sizes
    for at in range(width):
        elements[at + 1 :: width + 1] = words[at::width]
    return struct.pack(">iiIii", 1, 0, oid, length, 1) + elements.tobytes()
