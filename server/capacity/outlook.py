"""What the next 30 seconds would be like with these copies: a fluid backlog, and the tail of chance.

Rows flow in at a forecast rate and out at what the copies give. What waits longer than the goal allows is
late; so is the share of rows that chance makes wait that long where the copies do suffice. Sources: the
horizon is InferLine's idea (Crankshaw et al., 2020); the decay of waiting times in M/D/1, θ of
ρ(e^θ − 1) = θ, is classical (Crommelin, 1932).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from server.capacity.forecasting import RateForecast
from server.capacity.sharing import too_late_share

__all__ = [
    "HORIZON_S",
    "RatesAhead",
    "Serving",
    "cost_of",
    "late_ahead",
    "rates_ahead",
    "tail_share",
]

HORIZON_S = 30.0
# Seconds of each step: fine while copies load and the forecast moves.
_STEPS_S = (*(1.0,) * 10, *(2.0,) * 10)
_MIDDLES_S = tuple(sum(_STEPS_S[:place]) + step_s / 2 for place, step_s in enumerate(_STEPS_S))
# Standard deviations off the forecast, and their weight; the one that makes most rows late comes first.
_PATHS = ((1.0, 0.3), (0.0, 0.4), (-1.0, 0.3))
_MOST_TAIL = 0.15
_FINEST = 400


RatesAhead = tuple[tuple[float, tuple[float, ...]], ...]
"""Paths of a forecast: the weight of each, and its rows/s in each step."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A copy as an option has it, between two times from now.

    rows_per_s: what it gives of what others leave of its worker. batch_s: of the batches that give that.
    price_per_s: from now until it leaves, loading too. blocked: the share of the time in which its worker is
    in a pass of another function that ends too late for a row that comes then.
    """

    rows_per_s: float
    batch_s: float
    price_per_s: float
    from_s: float = 0.0
    until_s: float = math.inf
    blocked: float = 0.0


def cost_of(serving: Sequence[Serving]) -> tuple[float, float]:
    """Of the next 30 s, and a second at their end."""
    cost = sum(one.price_per_s * min(HORIZON_S, one.until_s) for one in serving)
    return cost, sum(one.price_per_s for one in serving if one.until_s > HORIZON_S)


def rates_ahead(forecast: RateForecast) -> RatesAhead:
    """The forecast at the middle of each step, on three paths with their weights."""
    bands = forecast.bands(_MIDDLES_S)
    return tuple(
        (weight, tuple(max(0.0, rate + deviations * deviation) for rate, deviation in bands))
        for deviations, weight in _PATHS
    )


def late_ahead(
    serving: Sequence[Serving], ahead: RatesAhead, waiting: int, goal_s: float, most_late: float = math.inf
) -> float:
    """Rows expected over their goal in the next 30 s, where so many wait already. goal_s: finite.

    most_late: where it is more, it does not matter how much more, and some paths may be left out.
    """
    stages = _stages(serving, goal_s)
    late = 0.0
    for weight, rates in ahead:
        late += weight * _late(stages, rates, waiting, goal_s)
        if late > most_late:
            break
    return late


# Rows/s, seconds that a row may wait, and of each copy: of its own passes' time, and of all time for others'
# passes, the share in which a row that comes is too late there.
_Stage = tuple[float, float, tuple[tuple[float, float], ...]]


def _stages(serving: Sequence[Serving], goal_s: float) -> list[_Stage]:
    """At each step's middle. Between two changes of the copies it is one and the same object."""
    changes_s = sorted(
        {at_s for one in serving for at_s in (one.from_s, one.until_s) if at_s > _MIDDLES_S[0]}
    )
    found: list[_Stage] = []
    while len(found) < len(_MIDDLES_S):
        middle_s = _MIDDLES_S[len(found)]
        there = [one for one in serving if one.from_s <= middle_s < one.until_s]
        slowest_s = max([one.batch_s for one in there], default=0.0)
        stage = (
            sum([one.rows_per_s for one in there]),
            max(0.0, goal_s - slowest_s),
            tuple([(too_late_share(one.batch_s, goal_s - one.batch_s), one.blocked) for one in there]),
        )
        while changes_s and changes_s[0] <= middle_s:
            del changes_s[0]
        until_s = changes_s[0] if changes_s else math.inf
        found += [stage] * (bisect_left(_MIDDLES_S, until_s) - len(found))
    return found


def _late(stages: Sequence[_Stage], rates: Sequence[float], waiting: int, goal_s: float) -> float:
    """Rows that are late on one path.

    Of steps in which nothing changes all but the first are taken as one. That is the same: after the first,
    nothing waits above the bound, so what comes above it grows with the time, or nothing does.
    """
    backlog, late = float(waiting), 0.0
    place, steps = 0, len(stages)
    while place < steps:
        stage, comes, first_s = stages[place], rates[place], _STEPS_S[place]
        place += 1
        others_s = 0.0
        while place < steps and stages[place] is stage and rates[place] == comes:
            others_s += _STEPS_S[place]
            place += 1
        gives, slack_s, copies = stage
        bound = gives * slack_s if gives else comes * goal_s
        before = late
        for for_s in (first_s, others_s) if others_s else (first_s,):
            backlog += (comes - gives) * for_s
            if backlog > bound:
                late += backlog - bound
                backlog = bound
            elif backlog < 0:
                backlog = 0.0
        if comes <= 0 or gives <= 0:
            continue
        rows, used = comes * (first_s + others_s), min(1.0, comes / gives)
        blocked = math.prod([min(1.0, used * own + others) for own, others in copies])
        if used < 1:
            late += rows * max(tail_share(used, len(copies), gives * slack_s), blocked)
        else:
            late = max(late, before + rows * blocked)
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
