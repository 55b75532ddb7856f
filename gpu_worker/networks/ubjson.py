"""Whether a UBJSON file of XGBoost nests no deeper than it must: the library reads it by recursion.

A reader that meets ten thousand brackets overflows the stack, which ends its process; one that meets the end
of the file within an array never ends. So the file is walked here first, without recursion. Read as XGBoost
reads it (src/common/json.cc, UBJReader; https://ubjson.org): lengths and keys have the type `L` alone.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["MOST_DEPTH", "check_ubjson"]

MOST_DEPTH: Final = 64  # a model nests ten deep
_MOST_VALUES: Final = 1 << 24  # of its trees each has some thirty
_BYTES: Final = {ord(kind): size for kind, size in zip("iUCIldLD", (1, 1, 1, 2, 4, 4, 8, 8), strict=True)}
_CONSTANTS: Final = frozenset(b"ZTF")
_LENGTH: Final = struct.Struct(">q")
_OBJECT, _UNTIL_CLOSED = -2, -1  # what is open; or of an array of a known length, how many are left


def check_ubjson(content: bytes | bytearray) -> None:
    """Raises `ValueError` for what XGBoost must not be given; linear in values, arrays of numbers in one."""
    try:
        _walk(content)
    except (IndexError, struct.error) as exc:
        raise ValueError("it ends before its UBJSON does") from exc


def _walk(content: bytes | bytearray) -> None:
    opened: list[int] = []
    at = values = 0
    while True:
        values += 1
        if values > _MOST_VALUES:
            raise ValueError(f"it holds more than {_MOST_VALUES} values")
        kind = content[at]
        at += 1
        if kind in _BYTES:
            at += _BYTES[kind]
        elif kind == ord("S"):
            at = _after(content, at, 1)
        elif kind == ord("{"):
            opened.append(_OBJECT)
        elif kind == ord("["):
            if content[at] == ord("$"):
                size = _BYTES.get(content[at + 1])
                if size is None or content[at + 2] != ord("#"):
                    raise ValueError(f"byte {at} begins an array of no known type")
                at = _after(content, at + 3, size)
            elif content[at] == ord("#"):
                opened.append(_length(content, at + 1))
                at += 10
            else:
                opened.append(_UNTIL_CLOSED)
        elif kind not in _CONSTANTS:
            raise ValueError(f"byte {at - 1} is {bytes((kind,))!r}, which begins no value of UBJSON")
        if len(opened) > MOST_DEPTH:
            raise ValueError(f"it nests more than {MOST_DEPTH} deep")
        # What is complete now is closed, up to where the next value begins.
        while opened:
            inner = opened[-1]
            if inner == _OBJECT:
                if content[at] != ord("}"):
                    at = _after(content, at, 1)  # the key
                    break
                at += 1
            elif inner == _UNTIL_CLOSED:
                if content[at] != ord("]"):
                    break
                at += 1
            elif inner:
                opened[-1] -= 1
                break
            opened.pop()
        else:
            if at > len(content):
                raise IndexError
            return


def _length(content: bytes | bytearray, at: int) -> int:
    if content[at] != ord("L"):
        raise ValueError(f"byte {at} is no length of XGBoost's")
    (length,) = _LENGTH.unpack_from(content, at + 1)
    if not 0 <= length <= len(content):
        raise ValueError(f"byte {at} says that {length} values follow, in {len(content)} bytes")
    return int(length)


def _after(content: bytes | bytearray, at: int, size: int) -> int:
    """The place after a length at `at` and so many values of `size` bytes."""
    return at + 9 + size * _length(content, at)
