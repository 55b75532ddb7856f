"""SIEVE (Zhang et al., NSDI 2024): a line in the order of coming, and a hand that passes over it.

What was asked again since the hand came by stays where it is; the first that was not leaves. What is new
stands behind the hand, so a scan of things that are asked for once goes through without driving out what is
asked often. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from server.cache.rule import SizeOf

__all__ = ["Sieve"]


class Sieve:
    """As `EvictionRule`. Each key knows who came after it; only where the hand is does anybody leave."""

    def __init__(self, capacity_bytes: int, size_of: SizeOf) -> None:
        """Neither matters to it."""
        self._newer: dict[bytes, bytes | None] = {}
        self._oldest: bytes | None = None
        self._newest: bytes | None = None
        self._asked: set[bytes] = set()  # again, since the hand came by
        self._hand: bytes | None = None  # whom it looks at next; None: the oldest
        self._passed: bytes | None = None  # who stands before the hand

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        """See `EvictionRule`."""
        for key in keys:
            self._newer[key] = None
            if self._newest is None:
                self._oldest = key
            else:
                self._newer[self._newest] = key
            self._newest = key

    def hit(self, keys: Sequence[bytes]) -> None:
        """See `EvictionRule`."""
        self._asked.update(keys)

    def evict(self) -> bytes:
        """See `EvictionRule`."""
        at, passed = self._hand, self._passed
        while at is None or at in self._asked:
            if at is None:
                at, passed = self._oldest, None
                assert at is not None, "asked only while something is held"
            else:
                self._asked.discard(at)
                at, passed = self._newer[at], at
        following = self._newer.pop(at)
        if passed is None:
            self._oldest = following
        else:
            self._newer[passed] = following
        if following is None:
            self._newest = passed
        self._hand, self._passed = following, passed
        return at

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """See `EvictionRule`: at once."""
        gone, line, at, hand = [], [], self._oldest, self._hand
        while at is not None:
            following = self._newer[at]
            if is_gone(at):
                gone.append(at)
                hand = following if at == hand else hand
            else:
                line.append(at)
            at = following
        self._newer = dict(zip_longest(line, line[1:]))
        self._oldest, self._newest = (line[0], line[-1]) if line else (None, None)
        self._asked.difference_update(gone)
        self._hand, self._passed = hand, None
        if hand is not None and hand != self._oldest:
            self._passed = line[line.index(hand) - 1]
        yield gone
