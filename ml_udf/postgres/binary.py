"""Arrays and pgvector's vectors in PostgreSQL's binary format, as the plan node takes them from a twin.

PL/Python makes the numbers of an array one by one from their texts, 2.7 ms for 1,024 of them; bytes it hands
over as they are. And PostgreSQL has no arrays of arrays, in which a twin could return texts. Source:
`array_recv` and `array_send` of PostgreSQL's utils/adt/arrayfuncs.c: three words (dimensions, whether there
are NULLs, the element type's OID), two for each dimension (its length, its first index), then each element's
size and bytes, all in network order; `vector_recv` of pgvector's src/vector.c: the dimensions and a zero in
two bytes each, then float4s. Pure.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from ml_udf.errors import WrongType

__all__ = ["MOST_DIMENSIONS", "PGVECTOR", "binary", "binary_reals", "flat_reals", "is_binary", "reals_of"]

PGVECTOR = "vector"  # the type of that extension, whatever its schema
MOST_DIMENSIONS = 16_000  # of its values

_ELEMENTS = {"real[]": ("f", 4, 700), "double precision[]": ("d", 8, 701)}  # struct's code, bytes, OID
_WORD = 4
_TEXT_OID = 25


def is_binary(sql_type: str) -> bool:
    """Whether a twin returns values of the type, named as PostgreSQL prints it, in their binary format."""
    return sql_type in _ELEMENTS or sql_type == "text[]" or sql_type.rpartition(".")[2] == PGVECTOR


def binary(value: Sequence[Any], sql_type: str) -> bytes:
    """A value of a type that `is_binary`. Raises `WrongType` for one that is none."""
    if sql_type == "text[]":
        return _binary_texts(value)
    return _binary_array(value, sql_type) if sql_type in _ELEMENTS else _binary_vector(value)


def flat_reals(vectors: Iterable[array[float]]) -> bytes:
    """The numbers of vectors of float32, one vector after the other, as one `real[]`."""
    words = _network_words(vectors)
    return _of_words(words, *_ELEMENTS["real[]"][1:]) if words else binary((), "real[]")


def binary_reals(vectors: Sequence[array[float]]) -> bytes:
    """Vectors of float32, all of one width above 0, each as a `real[]`, one after the other."""
    _, size, oid = _ELEMENTS["real[]"]
    width = len(vectors[0])
    head, elements = _head(oid, width), _elements(_network_words(vectors), size)
    step = (_WORD + size) * width
    return b"".join([head + elements[at : at + step] for at in range(0, len(elements), step)])


def reals_of(value: bytes) -> list[float]:
    """The numbers of a `real[]` without NULLs, one at least. Raises `WrongType` for what is none."""
    _, size, oid = _ELEMENTS["real[]"]
    length, rest = divmod(len(value) - len(_head(oid, 0)), _WORD + size)
    if length < 1 or rest or not value.startswith(_head(oid, length)):
        raise WrongType("the bytes are no real[] in PostgreSQL's binary format")
    return [number for _, number in struct.iter_unpack(">If", value[-length * (_WORD + size) :])]


def _network_words(vectors: Iterable[array[float]]) -> array[int]:
    words = array("I", b"".join(vectors))
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _binary_texts(texts: Sequence[object]) -> bytes:
    if not texts:
        return struct.pack(">iiI", 0, 0, _TEXT_OID)
    parts = [struct.pack(">iiIii", 1, 0, _TEXT_OID, len(texts), 1)]
    for text in texts:
        encoded = str(text).encode()  # of a vector, a number
        parts += [struct.pack(">i", len(encoded)), encoded]
    return b"".join(parts)


def _binary_vector(numbers: Sequence[float]) -> bytes:
    length = len(numbers)
    if not 1 <= length <= MOST_DIMENSIONS:
        raise WrongType(
            f"the answer has {length} numbers, and a vector has 1 to {MOST_DIMENSIONS}",
            hint="create the function with returns => 'float4[]'",
        )
    return struct.pack(f">hh{length}f", length, 0, *numbers)


def _binary_array(numbers: Sequence[float], sql_type: str) -> bytes:
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
    return _of_words(array("I", packed), size, oid)


def _of_words(words: array[int], size: int, oid: int) -> bytes:
    return _head(oid, len(words) * _WORD // size) + _elements(words, size)


def _head(oid: int, length: int) -> bytes:
    return struct.pack(">iiIii", 1, 0, oid, length, 1)


def _elements(words: array[int], size: int) -> bytes:
    """Elements of `size` bytes in network order, moved as words: whatever their order in memory."""
    width = size // _WORD
    length = len(words) // width
    elements = array("I", bytes((_WORD + size) * length))
    elements[:: width + 1] = array("I", struct.pack(">I", size) * length)
    for at in range(width):
        elements[at + 1 :: width + 1] = words[at::width]
    return elements.tobytes()
