"""What was made of rows a moment ago, for whichever model is asked of them next: pixels, features.

A query with two functions of a photo asks one of a page of rows, and then the other; a plan asks one member,
and then another of the rows that are not sure yet. Decoding a large photo takes longer than most models take
with it, and heads of one backbone need the same pass. So pixels and features are kept from when rows come
again until none has for a minute: who asks each row once pays for a look, and holds no memory.

They lie in blocks of memory of their own, each of rows of one kind that came one after the other, and a block
gives way as a whole: objects that stay among the memory of the forward passes make these a fifth slower.

Pages of a query that do not fit must not drive out each other, as they would by age alone: when the second
function comes to the first row of a page, that row would just have left. So a block gives way of which half
was asked for again, or which has lain for a while, and no other.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from gpu_worker.memory import Region

__all__ = ["Made", "RecentRows", "RowName", "name_of"]

_COME_AGAIN_S: Final = 60.0  # after the last row that came again, nothing is kept
_FRESH_S: Final = 5.0  # what was made may lie so long before it is asked for again
_SEEN: Final = 1 << 15  # rows, by what is made of them, that are known to have come
_BLOCK_BYTES: Final = 8 << 20  # of whole large pages
_LEAST_ROWS: Final = 4  # of a block
_ENTRY_BYTES: Final = 420  # of what is known of a row beside its numbers
_TAIL: Final = 64
_WORTH_S = 1e-4  # what is made sooner is made again as soon
_GAIN: Final = 0.05  # of one row, into what rows take

_Numbers: TypeAlias = np.ndarray[Any, Any]
_Place: TypeAlias = tuple[bytes, int]  # the row's name, and what is made of it


class RowName(NamedTuple):
    """name: of a file, its stamp; of bytes, their length and their end. data: the bytes, where they came."""

    name: bytes
    data: bytes = b""

    @property
    def digest(self) -> bytes:
        """What tells bytes apart that are alike in length and end."""
        return hashlib.blake2b(self.data, digest_size=16).digest() if self.data else b""


def name_of(data: bytes) -> RowName:
    """The row that these bytes are: looked for by a part of them, and compared as a whole."""
    return RowName(len(data).to_bytes(8, "little") + data[-_TAIL:], data)


class Made(NamedTuple):
    """Of what was made of a row. took_s: making it. shape: of pixels, (H, W) of the picture as it came; None:
    not looked at.
    """

    took_s: float
    shape: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class _Block:
    """Rows of one kind, as they came. numbers: [rows, ...], of which `places` are filled."""

    memory: memoryview
    numbers: _Numbers = field(default_factory=lambda: np.empty(0))
    places: list[_Place] = field(default_factory=list)
    came_again: int = 0  # of them
    asked_s: float = 0.0

    def begin(self, like: _Numbers) -> None:
        """It is of such rows from now on, of as many as fit in with what is known of each."""
        count = len(self.memory) // (like.nbytes + _ENTRY_BYTES)
        flat = np.frombuffer(self.memory[: count * like.nbytes], like.dtype)
        self.numbers = flat.reshape(count, *like.shape)
        self.places, self.came_again = [], 0

    @property
    def is_full(self) -> bool:
        return len(self.places) == len(self.numbers)

    def gives_way(self, now_s: float) -> bool:
        """Whether others may have its memory."""
        return 2 * self.came_again >= len(self.places) or now_s - self.asked_s >= _FRESH_S


@dataclass(slots=True, eq=False)
class _Kept:
    block: _Block
    at: int
    made: Made
    digest: bytes
    came_again: bool


class RecentRows:
    """Of all that is made of them together at most `max_bytes`, in blocks. Thread-safe."""

    def __init__(
        self,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        self._block_bytes = block_bytes
        self._most_blocks = max_bytes // block_bytes
        self._clock = clock
        self._region: Region | None = None  # until something is kept
        self._numbers: dict[Hashable, int] = {}
        self._kept: dict[_Place, _Kept] = {}
        # Whether they came again, by hash: who has another's is kept in vain.
        self._seen: OrderedDict[int, bool] = OrderedDict()
        self._blocks: list[_Block] = []
        self._filling: dict[int, _Block] = {}  # by kind
        self._takes_s: dict[int, float] = {}  # to make one, by kind
        self._keeps_until_s: dict[int, float] = {}  # by kind
        self._holds_until_s = 0.0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What it holds of memory."""
        return len(self._blocks) * self._block_bytes

    def number(self, kind: Hashable) -> int:
        """What `find` and `keep` know a kind of numbers by, such as a frame: a number is found quicker."""
        with self._lock:
            return self._numbers.setdefault(kind, len(self._numbers))

    def is_worth_it(self, kind: int) -> bool:
        """Whether making it takes so long that one should look for it."""
        return self._takes_s.get(kind, 1.0) >= _WORTH_S

    def forget_unwanted(self) -> None:
        """Gives the memory back, where no row has come again for a minute. To be called now and then."""
        if self._blocks and self._clock() > self._holds_until_s:
            with self._lock:
                self._drop_all()

    def learn(self, kind: int, took_s: float) -> None:
        """What making one took. Threads that come between each other lose one of many."""
        before_s = self._takes_s.setdefault(kind, took_s)
        self._takes_s[kind] = before_s + _GAIN * (took_s - before_s)

    def find(self, row: RowName, kind: int, into: _Numbers, *, with_shape: bool = False) -> Made | None:
        """Copies what was kept of it; None = make it, and offer it to `keep`.

        with_shape: only if the picture's shape is known.
        """
        place = row.name, kind
        digest = row.digest if place in self._kept else b""
        with self._lock:
            now_s = self._clock()
            kept = self._kept.get(place)
            if kept is not None and kept.digest == digest and (kept.made.shape or not with_shape):
                into[...] = kept.block.numbers[kept.at]
                kept.block.asked_s = now_s
                kept.block.came_again += not kept.came_again
                kept.came_again = True
                self._comes_again(now_s, kind)
                return kept.made
            seen = hash(place)
            if seen in self._seen:
                self._seen[seen] = True
                self._seen.move_to_end(seen)
                self._comes_again(now_s, kind)
            else:
                self._seen[seen] = False
                if len(self._seen) > _SEEN:
                    self._seen.popitem(last=False)
            return None

    def keep(self, row: RowName, kind: int, numbers: _Numbers, made: Made) -> None:
        """Offer what was made. It is kept if its kind was wanted again of late, and if there is room."""
        if self._clock() > self._keeps_until_s.get(kind, 0.0):
            return
        place, digest = (row.name, kind), row.digest
        with self._lock:
            if (block := self._block_for(self._clock(), kind, numbers)) is None:
                return
            came_again = self._seen.get(hash(place), False)
            at = len(block.places)
            block.numbers[at] = numbers
            block.places.append(place)
            block.came_again += came_again
            self._kept[place] = _Kept(block, at, made, digest, came_again)

    def _comes_again(self, now_s: float, kind: int) -> None:
        """A row does, of which that kind is made. Holds the lock."""
        self._keeps_until_s[kind] = self._holds_until_s = now_s + _COME_AGAIN_S

    def _block_for(self, now_s: float, kind: int, numbers: _Numbers) -> _Block | None:
        """One with room for such a row; None where nothing gives way. Holds the lock."""
        block = self._filling.get(kind)
        if block is None or block.is_full:
            if numbers.nbytes * _LEAST_ROWS > self._block_bytes or (block := self._emptied(now_s)) is None:
                return None
            block.begin(numbers)
            self._filling[kind] = block
        block.asked_s = now_s
        return block

    def _emptied(self, now_s: float) -> _Block | None:
        """A block that is nobody's: a new one, or of those that give way the one asked longest ago."""
        if len(self._blocks) < self._most_blocks:
            return self._new_block()
        block = min(
            (each for each in self._blocks if each.gives_way(now_s)),
            key=lambda each: each.asked_s,
            default=None,
        )
        if block is None:
            return None
        self._filling = {kind: each for kind, each in self._filling.items() if each is not block}
        for at, place in enumerate(block.places):
            kept = self._kept.get(place)
            if kept is not None and kept.block is block and kept.at == at:
                del self._kept[place]
        return block

    def _new_block(self) -> _Block | None:
        """None where the process may have no more memory."""
        try:
            if self._region is None:
                self._region = Region((self._most_blocks + 1) * self._block_bytes)
            elif not self._blocks:
                self._region.take()
        except OSError:
            return None
        first = -self._region.address % self._block_bytes  # where a large page may begin
        start = first + len(self._blocks) * self._block_bytes
        self._blocks.append(_Block(self._region.view[start : start + self._block_bytes]))
        return self._blocks[-1]

    def _drop_all(self) -> None:
        """The memory is the machine's again. Holds the lock."""
        self._kept.clear()
        self._filling.clear()
        self._blocks.clear()
        if self._region is not None:
            self._region.give_back()
