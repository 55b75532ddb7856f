"""What test rows said of some models together, by a job's metric: a value, its interval, and a match. Pure.

Accuracies are counted by rows that were answered rightly, which is all that is stored of a look, and have
exact forms (`champion`). Every other metric needs what was answered (`judging`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Metric, Predictions, Targets
from server.training.promotion.champion import Clusters, Match, Right, interval, match
from server.training.promotion.judging import swapped_match
from server.training.promotion.resampling import resampled_interval

__all__ = ["AnsweredRightly", "ScoredAnswers", "Verdict"]


class Verdict(Protocol):
    """Of the rows of one split, in the snapshot's order."""

    @property
    def value(self) -> float:
        """The metric's."""
        ...

    @property
    def right(self) -> Right:
        """For each row, whether it was answered rightly; empty where answers are numbers."""
        ...

    @property
    def rows(self) -> int:
        """How many there were."""
        ...

    def interval(self, clusters: Clusters | None, level: float) -> tuple[float, float]:
        """In which the value lies but for a chance of `level`."""
        ...

    def against(
        self,
        champion: Any,  # noqa: ANN401  # of its own kind
        fair: NDArray[np.bool_],
        clusters: Clusters | None,
        level: float,
    ) -> Match:
        """The test that these are no better than the champion, on the rows that are fair to both.

        level: the chance that it shall be able to tell.
        """
        ...


@dataclass(frozen=True, slots=True)
class AnsweredRightly:
    """By accuracy."""

    right: Right

    @property
    def value(self) -> float:
        """See `Verdict.value`."""
        return float(self.right.mean())

    @property
    def rows(self) -> int:
        """See `Verdict.rows`."""
        return len(self.right)

    def interval(self, clusters: Clusters | None, level: float) -> tuple[float, float]:
        """See `Verdict.interval`."""
        return interval(self.right, clusters, level)

    def against(
        self, champion: AnsweredRightly, fair: NDArray[np.bool_], clusters: Clusters | None, level: float
    ) -> Match:
        """See `Verdict.against`; the test is exact at any level."""
        return match(self.right[fair], champion.right[fair], None if clusters is None else clusters[fair])


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """By any metric."""

    metric: Metric
    predictions: Predictions
    targets: Targets
    right: Right

    @property
    def value(self) -> float:
        """See `Verdict.value`."""
        return self.metric.of(self.predictions, self.targets)

    @property
    def rows(self) -> int:
        """See `Verdict.rows`."""
        return len(self.targets)

    def interval(self, clusters: Clusters | None, level: float) -> tuple[float, float]:
        """See `Verdict.interval`."""
        return resampled_interval(self.metric, self.predictions, self.targets, clusters, level)

    def against(
        self, champion: ScoredAnswers, fair: NDArray[np.bool_], clusters: Clusters | None, level: float
    ) -> Match:
        """See `Verdict.against`."""
        return swapped_match(
            self.metric,
            self.predictions[fair],
            champion.predictions[fair],
            self.targets[fair],
            None if clusters is None else clusters[fair],
            level,
        )
