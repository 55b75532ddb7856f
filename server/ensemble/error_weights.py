"""How much each member's value counts in their mean: the less it errs on held-out rows, the more.

Bates & Granger 1969, "The combination of forecasts": weights by 1 / σ² of each, which are the best where
errors have nothing in common. Pure; the server and `ml_udf.local` share it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["error_weights"]

_LEAST = 1e-6  # of the largest error: one that made none is not alone for that


def error_weights(scores: Mapping[str, object]) -> dict[str, float]:
    """By member, 1 / σ², the mean of all being 1; {} for equal weights.

    scores: by member, what its manifest says as `score`: `{"metric": "rmse", "value": 3.5}`. Members count
    alike that were not all measured, or not by the same metric of an error.
    """
    told = {name: score for name, score in scores.items() if isinstance(score, Mapping)}
    metrics = {score.get("metric") for score in told.values()}
    if len(told) < len(scores) or len(metrics) != 1 or not metrics <= {"rmse", "mae"}:
        return {}
    try:
        errors = {name: abs(float(score["value"])) for name, score in told.items()}
    except (KeyError, TypeError, ValueError):
        return {}
    largest = max(errors.values())
    if not 0 < largest < float("inf"):
        return {}
    weights = {name: max(error / largest, _LEAST) ** -2 for name, error in errors.items()}
    mean = sum(weights.values()) / len(weights)
    return {name: weight / mean for name, weight in weights.items()}
