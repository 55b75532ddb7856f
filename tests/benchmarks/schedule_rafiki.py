"""Rafiki §7.2.1: one model, B = {16, 32, 48, 64}, c(16) = 0.07 s, c(64) = 0.23 s, τ = 0.56 s.

Arrivals follow Equations 8 and 9 over a full cycle T = 500 τ, by the highest throughput r_u = 272 rows/s
(Figure 10) and by the lowest r_l = 228 rows/s (Figure 13). What counts is overdue rows per second; a refused
row is one. Sizes outside B are padded to the next of B: nobody gains by a batch that the paper's model could
not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ml_udf.cli.chart import line_chart
from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import sine, sine_rate
from server.scheduling.simulation.simulator import FunctionLoad, Workload, simulate

B = (16, 32, 48, 64)
TAU_S = 0.56
CYCLE_S = 500 * TAU_S
STEP_S = 0.1  # between two invocations of the paper's simulator, which does not say
BIN_S = 10.0
RATES = {"r_u": 272.0, "r_l": 228.0}


def padded(rows: int) -> float:
    """c(b) of the next size of B, linear between the two that the paper gives."""
    size = next(size for size in B if size >= rows)
    return 0.07 + (0.23 - 0.07) * (size - 16) / 48


def overdue(policy: str, refuses: bool, extreme_rate: float, seed: int) -> tuple[float, list[float]]:
    """Overdue rows per second over the cycle, and by bins of 10 s."""
    arrivals = sine(Random(seed), extreme_rate, CYCLE_S, CYCLE_S, STEP_S)
    function = FunctionLoad(
        "inception_v3", arrivals, TAU_S, 64, padded, batch_sizes=B, refuses=refuses, policy=policy
    )
    result = simulate(Workload((function,), arbitration=MostInTime())).total
    bins = [0.0] * round(CYCLE_S / BIN_S)
    for at_s in result.overdue_at_s:
        bins[min(len(bins) - 1, int(at_s / BIN_S))] += 1 / BIN_S
    return (result.offered - result.good) / CYCLE_S, bins


def arriving(extreme_rate: float) -> list[float]:
    """The arriving rate in the middle of each bin."""
    return [
        sine_rate(extreme_rate, (number + 0.5) * BIN_S, CYCLE_S) for number in range(round(CYCLE_S / BIN_S))
    ]


def chart(overdue_by_10_s: Mapping[str, Sequence[float]]) -> str:
    """An SVG: the rate that arrives by r_u, and overdue rows per second by policy, over the cycle."""
    return line_chart(
        title="Rafiki's single model, arrivals by r_u = 272/s over a cycle of 280 s",
        x_label="seconds",
        y_label="rows per second: arriving, and overdue or refused by policy",
        x=[(number + 0.5) * BIN_S for number in range(round(CYCLE_S / BIN_S))],
        series={"arriving": arriving(RATES["r_u"]), **overdue_by_10_s},
    )
