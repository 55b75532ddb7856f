"""TemporalCNN: convolutions along a text's characters.

Zhang, Zhao & LeCun 2015, "Character-level convolutional networks for text classification", small: their
alphabet of 70 characters is the 256 bytes of UTF-8 here, one-hot vectors are a learnt embedding, and the last
pooling is over all of time instead of two dense layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gpu_worker.zoo.text import SYMBOLS, byte_tokens

__all__ = ["TemporalCnn"]


class TemporalCnn(nn.Module):
    """Three temporal convolutions of `width` channels, pooled by 3 twice; reads `length` bytes of a text."""

    def __init__(
        self, classes: int, *, width: int = 96, embedding: int = 24, length: int = 256, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self._length = length
        self.embedding = nn.Embedding(SYMBOLS, embedding, padding_idx=0)
        self.features = nn.Sequential(
            *(nn.Conv1d(embedding, width, 7, padding=3, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
            nn.MaxPool1d(3),
            *(nn.Conv1d(width, width, 5, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
            nn.MaxPool1d(3),
            *(nn.Conv1d(width, width, 3, padding=1, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
            nn.AdaptiveMaxPool1d(1),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(width, classes))

    @property
    def tokeniser(self) -> str:
        """See `TextModule.tokeniser`."""
        return f"bytes {self._length}"

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `TextModule.encode`."""
        return byte_tokens(texts, self._length)

    def forward(self, tokens: Tensor) -> Tensor:
        """int32 [n, length] → [n, classes] logits."""
        logits: Tensor = self.head(self.features(self.embedding(tokens).transpose(1, 2)))
        return logits
