"""A Gaussian process over the unit cube, and expected improvement on it: the `gp` advisor's model.

Matérn 5/2 with one length scale per dimension; scales, signal and noise by maximum a posteriori over a fixed
set of random candidates. In numpy alone: the server loads no torch, which Optuna's own sampler would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["GaussianProcess", "expected_improvement", "fit"]

Array = NDArray[np.float64]
_CANDIDATES = 96


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A fitted process. `points` are [n, d]; `weights` and `factor` come of the standardised scores."""

    points: Array
    scales: Array
    noise: float
    factor: Array
    weights: Array
    mean: float
    spread: float

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation [m] at points [m, d], in the scores' own unit."""
        across = _matern(points, self.points, self.scales)
        mean = across @ self.weights
        solved = np.linalg.solve(self.factor, across.T)
        variance = np.maximum(1.0 - (solved**2).sum(axis=0), 1e-12)
        return self.mean + self.spread * mean, self.spread * np.sqrt(variance)


def fit(points: Array, scores: Array, random: np.random.Generator) -> GaussianProcess:
    """The process of scores [n] at points [n, d] in the unit cube; n ≥ 1."""
    mean, spread = float(scores.mean()), float(scores.std()) or 1.0
    standard = (scores - mean) / spread
    dimensions = points.shape[1]
    logs = random.normal(math.log(0.5), 0.8, (_CANDIDATES, dimensions))
    noises = np.exp(random.normal(math.log(0.05), 1.2, _CANDIDATES))
    logs[0], noises[0] = math.log(0.5), 0.05
    best: tuple[float, GaussianProcess] | None = None
    for log_scales, noise in zip(logs, noises, strict=True):
        scales = np.exp(log_scales)
        covariance = _matern(points, points, scales) + (noise + 1e-8) * np.eye(len(points))
        factor = np.linalg.cholesky(covariance)
        inner = np.linalg.solve(factor, standard)
        # The candidates are drawn from the prior, so its density belongs in the posterior.
        prior = -0.5 * float((((log_scales - math.log(0.5)) / 0.8) ** 2).sum())
        evidence = -0.5 * float(inner @ inner) - float(np.log(np.diag(factor)).sum()) + prior
        if best is None or evidence > best[0]:
            weights = np.linalg.solve(factor.T, inner)
            best = evidence, GaussianProcess(points, scales, noise, factor, weights, mean, spread)
    assert best is not None
    return best[1]


def expected_improvement(process: GaussianProcess, points: Array, best: float) -> Array:
    """The expected gain over `best` at points [m, d] (Jones et al. 1998): [m]."""
    mean, deviation = process.predict(points)
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    cumulative = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    gain: Array = (mean - best) * cumulative + deviation * density
    return gain


def _matern(one: Array, other: Array, scales: Array) -> Array:
    difference = one[:, None, :] / scales - other[None, :, :] / scales
    distance = np.sqrt(5.0 * (difference**2).sum(axis=2))
    covariance: Array = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return covariance
