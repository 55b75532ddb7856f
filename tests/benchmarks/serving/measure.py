"""What is measured of one running server: the rate it stands, latency at half of it, a burst."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from server.scheduling.simulation.arrivals import poisson
from tests.benchmarks.load_generator import Replay
from tests.benchmarks.serving.cases import Case
from tests.benchmarks.serving.load import Load
from tests.benchmarks.serving.search import Search

_GOOD = 0.99  # of all rows that were sent, answered within the goal: p99 with refusals counted as late
_BURST = 5.0
_BURST_S = 2.0
_CALM_S = 1.0  # before and after it
_PATIENCE_S = 10.0
_ALONE_ROWS = 50


@dataclass(frozen=True)
class Effort:
    """How long to look, seconds; `tolerance` of the rate."""

    probe_s: float = 2.0
    half_s: float = 3.0
    tolerance: float = 0.1


@dataclass(frozen=True)
class Burst:
    """Five times half the highest rate for two seconds: what became of its rows, as shares of them."""

    rows: int
    in_time: float
    late: float
    refused: float
    lost: float
    in_time_per_s: float


@dataclass(frozen=True)
class Measured:
    """One server with one model. Times in ms, from the moment a row was due to leave."""

    rate: float  # rows/s with 99 % in time
    half_rate: float  # the rate at which p50 and p99 were taken
    p50_ms: float
    p99_ms: float
    alone_ms: float  # a single caller's median
    burst: Burst
    probes: list[dict[str, float]]
    generator_lag_ms: float  # how late the generator itself was, at worst

    def record(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    load: Load, urgent: Load, ask: Callable[[], object], case: Case, effort: Effort, known_rate: float
) -> Measured:
    """`urgent` sends the same with a deadline, where the server knows such: a burst is measured by it.

    `ask` asks once, over a connection of its own; `known_rate` is where to begin the search.
    """
    warm_up(load, case)
    search = Search(known_rate, effort.tolerance)
    probes: list[dict[str, float]] = []
    lag_s = 0.0
    while (rate := search.next_rate()) is not None:
        seed = len(probes)
        probe = load.replay(poisson(Random(seed), rate, effort.probe_s), 2 * case.slo_s)
        lag_s = max(lag_s, probe.lag_s)
        good = probe.good(case.slo_s) / max(1, len(probe.outcomes))
        probes.append({"rate": rate, "good": good, "p99_ms": 1000 * probe.quantile_s(0.99)})
        search = search.told(rate, passed=good >= _GOOD)
        _settle(ask, case)
    half_rate = search.stood / 2
    half = load.replay(poisson(Random(100), half_rate, effort.half_s), _PATIENCE_S) if half_rate else Replay()
    return Measured(
        rate=search.stood,
        half_rate=half_rate,
        p50_ms=1000 * half.quantile_s(0.5),
        p99_ms=1000 * half.quantile_s(0.99),
        alone_ms=_alone_ms(load),
        burst=_burst(urgent, case, half_rate),
        probes=probes,
        generator_lag_ms=1000 * max(lag_s, half.lag_s),
    )


def warm_up(load: Load, case: Case) -> None:
    """Batches of all sizes, so that nothing is done for the first time later."""
    for rate in (case.first_rate / 5, case.first_rate):
        load.replay(poisson(Random(7), rate, 1.0), 2.0)


def _settle(ask: Callable[[], object], case: Case) -> None:
    """Wait until what the last probe left behind is done: a lone caller is answered within the goal."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        began_s = time.monotonic()
        try:
            ask()
        except OSError:
            continue
        if time.monotonic() - began_s < case.slo_s:
            return


def _alone_ms(load: Load) -> float:
    """Callers so rare that none meets another."""
    alone = load.replay([0.03 * number for number in range(_ALONE_ROWS)], _PATIENCE_S)
    return 1000 * alone.quantile_s(0.5)


def _burst(load: Load, case: Case, rate: float) -> Burst:
    if not rate:
        return Burst(0, 0.0, 0.0, 0.0, 1.0, 0.0)
    calm = poisson(Random(200), rate, _CALM_S)
    high = poisson(Random(201), _BURST * rate, _BURST_S)
    after = poisson(Random(202), rate, _CALM_S)
    arrivals = [*calm, *(_CALM_S + at for at in high), *(_CALM_S + _BURST_S + at for at in after)]
    whole = load.replay(arrivals, _PATIENCE_S)
    of_burst = Replay(whole.outcomes[len(calm) : len(calm) + len(high)])
    rows = max(1, len(high))
    good = of_burst.good(case.slo_s)
    return Burst(
        rows=len(high),
        in_time=good / rows,
        late=of_burst.late(case.slo_s) / rows,
        refused=of_burst.refused() / rows,
        lost=of_burst.lost() / rows,
        in_time_per_s=good / _BURST_S,
    )


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return statistics.median(values), min(values), max(values)
