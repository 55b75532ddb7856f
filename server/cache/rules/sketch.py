"""About how often a key was asked for of late: a count-min sketch, halved at times (TinyLFU §3). Pure."""

from __future__ import annotations

__all__ = ["Sketch"]

_MOST = 15
_SAMPLE = 10  # requests for each that is kept, until the counts are halved: the paper's
_LEAST = 1024  # counts a row
_HALF = bytes(count >> 1 for count in range(256))


class Sketch:
    """Four rows of counts. A key has one in each, and the least of its four is nearest to the truth.

    A byte a count, though it ends at 15: Python finds a byte sooner than half of one.
    """

    def __init__(self) -> None:
        self._one, self._two, self._three, self._four = (bytearray(_LEAST) for _ in range(4))
        self._mask = _LEAST - 1
        self._counted = 0

    def count(self, key: bytes, held: int) -> None:
        """It was asked for. held: how many are kept now."""
        if held > self._mask:
            self._grow()
        mask, noise = self._mask, hash(key)
        one, two, three, four = self._one, self._two, self._three, self._four
        a, b, c, d = noise & mask, noise >> 13 & mask, noise >> 26 & mask, noise >> 39 & mask
        least = min(one[a], two[b], three[c], four[d])
        if least < _MOST:  # those above it count others too, and need no more
            if one[a] == least:
                one[a] = least + 1
            if two[b] == least:
                two[b] = least + 1
            if three[c] == least:
                three[c] = least + 1
            if four[d] == least:
                four[d] = least + 1
        self._counted += 1
        if self._counted > _SAMPLE * mask:
            self._halve()

    def of(self, key: bytes) -> int:
        """How often it was asked for, at the most."""
        mask, noise = self._mask, hash(key)
        return min(
            self._one[noise & mask],
            self._two[noise >> 13 & mask],
            self._three[noise >> 26 & mask],
            self._four[noise >> 39 & mask],
        )

    def _halve(self) -> None:
        self._counted //= 2
        self._one, self._two, self._three, self._four = (
            row.translate(_HALF) for row in (self._one, self._two, self._three, self._four)
        )

    def _grow(self) -> None:
        """Twice as many counts; a key's new place holds what its old one held."""
        self._mask = 2 * self._mask + 1
        self._one, self._two, self._three, self._four = (
            row + row for row in (self._one, self._two, self._three, self._four)
        )
