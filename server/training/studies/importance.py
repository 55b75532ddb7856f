"""Which knob mattered: what share of the scores' variance a knob explains by itself. Pure.

Of a number a parabola of its rank is fitted, of names the mean of each; the coefficient of determination is
adjusted for what such a fit reaches by chance (Ezekiel 1930), so that few trials say nothing. Knobs that only
matter together are not found by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from server.training.studies.hooks import KnobValue

__all__ = ["LEAST_TRIALS", "knob_importance"]

LEAST_TRIALS = 6


def knob_importance(trials: Sequence[tuple[Mapping[str, KnobValue], float]]) -> dict[str, float]:
    """(knobs, merit) of trials → knob → share of the variance, the greatest first.

    Empty of fewer than `LEAST_TRIALS`, or where all merits are equal.
    """
    merits = np.array([merit for _, merit in trials], dtype=np.float64)
    if len(trials) < LEAST_TRIALS or not np.isfinite(merits).all() or np.ptp(merits) == 0:
        return {}
    names = dict.fromkeys(name for knobs, _ in trials for name in knobs)
    found: dict[str, float] = {}
    for name in names:
        values = [knobs.get(name) for knobs, _ in trials]
        if len({str(value) for value in values}) > 1:
            found[name] = _explained(values, merits)
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def _explained(values: Sequence[KnobValue | None], merits: NDArray[np.float64]) -> float:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values) and len(set(numbers)) > 5:
        ranks = np.argsort(np.argsort(np.array(numbers, dtype=np.float64))) / (len(numbers) - 1)
        design = np.stack([np.ones_like(ranks), ranks, ranks**2], axis=1)
    else:
        names = sorted({str(value) for value in values})
        places = np.array([names.index(str(value)) for value in values])
        design = np.eye(len(names))[places]
    fitted = design @ np.linalg.lstsq(design, merits, rcond=None)[0]
    left = len(merits) - design.shape[1]
    if left <= 0:
        return 0.0
    unexplained = float(((merits - fitted) ** 2).sum() / ((merits - merits.mean()) ** 2).sum())
    return float(max(0.0, 1.0 - unexplained * (len(merits) - 1) / left))
