"""A linear model of a text's n-grams, each weighed by how rare it is (TF-IDF).

Manning, Raghavan & Schütze 2008, "Introduction to information retrieval", ch. 6 ("ltc") and 14; n-grams are
hashed (`zoo.ngrams`). What practitioners begin with, and often end with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu_worker.zoo.ngrams import NGrams

__all__ = ["TfidfLinear"]

_MOST_WEIGHTS = 1 << 21
_LEAST_BUCKETS, _MOST_BUCKETS = 1 << 14, 1 << 18


class TfidfLinear(nn.Module):
    """words: 1 = words, 2 = words and pairs of words. characters: the longest part of a text, from 2
    characters on; 0 = none. buckets: of the hash; 0 = as many as two million weights allow.
    """

    def __init__(self, classes: int, *, words: int = 2, characters: int = 0, buckets: int = 0) -> None:
        super().__init__()
        if characters == 1:
            raise ValueError("characters must be 0, or from 2 to 8")
        parts = (2, characters) if characters else (0, 0)
        self.ngrams = NGrams(words, parts, buckets or _buckets(classes))
        self.register_buffer("idf", torch.ones(self.ngrams.buckets))
        self.weight = nn.Parameter(torch.randn(self.ngrams.buckets, classes) * 0.01)
        self.bias = nn.Parameter(torch.zeros(classes))

    @property
    def tokeniser(self) -> str:
        """See `TextModule.tokeniser`."""
        return repr(self.ngrams)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """int32 [n, n-grams, 2]: each n-gram's bucket, and how often it is in the text; 0 = not there."""
        found = self.ngrams.of(texts)
        lengths = np.diff(found.ends, prepend=0)
        tokens = np.zeros((len(texts), max(1, int(lengths.max(initial=0))), 2), np.int32)
        there = np.arange(tokens.shape[1]) < lengths[:, None]
        tokens[there, 0] = found.places
        tokens[there, 1] = found.counts
        return torch.from_numpy(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """int32 [n, n-grams, 2] → [n, classes] logits."""
        places, counts = tokens.unbind(dim=2)
        often = 1 + torch.log(counts.clamp(min=1).float())
        shares = torch.where(counts > 0, often * self.get_buffer("idf")[places], 0.0)
        shares = functional.normalize(shares, dim=1)
        logits: Tensor = functional.embedding_bag(
            places.contiguous(), self.weight, mode="sum", per_sample_weights=shares.to(self.weight.dtype)
        )
        return logits + self.bias


def _buckets(classes: int) -> int:
    """The power of 2 by which the weights are as many as they may be."""
    wanted = 1 << max(0, (_MOST_WEIGHTS // max(1, classes)).bit_length() - 1)
    return max(_LEAST_BUCKETS, min(_MOST_BUCKETS, wanted))
