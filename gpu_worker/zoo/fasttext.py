"""FastText: the mean of hashed n-grams' embeddings, and one linear layer.

Joulin et al. 2017, "Bag of tricks for efficient text classification" (words and pairs of words); Bojanowski
et al. 2017, "Enriching word vectors with subword information" (parts of words).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gpu_worker.zoo.text import ngram_tokens

__all__ = ["FastText"]


class FastText(nn.Module):
    """`buckets` embeddings of `width` numbers; at most `length` n-grams of a text are looked at."""

    def __init__(
        self,
        classes: int,
        *,
        width: int = 64,
        buckets: int = 16_384,
        subword: int = 4,
        length: int = 1_024,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self._hashing = {"length": length, "buckets": buckets, "subword": subword}
        self.embedding = nn.EmbeddingBag(buckets + 1, width, mode="sum", padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.embedding.weight[0].detach())

    @property
    def tokeniser(self) -> str:
        """See `TextModule.tokeniser`."""
        return f"n-grams {sorted(self._hashing.items())}"

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `TextModule.encode`."""
        return ngram_tokens(texts, **self._hashing)

    def forward(self, tokens: Tensor) -> Tensor:
        """int32 [n, tokens] → [n, classes] logits."""
        counted = (tokens != 0).sum(dim=1, keepdim=True).clamp(min=1)
        logits: Tensor = self.head(self.dropout(self.embedding(tokens) / counted))
        return logits
