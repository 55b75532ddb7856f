"""The contract of eviction rules: which kept answer leaves when there is no room.

Pure: a rule sees keys and sizes, and when something was asked again; it knows no answers, no functions and
no clock. The live store (store.py) and whoever replays a trace drive the same object:

    add(kept)    it was asked for, was not there, and is kept now
    hit(kept)    it was asked for again, and was there
    remove(kept) it is kept no longer, for another reason than room
    evict()      room is needed: what leaves, which the rule has forgotten by then

Between `add` and `remove` or `evict` a kept answer is *held*. `evict` is called while something is held, as
often as the bound asks for it, right after the `add` that went over it: so a rule that admits nothing new
evicts what has just come. What a rule remembers of what has left (ghosts, frequencies) is its own, and is to
be bounded by the capacity that it is made with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["EvictionRule", "Kept", "Line", "MakeRule"]


class Kept:
    """What a rule sees of an answer that is kept.

    key: 16 bytes, by which it is found · nbytes: what it takes of the bound · mark: a number of the rule's
    own, 0 at first · older, newer: its neighbours in a `Line`, which are the rule's too.
    """

    __slots__ = ("key", "mark", "nbytes", "newer", "older")

    def __init__(self, key: bytes, nbytes: int) -> None:
        self.key = key
        self.nbytes = nbytes
        self.mark = 0
        # Any: mypy would ask at each step whether there is a neighbour, and in a line there always is one.
        self.older: Any = None
        self.newer: Any = None


class EvictionRule(Protocol):
    """See the module's docstring. One object for one store; not thread-safe."""

    def add(self, kept: Kept) -> None:
        """It is held from now on."""

    def hit(self, kept: Kept) -> None:
        """It was asked for again. Once for each row that is answered by it: this is the hottest call."""

    def remove(self, kept: Kept) -> None:
        """It is held no longer."""

    def evict(self) -> Kept:
        """What leaves; it is held no longer."""


MakeRule = Callable[[int], EvictionRule]
"""A rule for a store of so many bytes."""


class Line:
    """Kept answers one behind the other, linked through their own fields: each step takes the same time.

    Iterates from the oldest on. Of an answer that is in several lines at a time it knows nothing.
    """

    __slots__ = ("_end", "nbytes")

    def __init__(self) -> None:
        self._end = Kept(b"", 0)  # between the newest and the oldest
        self._end.older = self._end.newer = self._end
        self.nbytes = 0

    def __bool__(self) -> bool:
        return self._end.newer is not self._end

    @property
    def oldest(self) -> Kept | None:
        """What came first; None where nothing is there."""
        first: Kept = self._end.newer
        return None if first is self._end else first

    def newer(self, kept: Kept) -> Kept | None:
        """What came after it; None where nothing did."""
        following: Kept = kept.newer
        return None if following is self._end else following

    def append(self, kept: Kept) -> None:
        """Becomes the newest."""
        end = self._end
        kept.newer, kept.older = end, end.older
        end.older.newer = kept
        end.older = kept
        self.nbytes += kept.nbytes

    def unlink(self, kept: Kept) -> None:
        """Leaves; it must be in this line."""
        kept.older.newer, kept.newer.older = kept.newer, kept.older
        kept.older = kept.newer = None
        self.nbytes -= kept.nbytes
