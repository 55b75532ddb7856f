"""Several rows in one: what a parity model is asked of is a group of rows. Standard library only.

row group:  for each row, its length as a little-endian u32, then its bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = ["in_one_row", "rows_in"]

_LENGTH = struct.Struct("<I")


def in_one_row(rows: Sequence[bytes]) -> bytes:
    """The group as one row."""
    return b"".join(part for row in rows for part in (_LENGTH.pack(len(row)), row))


def rows_in(group: bytes, count: int) -> list[bytes]:
    """The rows of a group. Raises ValueError unless there are `count`, and nothing else."""
    found: list[bytes] = []
    at = 0
    while at < len(group) and len(found) < count:
        if len(group) < at + _LENGTH.size:
            break
        (length,) = _LENGTH.unpack_from(group, at)
        at += _LENGTH.size
        row = group[at : at + length]
        if len(row) < length:
            break
        found.append(row)
        at += length
    if len(found) != count or at != len(group):
        raise ValueError(f"it is no group of {count} rows")
    return found
