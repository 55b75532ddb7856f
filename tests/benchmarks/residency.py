"""`make bench-residency`: which models a device holds, by every placement policy, in the simulator.

The very placement and scheduler that serve decide; the clock is not real. Closed loop: Rafiqi's Figures 2 to
4 (residency_rafiqi.py), beside what any rule could reach (residency_online.py). Open loop: cells drawn at
random (residency_cells.py), where every contender gets the same rows, so differences are paired, with 95 %
intervals; of one cell alone, over twelve parts of its time. Then 1,000 models for an hour
(residency_many.py). `--set tune` draws other cells: constants are set on those.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from rich.table import Table

from tests.benchmarks import residency_cells
from tests.benchmarks import residency_rafiqi as rafiqi
from tests.benchmarks.figures import drawn, wide
from tests.benchmarks.journal import Journal
from tests.benchmarks.report import say, write_json
from tests.benchmarks.residency_cells import (
    ABLATIONS,
    BOUND,
    CONTENDERS,
    OURS,
    PATTERNS,
    Cell,
    Contender,
    drawn_cell,
    run,
)
from tests.benchmarks.residency_many import many_models
from tests.benchmarks.residency_online import online_bounds
from tests.benchmarks.schedule import half_width

Outcomes = dict[tuple[str, str], dict[str, Any]]  # (cell's seed, contender) → what `run` gives
_PARTS = ("closed", "open", "many")
_BOUNDED = 3  # of the numbers of clients: for so few it can be found what any rule could reach
_ABLATED = 40  # cells of one device on which parts of ours are left out
_BEHIND = 0.01  # of the offered rows: what a cell may cost against the best of the others


def main() -> None:
    flags = _flags()
    began_s = time.perf_counter()
    result: dict[str, Any] = {"set": flags.set, "quick": flags.quick}
    with ProcessPoolExecutor(flags.jobs, initializer=os.nice, initargs=(10,)) as pool:
        if "closed" in flags.parts:
            result["closed"] = _closed(pool, flags.rows or (600 if flags.quick else 5000))
        if "open" in flags.parts:
            result["open"] = _open(pool, flags)
        if "many" in flags.parts:
            result["many"] = _many(pool, flags.many_s or (120.0 if flags.quick else 3600.0))
    result["took_s"] = round(time.perf_counter() - began_s, 1)
    say(f"{result['took_s']:.0f} s")
    write_json("residency", result)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute: few cells, short loops")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--set", choices=("tune", "report"), default="report", help="which cells are drawn")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--one", type=int, help="cells of one device (100; 4 if quick)")
    parser.add_argument("--several", type=int, help="cells of 2 to 8 devices (40; 1 if quick)")
    parser.add_argument("--first", type=int, default=0, help="number of the first cell of each kind")
    parser.add_argument("--policies", nargs="+", help="contenders by name; all if not said")
    parser.add_argument(
        "--busier", type=float, default=1.0, help="times the rows a second, of less work each"
    )
    parser.add_argument("--rows", type=int, help="of a closed loop (5,000; 600 if quick)")
    parser.add_argument(
        "--seconds", type=float, help="of a cell (15 on one device, 10 on several; 5 if quick)"
    )
    parser.add_argument("--many-s", type=float, help="of the 1,000 models (3,600; 120 if quick)")
    parser.add_argument("--go-on", action="store_true", help="from what an interrupted run of this code left")
    flags = parser.parse_args()
    flags.one = (4 if flags.quick else 100) if flags.one is None else flags.one
    flags.several = (1 if flags.quick else 40) if flags.several is None else flags.several
    flags.seconds = 5.0 if flags.quick and flags.seconds is None else flags.seconds
    return flags


# ── closed loop ──────────────────────────────────────────────────────────────────────────────────────


def _closed(pool: ProcessPoolExecutor, rows: int) -> dict[str, Any]:
    jobs = [
        (contender, access, clients, rows)
        for contender in CONTENDERS
        for access in rafiqi.ACCESS
        for clients in rafiqi.CLIENTS
    ]
    best = list(pool.map(_optimum, rafiqi.ACCESS, [rows] * len(rafiqi.ACCESS)))
    rates = dict(zip(((job[0].name, *job[1:3]) for job in jobs), pool.map(_rate, jobs), strict=True))
    table = Table("", *rafiqi.ACCESS, title="% of the throughput without swaps, 1/2/4/16/64 clients")
    shares: dict[str, dict[str, list[float]]] = {}
    for contender in CONTENDERS:
        if contender.fits:
            continue
        shares[contender.name] = {
            access: [
                rates[contender.name, access, clients] / rates[BOUND, access, clients]
                for clients in rafiqi.CLIENTS
            ]
            for access in rafiqi.ACCESS
        }
        table.add_row(
            contender.name,
            *("/".join(f"{100 * one:.0f}" for one in line) for line in shares[contender.name].values()),
        )
    optima = {
        access: rate / rates[BOUND, access, 1] for access, rate in zip(rafiqi.ACCESS, best, strict=True)
    }
    table.add_row("optimum, 1 client", *(f"{100 * share:.1f}" for share in optima.values()))
    few = rafiqi.CLIENTS[:_BOUNDED]
    online = list(pool.map(_online, [(access, clients) for access in rafiqi.ACCESS[1:] for clients in few]))
    bounds = {
        access: [online.pop(0) / rates[BOUND, access, clients] for clients in few]
        for access in rafiqi.ACCESS[1:]
    }
    table.add_row(
        "at most, not knowing what comes",
        "",
        *("/".join(f"{100 * one:.1f}" for one in line) for line in bounds.values()),
    )
    wide.print(table)
    charts = [
        rafiqi.chart(
            access,
            {
                "no swaps": [1.0] * len(rafiqi.CLIENTS),
                **{name: by_access[access] for name, by_access in shares.items()},
            },
        )
        for access in rafiqi.ACCESS
    ]
    drawn("residency-rafiqi", *charts)
    return {
        "rows": rows,
        "clients": rafiqi.CLIENTS,
        "shares": shares,
        "optimum_of_one_client": optima,
        "at_most_not_knowing_what_comes": bounds,
    }


def _rate(job: tuple[Contender, str, int, int]) -> float:
    return rafiqi.throughput(*job)


def _optimum(access: str, rows: int) -> float:
    return rafiqi.optimum(rafiqi.order(access, min(rows, 2000)))


def _online(job: tuple[str, int]) -> float:
    return online_bounds(*job)[1]


# ── open loop ────────────────────────────────────────────────────────────────────────────────────────


def _open(pool: ProcessPoolExecutor, flags: argparse.Namespace) -> dict[str, Any]:
    contenders, ablations = (
        [one for one in known if flags.policies is None or one.name in flags.policies]
        for known in (CONTENDERS, ABLATIONS)
    )
    numbers = range(flags.first, flags.first + max(flags.one, flags.several))
    cells = [drawn_cell(flags.set, number, False, flags.busier) for number in numbers[: flags.one]]
    cells += [drawn_cell(flags.set, number, True, flags.busier) for number in numbers[: flags.several]]
    cells = [cell if flags.seconds is None else replace(cell, seconds=flags.seconds) for cell in cells]
    journal = Journal("residency", residency_cells)
    if not flags.go_on:
        journal.forget()
    ablated = [] if flags.quick else cells[: min(flags.one, _ABLATED)]
    jobs = [(cell, one) for cell in cells for one in contenders]
    jobs += [(cell, one) for cell in ablated for one in ablations]
    left = {key: job for job in jobs if (key := _key(*job)) not in journal.known}
    for _ in journal.keep(zip(left, pool.map(_one, left.values()), strict=True)):
        pass
    outcomes: Outcomes = {(cell.seed, one.name): journal.known[_key(cell, one)] for cell, one in jobs}
    names = [one.name for one in contenders]
    groups: dict[str, list[Cell]] = {
        "one device": [cell for cell in cells if cell.devices == 1],
        "2 to 8 devices": [cell for cell in cells if cell.devices > 1],
    }
    summary = {name: _print_group(name, group, names, outcomes) for name, group in groups.items() if group}
    if ablated and ablations:
        whole = [OURS] if OURS in names else []
        less = [*whole, *(one.name for one in ablations)]
        summary["ablations"] = _print_group("one device, parts left out", ablated, less, outcomes)
    _print_kinds(cells, names, outcomes)
    behind = _print_behind(cells, names, outcomes) if OURS in names else []
    journal.forget()
    return {
        "summary": summary,
        "behind": behind,
        "cells": [
            {
                "title": cell.title,
                **{name: one for (seed, name), one in outcomes.items() if seed == cell.seed},
            }
            for cell in cells
        ],
    }


def _one(job: tuple[Cell, Contender]) -> dict[str, Any]:
    return run(*job)


def _key(cell: Cell, contender: Contender) -> str:
    """All that the simulation depends on but the code: a cell's number alone does not say how long it is."""
    return f"{contender.name} in {cell}"


def _print_group(
    title: str, cells: Sequence[Cell], names: Sequence[str], outcomes: Outcomes
) -> dict[str, Any]:
    columns = (
        "rows in goal, %",
        "− value, points",
        "mean over models",
        "worst model",
        "loads/s",
        "better cells",
    )
    table = Table("", *columns, title=f"{title}: {len(cells)} cells")
    found: dict[str, Any] = {}
    for name in names:
        shares = _column(cells, name, "goodput", outcomes)
        apart = _apart(cells, name, outcomes)
        better = _surely_better(cells, name, outcomes) if apart else 0
        found[name] = {
            "goodput": _mean(shares),
            "minus_value": _mean(apart) if apart else None,
            "half_width": half_width(apart) if apart else None,
            "mean_model": _mean(_column(cells, name, "mean_model", outcomes)),
            "worst_model": _mean(_column(cells, name, "worst_model", outcomes)),
            "loads_per_s": _mean(_column(cells, name, "loads_per_s", outcomes)),
            "significantly_better_cells": better,
        }
        one = found[name]
        table.add_row(
            name,
            f"{100 * one['goodput']:.1f}",
            f"{100 * one['minus_value']:+.1f} ± {100 * one['half_width']:.1f}"
            if apart and name != OURS
            else "",
            f"{100 * one['mean_model']:.1f}",
            f"{100 * one['worst_model']:.1f}",
            f"{one['loads_per_s']:.1f}",
            str(better) if name not in (OURS, BOUND) else "",
        )
    wide.print(table)
    return found


def _print_kinds(cells: Sequence[Cell], names: Sequence[str], outcomes: Outcomes) -> None:
    """The same by kinds of cells, in rows in goal."""
    kinds: dict[str, Callable[[Cell], bool]] = {
        **{pattern: lambda cell, pattern=pattern: cell.pattern == pattern for pattern in PATTERNS},  # type: ignore[misc]
        "loads under 40 ms": lambda cell: cell.load_s < 0.04,
        "40 to 130 ms": lambda cell: 0.04 <= cell.load_s < 0.13,
        "130 to 400 ms": lambda cell: cell.load_s >= 0.13,
        "load under 70 %": lambda cell: cell.load < 0.7,
        "70 to 110 %": lambda cell: cell.load >= 0.7,
        "up to 50 models": lambda cell: cell.models <= 50,
        "over 50 models": lambda cell: cell.models > 50,
        "goal over 2 loads": lambda cell: cell.goal_s > 2 * cell.load_s,
        "goal under 2 loads": lambda cell: cell.goal_s <= 2 * cell.load_s,
        "l̂ and loads known": lambda cell: cell.l_hat == cell.told == 1.0,
    }
    table = Table("cells", "", *names, title="rows in goal, %, by kind of cell")
    for title, fits in kinds.items():
        chosen = [cell for cell in cells if fits(cell)]
        if chosen:
            means = (_mean(_column(chosen, name, "goodput", outcomes)) for name in names)
            table.add_row(title, str(len(chosen)), *(f"{100 * mean:.1f}" for mean in means))
    wide.print(table)


def _print_behind(cells: Sequence[Cell], names: Sequence[str], outcomes: Outcomes) -> list[dict[str, Any]]:
    """The cells where ours is worse than the best of the others by more than a point, and surely."""
    rivals = [name for name in names if name not in (OURS, BOUND) and not name.startswith(f"{OURS} ")]
    behind: list[dict[str, Any]] = []
    for cell in cells if rivals else ():
        best = max(rivals, key=lambda name: outcomes[cell.seed, name]["goodput"])
        lead, margin, surely = _difference(outcomes[cell.seed, best], outcomes[cell.seed, OURS])
        if surely and lead > _BEHIND:
            behind.append({"cell": cell.title, "best": best, "lead": lead, "half_width": margin})
    say(f"{OURS} is surely over a point behind the best of the others in {len(behind)} of {len(cells)} cells")
    for one in sorted(behind, key=lambda one: -one["lead"]):
        say(f"  {100 * one['lead']:+5.1f} ± {100 * one['half_width']:4.1f}  {one['best']}: {one['cell']}")
    return behind


def _difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, float, bool]:
    """How much more of the rows one answers in goal, half its 95 % interval, and whether it surely does.

    Of the differences in parts of the time; what comes in two neighbouring parts is taken as independent.
    """
    fewer = [b - a for a, b in zip(one["lost"], other["lost"], strict=True)]
    lead = one["goodput"] - other["goodput"]
    margin = half_width(fewer) * len(fewer) / one["offered"] if one["offered"] else math.inf
    return lead, margin, lead > margin


def _surely_better(cells: Iterable[Cell], name: str, outcomes: Outcomes) -> int:
    """In how many cells it is surely better than ours."""
    return sum(_difference(outcomes[cell.seed, name], outcomes[cell.seed, OURS])[2] for cell in cells)


def _apart(cells: Iterable[Cell], name: str, outcomes: Outcomes) -> list[float]:
    return [
        outcomes[cell.seed, name]["goodput"] - outcomes[cell.seed, OURS]["goodput"]
        for cell in cells
        if (cell.seed, OURS) in outcomes
    ]


def _column(cells: Iterable[Cell], name: str, what: str, outcomes: Outcomes) -> list[float]:
    return [outcomes[cell.seed, name][what] for cell in cells]


def _mean(values: Sequence[float]) -> float:
    return statistics.mean(values) if values else math.nan


# ── 1,000 models ─────────────────────────────────────────────────────────────────────────────────────


def _many(pool: ProcessPoolExecutor, seconds: float) -> list[dict[str, Any]]:
    placements = (OURS, "clockwork", "lru")
    found = list(pool.map(many_models, placements, [seconds] * len(placements)))
    columns = (
        "rows",
        "in goal, %",
        "refused",
        "loads/min",
        "longest wait, s",
        "models never answered",
        "memory, MB",
    )
    table = Table("", *columns, title=f"1,000 models, 20 fit, {seconds:g} s")
    for one in found:
        table.add_row(
            one["placement"],
            f"{one['rows']:,}",
            f"{100 * one['answered_in_goal'] / one['rows']:.1f}",
            f"{one['refused']:,}",
            f"{one['loads_per_minute']:.0f}",
            f"{one['longest_wait_s']:.2f}",
            f"{one['models_without_an_answer']} of {one['models_asked']}",
            " → ".join(f"{mb:.0f}" for mb in one["resident_mb"]),
        )
    wide.print(table)
    return found


if __name__ == "__main__":
    main()
