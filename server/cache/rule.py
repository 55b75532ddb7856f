"""The contract of eviction rules: which kept answers leave when there is no room.

Pure: a rule sees keys, and can ask what an answer takes; it knows no answers, no functions and no clock. The
live store (store.py) and whoever replays a trace drive the same object:

    add(keys, nbytes)  they were asked for, were not there, and are kept from now on
    hit(keys)          they were asked for again, and were there
    evict()            room is needed: the key of what leaves, which the rule has forgotten by then
    sweep(is_gone)     of those that are held, these leave, whatever the rule would have said

Between `add` and `evict` a key is *held*; it is added once. `evict` is called while something is held, as
often as the bound asks for it, right after the `add` that went over it: so a rule that admits nothing new
evicts what has just come. What a rule remembers of what has left (ghosts, frequencies) is its own, and is to
be bounded by the capacity that it is made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

__all__ = ["EvictionRule", "MakeRule", "SizeOf"]

SizeOf = Callable[[bytes], int]
"""What the answer of a key that is held takes of the bound, in bytes."""


class EvictionRule(Protocol):
    """See the module's docstring. One object for one store; not thread-safe."""

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        """They are held from now on. nbytes: what all of them take together."""

    def hit(self, keys: Sequence[bytes]) -> None:
        """They were asked for again. Of every row that is answered by what is kept: the hottest call."""

    def evict(self) -> bytes:
        """What leaves; it is held no longer."""

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """Let go of all that are gone, some at a time, each list of which is held no longer. Between two of
        them other keys may come, be asked for and leave; a gone key that was asked for meanwhile may stay.
        """


MakeRule = Callable[[int, SizeOf], EvictionRule]
"""A rule for a store of so many bytes, whose answers take what the second says."""
