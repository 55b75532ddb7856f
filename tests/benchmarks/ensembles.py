"""`make bench-ensembles`: every selection policy under load, on real held-out answers of models trained here.

G is the share of the offered rows that are answered rightly and in time. Four settings (ensembles_cases.py)
on splits that nothing was tuned on (what was tried was tried on 0 to 7, and from 100 on). The same split
gives every policy the same rows at the same times, so differences are paired, with 95 % intervals. A run that
was interrupted goes on where it was. Simulated: the very pool and policies that are to serve decide, the
clock is not real.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from server.ensemble.selection import (
    Choice,
    LoadView,
    RowAnswer,
    RowEvidence,
    SelectionPolicy,
    draws_lots,
    heeds_confidence,
)
from tests.benchmarks import ensembles_cases
from tests.benchmarks.ensembles_actor import TRAINING, actor_of
from tests.benchmarks.ensembles_cases import (
    ACTOR,
    BOUND,
    CONTENDERS,
    FULL,
    IMPAIRED_CELLS,
    IMPAIRMENTS,
    MEASURES,
    OURS,
    QUICK,
    R_U,
    SETTINGS,
    Cell,
    alls_accuracy_at,
    fluid_bound,
    impaired,
    policy_of,
    run,
)
from tests.benchmarks.ensembles_data import split_of
from tests.benchmarks.journal import Journal
from tests.benchmarks.report import console, write_json
from tests.benchmarks.schedule import half_width

Job = tuple[Cell, int, int]  # cell, split, rows
Figures = dict[tuple[Cell, str, str], list[float]]  # by cell, contender, measure: one of each split

# What SERVING.md's study found in its own cells: value, and how far ahead of `gear` (of `async` in C).
_STUDY = {
    Cell("A", 1.1): "95.4, +1.3",
    Cell("A", 1.5): "95.3, +2.4",
    Cell("A", 1.1, "sine"): "95.4, +1.0",
    Cell("A", 0.9, "bursts"): "95.0, +1.2",
    Cell("D", 0.9): "89.8, −0.3",
    Cell("D", 1.5): "89.5, +1.6",
    Cell("E", 1.1): "88.3, +1.3",
    Cell("E", 1.5): "87.1, +0.9",
    Cell("C", R_U, "sine"): "87.3, +1.8",
}


def main() -> None:
    flags = _parser().parse_args()
    began_s = time.perf_counter()
    cells = [cell for cell in (QUICK if flags.quick else FULL) if cell.setting in flags.settings]
    weak_cells = [cell for cell in IMPAIRED_CELLS if cell.setting in flags.settings]
    splits = range(flags.first, flags.first + (2 if flags.quick else flags.splits))
    rows = 1200 if flags.quick else flags.rows
    figures: Figures = {}
    bounds: dict[Cell, list[float | None]] = {}
    journal = Journal("ensembles", ensembles_cases, packages=("ensemble", "scheduling"))
    with ProcessPoolExecutor(flags.jobs, initializer=_modest) as pool:
        for family in sorted({SETTINGS[name].family for name in flags.settings}):
            for accuracies in pool.map(_trained, [(family, number) for number in splits]):
                console.print(f"{family}: members alone " + " ".join(f"{100 * a:.1f}" for a in accuracies))
        list(
            pool.map(
                _trained, [(SETTINGS[name].family, number) for name in flags.settings for number in TRAINING]
            )
        )
        list(pool.map(_actor, flags.settings))  # trained, where it is not kept

        def simulated(
            kind: str, one: Callable[[Job], Any], cells: Sequence[Cell]
        ) -> Iterator[tuple[Cell, Any]]:
            jobs = {
                f"{kind}, {cell.title}, split {number}, {rows} rows": (cell, number, rows)
                for cell in cells
                for number in splits
            }
            left = {key: job for key, job in jobs.items() if key not in journal.known}
            for _ in journal.keep(zip(left, pool.map(one, left.values()), strict=True)):
                pass
            return ((cell, journal.known[key]) for key, (cell, _, _) in jobs.items())

        for cell, (bound, found) in simulated("all", _one, cells):
            bounds.setdefault(cell, []).append(bound)
            for name, by_measure in found.items():
                for measure, each in by_measure.items():
                    figures.setdefault((cell, name, measure), []).append(each)
        thrift = {
            name: list(pool.map(_thrift, [(name, number) for number in splits])) for name in flags.settings
        }
        impairments: Figures = {}
        for cell, worse in simulated("impaired", _weak, weak_cells):
            for name, goodput in worse.items():
                impairments.setdefault((cell, name, "G"), []).append(goodput)
    for name in flags.settings:
        _print_goodput(name, [cell for cell in cells if cell.setting == name], figures, bounds)
    _print_measures(cells, figures)
    _print_impaired(weak_cells, impairments)
    targets = _targets(cells, figures, thrift)
    for what, figure, is_met in targets:
        console.print(f"{'met   ' if is_met else 'MISSED'}  {what}: {figure}", soft_wrap=True)
    cost = _selection_cost(flags.first, flags.settings)
    console.print("selection, µs a row: " + ", ".join(f"{name} {us:.1f}" for name, us in cost.items()))
    took_s = time.perf_counter() - began_s
    console.print(
        f"{len(cells) * len(splits) * len(CONTENDERS):,} simulations of about {rows:,} rows in {took_s:.0f} s"
    )
    write_json(
        "ensembles",
        {
            "splits": list(splits),
            "rows": rows,
            "took_s": round(took_s, 1),
            "targets": [[what, figure, is_met] for what, figure, is_met in targets],
            "selection_us_a_row": cost,
            "thrift": thrift,
            "impaired": [[cell.title, name, each] for (cell, name, _), each in impairments.items()],
            "cells": [_record(cell, figures, bounds[cell]) for cell in cells],
        },
    )
    journal.forget()


def _modest() -> None:
    os.nice(10)
    warnings.simplefilter("ignore", ConvergenceWarning)


def _trained(job: tuple[str, int]) -> list[float]:
    return split_of(*job).accuracies()


def _actor(name: str) -> None:
    actor_of(name)


def _one(job: Job) -> tuple[float | None, dict[str, dict[str, float]]]:
    """The fluid bound, and by contender and measure what was found."""
    cell, number, rows = job
    found: dict[str, dict[str, float]] = {}
    for contender in CONTENDERS:
        result = run(cell, contender, number, rows)
        found[contender.name] = {measure: of(result) for measure, of in MEASURES.items()}
    return fluid_bound(cell, number), found


def _weak(job: Job) -> dict[str, float]:
    """G of value and gear where what they believe is wrong, or known from few rows."""
    cell, number, rows = job
    contenders = [impaired(policy, how) for how in IMPAIRMENTS for policy in ("gear", OURS)]
    return {each.name: 100 * run(cell, each, number, rows).goodput for each in contenders}


def _thrift(job: tuple[str, int]) -> tuple[float, float, float]:
    return alls_accuracy_at(*job)


def _ahead(figures: Figures, cell: Cell, other: str) -> list[float]:
    pairs = zip(figures[cell, OURS, "G"], figures[cell, other, "G"], strict=True)
    return [ours - theirs for ours, theirs in pairs]


def _print_goodput(
    name: str, cells: Sequence[Cell], figures: Figures, bounds: Mapping[Cell, Sequence[float | None]]
) -> None:
    names = [contender.name for contender in CONTENDERS]
    heads = [*names, BOUND, "worst split", "value − gear", "value − async", "the study's, and ahead"]
    _line(f"\n{name}: rows that are right and in time, %", heads)
    for cell in cells:
        known = [bound for bound in bounds[cell] if bound is not None]
        figure = [f"{statistics.mean(figures[cell, each, 'G']):.1f}" for each in names]
        _line(
            f"{cell.load:.3g} {cell.arrivals}",
            [
                *figure,
                f"{100 * statistics.mean(known):.1f}" if known else "–",
                f"{min(figures[cell, OURS, 'G']):.1f}",
                *(_with_interval(_ahead(figures, cell, other)) for other in ("gear", "async")),
                _STUDY.get(cell, ""),
            ],
        )


def _print_measures(cells: Sequence[Cell], figures: Figures) -> None:
    _line("\nmeans over the splits; shares in %", [*MEASURES, "worst G"])
    for cell in cells:
        for contender in CONTENDERS:
            mine = {measure: figures[cell, contender.name, measure] for measure in MEASURES}
            means = [f"{statistics.mean(each):.{_digits(name)}f}" for name, each in mine.items()]
            _line(f"{cell.title}: {contender.name}", [*means, f"{min(mine['G']):.1f}"])


def _line(head: str, figures: Sequence[str]) -> None:
    """One line of a table, wider than what a log's console is taken to be."""
    columns = "".join(f"{figure:>{max(10, len(figure) + 2)}}" for figure in figures)
    console.print(f"{head:<38}{columns}", soft_wrap=True, highlight=False, markup=False)


def _print_impaired(cells: Sequence[Cell], figures: Figures) -> None:
    _line("\nwhat is believed is wrong: G of gear, of value, ahead", list(IMPAIRMENTS))
    for cell in cells:
        told = []
        for how in IMPAIRMENTS:
            gear, ours = (figures[cell, impaired(policy, how).name, "G"] for policy in ("gear", OURS))
            ahead = [mine - other for mine, other in zip(ours, gear, strict=True)]
            told.append(f"{statistics.mean(gear):.1f} {statistics.mean(ours):.1f} {_with_interval(ahead)}")
        _line(cell.title, told)


def _digits(measure: str) -> int:
    return 3 if "ms" in measure else 2 if measure == "members" else 1


def _with_interval(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):+.1f} ± {half_width(values):.1f}"


def _targets(
    cells: Sequence[Cell], figures: Figures, thrift: Mapping[str, Sequence[tuple[float, float, float]]]
) -> list[tuple[str, str, bool]]:
    """What was promised of `value`, what was found, and whether that is enough."""
    ahead = {cell: _ahead(figures, cell, "gear") for cell in cells}
    found: list[tuple[str, str, bool]] = []
    strained = [
        cell
        for cell in cells
        if cell.setting in "AE" and cell.load in (1.1, 1.5) and cell.arrivals == "Poisson"
    ]
    if strained:
        mean = statistics.mean(statistics.mean(ahead[cell]) for cell in strained)
        found.append(
            ("A and E at 1.1 and 1.5, ahead of gear by 1.0 in the mean", f"{mean:+.2f}", mean >= 1.0)
        )
    hardest = Cell("A", 1.5)
    if hardest in ahead:
        mean = statistics.mean(ahead[hardest])
        found.append(("A at 1.5, ahead of gear by 2", _with_interval(ahead[hardest]), mean >= 2.0))
    tables = [statistics.mean(ahead[cell]) for cell in cells if cell.setting == "D"]
    if tables:
        least, mean = min(tables), statistics.mean(tables)
        found.append(("D, never behind gear by more than 0.3", f"{least:+.2f}", least >= -0.3))
        found.append(("D, ahead of gear by 0.5 in the mean", f"{mean:+.2f}", mean >= 0.5))
    peers = Cell("C", R_U, "sine")
    if peers in ahead:
        over = _ahead(figures, peers, "async")
        found.append(("C at r_u, ahead of async by 1", _with_interval(over), statistics.mean(over) >= 1.0))
    overdue = {
        cell: max(map(sum, zip(figures[cell, OURS, "late"], figures[cell, OURS, "refused"], strict=True)))
        for cell in cells
    }
    able = max((each for cell, each in overdue.items() if cell.load < R_U), default=0.0)
    found.append(("no row of value overdue or refused, in any split", f"{able:.2f} %", able == 0))
    unable = max((each for cell, each in overdue.items() if cell.load >= R_U), default=0.0)
    found.append(("at r_u, where more comes than the devices can answer", f"{unable:.2f} %", unable == 0))
    by_cell = {cell: _ahead(figures, cell, ACTOR) for cell in cells}
    least, where = min((statistics.mean(each), cell.title) for cell, each in by_cell.items())
    found.append((f"never below {ACTOR} in any cell", f"{least:+.2f} at {where}", least >= 0))
    for name, plans in thrift.items():
        mine, all_of_them, share = (statistics.mean(column) for column in zip(*plans, strict=True))
        what = f"{name}, all's accuracy at 0.6 of its device time or less"
        figure = f"{100 * mine:.1f} against {100 * all_of_them:.1f} at {share:.2f}"
        found.append((what, figure, share <= 0.6 and mine >= all_of_them - 0.002))
    return found


class _Timed:
    """A policy, and how long its decisions take."""

    def __init__(self, policy: SelectionPolicy) -> None:
        self._policy = policy
        self.name = policy.name
        self.init, self.observe = policy.init, policy.observe
        self.draws_lots, self.heeds_confidence = draws_lots(policy), heeds_confidence(policy)
        self.took_s = 0.0

    def steer(self, state: dict[str, Any], load: LoadView) -> dict[str, Any]:
        began_s = time.perf_counter()
        state = self._policy.steer(state, load)
        self.took_s += time.perf_counter() - began_s
        return state

    def select(self, state: dict[str, Any], row: RowEvidence) -> Choice:
        began_s = time.perf_counter()
        choice = self._policy.select(state, row)
        self.took_s += time.perf_counter() - began_s
        return choice

    def combine(self, state: dict[str, Any], evidence: Mapping[int, Sequence[float]]) -> RowAnswer:
        return self._policy.combine(state, evidence)


def _selection_cost(number: int, settings: Sequence[str], rows: int = 4000) -> dict[str, float]:
    """µs a row of `value`'s decisions, and of pool and simulator with them, by setting."""
    contender = next(each for each in CONTENDERS if each.name == OURS)
    cost: dict[str, float] = {}
    for cell in (Cell("A", 1.5), Cell("C", R_U), Cell("D", 1.5)):
        if cell.setting not in settings:
            continue
        timed = _Timed(policy_of(cell.setting, number, contender))
        offered = run(cell, contender, number, rows, timed).offered
        began_s = time.process_time()
        result = run(cell, contender, number, rows)
        took_s = time.process_time() - began_s
        cost[f"{cell.setting} with pool and simulator"] = 1e6 * took_s / result.offered
        cost[f"{cell.setting} select and steer"] = 1e6 * timed.took_s / offered
    return cost


def _record(cell: Cell, figures: Figures, bound: Sequence[float | None]) -> dict[str, Any]:
    return {
        "setting": cell.setting,
        "load": cell.load,
        "arrivals": cell.arrivals,
        "fluid_bound": bound,
        "policies": {
            contender.name: {
                measure: {
                    "mean": round(statistics.mean(figures[cell, contender.name, measure]), 4),
                    "by_split": [round(each, 4) for each in figures[cell, contender.name, measure]],
                }
                for measure in MEASURES
            }
            for contender in CONTENDERS
        },
        "ahead": {
            other: [round(each, 3) for each in _ahead(figures, cell, other)]
            for other in (contender.name for contender in CONTENDERS)
            if other != OURS
        },
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few cells and rows, two splits: under a minute")
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--first", type=int, default=10, help="number of the first split")
    parser.add_argument("--rows", type=int, default=4000, help="of each simulation")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    return parser


if __name__ == "__main__":
    main()
