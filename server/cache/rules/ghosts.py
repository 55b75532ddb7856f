"""What left of late: fingerprints of keys, 8 bytes a place, and no keys. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

__all__ = ["Ghosts"]

_PLACE_BYTES = 256  # of the capacity for each place: the table is a sixteenth of it at the most
_LEAST = 1024  # places
_STEPS = 20  # of the clock in the time that one is remembered, as a power of 2
_MASK = (1 << 32) - 1


class Ghosts:
    """Remembers what left, until so many bytes more have left: these bytes are its clock.

    A key has one place in a table; of two that have the same the later one is remembered. A key that it takes
    for another's has a better place than it deserves, no more.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._step_bytes = max(1, capacity_bytes >> _STEPS)
        self._steps = capacity_bytes // self._step_bytes
        self._left_bytes = self._step_bytes  # in all; the time of an empty place is 0
        # At once, as large as it gets: tables that grow leave holes, as large as they were, in the heap.
        places = max(_LEAST, 1 << (capacity_bytes // _PLACE_BYTES - 1).bit_length())
        self._mask = places - 1
        self._prints = array("I", bytes(4 * places))
        self._times = array("I", bytes(4 * places))

    def remember(self, key: bytes, nbytes: int) -> None:
        """It left."""
        self._left_bytes += nbytes
        noise = hash(key)
        place = noise & self._mask
        self._prints[place] = noise >> 24 & _MASK
        self._times[place] = self._left_bytes // self._step_bytes & _MASK

    def recall(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those that left of late; they are then no longer remembered."""
        if self._left_bytes == self._step_bytes:
            return []  # nothing has left
        mask, times, prints = self._mask, self._times, self._prints
        back = []
        for key in keys:
            noise = hash(key)
            place = noise & mask
            time = times[place]
            if time and prints[place] == noise >> 24 & _MASK:
                times[place] = 0
                if (self._left_bytes // self._step_bytes - time) & _MASK < self._steps:
                    back.append(key)
        return back
