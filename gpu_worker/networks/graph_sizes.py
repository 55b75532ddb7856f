"""At which batch sizes a network is recorded as one CUDA graph, when, and in which of them a batch runs.

A replay costs one launch, whatever the number of layers: small batches, which a GPU runs faster than the host
can launch their kernels, gain most; large ones nothing. A batch in between is padded up to the next size.
A graph holds the addresses of the weights: when these have moved, it is of no use any more. Knows numbers
alone; what a recording is, is its owner's affair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, Generic, TypeVar

__all__ = ["GRAPH_SIZES", "Recordings", "graph_size"]

GRAPH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
_MOST_PADDING: Final = 0.5  # of the batch that runs
_WORTH_IT: Final = 16  # passes of a size that run without one, before it is recorded beside the serving

T = TypeVar("T")


def graph_size(rows: int, sizes: Collection[int]) -> int | None:
    """The smallest of the sizes that holds `rows`; None where there is none, or half of it were padding."""
    size = min((size for size in sizes if size >= rows), default=None)
    return None if size is None or size - rows >= _MOST_PADDING * size else size


class Recordings(Generic[T]):
    """The recordings of one network by size, true for the weights at one place."""

    def __init__(self) -> None:
        self._made: dict[int, T] = {}
        self._passes: Counter[int] = Counter()
        self._refused: set[int] = set()
        self._weights_at = 0

    def find(self, rows: int, weights_at: int) -> tuple[int, T] | None:
        """The recording that a batch of so many rows runs in, and its size; None: it runs without one."""
        if weights_at != self._weights_at:
            self.clear()
            self._weights_at = weights_at
        size = graph_size(rows, self._made)
        return None if size is None else (size, self._made[size])

    def is_due(self, rows: int) -> int | None:
        """The size to record now, after one more pass of so many rows has run without; None: none."""
        size = graph_size(rows, GRAPH_SIZES)
        if size is None or size in self._refused or size in self._made:
            return None
        self._passes[size] += 1
        return size if self._passes[size] >= _WORTH_IT else None

    def keep(self, size: int, recording: T) -> None:
        """It is recorded."""
        self._made[size] = recording

    def refuse(self, size: int) -> None:
        """It cannot be recorded, or answers otherwise: it is not tried again."""
        self._refused.add(size)

    def clear(self) -> None:
        """The weights are, or may be, elsewhere."""
        self._made.clear()
        self._passes.clear()
