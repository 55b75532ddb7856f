"""The examples of several splits as one, and some of them. Knows no files and no sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gpu_worker.train.loop import Examples
from gpu_worker.train.spec import TrainSpec

__all__ = ["JoinedExamples", "taught_of"]


class JoinedExamples:
    """See `loop.Examples`: those of one part after those of the other, of at least one part."""

    def __init__(self, parts: Sequence[Examples]) -> None:
        self._parts = tuple(parts)
        self._starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
        self.labels = torch.cat([part.labels for part in parts])
        self.classes = parts[0].classes

    def __len__(self) -> int:
        return len(self.labels)

    def varied(
        self, rows: Tensor, spec: TrainSpec, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """See `loop.Examples.varied`; each part's rows are varied together."""
        found: list[tuple[Tensor, Tensor]] = []
        for at, part in enumerate(self._parts):
            start, end = self._starts[at], self._starts[at + 1]
            mine = ((rows >= start) & (rows < end)).nonzero()[:, 0]
            if len(mine):
                found.append((mine, part.varied(rows[mine] - start, spec, generator, device)))
        order = torch.cat([mine for mine, _ in found]).argsort()
        return _stacked([inputs for _, inputs in found])[order]

    def plain(self, start: int, end: int, spec: TrainSpec, device: torch.device) -> Tensor:
        """See `loop.Examples.plain`."""
        found = []
        for at, part in enumerate(self._parts):
            first = int(self._starts[at])
            low, high = max(start - first, 0), min(end - first, len(part))
            if low < high:
                found.append(part.plain(low, high, spec, device))
        return _stacked(found)

    def content(self) -> Iterator[bytes]:
        """See `loop.Examples.content`."""
        for part in self._parts:
            yield from part.content()


class _SomeExamples:
    """See `loop.Examples`: the chosen rows of others, by their numbers."""

    def __init__(self, examples: Examples, chosen: Tensor) -> None:
        self._examples = examples
        self._chosen = chosen
        self.labels = examples.labels[chosen]
        self.classes = examples.classes

    def __len__(self) -> int:
        return len(self.labels)

    def varied(
        self, rows: Tensor, spec: TrainSpec, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """See `loop.Examples.varied`."""
        return self._examples.varied(self._chosen[rows], spec, generator, device)

    def plain(self, start: int, end: int, spec: TrainSpec, device: torch.device) -> Tensor:
        """See `loop.Examples.plain`."""
        rows = self._chosen[start:end].tolist()
        return _stacked([self._examples.plain(row, row + 1, spec, device) for row in rows])

    def content(self) -> Iterator[bytes]:
        """See `loop.Examples.content`; of all, and which are chosen."""
        yield from self._examples.content()
        yield self._chosen.numpy().tobytes()


def taught_of(examples: Examples) -> Examples:
    """Those that can be taught: without validation rows of a class that no training row shows."""
    known = (examples.labels >= 0).nonzero()[:, 0]
    return examples if len(known) == len(examples) else _SomeExamples(examples, known)


def _stacked(inputs: Sequence[Tensor]) -> Tensor:
    """All rows in one; tokens of fewer columns have 0 behind them."""
    if inputs[0].dim() == 2:
        width = max(each.shape[1] for each in inputs)
        inputs = [functional.pad(each, (0, width - each.shape[1])) for each in inputs]
    return torch.cat(list(inputs))
