"""A store that holds nothing but what its rule does."""

from __future__ import annotations

from server.cache.rule import EvictionRule, Kept

__all__ = ["SmallStore", "key_of"]


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


class SmallStore:
    """Fails where its rule lets go of what is not held."""

    def __init__(self, rule: EvictionRule, capacity_bytes: int) -> None:
        self.rule = rule
        self.capacity_bytes = capacity_bytes
        self.held: dict[bytes, Kept] = {}

    def __contains__(self, number: int) -> bool:
        return key_of(number) in self.held

    def ask(self, number: int, nbytes: int = 1) -> bool:
        """Whether it was a hit."""
        kept = self.held.get(key_of(number))
        if kept is not None:
            self.rule.hit(kept)
            return True
        kept = self.held[key_of(number)] = Kept(key_of(number), nbytes)
        self.rule.add(kept)
        while sum(each.nbytes for each in self.held.values()) > self.capacity_bytes:
            gone = self.rule.evict()
            assert self.held.pop(gone.key) is gone
        return False

    def remove(self, number: int) -> None:
        kept = self.held.pop(key_of(number), None)
        if kept is not None:
            self.rule.remove(kept)

    def empty(self) -> set[bytes]:
        """Whom the rule lets go when all must leave."""
        gone = {self.rule.evict().key for _ in self.held}
        self.held.clear()
        return gone
