"""The logarithmic opinion pool: members' probabilities, each calibrated, weighted in the log and multiplied.

    softmax(Σ_m w_m · log p_m),    p_m = softmax(log max(p, 1e-4) / T_m)

Genest & Zidek 1986, "Combining probability distributions", §3.2. Pure; numpy alone. Knows numbers, nothing of
members' names: those stand in `fit`. Classes come second to last and rows last, [..., classes, rows]: sums
over few classes are then fast.

The floor makes a class that one member rules out unlikely, not impossible. A member that says nothing (zeros,
or the same for every class) changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "LARGEST_STEP",
    "WEIGHTS",
    "Floats",
    "Labels",
    "at_temperatures",
    "calibrated",
    "fit_temperature",
    "fit_weights",
    "log_floored",
    "log_softmax",
    "shifted",
    "unfitted_weight",
]

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]

_FLOOR = 1e-4
_STEPS = 40
_RATE = 2.0
LARGEST_STEP = 0.4  # in the log of a weight
WEIGHTS = (0.02, 2.0)
_TEMPERATURES = (0.1, 10.0)
_HALVINGS = 30  # of the logarithm of that interval: to 1e-8
_MOST_NUMBERS = 2_000_000  # held at once while weights are fitted


def log_floored(probabilities: ArrayLike) -> Floats:
    """The logarithms of probabilities, of any shape; what is below 1e-4, or no number, counts as 1e-4.

    In float32 of float32, else in float64.
    """
    given = np.asarray(probabilities)
    logs: Floats = np.fmax(given, _FLOOR, dtype=np.float32 if given.dtype == np.float32 else np.float64)
    np.fmin(logs, 1.0, out=logs)
    np.log(logs, out=logs)
    return logs


def log_softmax(logits: Floats, axis: int = -2) -> Floats:
    """Logarithms of probabilities that sum to 1 over the classes."""
    shifted: Floats = logits - logits.max(axis=axis, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return shifted


def calibrated(log_probabilities: Floats, temperature: float, axis: int = -2) -> Floats:
    """A member's log-probabilities at its temperature, as logarithms again."""
    return log_softmax(log_probabilities / temperature, axis)


def at_temperatures(probabilities: ArrayLike, temperatures: Sequence[float]) -> Floats:
    """[members, rows, classes], each member's probabilities at its temperature."""
    logs = log_floored(probabilities)
    each = [calibrated(log, t, axis=-1) for log, t in zip(logs, temperatures, strict=True)]
    told: Floats = np.exp(np.stack(each))
    return told


def unfitted_weight(members: int) -> float:
    """The weight of each of so many members where none was fitted: between a product and its mean."""
    return 1.0 / math.sqrt(members)


def shifted(weights: Sequence[float], shifts: Sequence[float]) -> tuple[float, ...]:
    """Weights moved by so much in the log, within [0.02, 2]; one alone has nobody to be weighed against."""
    if len(weights) < 2:
        return tuple(weights)
    low, high = WEIGHTS
    pairs = zip(weights, shifts, strict=True)
    return tuple(min(high, max(low, weight * math.exp(shift))) for weight, shift in pairs)


def fit_temperature(log_probabilities: Floats, labels: Labels) -> float:
    """The temperature by which a member's probabilities fit the labels best: of the least NLL, in [0.1, 10].

    log_probabilities: [classes, rows]. 1 where every temperature is as good. Guo et al. 2017, "On calibration
    of modern neural networks", §4.2; the NLL is convex in 1/T, so the root of its slope is halved in on. A
    label counts as in `_certainty`: few rows that are all answered rightly make nobody infinitely sure.
    """
    aimed = float(_aim(log_probabilities[None], labels)[0])

    def slope(temperature: float) -> float:
        q = np.exp(calibrated(log_probabilities, temperature))
        return float((q * log_probabilities).sum()) / len(labels) - aimed

    if abs(slope(1.0)) < 1e-9:
        return 1.0
    low, high = (math.log(bound) for bound in _TEMPERATURES)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # The slope in 1/T is positive where it should be less sure, so hotter.
        low, high = (middle, high) if slope(math.exp(middle)) > 0 else (low, middle)
    return math.exp((low + high) / 2)


def fit_weights(members: Floats, labels: Labels, taking_part: NDArray[np.bool_]) -> Floats:
    """The weights of each subset of the members, by which its pool fits the labels best.

    members: calibrated log-probabilities, [members, classes, rows]. taking_part: [subsets, members], no row
    of it empty. Returned: [subsets, members], 0 for those that do not take part.

    Exponentiated gradient on the NLL (Kivinen & Warmuth 1997): 40 steps at a rate of 2, each at most 0.4 in
    the log of a weight, from 1/√|S|, within [0.02, 2]; of what the steps pass the best is kept. A member
    alone has the weight 1: its temperature is fitted already.
    """
    a_time = max(1, _MOST_NUMBERS // (members.shape[1] * members.shape[2]))
    parts = [
        _descend(members, labels, taking_part[first : first + a_time])
        for first in range(0, len(taking_part), a_time)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, len(members)))


def _descend(members: Floats, labels: Labels, taking_part: NDArray[np.bool_]) -> Floats:
    count, classes, rows = members.shape
    # Half the digits, several times as fast: what is found has six of them, and means two.
    flat = members.reshape(count, classes * rows).astype(np.float32)
    aim = _aim(members, labels)
    sizes = taking_part.sum(axis=1, keepdims=True)
    weights = np.where(taking_part, 1 / np.sqrt(sizes), 0.0)
    learning = taking_part & (sizes > 1)
    best, least = weights.copy(), np.full(len(weights), np.inf)
    for step in range(_STEPS + 1):
        q = (weights.astype(np.float32) @ flat).reshape(-1, classes, rows)
        top = q.max(axis=1, keepdims=True)
        q -= top
        np.exp(q, out=q)
        total = q.sum(axis=1, keepdims=True)
        loss = (np.log(total) + top).mean(axis=(1, 2), dtype=np.float64) - weights @ aim
        better = loss < least
        best[better], least[better] = weights[better], loss[better]
        if step == _STEPS:
            return best
        q /= total
        slope = q.reshape(-1, classes * rows) @ flat.T / rows - aim
        moved = weights * np.exp(np.clip(-_RATE * slope, -LARGEST_STEP, LARGEST_STEP))
        weights = np.where(learning, np.clip(moved, *WEIGHTS), weights)
    raise AssertionError("unreachable")


def _aim(members: Floats, labels: Labels) -> Floats:
    """The mean log-probability that each member gives to what is aimed at: [members]."""
    certainty = _certainty(len(labels))
    named = members[:, labels, np.arange(len(labels))].mean(axis=1)
    aim: Floats = certainty * named + (1 - certainty) * members.mean(axis=(1, 2))
    return aim


def _certainty(rows: int) -> float:
    """How far a label is believed: (n + 1) / (n + 2), the rest is spread over the classes.

    Platt 1999, "Probabilistic outputs for support vector machines", §2.2: what he takes for the targets.
    """
    return (rows + 1) / (rows + 2)
