"""Rafiki §7.2.2: three models on three devices over a full cycle T = 500 τ, τ = 0.56 s, B = {16, 32, 48, 64}.

Arrivals follow Equations 8 and 9 by the lowest throughput r_l = 128 rows/s, that of all models synchronously
(Figure 14), and by the highest r_u = 572, of all asynchronously (Figure 15). The paper's baselines batch by
its Algorithm 3, vote, and refuse nothing; what counts is accuracy, overdue rows per second, and Equation 7
for several β (Figure 16). The models are setting C's: digits, with the paper's latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ml_udf.cli.chart import line_chart
from server.scheduling.simulation.arrivals import sine, sine_rate
from server.scheduling.simulation.ensembles import EnsembleLoad, simulate_ensemble
from tests.benchmarks.ensembles_cases import (
    CONTENDERS,
    MAX_BATCH,
    SETTINGS,
    B,
    Contender,
    latencies_of,
    policy_of,
    prepared,
)

TAU_S = SETTINGS["C"].slo_s
CYCLE_S = 500 * TAU_S
STEP_S = 0.1
BINS = 28
RATES = {"r_l": 128.0, "r_u": 572.0}
SHOWN = ("all, Alg. 3, vote", "async, Alg. 3", "async", "value")


@dataclass(frozen=True)
class Cycle:
    """One contender over one cycle: shares of the rows, and by bins of a 28th of the cycle."""

    name: str
    accuracy: float
    overdue_per_s: float
    rewards: dict[str, float]  # Equation 7 per offered row, by β
    accuracies: list[float]
    overdue: list[float]


def cycles(extreme_rate: float, number: int) -> list[Cycle]:
    """Every contender on the same arrivals."""
    arrivals_s = sine(Random(number), extreme_rate, CYCLE_S, CYCLE_S, STEP_S)
    shown = [contender for contender in CONTENDERS if contender.name in SHOWN]
    return [_cycle(contender, arrivals_s, number) for contender in shown]


def arriving(extreme_rate: float) -> list[float]:
    """The arriving rate in the middle of each bin."""
    return [sine_rate(extreme_rate, (each + 0.5) * CYCLE_S / BINS, CYCLE_S) for each in range(BINS)]


def charts(extreme_rate: float, shown: Sequence[Cycle]) -> dict[str, str]:
    """Two SVGs: accuracy, and overdue rows beside those that arrive, over the cycle."""
    middles_s = [(each + 0.5) * CYCLE_S / BINS for each in range(BINS)]
    title = f"Rafiki's three models, arrivals by {extreme_rate:.0f}/s over a cycle of {CYCLE_S:.0f} s"
    return {
        "accuracy": line_chart(
            title=title,
            x_label="seconds",
            y_label="% of the answers that are right, by policy",
            x=middles_s,
            series={each.name: each.accuracies for each in shown},
        ),
        "overdue": line_chart(
            title=title,
            x_label="seconds",
            y_label="rows per second: arriving, and overdue or refused by policy",
            x=middles_s,
            series={"arriving": arriving(extreme_rate), **{each.name: each.overdue for each in shown}},
        ),
    }


def _cycle(contender: Contender, arrivals_s: list[float], number: int) -> Cycle:
    case = prepared("C", number, contender.rule)
    load = EnsembleLoad(
        arrivals_s,
        TAU_S,
        latencies_of(case.ensemble),
        case.fitted.judging,
        max_batch=MAX_BATCH,
        batch_sizes=B,
        seed=number,
    )
    result = simulate_ensemble(
        load,
        case.ensemble,
        policy_of("C", number, contender),
        batching=contender.batching,
        refuses=contender.refuses,
    )
    overdue = [0.0] * BINS
    answers: list[list[bool]] = [[] for _ in range(BINS)]
    for arrived_s, latency_s, right in result.answered_at:
        answers[_bin(arrived_s)].append(right)
        if latency_s > TAU_S + 1e-9:
            overdue[_bin(arrived_s + latency_s)] += BINS / CYCLE_S
    for arrived_s in result.refused_at_s:
        overdue[_bin(arrived_s)] += BINS / CYCLE_S
    return Cycle(
        contender.name,
        100 * result.accuracy,
        (result.late + result.refused) / CYCLE_S,
        {f"{beta:g}": 100 * result.reward(beta) for beta in (0.0, 0.5, 1.0, 2.0)},
        [100 * sum(each) / len(each) if each else 0.0 for each in answers],
        overdue,
    )


def _bin(at_s: float) -> int:
    return min(BINS - 1, int(at_s / CYCLE_S * BINS))
