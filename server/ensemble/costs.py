"""What rows cost on members: of several that answer together, and whether it has moved, to stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["CostWatch", "one_after_the_other_s"]

_MOVED = math.log(1.2)  # a fifth
_SWAYS = 2.0  # times what looks differ from their mean: less is chance
_MEAN_GAIN, _SWAY_GAIN = 0.4, 0.2  # of a look


def one_after_the_other_s(each_s: Sequence[float], shared_s: float) -> float:
    """What members take together on one worker: each after the first less what it shares with the others.

    each_s: of each alone, at least one. Never less than the slowest of them.
    """
    return max(sum(each_s) - shared_s * (len(each_s) - 1), *each_s)


class CostWatch:
    """Costs of the members of an ensemble, looked at now and then, since plans were fitted by them."""

    def __init__(self, costs_s: Sequence[float]) -> None:
        """`costs_s`: by which plans are fitted."""
        self._fitted = [math.log(cost) for cost in costs_s]
        self._last = list(self._fitted)
        self._mean = list(self._fitted)  # of the looks
        self._sway = [0.0] * len(costs_s)  # what they differ from it by

    @property
    def costs_s(self) -> list[float]:
        """What they cost, by the last looks: plans are to be fitted by that."""
        return [math.exp(mean) for mean in self._mean]

    def fitted(self) -> None:
        """Plans are fitted by `costs_s` from now on; how far they sway is still known."""
        self._fitted = list(self._mean)

    def has_moved(self, costs_s: Sequence[float], *, at_once: bool = False) -> bool:
        """Look once more: whether a cost is off, as it was at the look before, to the same side.

        at_once: as soon as one is off by a fifth; for costs that were guessed when plans were fitted.
        """
        moved = False
        for place, cost in enumerate(costs_s):
            now, last, mean = math.log(cost), self._last[place], self._mean[place]
            self._sway[place] += _SWAY_GAIN * (abs(now - mean) - self._sway[place])
            self._mean[place] = mean = mean + _MEAN_GAIN * (now - mean)
            self._last[place] = now
            off = [each - self._fitted[place] for each in (now, last, mean)]
            if at_once:
                moved |= abs(off[0]) > _MOVED
                self._mean[place] = now
            elif max(off) < 0 or min(off) > 0:
                moved |= min(map(abs, off)) > max(_MOVED, _SWAYS * self._sway[place])
        return moved
