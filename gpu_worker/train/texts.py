"""A split's texts, as the tokens that one architecture makes of them. Knows no SQL and no sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.train.spec import TrainSpec

__all__ = ["TextExamples", "ragged"]

_CONTENT_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class TextExamples:
    """tokens: of all texts, one after the other; ends: int64 [n], where each text's end; both may be mapped.

    labels: int64 [n], indices into `classes`, or −1. width: the fewest tokens that a text has for the module.
    """

    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    labels: Tensor
    classes: tuple[str, ...]
    width: int

    def __len__(self) -> int:
        return len(self.labels)

    def varied(
        self, rows: Tensor, spec: TrainSpec, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """See `loop.Examples.varied`: the tokens, a share of `spec.forget` of them left out."""
        tokens = self._padded(rows.numpy())
        if spec.forget > 0:
            kept = torch.rand(tokens.shape, generator=generator) >= spec.forget
            tokens = tokens * kept
        return tokens.to(device)

    def plain(self, start: int, end: int, spec: TrainSpec, device: torch.device) -> Tensor:
        """See `loop.Examples.plain`."""
        return self._padded(np.arange(start, min(end, len(self)))).to(device)

    def content(self) -> Iterator[bytes]:
        """See `loop.Examples.content`."""
        for start in range(0, len(self.tokens), _CONTENT_TOKENS):
            yield self.tokens[start : start + _CONTENT_TOKENS].tobytes()
        yield self.ends.tobytes()

    def _padded(self, rows: NDArray[np.int64]) -> Tensor:
        """int32 [n, tokens], 0 behind each text's end."""
        ends = self.ends[rows]
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = ends - starts
        padded = np.zeros((len(rows), max(self.width, int(lengths.max(initial=0)))), np.int32)
        there = np.arange(padded.shape[1]) < lengths[:, None]
        # Of each text the places of its tokens, in one list: 5 6 7 | 20 21 | …
        before = np.cumsum(lengths) - lengths
        places = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
        padded[there] = self.tokens[places]
        return torch.from_numpy(padded)


def ragged(tokens: Tensor) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """int32 [n, tokens] → the tokens before each row's last 0s, one after the other; how many of each."""
    matrix = tokens.numpy()
    behind = (matrix[:, ::-1] != 0).argmax(axis=1)
    lengths = np.where((matrix != 0).any(axis=1), matrix.shape[1] - behind, 0).astype(np.int64)
    flat: NDArray[np.int32] = matrix[np.arange(matrix.shape[1]) < lengths[:, None]].astype(np.int32)
    return flat, lengths
