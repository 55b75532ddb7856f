"""How the zoo's text models see a text: as bytes of UTF-8, or as hashed n-grams. Pure; knows no weights.

Both need no vocabulary, so every language and every new word has a place; both look at a text's beginning
alone, so that its length bounds nothing but itself. 0 stands for "nothing there".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["SYMBOLS", "TextModule", "byte_tokens", "ngram_tokens"]

SYMBOLS = 257  # 256 bytes, and nothing
_CHARS_READ = 8_192  # of a text; more n-grams than that are none of its label's
_WORD = re.compile(r"\w+|[^\w\s]")


class TextModule(Protocol):
    """A module that takes texts; its forward maps what `encode` gives to [n, classes] logits.

    A text's tokens, and so its answer, do not depend on the texts beside it. Modules of equal `tokeniser`
    make the same tokens.
    """

    @property
    def tokeniser(self) -> str:
        """All that decides a text's tokens."""
        ...

    def encode(self, texts: Sequence[str]) -> Tensor:
        """int32 [n, tokens], 0 where there is nothing; at least one column, and of no texts the fewest."""
        ...


def byte_tokens(texts: Sequence[str], length: int) -> Tensor:
    """int32 [n, length]: each of the first `length` bytes of UTF-8, plus 1."""
    tokens = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(texts):
        data = np.frombuffer(text[:length].encode("utf-8", "surrogatepass")[:length], np.uint8)
        tokens[row, : len(data)] = data
        tokens[row, : len(data)] += 1
    return torch.from_numpy(tokens)


def ngram_tokens(texts: Sequence[str], *, length: int, buckets: int, subword: int) -> Tensor:
    """int32 [n, longest]: the bucket, from 1, of each word, pair of words and part of a word of a text.

    At most `length` of them each. subword: characters of a part; 0 = no parts. Case is ignored.
    """
    rows = [list(_first(length, _ngrams(text[:_CHARS_READ].casefold(), subword), buckets)) for text in texts]
    tokens = np.zeros((len(rows), max(1, *map(len, rows), 1)), np.int32)
    for row, found in enumerate(rows):
        tokens[row, : len(found)] = found
    return torch.from_numpy(tokens)


def _first(length: int, ngrams: Iterator[str], buckets: int) -> Iterator[int]:
    for _, ngram in zip(range(length), ngrams, strict=False):
        yield 1 + zlib.crc32(ngram.encode("utf-8", "surrogatepass")) % buckets


def _ngrams(text: str, subword: int) -> Iterator[str]:
    before = ""
    for word in _WORD.findall(text):
        yield word
        if before:
            yield f"{before} {word}"
        before = word
        if subword and len(word) > 1:
            marked = f"<{word}>"
            for at in range(len(marked) - subword + 1):
                yield f"#{marked[at : at + subword]}"
