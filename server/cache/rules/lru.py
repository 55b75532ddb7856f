"""LRU: what was asked for longest ago leaves. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from server.cache.rule import SizeOf

__all__ = ["LeastRecentlyUsed"]


class LeastRecentlyUsed:
    """As `EvictionRule`: the keys in the order in which each was asked for last."""

    def __init__(self, capacity_bytes: int, size_of: SizeOf) -> None:
        """Neither matters to it."""
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        """See `EvictionRule`."""
        self._order.update(dict.fromkeys(keys))

    def hit(self, keys: Sequence[bytes]) -> None:
        """See `EvictionRule`."""
        for key in keys:
            self._order.move_to_end(key)

    def evict(self) -> bytes:
        """See `EvictionRule`."""
        return self._order.popitem(last=False)[0]

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """See `EvictionRule`: at once."""
        gone = [key for key in self._order if is_gone(key)]
        for key in gone:
            del self._order[key]
        yield gone
