"""`make bench-rafiki`: Rafiki's Figures 14, 15 and 16: three models on three devices, over a full cycle.

§7.2.2: T = 500 τ, τ = 0.56 s, B = {16, 32, 48, 64}. Arrivals follow Equations 8 and 9 by the lowest
throughput r_l = 128 rows/s, that of all models synchronously (Figure 14), and by the highest r_u = 572, of
all asynchronously (Figure 15). What counts is accuracy, overdue rows per second, and Equation 7 for several β
(Figure 16). The paper's baselines batch by its Algorithm 3, vote, and refuse nothing; a refused row counts as
overdue. The models are setting C's: digits, with the paper's latencies. Splits as in `make bench-ensembles`:
each gives every contender the same rows at the same times, so differences are paired.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from ml_udf.cli.chart import line_chart
from server.scheduling.simulation.arrivals import sine, sine_rate
from server.scheduling.simulation.ensembles import EnsembleLoad, simulate_ensemble
from tests.benchmarks.ensembles_cases import (
    ACTOR,
    CONTENDERS,
    MAX_BATCH,
    OURS,
    SETTINGS,
    B,
    Contender,
    latencies_of,
    policy_of,
    prepared,
)
from tests.benchmarks.figures import apart, drawn, give_way, mean_curve, mean_of, spread, wide
from tests.benchmarks.report import console, write_json

TAU_S = SETTINGS["C"].slo_s
CYCLE_S = 500 * TAU_S
STEP_S = 0.1
BINS = 28
RATES = {"r_l": 128.0, "r_u": 572.0}
BETAS = (0.0, 0.5, 1.0, 2.0)
PAPERS = ("all, Alg. 3, vote", "async, Alg. 3")  # its baselines, of Figures 14 and 15
SHOWN = (*PAPERS, "async", ACTOR, "gear", OURS)


@dataclass(frozen=True)
class Cycle:
    """One contender over one cycle: shares of the rows; by bins, 28 a cycle, of those that came then."""

    name: str
    accuracy: float
    overdue_per_s: float
    rewards: dict[str, float]  # Equation 7 per offered row, by β
    accuracies: list[float]
    overdue: list[float]


def main(argv: Sequence[str] | None = None) -> None:
    flags = _parser().parse_args(argv)
    splits = range(flags.first, flags.first + (2 if flags.quick else flags.splits))
    length_s = CYCLE_S / 20 if flags.quick else CYCLE_S
    names = [contender.name for contender in CONTENDERS if contender.name in SHOWN]
    if flags.quick and ACTOR in names:
        names.remove(ACTOR)  # training its network takes minutes
    record: dict[str, Any] = {"splits": list(splits), "cycle_s": length_s}
    began_s = time.perf_counter()
    found: dict[str, dict[str, list[Cycle]]] = {}
    with ProcessPoolExecutor(flags.jobs, initializer=_modest) as pool:
        for at, rate in RATES.items():
            jobs = [(name, rate, number, length_s) for number in splits for name in names]
            cycles: dict[str, list[Cycle]] = {name: [] for name in names}
            for job, each in zip(jobs, pool.map(_job, jobs), strict=True):
                cycles[job[0]].append(each)
            found[at] = cycles
            _print(at, rate, cycles)
            record[at] = {name: [asdict(each) for each in mine] for name, mine in cycles.items()}
    for at, rate in RATES.items():
        drawn(f"rafiki-figure-{14 if at == 'r_l' else 15}", *_over_time(rate, length_s, found[at]))
    drawn("rafiki-figure-16", *(_by_beta(at, cycles) for at, cycles in found.items()))
    console.print(f"{time.perf_counter() - began_s:.0f} s")
    write_json("rafiki", record)


def _modest() -> None:
    give_way()
    warnings.simplefilter("ignore", ConvergenceWarning)


def _job(job: tuple[str, float, int, float]) -> Cycle:
    name, rate, number, length_s = job
    (contender,) = (each for each in CONTENDERS if each.name == name)
    return cycle_of(contender, rate, number, length_s)


def _print(at: str, rate: float, cycles: Mapping[str, Sequence[Cycle]]) -> None:
    table = Table(
        *("", "right, %", f"− {OURS}", "overdue/s", f"− {OURS}", *(f"Eq. 7, β = {beta:g}" for beta in BETAS)),
        title=f"Rafiki §7.2.2, arrivals by {at} = {rate:.0f}/s",
    )
    ours = cycles[OURS]
    for name, mine in cycles.items():
        accuracies, overdue = [each.accuracy for each in mine], [each.overdue_per_s for each in mine]
        table.add_row(
            name,
            spread(accuracies),
            "" if name == OURS else apart(accuracies, [each.accuracy for each in ours]),
            spread(overdue, 2),
            "" if name == OURS else apart(overdue, [each.overdue_per_s for each in ours], 2),
            *(spread([each.rewards[f"{beta:g}"] for each in mine]) for beta in BETAS),
        )
    wide.print(table)
    for beta in BETAS:
        of = {name: [each.rewards[f"{beta:g}"] for each in mine] for name, mine in cycles.items()}
        other = max((name for name in of if name != OURS), key=lambda name: mean_of(of[name]))
        console.print(f"β = {beta:g}: {OURS} − {other}, the best of the others: {apart(of[OURS], of[other])}")


def _over_time(rate: float, length_s: float, cycles: Mapping[str, Sequence[Cycle]]) -> list[str]:
    """Accuracy, and overdue rows beside those that arrive, over the cycle."""
    middles_s = [(each + 0.5) * length_s / BINS for each in range(BINS)]
    title = f"Rafiki's three models, arrivals by {rate:.0f}/s over a cycle of {length_s:.0f} s"
    accuracies = {name: mean_curve([each.accuracies for each in mine]) for name, mine in cycles.items()}
    overdue = {name: mean_curve([each.overdue for each in mine]) for name, mine in cycles.items()}
    arriving = [sine_rate(rate, at_s, length_s) for at_s in middles_s]
    least = min(min(line) for line in accuracies.values())
    return [
        line_chart(
            title=title,
            x_label="seconds",
            y_label="% of the answers that are right, by policy",
            x=middles_s,
            series=accuracies,
            bottom=float(int(least / 5) * 5),
            top=90.0,
        ),
        line_chart(
            title="",
            x_label="seconds",
            y_label="rows per second: arriving, and those of them that are overdue or refused, by policy",
            x=middles_s,
            series={"arriving": arriving, **overdue},
        ),
    ]


def _by_beta(at: str, cycles: Mapping[str, Sequence[Cycle]]) -> str:
    rewards = {
        name: [mean_of([each.rewards[f"{beta:g}"] for each in mine]) for beta in BETAS]
        for name, mine in cycles.items()
    }
    return line_chart(
        title=f"Rafiki's Equation 7, arrivals by {at} = {RATES[at]:.0f}/s",
        x_label="β, what an overdue row costs",
        y_label="reward per 100 rows that arrived, by policy (below 0: at the edge)",
        x=BETAS,
        series=rewards,
        top=100.0,
    )


def cycle_of(contender: Contender, extreme_rate: float, number: int, length_s: float = CYCLE_S) -> Cycle:
    arrivals_s = sine(Random(number), extreme_rate, length_s, length_s, STEP_S)
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

    def bin_of(at_s: float) -> int:
        return min(BINS - 1, int(at_s / length_s * BINS))

    overdue = [0.0] * BINS
    answers: list[list[bool]] = [[] for _ in range(BINS)]
    for arrived_s, latency_s, right in result.answered_at:
        answers[bin_of(arrived_s)].append(right)
        if latency_s > TAU_S + 1e-9:
            overdue[bin_of(arrived_s)] += BINS / length_s
    for arrived_s in result.refused_at_s:
        overdue[bin_of(arrived_s)] += BINS / length_s
    return Cycle(
        contender.name,
        100 * result.accuracy,
        (result.late + result.refused) / length_s,
        {f"{beta:g}": 100 * result.reward(beta) for beta in BETAS},
        [100 * sum(each) / len(each) if each else 0.0 for each in answers],
        overdue,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two splits, a short cycle: under a minute")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--first", type=int, default=10, help="number of the first split")
    parser.add_argument("--jobs", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
