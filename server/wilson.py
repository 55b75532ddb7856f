"""The interval of a share of so many rows, by Wilson (1927): honest for few rows, and near 0 and 1. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["wilson"]

_LEVEL = 0.05


def wilson(share: float, rows: float, level: float = _LEVEL) -> tuple[float, float]:
    """Its lower and its upper end. level: the chance that it misses. rows: more than 0; as many as are
    independent of each other.
    """
    z = NormalDist().inv_cdf(1 - level / 2)
    middle = share + z**2 / (2 * rows)
    reach = z * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    scale = 1 + z**2 / rows
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
