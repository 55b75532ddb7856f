"""When rows arrive: Poisson, bursty, Rafiki's sine, a recorded trace.

Each is a list of times in seconds, ascending, made from a seeded generator alone: the same seed gives the
same arrivals on every run. Knows nothing of functions or devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from random import Random

__all__ = ["bursty", "poisson", "recorded", "sine", "sine_rate"]


def poisson(random: Random, rate: float, duration_s: float) -> list[float]:
    """Independent arrivals, `rate` per second."""
    return list(_poisson(random, rate, 0.0, duration_s))


def bursty(
    random: Random,
    rate: float,
    duration_s: float,
    *,
    burst: float = 2.5,
    share: float = 0.3,
    period_s: float = 1.0,
) -> list[float]:
    """A Markov-modulated Poisson process of two states, `rate` per second on the average.

    In a burst, `share` of the time and `share · period_s` long on the average, the rate is `burst` times
    the average; between bursts it is what is left. Raises ValueError if nothing would be left.
    """
    quiet = (1 - burst * share) / (1 - share)
    if not 0 < share < 1 or quiet < 0:
        raise ValueError(f"bursts of {burst:g} times the rate cannot take {share:.0%} of the time")
    times: list[float] = []
    now_s, bursting = 0.0, random.random() < share
    while now_s < duration_s:
        stay_s = random.expovariate(1 / (period_s * (share if bursting else 1 - share)))
        end_s = min(duration_s, now_s + stay_s)
        times += _poisson(random, rate * (burst if bursting else quiet), now_s, end_s)
        now_s, bursting = end_s, not bursting
    return times


def sine(
    random: Random, extreme_rate: float, duration_s: float, period_s: float, step_s: float
) -> list[float]:
    """Rafiki §7.2's generator: every step brings δ·r(t)·(1 + φ) rows, φ ~ N(0, 0.1), spread over the step."""
    times: list[float] = []
    carried = 0.0  # the fraction of a row that the steps so far still owe
    for step in range(round(duration_s / step_s)):
        now_s = step * step_s
        carried += max(0.0, step_s * sine_rate(extreme_rate, now_s, period_s) * (1 + random.gauss(0, 0.1)))
        rows = int(carried)
        carried -= rows
        times += [now_s + step_s * (row + 0.5) / rows for row in range(rows)]
    return times


def sine_rate(extreme_rate: float, now_s: float, period_s: float) -> float:
    """r(t) = γ·sin(2πt/T) + b of Rafiki's Equations 8 and 9, rows per second.

    It exceeds the extreme rate r for 0.2 T, so γ·sin(2π(T/4 − 0.1T)/T) + b = r, and peaks at γ + b = 1.1 r.
    """
    gamma = 0.1 * extreme_rate / (1 - math.sin(0.3 * math.pi))
    return gamma * math.sin(2 * math.pi * now_s / period_s) + 1.1 * extreme_rate - gamma


def recorded(lines: Iterable[str]) -> list[float]:
    """A trace: one arrival time in seconds per line; blank lines and `#` comments are skipped.

    Raises ValueError, naming the line, for anything else.
    """
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            time_s = float(text)
        except ValueError:
            time_s = math.nan
        if not 0 <= time_s < math.inf:
            raise ValueError(f"line {number} of the trace is not a time in seconds: {line.strip()!r}")
        times.append(time_s)
    return sorted(times)


def _poisson(random: Random, rate: float, start_s: float, end_s: float) -> Iterator[float]:
    if rate <= 0:
        return
    now_s = start_s + random.expovariate(rate)
    while now_s < end_s:
        yield now_s
        now_s += random.expovariate(rate)
