"""Pixels of pictures that were decoded a moment ago, for whichever model is asked of them next.

A query with two functions of a photo asks one of a page of rows, and then the other; a plan asks one member,
and then another of the rows that are not sure yet. Decoding a large photo takes longer than most models take
with it. So pixels are kept from when pictures come again until none has for a minute: who asks each picture
once pays for a look, and holds no memory.

Pages that do not fit must not drive out each other, as they would by age alone: when the second function
comes to the first row of a page, that row would just have left. So who is new takes the place of one that was
asked for again, or has lain for a while, and of no other.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline.decode import Pixels

__all__ = ["Decoded", "DecodedPictures", "Picture", "picture_in"]

_COME_AGAIN_S: Final = 60.0  # after the last picture that came again, none is kept
_FRESH_S: Final = 5.0  # a picture may lie so long before it is asked for again
_SEEN: Final = 1 << 14  # pictures that are known to have come, beside those that are kept
_TAIL: Final = 64
_ENTRY_BYTES: Final = 400  # of an entry beside its pixels and its name


class Picture(NamedTuple):
    """name: of a file, its stamp; of bytes, their length and their end. data: the bytes, where they came."""

    name: bytes
    data: bytes = b""


def picture_in(data: bytes) -> Picture:
    """The picture that these bytes are: known by a part of them, and compared as a whole."""
    return Picture(len(data).to_bytes(8, "little") + data[-_TAIL:], data)


@dataclass(slots=True, eq=False)
class Decoded:
    """pixels: of one frame; nobody writes them. shape: (H, W) of the picture as it came; None: not looked at.
    took_s: what decoding it took.
    """

    pixels: Pixels
    shape: tuple[int, int] | None
    took_s: float
    data: bytes = b""
    came_again: bool = False
    asked_s: float = 0.0

    @property
    def nbytes(self) -> int:
        """About what it holds of memory."""
        return self.pixels.nbytes + len(self.data) + _ENTRY_BYTES


class DecodedPictures:
    """Of all frames together at most `max_bytes`, by their last use. Thread-safe."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._numbers: dict[Frame, int] = {}
        self._kept: OrderedDict[tuple[bytes, int], Decoded] = OrderedDict()
        # Whether they came again, by hash: who has another's is kept in vain.
        self._seen: OrderedDict[int, bool] = OrderedDict()
        self._nbytes = 0
        self._keeps_until_s = 0.0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """About what it holds of memory."""
        return self._nbytes

    def number(self, frame: Frame) -> int:
        """What `find` and `keep` know the frame by: that of a tuple is quicker found than a frame."""
        with self._lock:
            return self._numbers.setdefault(frame, len(self._numbers))

    def find(self, picture: Picture, frame: int) -> Decoded | None:
        """What was kept of it; None = decode it, and offer it to `keep`."""
        place = picture.name, frame
        with self._lock:
            now_s = self._clock()
            found = self._kept.get(place)
            if found is not None and found.data == picture.data:
                found.came_again, found.asked_s = True, now_s
                self._kept.move_to_end(place)
                self._keeps_until_s = now_s + _COME_AGAIN_S
                return found
            seen = hash(place)
            if seen in self._seen:
                self._seen[seen] = True
                self._seen.move_to_end(seen)
                self._keeps_until_s = now_s + _COME_AGAIN_S
            else:
                self._seen[seen] = False
                if len(self._seen) > _SEEN:
                    self._seen.popitem(last=False)
            if self._kept and now_s > self._keeps_until_s:
                self._kept.clear()
                self._nbytes = 0
            return None

    def keep(self, picture: Picture, frame: int, decoded: Decoded) -> None:
        """Offer what was decoded. It is kept if pictures come again of late, and if there is room."""
        place = picture.name, frame
        decoded.data = picture.data
        with self._lock:
            decoded.came_again = self._seen.get(hash(place), False)
            decoded.asked_s = now_s = self._clock()
            if now_s > self._keeps_until_s or decoded.nbytes > self._max_bytes:
                return
            before = self._kept.pop(place, None)
            self._nbytes -= 0 if before is None else before.nbytes
            while self._nbytes + decoded.nbytes > self._max_bytes:
                oldest = next(iter(self._kept.values()))
                if not oldest.came_again and now_s - oldest.asked_s < _FRESH_S:
                    return
                self._kept.popitem(last=False)
                self._nbytes -= oldest.nbytes
            self._kept[place] = decoded
            self._nbytes += decoded.nbytes
