"""What was made of rows a moment ago, for whichever model is asked of them next: pixels, features.

A query with two functions of a photo asks one of a page of rows, and then the other; a plan asks one member,
and then another of the rows that are not sure yet. Decoding a large photo takes longer than most models take
with it, and heads of one backbone need the same pass. So pixels and features are kept from when rows come
again until none has for a minute: who asks each row once pays for a look, and holds no memory.

Pages that do not fit must not drive out each other, as they would by age alone: when the second function
comes to the first row of a page, that row would just have left. So who is new takes the place of one that was
asked for again, or has lain for a while, and of no other.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["Made", "RecentRows", "RowName", "name_of"]

_COME_AGAIN_S: Final = 60.0  # after the last row that came again, nothing is kept
_FRESH_S: Final = 5.0  # what was made may lie so long before it is asked for again
_SEEN: Final = 1 << 15  # rows, by what is made of them, that are known to have come
_TAIL: Final = 64
_ENTRY_BYTES: Final = 400  # of an entry beside its numbers and its row


class RowName(NamedTuple):
    """name: of a file, its stamp; of bytes, their length and their end. data: the bytes, where they came."""

    name: bytes
    data: bytes = b""


def name_of(data: bytes) -> RowName:
    """The row that these bytes are: known by a part of them, and compared as a whole."""
    return RowName(len(data).to_bytes(8, "little") + data[-_TAIL:], data)


@dataclass(slots=True, eq=False)
class Made:
    """What was made of one row. numbers: nobody writes them. took_s: what making them took.

    shape: of pixels, (H, W) of the picture as it came; None: not looked at.
    """

    numbers: np.ndarray[Any, Any]
    took_s: float
    shape: tuple[int, int] | None = None
    data: bytes = b""
    came_again: bool = False
    asked_s: float = 0.0

    @property
    def nbytes(self) -> int:
        """About what it holds of memory."""
        return self.numbers.nbytes + len(self.data) + _ENTRY_BYTES


class RecentRows:
    """Of all that is made of them together at most `max_bytes`, by their last use. Thread-safe."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._numbers: dict[Hashable, int] = {}
        self._kept: OrderedDict[tuple[bytes, int], Made] = OrderedDict()
        # Whether they came again, by hash: who has another's is kept in vain.
        self._seen: OrderedDict[int, bool] = OrderedDict()
        self._nbytes = 0
        self._keeps_until_s: dict[int, float] = {}  # by kind
        self._holds_until_s = 0.0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """About what it holds of memory."""
        return self._nbytes

    def number(self, kind: Hashable) -> int:
        """What `find` and `keep` know a kind of numbers by, such as a frame: a number is found quicker."""
        with self._lock:
            return self._numbers.setdefault(kind, len(self._numbers))

    def find(self, row: RowName, kind: int) -> Made | None:
        """What was kept of it; None = make it, and offer it to `keep`."""
        place = row.name, kind
        with self._lock:
            now_s = self._clock()
            found = self._kept.get(place)
            if found is not None and found.data == row.data:
                found.came_again, found.asked_s = True, now_s
                self._kept.move_to_end(place)
                self._comes_again(now_s, kind)
                return found
            seen = hash(place)
            if seen in self._seen:
                self._seen[seen] = True
                self._seen.move_to_end(seen)
                self._comes_again(now_s, kind)
            else:
                self._seen[seen] = False
                if len(self._seen) > _SEEN:
                    self._seen.popitem(last=False)
            if self._kept and now_s > self._holds_until_s:
                self._kept.clear()
                self._nbytes = 0
            return None

    def _comes_again(self, now_s: float, kind: int) -> None:
        """A row does, of which that kind is made. Holds the lock."""
        self._keeps_until_s[kind] = self._holds_until_s = now_s + _COME_AGAIN_S

    def keep(self, row: RowName, kind: int, made: Made) -> None:
        """Offer what was made. It is kept if its kind was wanted again of late, and if there is room."""
        place = row.name, kind
        made.data = row.data
        with self._lock:
            made.came_again = self._seen.get(hash(place), False)
            made.asked_s = now_s = self._clock()
            if now_s > self._keeps_until_s.get(kind, 0.0) or made.nbytes > self._max_bytes:
                return
            before = self._kept.pop(place, None)
            self._nbytes -= 0 if before is None else before.nbytes
            while self._nbytes + made.nbytes > self._max_bytes:
                oldest = next(iter(self._kept.values()))
                if not oldest.came_again and now_s - oldest.asked_s < _FRESH_S:
                    return
                self._kept.popitem(last=False)
                self._nbytes -= oldest.nbytes
            self._kept[place] = made
            self._nbytes += made.nbytes
