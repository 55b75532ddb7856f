"""What one caller may take of something that all share: rows of a queue, places for uploads.

A caller may take more while it holds at most three times what is free ("dynamic thresholds", Choudhury and
Hahne 1998, with α = 3). So one alone gets three quarters, a newcomer always finds room, and n busy callers
get the same; nothing is set aside for callers who are not there. Pure.
"""

from __future__ import annotations

__all__ = ["FairShare", "may_take"]

_ALPHA = 3


def may_take(held: int, taken: int, limit: int) -> bool:
    """Whether a caller that holds `held` may take more, where `taken` of `limit` are gone in all."""
    return not held or held < _ALPHA * (limit - taken)


class FairShare:
    """Who holds how much of several things with one `limit` each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[str, int] = {}
        self._held: dict[tuple[str, str], int] = {}

    def take(self, thing: str, caller: str, amount: int) -> bool:
        """Take, or do nothing and answer False; `give` it back once."""
        key = (thing, caller)
        held, taken = self._held.get(key, 0), self._taken.get(thing, 0)
        if not may_take(held, taken, self._limit):
            return False
        self._held[key] = held + amount
        self._taken[thing] = taken + amount
        return True

    def give(self, thing: str, caller: str, amount: int) -> None:
        """Give back what was taken."""
        key = (thing, caller)
        held, taken = self._held[key] - amount, self._taken[thing] - amount
        if held:
            self._held[key] = held
        else:
            del self._held[key]
        if taken:
            self._taken[thing] = taken
        else:
            del self._taken[thing]
