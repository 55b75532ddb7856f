"""Texts as hashed n-grams of words and of characters: which, and how often. Pure; numpy alone.

No vocabulary: every language and every new word has a place, and what is learnt of the places is all that
a model stores (Weinberger et al. 2009, "Feature hashing for large scale multitask learning"). Whole batches
at a time: a word is hashed when it is first seen, and n-grams are sums over arrays.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NGrams", "Ragged", "idf_of", "joined", "tfidf"]

_CHARS_READ = 8_192  # of a text
_WORD = re.compile(r"\w+")
_KNOWN_WORDS = 1 << 18
# Odd 64-bit numbers with no pattern (Steele et al. 2014, SplitMix64), which tell places in an n-gram apart.
_MIX, _SECOND, _CHARS = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_HALF = np.uint64(32)

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class _Hashes(dict[str, int]):
    """Word → its hash, remembered; bounded, since texts come from anybody."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _KNOWN_WORDS:
            self.clear()
        found = self[word] = zlib.crc32(word.encode("utf-8", "surrogatepass"))
        return found


@dataclass(frozen=True, slots=True)
class Ragged:
    """Of n texts: `places` [t], the n-grams of the first text, then those of the second, each once; `counts`
    [t], how often; `ends` [n], where each text's end.
    """

    places: Ints
    counts: Ints
    ends: Ints


def joined(parts: Sequence[Ragged]) -> Ragged:
    """The texts of one after those of the other; of at least one."""
    before = np.cumsum([0, *(len(part.places) for part in parts[:-1])])
    return Ragged(
        np.concatenate([part.places for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.ends + start for part, start in zip(parts, before, strict=True)]),
    )


@dataclass(frozen=True, slots=True)
class NGrams:
    """words: 0 = none, 1 = words, 2 = words and pairs of words. characters: (least, most) of a part, (0, 0) =
    none. buckets: of the hash, a power of 2. Case is ignored; of a text its beginning is read.

    Raises `ValueError`.
    """

    words: int = 2
    characters: tuple[int, int] = (0, 0)
    buckets: int = 1 << 18

    def __post_init__(self) -> None:
        least, most = self.characters
        if self.words not in (0, 1, 2):
            raise ValueError(f"words must be 0, 1 or 2, not {self.words}")
        if not (0 < least <= most <= 8 or (least, most) == (0, 0)):
            raise ValueError(f"characters must be from 1 to 8, not {least} to {most}")
        if not (self.words or most):
            raise ValueError("n-grams of words, of characters or of both are needed")
        if not 16 <= self.buckets <= 1 << 24 or self.buckets & (self.buckets - 1):
            raise ValueError(f"buckets must be a power of 2, from 16 to {1 << 24}, not {self.buckets}")

    def of(self, texts: Sequence[str]) -> Ragged:
        """The n-grams of some texts. A text's own do not depend on the texts beside it."""
        read = [text[:_CHARS_READ].casefold() for text in texts]
        grams = [
            *(self._words(read) if self.words else ()),
            *(self._characters(read) if self.characters[1] else ()),
        ]
        row = np.concatenate([np.zeros(0, np.int64), *(of_row for of_row, _ in grams)])
        hashes = np.concatenate([np.zeros(0, np.uint64), *(found for _, found in grams)])
        place = (hashes >> _HALF).astype(np.int64) & (self.buckets - 1)
        both, counts = np.unique(row * self.buckets + place, return_counts=True)
        row, place = np.divmod(both, self.buckets)
        return Ragged(place, counts.astype(np.int64), np.searchsorted(row, np.arange(len(read)), "right"))

    def _words(self, texts: Sequence[str]) -> list[tuple[Ints, NDArray[np.uint64]]]:
        found = [_WORD.findall(text) for text in texts]
        lengths = np.array([len(words) for words in found], np.int64)
        row = np.repeat(np.arange(len(texts)), lengths)
        hashes = np.fromiter(
            (_HASHES[word] for words in found for word in words), np.uint64, int(lengths.sum())
        )
        grams = [(row, hashes * _MIX)]
        if self.words == 2 and len(row) > 1:
            pairs = row[1:] == row[:-1]
            grams.append((row[1:][pairs], ((hashes[:-1] * _SECOND + hashes[1:]) * _MIX)[pairs]))
        return grams

    def _characters(self, texts: Sequence[str]) -> list[tuple[Ints, NDArray[np.uint64]]]:
        # A space before and behind each: so beginnings and ends of words are parts of their own.
        padded = [f" {' '.join(text.split())} " for text in texts]
        lengths = np.array([len(text) for text in padded], np.int64)
        row = np.repeat(np.arange(len(texts)), lengths)
        codes = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), np.uint32).astype(
            np.uint64
        )
        grams = []
        rolled = np.zeros(len(codes), np.uint64)
        least, most = self.characters
        for size in range(1, most + 1):
            whole = len(codes) - size + 1
            if whole < 1:
                break
            rolled = rolled[:whole] * _CHARS + codes[size - 1 :] + np.uint64(1)
            inside = row[:whole] == row[size - 1 :]
            if size >= least:
                grams.append((row[:whole][inside], (rolled[inside] ^ np.uint64(size)) * _MIX))
        return grams


_HASHES = _Hashes()


def idf_of(found: Ragged, buckets: int) -> Floats:
    """float32 [buckets]: log((1 + n) / (1 + texts with it)) + 1, so that none is left out."""
    with_it = np.bincount(found.places, minlength=buckets)
    idf: Floats = (np.log((1 + len(found.ends)) / (1 + with_it)) + 1).astype(np.float32)
    return idf


def tfidf(found: Ragged, idf: Floats) -> Floats:
    """float32 [t]: the share of each n-gram in its text, (1 + log count) · idf, of length 1 in each text
    (Manning, Raghavan & Schütze 2008, ch. 6, "ltc").
    """
    shares = (1 + np.log(found.counts)) * idf[found.places]
    lengths = np.diff(found.ends, prepend=0)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    norms = np.sqrt(np.bincount(rows, shares * shares, minlength=len(lengths)))
    result: Floats = (shares / np.maximum(norms, 1e-12)[rows]).astype(np.float32)
    return result
