"""`make bench-schedule`: every batching rule in every case, by the share of rows answered within their goal.

1, 4, 8 and 32 functions on one device · 30 to 150 % load · Poisson and bursty · alike and mixed l(b) · l̂
exact and wrong by 30 % either way; and Rafiki's single-model experiment. Means over seeds; the same seed
gives every rule the same arrivals, so differences are paired, with 95 % confidence intervals. Simulated: the
very code that serves decides, the clock is not real. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich.table import Table

from tests.benchmarks import schedule_cases
from tests.benchmarks import schedule_rafiki as rafiki
from tests.benchmarks.journal import Journal
from tests.benchmarks.report import RESULTS, console, write_json
from tests.benchmarks.schedule_cases import CONTENDERS, OURS, Cell, cells, run

# Two-sided 95 % of Student's t, by degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
RAFIKI = (("greedy", "greedy", False), ("window", "window", True), ("clockwork", "clockwork", True))

Goodputs = dict[tuple[Cell, str], list[float]]  # by seed


def main() -> None:
    flags = grid_parser(__doc__, 10).parse_args()
    began_s = time.perf_counter()
    chosen = cells(flags.functions, flags.loads, flags.l_hats)
    seeds = range(flags.seeds)
    with ProcessPoolExecutor(flags.jobs, initializer=os.nice, initargs=(10,)) as pool:
        experiment = _rafiki(pool, seeds)
        jobs = {
            _key(cell, number, seed, flags.rows): (cell, number, seed, flags.rows)
            for cell in chosen
            for number in range(len(CONTENDERS))
            for seed in seeds
        }
        journal = Journal("schedule", schedule_cases)
        left = {key: job for key, job in jobs.items() if key not in journal.known}
        outcomes = pool.map(_one, left.values(), chunksize=flags.seeds)
        for done, _ in enumerate(journal.keep(zip(left, outcomes, strict=True)), len(jobs) - len(left) + 1):
            if done % (flags.seeds * len(CONTENDERS)) == 0:
                console.print(f"{done:,} of {len(jobs):,} simulations", end="\r")
    goodputs: Goodputs = {}
    worst: Goodputs = {}
    for key, (cell, number, _, _) in jobs.items():
        share, least = journal.known[key]
        goodputs.setdefault((cell, CONTENDERS[number].name), []).append(share)
        worst.setdefault((cell, CONTENDERS[number].name), []).append(least)
    for l_hat in flags.l_hats:
        _print_cells([cell for cell in chosen if cell.l_hat == l_hat], goodputs)
    _print_ratios(chosen, goodputs)
    behind = _print_verdict(chosen, goodputs)
    _print_rafiki(experiment)
    drawn = {name: experiment["r_u"]["overdue"][name]["by_10_s"] for name in ("greedy", OURS)}
    (RESULTS / "schedule-rafiki.svg").write_text(rafiki.chart(drawn))
    took_s = time.perf_counter() - began_s
    console.print(f"{len(jobs):,} simulations of about {flags.rows:,} rows in {took_s:.0f} s")
    write_json(
        "schedule",
        {
            "seeds": flags.seeds,
            "rows": flags.rows,
            "took_s": round(took_s, 1),
            "behind": [cell.title for cell in behind],
            "cells": [_record(cell, goodputs, worst) for cell in chosen],
            "rafiki": experiment,
        },
    )
    journal.forget()


def _key(cell: Cell, number: int, seed: int, rows: int) -> str:
    return f"{cell.title}, l_hat {cell.l_hat:g}, {CONTENDERS[number].name}, seed {seed}, {rows} rows"


def _one(job: tuple[Cell, int, int, int]) -> tuple[float, float]:
    """Goodput over all functions, and of the function that fared worst."""
    cell, number, seed, rows = job
    result = run(cell, CONTENDERS[number], seed, rows)
    return result.total.goodput, min(one.goodput for one in result.functions.values())


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean."""
    if len(values) < 2:
        return math.inf
    t = _T95[len(values) - 2] if len(values) - 2 < len(_T95) else 1.96 + 2.5 / (len(values) - 1)
    return t * statistics.stdev(values) / math.sqrt(len(values))


def _standing(cell: Cell, goodputs: Goodputs) -> tuple[str, float, float]:
    """The best of the others, how far ours is ahead of it in the mean, and that difference's half width."""
    others = [contender.name for contender in CONTENDERS if contender.name != OURS]
    best = max(others, key=lambda name: statistics.mean(goodputs[cell, name]))
    ahead = [ours - other for ours, other in zip(goodputs[cell, OURS], goodputs[cell, best], strict=True)]
    return best, statistics.mean(ahead), half_width(ahead)


def _print_cells(chosen: Sequence[Cell], goodputs: Goodputs) -> None:
    title = f"rows answered within their goal, %; l̂ = {chosen[0].l_hat:g} · l"
    table = Table(
        "functions, load", *(contender.name for contender in CONTENDERS), "± ours", "ours − best", title=title
    )
    for cell in chosen:
        means = {name: statistics.mean(goodputs[cell, name]) for name in _names()}
        top = max(means.values())
        _, ahead, margin = _standing(cell, goodputs)
        table.add_row(
            cell.title,
            *(
                f"[bold]{100 * mean:.1f}[/]" if mean == top else f"{100 * mean:.1f}"
                for mean in means.values()
            ),
            f"{100 * half_width(goodputs[cell, OURS]):.1f}",
            f"{100 * ahead:+.1f} ± {100 * margin:.1f}",
        )
    console.print(table)


def _print_ratios(chosen: Sequence[Cell], goodputs: Goodputs) -> None:
    """Goodput of ours over each other's: geometric means, by load and number of functions."""
    others = [name for name in _names() if name != OURS]
    table = Table("cells", *others, title="ours / the other's, geometric mean")
    groups: dict[str, list[Cell]] = {}
    for cell in chosen:
        groups.setdefault(f"{cell.load:.0%} load", []).append(cell)
    for cell in chosen:
        groups.setdefault(f"{cell.functions} functions", []).append(cell)
    for name, group in groups.items():
        table.add_row(name, *(f"{_geometric(group, other, goodputs):.2f}" for other in others))
    console.print(table)


def _geometric(group: Sequence[Cell], other: str, goodputs: Goodputs) -> float:
    logs = [
        math.log(statistics.mean(goodputs[cell, OURS]) / max(1e-3, statistics.mean(goodputs[cell, other])))
        for cell in group
    ]
    return math.exp(statistics.mean(logs))


def _print_verdict(chosen: Sequence[Cell], goodputs: Goodputs) -> list[Cell]:
    """Count where ours is first, within the interval of the first, behind; the cells where it is behind."""
    first, within, behind = 0, 0, []
    for cell in chosen:
        best, ahead, margin = _standing(cell, goodputs)
        if ahead >= 0:
            first += 1
        elif ahead + max(margin, half_width(goodputs[cell, OURS])) >= 0:
            within += 1
        else:
            behind.append(cell)
            console.print(f"[red]behind {best}[/] at {cell.title}, l̂ {cell.l_hat:g}: {100 * ahead:+.2f}")
    console.print(
        f"goodput is first in {first} of {len(chosen)} cells, within its confidence interval of the first in "
        f"{within}, behind in {len(behind)}"
    )
    for contender in CONTENDERS:
        if contender.why:
            console.print(f"  {contender.name}: {contender.why}", highlight=False)
    return behind


def _rafiki(pool: ProcessPoolExecutor, seeds: Sequence[int]) -> dict[str, Any]:
    contenders = (*RAFIKI, (OURS, OURS, True))
    jobs = [
        (policy, refuses, rate, seed)
        for rate in rafiki.RATES.values()
        for _, policy, refuses in contenders
        for seed in seeds
    ]
    outcomes = iter(list(pool.map(rafiki.overdue, *zip(*jobs, strict=True))))
    return {
        name: {
            "arriving": rafiki.arriving(rate),
            "overdue": {title: _summary(outcomes, seeds) for title, _, _ in contenders},
        }
        for name, rate in rafiki.RATES.items()
    }


def _summary(outcomes: Iterator[tuple[float, list[float]]], seeds: Sequence[int]) -> dict[str, Any]:
    drawn = [next(outcomes) for _ in seeds]
    rates = [rate for rate, _ in drawn]
    bins = [statistics.mean(column) for column in zip(*(bins for _, bins in drawn), strict=True)]
    return {"rows_per_s": statistics.mean(rates), "half_width": half_width(rates), "by_10_s": bins}


def _print_rafiki(experiment: dict[str, Any]) -> None:
    table = Table(
        "", "greedy", "window", "clockwork", OURS, "ours / greedy's", title="Rafiki §7.2.1: overdue rows/s"
    )
    for name, result in experiment.items():
        overdue = result["overdue"]
        table.add_row(
            f"{name} = {rafiki.RATES[name]:.0f}/s",
            *(f"{one['rows_per_s']:.2f} ± {one['half_width']:.2f}" for one in overdue.values()),
            f"{overdue[OURS]['rows_per_s'] / overdue['greedy']['rows_per_s']:.3f}",
        )
    console.print(table)


def _record(cell: Cell, goodputs: Goodputs, worst: Goodputs) -> dict[str, Any]:
    best, ahead, margin = _standing(cell, goodputs)
    return {
        "functions": cell.functions,
        "load": cell.load,
        "arrivals": cell.arrivals,
        "mixed": cell.mixed,
        "l_hat": cell.l_hat,
        "goodput": {name: round(statistics.mean(goodputs[cell, name]), 4) for name in _names()},
        "half_width": {name: round(half_width(goodputs[cell, name]), 4) for name in _names()},
        "worst_function": {name: round(statistics.mean(worst[cell, name]), 4) for name in _names()},
        "best_other": best,
        "ahead": round(ahead, 4),
        "ahead_half_width": round(margin, 4),
    }


def _names() -> list[str]:
    return [contender.name for contender in CONTENDERS]


def grid_parser(description: str | None, seeds: int) -> argparse.ArgumentParser:
    """Which cells of the grid are simulated, by so many seeds each if nothing else is said."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--rows", type=int, default=2500, help="of each simulation")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--functions", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.9, 1.1, 1.5])
    parser.add_argument("--l-hats", type=float, nargs="+", default=[1.0, 0.7, 1.3], help="predicted / true")
    return parser


if __name__ == "__main__":
    main()
