"""A store that holds nothing but what its rule does."""

from __future__ import annotations

from server.cache.rule import MakeRule

__all__ = ["SmallStore", "key_of"]


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


class SmallStore:
    """Fails where its rule lets go of what is not held."""

    def __init__(self, make: MakeRule, capacity_bytes: int) -> None:
        self.held: dict[bytes, int] = {}
        self.rule = make(capacity_bytes, self.held.__getitem__)
        self.capacity_bytes = capacity_bytes

    def __contains__(self, number: int) -> bool:
        return key_of(number) in self.held

    def ask(self, number: int, nbytes: int = 1) -> bool:
        """Whether it was a hit."""
        key = key_of(number)
        if key in self.held:
            self.rule.hit([key])
            return True
        self.ask_new([number], nbytes)
        return False

    def ask_new(self, numbers: list[int], nbytes: int = 1) -> None:
        """Some at a time that are not held, each of so many bytes."""
        keys = [key_of(number) for number in numbers]
        assert self.held.keys().isdisjoint(keys)
        self.held.update(dict.fromkeys(keys, nbytes))
        self.rule.add(keys, nbytes * len(keys))
        while sum(self.held.values()) > self.capacity_bytes:
            del self.held[self.rule.evict()]

    def empty(self) -> set[bytes]:
        """Whom the rule lets go when all must leave."""
        gone: set[bytes] = set()
        while self.held:
            key = self.rule.evict()
            del self.held[key]
            gone.add(key)
        return gone
