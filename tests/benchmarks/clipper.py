"""`make bench-clipper`: Clipper's Figures 8, 9 and 10, with members trained here, beside the paper's rules.

8   the best of five members fails and comes back (clipper_failure.py)
9   growing ensembles with stragglers (clipper_stragglers.py)
10  eight contexts, for each of which another member is good (clipper_contexts.py)

On splits that nothing was tuned on; what was tried was tried on 0 to 5. A split gives every contender the
same rows, so differences are paired. Errors and shares are in %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ml_udf.cli.chart import line_chart
from tests.benchmarks import clipper_contexts as contexts
from tests.benchmarks import clipper_failure as failure
from tests.benchmarks import clipper_stragglers as stragglers
from tests.benchmarks.clipper_data import ANGLES, dialects, failing_split, forests
from tests.benchmarks.figures import apart, drawn, give_way, mean_curve, mean_of, spread, wide
from tests.benchmarks.report import console, write_json

Targets = list[tuple[str, str, bool]]  # what was promised, what was found, whether that is enough


def main(argv: Sequence[str] | None = None) -> None:
    flags = _parser().parse_args(argv)
    splits = range(flags.first, flags.first + (2 if flags.quick else flags.splits))
    with ProcessPoolExecutor(flags.jobs, initializer=give_way) as pool:
        for figure in flags.figures:
            began_s, targets = time.perf_counter(), Targets()
            result = _FIGURES[figure](pool, splits, flags.quick, targets)
            for what, found, is_met in targets:
                console.print(f"{'met   ' if is_met else 'MISSED'}  {what}: {found}", soft_wrap=True)
            took_s = round(time.perf_counter() - began_s, 1)
            console.print(f"Figure {figure}: {took_s:.0f} s")
            told = {"splits": list(splits), "quick": flags.quick, "took_s": took_s, "targets": targets}
            write_json(f"clipper-figure-{figure}", {**told, **result})


# ── Figure 8 ────────────────────────────────────────────────────────────────────────────────────────


def _figure_8(pool: Executor, splits: Sequence[int], quick: bool, targets: Targets) -> dict[str, Any]:
    queries = 2000 if quick else failure.QUERIES
    for number, accuracies in zip(
        splits, pool.map(_failing_members, splits, [queries] * len(splits)), strict=True
    ):
        console.print(f"split {number}: members alone " + " ".join(f"{100 * a:.1f}" for a in accuracies))
    sure, garbled = failure.FAILURES
    cells = [*((sure, label) for label in failure.LABELLED), (garbled, "10 %")]
    record: dict[str, Any] = {"queries": queries, "cells": []}
    jobs = [(number, how, failure.LABELLED[label], queries) for how, label in cells for number in splits]
    found = iter(pool.map(_failing, jobs))
    for how, label in cells:
        by_split = [next(found) for _ in splits]
        runs = {name: [each[name] for each in by_split] for name in failure.CONTENDERS}
        strongest = failure.strongest(runs)
        whole = {name: [each.whole for each in mine] for name, mine in runs.items()}
        table = Table(
            *("", "wrong, %", "while it fails", "after", f"− {failure.OURS}", "η"),
            title=f"Figure 8, {how}, {label} labelled; the strongest other: {strongest}",
        )
        for name, mine in runs.items():
            rates = sorted({each.rate for each in mine if each.rate is not None})
            table.add_row(
                name,
                spread(whole[name], 2),
                spread([each.failing for each in mine], 2),
                spread([each.after for each in mine], 2),
                "" if name == failure.OURS else apart(whole[name], whole[failure.OURS], 2),
                ", ".join(f"{rate:g}" for rate in rates),
            )
        wide.print(table)
        if label == "10 %":
            ours = runs[failure.OURS]
            for what, most, values in (
                ("all", 6.0, [each.whole for each in ours]),
                ("from 10 K on", 5.0, [each.after for each in ours]),
            ):
                met = mean_of(values) <= most
                targets.append(
                    (f"Figure 8, {how}, 10 % labelled, {what}, ≤ {most} %", spread(values, 2), met)
                )
            drawn(f"clipper-figure-8-{how.replace(' ', '-')}", _cumulative(how, queries, runs))
        record["cells"].append(
            {
                "failure": how,
                "labelled": label,
                "strongest": strongest,
                "ours_minus_strongest": [
                    round(mine - other, 3)
                    for mine, other in zip(whole[failure.OURS], whole[strongest], strict=True)
                ],
                "runs": {name: [asdict(each) for each in mine] for name, mine in runs.items()},
            }
        )
    return record


def _failing_members(number: int, queries: int) -> list[float]:
    return failing_split(number, queries).judging.accuracies


def _failing(job: tuple[int, str, float, int]) -> dict[str, failure.Run]:
    return failure.runs(*job)


def _cumulative(how: str, queries: int, runs: Mapping[str, Sequence[failure.Run]]) -> str:
    shown = {name: mean_curve([each.curve for each in mine]) for name, mine in runs.items()}
    return line_chart(
        title=f"Clipper's Figure 8: the best member fails ({how}) from a quarter to a half",
        x_label="thousands of queries, one in ten of them labelled",
        y_label="% answered wrongly so far",
        x=[queries / 1000 * (place + 1) / failure.POINTS for place in range(failure.POINTS)],
        series={failure.BOUND: shown.pop(failure.BOUND), **shown},
        top=12.0,
    )


# ── Figure 9 ────────────────────────────────────────────────────────────────────────────────────────


def _figure_9(pool: Executor, splits: Sequence[int], quick: bool, targets: Targets) -> dict[str, Any]:
    rows, sizes = (1500, (2, 8)) if quick else (6000, stragglers.SIZES)
    jobs = [(number, size, rows) for size in sizes for number in splits]
    list(pool.map(_forests, splits))
    found = iter(pool.map(_stragglers, jobs))
    outcomes = {size: [next(found) for _ in splits] for size in sizes}
    goal_ms = 1000 * stragglers.SLO_S
    table = Table(
        *(
            "members",
            "",
            "mean, ms",
            "p99, ms",
            "late",
            "refused",
            "not by all",
            "missing",
            "right",
            "− ours",
        ),
        title=f"Figure 9: a goal of {goal_ms:g} ms",
    )
    for size, by_split in outcomes.items():
        ours = [each[stragglers.OURS].accuracy for each in by_split]
        for name in stragglers.CONTENDERS:
            mine = [each[name] for each in by_split]
            table.add_row(
                str(size),
                name,
                spread([each.mean_ms for each in mine]),
                spread([each.p99_ms for each in mine]),
                *(f"{mean_of([getattr(each, share) for each in mine]):.2f}" for share in _SHARES),
                spread([each.accuracy for each in mine], 2),
                "" if name == stragglers.OURS else apart([each.accuracy for each in mine], ours, 2),
            )
    wide.print(table)
    worst_ms = max(each[stragglers.OURS].p99_ms for by_split in outcomes.values() for each in by_split)
    late = max(each[stragglers.OURS].late for by_split in outcomes.values() for each in by_split)
    targets.append(
        (
            "Figure 9, p99 at the goal or below, in every split",
            f"{worst_ms:.2f} ms",
            worst_ms <= goal_ms + 1e-6,
        )
    )
    targets.append(("Figure 9, no row late, in any split", f"{late:.2f} %", late == 0))
    if len(sizes) > 2:
        drawn("clipper-figure-9", *_growing(outcomes))
    return {
        "rows": rows,
        "sizes": {
            str(size): [{name: asdict(each) for name, each in one.items()} for one in by_split]
            for size, by_split in outcomes.items()
        },
    }


_SHARES = ("late", "refused", "incomplete", "missing")


def _forests(number: int) -> None:
    forests(number, stragglers.JUDGED)


def _stragglers(job: tuple[int, int, int]) -> dict[str, stragglers.Outcome]:
    return stragglers.outcomes(*job)


def _growing(outcomes: Mapping[int, Sequence[Mapping[str, stragglers.Outcome]]]) -> list[str]:
    x = [float(size) for size in outcomes]

    def lines(measure: str, names: Sequence[str] = stragglers.CONTENDERS) -> dict[str, list[float]]:
        return {
            name: [mean_of([getattr(each[name], measure) for each in mine]) for mine in outcomes.values()]
            for name in names
        }

    accuracies = lines("accuracy")
    least = min(min(line) for line in accuracies.values())
    goal = {"the goal": [1000 * stragglers.SLO_S] * len(x)}
    members = "members, a device each"
    timely = (stragglers.OURS, stragglers.PAPERS)
    return [
        line_chart("Clipper's Figure 9a", members, "p99 of the latency, ms", x, {**goal, **lines("p99_ms")}),
        line_chart(
            "9b: stragglers",
            members,
            "% of members' answers that were not there at the goal",
            x,
            {stragglers.WAITS: [0.0] * len(x), **lines("missing", timely)},
        ),
        line_chart(
            "9c: what that costs",
            members,
            "% of the answered rows that are right",
            x,
            {stragglers.WAITS: accuracies[stragglers.WAITS], **{each: accuracies[each] for each in timely}},
            bottom=float(int(least / 5) * 5),
            top=100.0,
        ),
    ]


# ── Figure 10 ───────────────────────────────────────────────────────────────────────────────────────


def _figure_10(pool: Executor, splits: Sequence[int], quick: bool, targets: Targets) -> dict[str, Any]:
    rows_each = 120 if quick else contexts.ROWS_EACH
    curves = list(pool.map(_contexts, splits, [rows_each] * len(splits)))
    whole = {name: [each[name].whole for each in curves] for name in contexts.CONTENDERS}
    half = {name: [each[name].last_half for each in curves] for name in contexts.CONTENDERS}
    table = Table(
        *("", "wrong, %", "in the last half", "− ours", "− ours, last half"),
        title=f"Figure 10: {len(ANGLES)} contexts, {rows_each} labelled rows of each",
    )
    for name in contexts.CONTENDERS:
        is_ours = name == contexts.OURS
        table.add_row(
            name,
            spread(whole[name], 2),
            spread(half[name], 2),
            "" if is_ours else apart(whole[name], whole[contexts.OURS], 2),
            "" if is_ours else apart(half[name], half[contexts.OURS], 2),
        )
    wide.print(table)
    for other in (contexts.GLOBAL, contexts.OWN):
        behind = [mine - theirs for mine, theirs in zip(half[contexts.OURS], half[other], strict=True)]
        targets.append(
            (
                f"Figure 10, per context errs less than {other}, in the last half",
                apart(half[contexts.OURS], half[other], 2),
                mean_of(behind) < 0,
            )
        )
    x = [float(first + contexts.WINDOW) for first in range(0, rows_each, contexts.WINDOW)]
    shown = {name: mean_curve([each[name].windows for each in curves]) for name in contexts.CONTENDERS}
    drawn(
        "clipper-figure-10",
        line_chart(
            title="Clipper's Figure 10: eight contexts, a member trained for each",
            x_label="labelled rows of each context",
            y_label=f"% answered wrongly, of {contexts.WINDOW} rows of each context",
            x=x,
            series={contexts.OWN: shown.pop(contexts.OWN), **shown},
        ),
    )
    return {
        "rows_each": rows_each,
        "curves": [{name: asdict(each) for name, each in one.items()} for one in curves],
    }


def _contexts(number: int, rows_each: int) -> dict[str, contexts.Curve]:
    dialects(number, rows_each)
    return contexts.curves(number, rows_each)


_FIGURES: Mapping[int, Callable[[Executor, Sequence[int], bool, Targets], dict[str, Any]]] = {
    8: _figure_8,
    9: _figure_9,
    10: _figure_10,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two splits, few rows: under a minute")
    parser.add_argument("--figures", type=int, nargs="+", default=list(_FIGURES), choices=list(_FIGURES))
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--first", type=int, default=20, help="number of the first split")
    parser.add_argument("--jobs", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
