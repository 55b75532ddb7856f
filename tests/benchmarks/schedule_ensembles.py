"""The cells of `make bench-schedule` with ensembles: every function has three members instead of one.

What counts is G, the share of the offered rows that are answered rightly and in time. The members are the
three peers of `make bench-ensembles` (real held-out answers to noisy digits, of splits that nothing was tuned
on; a function has the split 10 + its number mod 8): the most accurate one has the cell's l(b), the others
0.74 and 0.46 of it, as Rafiki's models have. Load is relative to the most accurate members alone. Batches
are cut by `goodput`; the worker goes between functions where it brings the most right answers. The same seed
gives every policy the same rows at the same times, so differences are paired, ± 95 %. A run that was
interrupted goes on where it was. Simulated: the very core that serves decides.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import cache

from rich.table import Table

from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, EnsembleMember, SelectionPolicy
from server.scheduling.arbitration import papers_turns
from server.scheduling.simulation.simulator import (
    Following,
    FunctionLoad,
    MemberLoad,
    SimulationResult,
    Workload,
    simulate,
)
from tests.benchmarks.ensembles_data import FittedSplit, fitted, split_of
from tests.benchmarks.journal import Journal
from tests.benchmarks.report import console, write_json
from tests.benchmarks.schedule import grid_parser, half_width
from tests.benchmarks.schedule_cases import (
    ALIKE,
    MAX_BATCH,
    MIXED,
    SLO_S,
    Affine,
    Cell,
    arrivals_of,
    cells,
)

POLICIES = ("best", "all", "gear", "value")
OURS = "value"
PACES = (0.46, 0.74, 1.0)  # of l(b), by accuracy, ascending
SPLITS = range(10, 18)


@dataclass(frozen=True)
class Outcome:
    """Shares of the offered rows, in %. worst: G of the function that fares worst."""

    right: float
    late: float
    refused: float
    worst: float


Outcomes = dict[tuple[Cell, str], list[Outcome]]  # by seed


def main() -> None:
    flags = grid_parser(__doc__, 4).parse_args()
    began_s = time.perf_counter()
    chosen = cells(flags.functions, flags.loads, flags.l_hats)
    jobs = [
        (cell, policy, seed, flags.rows)
        for cell in chosen
        for policy in POLICIES
        for seed in range(flags.seeds)
    ]
    journal = Journal("schedule-ensembles", sys.modules[__name__], packages=("ensemble", "scheduling"))
    left = {key: job for job in jobs if (key := _key(*job)) not in journal.known}
    with ProcessPoolExecutor(flags.jobs, initializer=os.nice, initargs=(10,)) as pool:
        list(pool.map(_learn, SPLITS))
        found = pool.map(_one, left.values(), chunksize=flags.seeds)
        told = ((key, astuple(each)) for key, each in zip(left, found, strict=True))
        for done, _ in enumerate(journal.keep(told), len(jobs) - len(left) + 1):
            if done % 100 == 0:
                console.print(f"{done:,} of {len(jobs):,} simulations", end="\r")
    outcomes: Outcomes = {}
    for job in jobs:
        outcomes.setdefault((job[0], job[1]), []).append(Outcome(*journal.known[_key(*job)]))
    for l_hat in flags.l_hats:
        _print_groups(f"l̂ = {l_hat:g} · l", [cell for cell in chosen if cell.l_hat == l_hat], outcomes)
    _print_groups("all cells", chosen, outcomes)
    _print_behind(chosen, outcomes)
    took_s = time.perf_counter() - began_s
    console.print(f"{len(jobs):,} simulations of about {flags.rows:,} rows in {took_s:.0f} s")
    write_json(
        "schedule-ensembles",
        {
            "seeds": flags.seeds,
            "rows": flags.rows,
            "took_s": round(took_s, 1),
            "cells": [
                {
                    "cell": cell.title,
                    "l_hat": cell.l_hat,
                    **{
                        policy: {
                            measure: round(statistics.mean(getattr(each, measure) for each in of_seeds), 3)
                            for measure in Outcome.__dataclass_fields__
                        }
                        for policy in POLICIES
                        for of_seeds in [outcomes[cell, policy]]
                    },
                }
                for cell in chosen
            ],
        },
    )
    journal.forget()


def run(cell: Cell, policy: str, seed: int, rows: int) -> SimulationResult:
    """One simulation, of about `rows` rows in all."""
    latencies = MIXED if cell.mixed else ALIKE
    truths = [latencies[number % len(latencies)] for number in range(cell.functions)]
    rates = [truth.capacity * cell.load / cell.functions for truth in truths]
    functions = tuple(
        _function(cell, policy, number, truth, arrivals_of(cell, seed, number, rate, rows / sum(rates)))
        for number, (truth, rate) in enumerate(zip(truths, rates, strict=True))
    )
    return simulate(Workload(functions, seed=seed, arbitration=papers_turns("goodput")))


def _function(
    cell: Cell, policy: str, number: int, truth: Affine, arrivals_s: Sequence[float]
) -> FunctionLoad:
    split = SPLITS[number % len(SPLITS)]
    follows, ensemble = _policy(policy, split, truth.times(cell.l_hat))
    named = tuple(replace(member, name=f"f{number}-{member.name}") for member in ensemble.members)
    paces = _paces(split)
    return FunctionLoad(
        name=f"f{number}",
        arrivals_s=arrivals_s,
        slo_s=SLO_S,
        max_batch=MAX_BATCH,
        latency_s=_nothing,
        members=tuple(
            MemberLoad(each.name, truth.times(pace), truth.times(pace * cell.l_hat), accuracy=each.accuracy)
            for each, pace in zip(named, paces, strict=True)
        ),
        followed=Following(replace(ensemble, members=named), follows, _answers(split).judging),
    )


@cache
def _answers(split: int) -> FittedSplit:
    return fitted(split_of("digits", split))


def _learn(split: int) -> None:
    """What its members answer is on the disk from now on. Compiled, it could not be sent back."""
    _answers(split)


@cache
def _policy(name: str, split: int, latency: Affine) -> tuple[SelectionPolicy, Ensemble]:
    answers = _answers(split)
    members = tuple(
        EnsembleMember(f"m{number}", accuracy, pace * latency.fixed_s, pace * latency.per_row_s)
        for number, (accuracy, pace) in enumerate(zip(answers.accuracies, _paces(split), strict=True))
    )
    ensemble = Ensemble(members, answers.evidence)
    return selection_policy(name, ensemble), ensemble


@cache
def _paces(split: int) -> list[float]:
    """Of each member: the more accurate one is the slower one."""
    accuracies = _answers(split).accuracies
    order = sorted(range(len(accuracies)), key=lambda member: accuracies[member])
    return [PACES[order.index(member)] for member in range(len(accuracies))]


def _key(cell: Cell, policy: str, seed: int, rows: int) -> str:
    return f"{cell.title}, l_hat {cell.l_hat:g}, {policy}, seed {seed}, {rows} rows"


def _nothing(rows: int) -> float:
    return 0.0


def _one(job: tuple[Cell, str, int, int]) -> Outcome:
    result = run(*job)
    total = result.total
    offered = max(1, total.offered)
    return Outcome(
        100 * total.right_share,
        100 * total.late / offered,
        100 * total.refused / offered,
        100 * min(one.right_share for one in result.functions.values()),
    )


def _print_groups(title: str, chosen: Sequence[Cell], outcomes: Outcomes) -> None:
    """Means over cells; differences of G paired by cell and seed, their spread by seed."""
    others = [policy for policy in POLICIES if policy != OURS]
    table = Table(
        "cells",
        *POLICIES,
        *(f"{OURS} − {other}" for other in others),
        "overdue, refused",
        "worst function",
        title=f"{title}: right and in time, %; overdue and refused of {OURS}; worst function of each",
    )
    groups: dict[str, list[Cell]] = {"all": list(chosen)}
    for cell in chosen:
        groups.setdefault(f"{cell.functions} functions", []).append(cell)
    for cell in chosen:
        groups.setdefault(f"{cell.load:.0%} load", []).append(cell)
    for name, group in groups.items():
        table.add_row(
            name,
            *(f"{_mean(group, policy, outcomes, _right):.1f}" for policy in POLICIES),
            *(_ahead(group, other, outcomes) for other in others),
            f"{_mean(group, OURS, outcomes, _late):.2f}, {_mean(group, OURS, outcomes, _refused):.1f}",
            " ".join(f"{_mean(group, policy, outcomes, _worst):.1f}" for policy in POLICIES),
        )
    console.print(table)


def _print_behind(chosen: Sequence[Cell], outcomes: Outcomes) -> None:
    for other in POLICIES:
        if other == OURS:
            continue
        behind = []
        for cell in chosen:
            ahead = _differences([cell], other, outcomes)
            if statistics.mean(ahead) + half_width(ahead) < 0:
                behind.append((statistics.mean(ahead), cell))
        console.print(
            f"{OURS} is behind {other}, by more than chance, in {len(behind)} of {len(chosen)} cells"
        )
        for mean, cell in sorted(behind, key=lambda each: each[0])[:5]:
            console.print(f"  {cell.title}, l̂ {cell.l_hat:g}: {mean:+.2f}", highlight=False)


def _mean(
    group: Iterable[Cell], policy: str, outcomes: Outcomes, measure: Callable[[Outcome], float]
) -> float:
    return statistics.mean(measure(each) for cell in group for each in outcomes[cell, policy])


def _differences(group: Sequence[Cell], other: str, outcomes: Outcomes) -> list[float]:
    """By seed, the mean over the cells."""
    by_cell = [
        [
            mine.right - theirs.right
            for mine, theirs in zip(outcomes[cell, OURS], outcomes[cell, other], strict=True)
        ]
        for cell in group
    ]
    return [statistics.mean(column) for column in zip(*by_cell, strict=True)]


def _ahead(group: Sequence[Cell], other: str, outcomes: Outcomes) -> str:
    ahead = _differences(group, other, outcomes)
    return f"{statistics.mean(ahead):+.1f} ± {half_width(ahead):.1f}"


def _right(outcome: Outcome) -> float:
    return outcome.right


def _late(outcome: Outcome) -> float:
    return outcome.late


def _refused(outcome: Outcome) -> float:
    return outcome.refused


def _worst(outcome: Outcome) -> float:
    return outcome.worst


if __name__ == "__main__":
    main()
