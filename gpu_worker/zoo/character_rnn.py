"""CharacterRNN: a recurrent network that reads a text byte by byte.

Gated recurrent units (Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder"), their
states pooled over time: the mean and the largest of each, over the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gpu_worker.zoo.text import SYMBOLS, byte_tokens

__all__ = ["CharacterRnn"]


class CharacterRnn(nn.Module):
    """One layer of `width` units; reads `length` bytes of a text."""

    def __init__(
        self, classes: int, *, width: int = 96, embedding: int = 32, length: int = 160, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self._length = length
        self.embedding = nn.Embedding(SYMBOLS, embedding, padding_idx=0)
        self.recurrent = nn.GRU(embedding, width, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * width, classes))

    @property
    def tokeniser(self) -> str:
        """See `TextModule.tokeniser`."""
        return f"bytes {self._length}"

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `TextModule.encode`."""
        return byte_tokens(texts, self._length)

    def forward(self, tokens: Tensor) -> Tensor:
        """int32 [n, length] → [n, classes] logits."""
        # It reads forwards, so what stands behind a text's end cannot change the states before it.
        longest = max(1, int((tokens != 0).sum(dim=1).max())) if len(tokens) else 1
        tokens = tokens[:, :longest]
        states, _ = self.recurrent(self.embedding(tokens))
        there = (tokens != 0).unsqueeze(2)
        mean = (states * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
        largest = states.masked_fill(~there, -1.0).amax(dim=1)  # states lie above −1
        logits: Tensor = self.head(torch.cat([mean, largest], dim=1))
        return logits
