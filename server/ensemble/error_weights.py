"""How much each member's value counts in their mean: the less it errs, the more.

Bates & Granger 1969, "The combination of forecasts": weights by 1 / σ² of each, which are the best where
errors have nothing in common; σ² of held-out rows, and once there are labels of the last ones of these, as
in the paper (§3), so that weights follow who errs now. Pure; the server and `ml_udf.local` share it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["error_weights"]

_LEAST = 1e-6  # of the largest error: one that made none is not alone for that
_KAPPA = 20  # labels that the error on held-out rows counts for
_NORMAL = math.sqrt(math.pi / 2)  # σ of a normal error by its mean distance


def error_weights(
    scores: Mapping[str, object], squares: Mapping[str, Sequence[float]] | None = None
) -> dict[str, float]:
    """By member, 1 / σ², the mean of all being 1; {} for equal weights.

    scores: by member, what its manifest says as `score`: `{"metric": "rmse", "value": 3.5}`. squares: by
    member, its squared errors on those of the last labels that it answered; none where there are none.
    Members count alike that were not all measured, or not by the same metric of an error, until there are
    labels for all.
    """
    before = _held_out(scores)
    known = squares or {}
    if before is None:
        if min((len(known.get(name, ())) for name in scores), default=0) < _KAPPA:
            return {}
        errors = {name: math.sqrt(sum(known[name]) / len(known[name])) for name in scores}
    else:
        errors = {
            name: math.sqrt((_KAPPA * error**2 + sum(each)) / (_KAPPA + len(each)))
            for name, error in before.items()
            for each in [known.get(name, ())]
        }
    largest = max(errors.values(), default=0.0)
    if not 0 < largest < math.inf:
        return {}
    weights = {name: max(error / largest, _LEAST) ** -2 for name, error in errors.items()}
    mean = sum(weights.values()) / len(weights)
    return {name: weight / mean for name, weight in weights.items()}


def _held_out(scores: Mapping[str, object]) -> dict[str, float] | None:
    """By member, its error on held-out rows; None unless all were measured alike."""
    told = {name: score for name, score in scores.items() if isinstance(score, Mapping)}
    metrics = {score.get("metric") for score in told.values()}
    if len(told) < len(scores) or len(metrics) != 1 or not metrics <= {"rmse", "mae"}:
        return None
    times = _NORMAL if metrics == {"mae"} else 1.0
    try:
        return {name: times * abs(float(score["value"])) for name, score in told.items()}
    except (KeyError, TypeError, ValueError):
        return None
