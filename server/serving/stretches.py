"""Places of a row of flags, in as few stretches as they make. Pure."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["clear_stretches"]


def clear_stretches(flags: bytearray, at: int, end: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the places in [at, end) whose flag is 0, in order; beyond the last flag all are 0."""
    while at < end:
        first = flags.find(0, at, end)
        if first < 0:
            first = max(at, len(flags))
            if first >= end:
                return
        at = flags.find(1, first, end)
        at = end if at < 0 else at
        yield first, at - first
