"""What the next 30 seconds would be like with these copies: a fluid backlog, and the tail of chance.

Rows flow in at a forecast rate and out at what the copies give. What waits longer than the goal allows is
late; so is the share of rows that chance makes wait that long where the copies do suffice. Sources: the
horizon is InferLine's idea (Crankshaw et al., 2020); the decay of waiting times in M/D/1, θ of
ρ(e^θ − 1) = θ, is classical (Crommelin, 1932).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from server.capacity.forecasting import RateForecast

__all__ = [
    "HORIZON_S",
    "Outlook",
    "RatesAhead",
    "Serving",
    "cost_of",
    "look_ahead",
    "rates_ahead",
    "tail_share",
]

HORIZON_S = 30.0
# Seconds of each step: fine while copies load and the forecast moves.
_STEPS_S = (*(1.0,) * 10, *(2.0,) * 10)
_PATHS = ((-1.0, 0.3), (0.0, 0.4), (1.0, 0.3))  # standard deviations off the forecast, and their weight
_MOST_TAIL = 0.15
_FINEST = 400


RatesAhead = tuple[tuple[float, tuple[float, ...]], ...]
"""Paths of a forecast: the weight of each, and its rows/s in each step."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A copy as an option has it, between two times from now.

    rows_per_s: what it gives of what others leave of its worker. batch_s: of the batches that give that, and
    what it waits for others'. price_per_s: from now until it leaves, loading too.
    """

    rows_per_s: float
    batch_s: float
    price_per_s: float
    from_s: float = 0.0
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Outlook:
    """late: rows expected over their goal in 30 s. cost: of 30 s. price_per_s, rows_per_s: at their end."""

    late: float
    cost: float
    price_per_s: float
    rows_per_s: float


def cost_of(serving: Sequence[Serving]) -> tuple[float, float]:
    """Of the next 30 s, and a second at their end."""
    cost = sum(one.price_per_s * min(HORIZON_S, one.until_s) for one in serving)
    return cost, sum(one.price_per_s for one in serving if one.until_s > HORIZON_S)


def rates_ahead(forecast: RateForecast) -> RatesAhead:
    """The forecast at the middle of each step, on three paths with their weights."""
    middles_s = [sum(_STEPS_S[:place]) + step_s / 2 for place, step_s in enumerate(_STEPS_S)]
    return tuple(
        (weight, tuple(forecast.at(at_s, deviations) for at_s in middles_s)) for deviations, weight in _PATHS
    )


def look_ahead(serving: Sequence[Serving], ahead: RatesAhead, waiting: int, goal_s: float) -> Outlook:
    """With these copies, where so many rows wait already. goal_s: finite."""
    cost, price_per_s = cost_of(serving)
    stages = _stages(serving, goal_s)
    late = sum(weight * _late(stages, rates, waiting, goal_s) for weight, rates in ahead)
    return Outlook(late, cost, price_per_s, stages[-1][0])


_Stage = tuple[float, int, float]  # rows/s, copies, seconds that a row may wait


def _stages(serving: Sequence[Serving], goal_s: float) -> list[_Stage]:
    """At each step's middle."""
    found: list[_Stage] = []
    at_s = 0.0
    for step_s in _STEPS_S:
        middle_s = at_s + step_s / 2
        there = [one for one in serving if one.from_s <= middle_s < one.until_s]
        rows_per_s = sum(one.rows_per_s for one in there)
        slowest_s = max((one.batch_s for one in there), default=0.0)
        found.append((rows_per_s, len(there), max(0.0, goal_s - slowest_s)))
        at_s += step_s
    return found


def _late(stages: Sequence[_Stage], rates: Sequence[float], waiting: int, goal_s: float) -> float:
    backlog, late = float(waiting), 0.0
    for (gives, copies, slack_s), comes, step_s in zip(stages, rates, _STEPS_S, strict=True):
        backlog += (comes - gives) * step_s
        bound = gives * slack_s if gives else comes * goal_s
        if backlog > bound:
            late += backlog - bound
            backlog = bound
        elif backlog < 0:
            backlog = 0.0
        if 0 < comes < gives:
            late += comes * step_s * tail_share(comes / gives, copies, gives * slack_s)
    return late


def tail_share(utilization: float, copies: int, wait: float) -> float:
    """Of the rows, those that wait longer than `wait` services though the copies suffice.

    utilization: below 1. Those that come too late are refused, which thins the queue for the others: hence
    1.5(1 − ρ)p / (1 − ρp) of the p that would wait where nothing is refused; at most 15 %.
    """
    place = utilization * _FINEST
    before = min(int(place), _FINEST - 1)
    decay = _DECAYS[before] + (place - before) * (_DECAYS[before + 1] - _DECAYS[before])
    exponent = copies * math.log(utilization) - decay * wait
    if exponent < -14:
        return 0.0
    waits = math.exp(exponent)
    return min(_MOST_TAIL, 1.5 * (1 - utilization) * waits / (1 - utilization * waits))


def _decay(utilization: float) -> float:
    """θ > 0 of ρ(e^θ − 1) = θ, by halving."""
    low, high = 1e-9, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if utilization * math.expm1(middle) < middle else (low, middle)
    return low


_DECAYS = (40.0, *(_decay(number / _FINEST) for number in range(1, _FINEST)), 0.0)
