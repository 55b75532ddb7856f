"""`python -m tests.benchmarks.tuning`: the tuning policies against each other, by what they would deploy.

Each contender tunes each task with each seed through the real master, with the same budget of epochs, every
epoch charged. What counts is the untouched test accuracy of what each rule deploys: the best checkpoint, and
for `branch` the ensemble selected on validation rows. Beside it stand like and like: everyone's best
checkpoint, everyone's ensemble, and the best checkpoint averaged over the budget. Seeds pair the contenders
(same rows, same first draws); paired Wilcoxon tests compare all with `branch random`, p-values corrected by
Holm within each family. A seed is one pair, its tasks averaged: they share rows, draws of knobs and digits.

What is measured is what ships: budget, longest trial, patience, cooling and first trial are those of a job
that says nothing (`tuning_run.shipped`), and the choice of members is a deployment's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from rich.table import Table
from scipy.stats import wilcoxon
from threadpoolctl import threadpool_limits

from tests.benchmarks.report import RESULTS, console, write_json
from tests.benchmarks.tuning_run import Outcome, run_study, shipped
from tests.benchmarks.tuning_task import tasks

CONTENDERS = (
    "study random",
    "study+ensemble random",
    "study tpe",
    "costudy random",
    "costudy tpe",
    "asha random",
    "branch random",
)
OURS = "branch random"
# What is compared; each over all seeds is a family of tests.
MEASURES = {
    "deployed": "as each rule deploys",
    "test": "best checkpoint",
    "ensemble": "ensemble",
    "over_time": "over the budget",
}
# A contender, a task (or all): the outcomes in the order of tasks and seeds, so that lists are paired.
Results = dict[tuple[str, str], list[Outcome]]


def main() -> None:
    flags = _parser().parse_args()
    jobs = [
        (seed, flags.epochs, flags.contenders)
        for seed in range(flags.first_seed, flags.first_seed + flags.seeds)
    ]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(flags.processes, initializer=_quiet) as pool:
        for done, some in enumerate(pool.map(_one_seed, jobs), 1):
            outcomes += some
            console.print(f"{done} of {flags.seeds} seeds", style="dim")
    results = _by_contender(outcomes)
    seeds = {"first_seed": flags.first_seed, "seeds": flags.seeds}
    result = {"epochs": flags.epochs, **seeds, **report(results)}
    result["outcomes"] = [_brief(outcome) for outcome in outcomes]
    path = write_json("tuning", result)
    pictures = draw(results, path.parent)
    console.print(f"written: {', '.join(map(str, [path, *pictures]))}")


def report(results: Results) -> dict[str, object]:
    """Prints the tables; their numbers for the JSON."""
    names = list(dict.fromkeys(task for _, task in results))
    contenders = list(dict.fromkeys(contender for contender, _ in results))
    table = Table(
        "test accuracy %", *names, title="Deployed: best checkpoint / selected ensemble (mean, ± sd)"
    )
    means: dict[str, dict[str, list[float]]] = {}
    for contender in contenders:
        cells = []
        for name in names:
            single = [100 * outcome.test for outcome in results[contender, name]]
            together = [100 * outcome.ensemble for outcome in results[contender, name]]
            means.setdefault(contender, {})[name] = [statistics.mean(single), statistics.mean(together)]
            spread = statistics.stdev(single) if len(single) > 1 else 0.0
            cells.append(f"{statistics.mean(single):.2f} / {statistics.mean(together):.2f} (±{spread:.1f})")
        table.add_row(contender, *cells)
    console.print(table)
    return {
        "accuracy_percent": means,
        "tests": _tests(results, [name for name in contenders if name != OURS], names),
        "claims": _claims(results, names),
    }


def _tests(results: Results, others: Sequence[str], names: Sequence[str]) -> list[dict[str, object]]:
    """A family for each measure over all seeds, and one of the first task by task."""
    if (OURS, names[0]) not in results:
        return []
    families = [[_compared(results, other, names, measure) for other in others] for measure in MEASURES]
    families.append([_compared(results, other, [name], "deployed") for other in others for name in names])
    tests = [test for family in families for test in _holm(family)]
    table = Table(
        "against", "task", "measure", "gain, points", "won/lost", "p", "p (Holm)", title=f"{OURS}, paired"
    )
    for test in tests:
        table.add_row(
            str(test["against"]),
            str(test["task"]),
            MEASURES[str(test["measure"])],
            f"{test['gain_points']:+.2f}",
            f"{test['won']}/{test['lost']}",
            f"{test['p']:.2g}",
            f"{test['p_holm']:.2g}",
        )
    console.print(table)
    return tests


def _compared(results: Results, other: str, names: Sequence[str], measure: str) -> dict[str, object]:
    by_task = [
        [
            float(getattr(ours, measure)) - float(getattr(theirs, measure))
            for ours, theirs in zip(results[OURS, name], results[other, name], strict=True)
        ]
        for name in names
    ]
    gains = [statistics.mean(of_seed) for of_seed in zip(*by_task, strict=True)]
    return {
        "against": other,
        "task": names[0] if len(names) == 1 else "all",
        "measure": measure,
        "gain_points": 100 * statistics.mean(gains),
        "won": sum(gain > 0 for gain in gains),
        "lost": sum(gain < 0 for gain in gains),
        "p": float(wilcoxon(gains).pvalue) if any(gains) else 1.0,
    }


def _holm(tests: list[dict[str, object]]) -> list[dict[str, object]]:
    ranked = sorted(tests, key=lambda test: float(str(test["p"])))
    least = 0.0
    for rank, test in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - rank) * float(str(test["p"]))))
        test["p_holm"] = least
    return tests


def _claims(results: Results, names: Sequence[str]) -> list[dict[str, object]]:
    """Rafiki §7.1.1: CoStudy has a larger share of trials above 50 % (C1), and reaches Study's final best in
    fewer epochs (C2; runs that never do count with the whole budget).
    """
    claims: list[dict[str, object]] = []
    table = Table(
        "advisor",
        "task",
        "trials above 50 %",
        "epochs to Study's best",
        title="Rafiki's claims, Study → CoStudy",
    )
    for advisor, name in itertools.product(("random", "tpe"), names):
        study, costudy = (results.get((f"{policy} {advisor}", name), []) for policy in ("study", "costudy"))
        if not study or not costudy:
            continue
        shares = [
            statistics.mean(outcome.trials_above_half / outcome.trials for outcome in side)
            for side in (study, costudy)
        ]
        epochs = [
            [_reached(outcome, one.best[-1]) for outcome, one in zip(side, study, strict=True)]
            for side in (study, costudy)
        ]
        never = sum(outcome.best[-1] < one.best[-1] for outcome, one in zip(costudy, study, strict=True))
        middle = [statistics.median(side) for side in epochs]
        claims.append(
            {
                "advisor": advisor,
                "task": name,
                "shares": shares,
                "median_epochs": middle,
                "never_reached": never,
            }
        )
        table.add_row(
            advisor,
            name,
            f"{shares[0]:.0%} → {shares[1]:.0%}",
            f"{middle[0]:.0f} → {middle[1]:.0f} (never: {never} of {len(study)})",
        )
    console.print(table)
    return claims


def _reached(outcome: Outcome, score: float) -> int:
    return next((epoch for epoch, best in enumerate(outcome.best, 1) if best >= score), len(outcome.best))


def draw(results: Results, folder: Path) -> list[Path]:
    """The anytime curves, a picture a task: mean test accuracy of the best checkpoint by each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = []
    for name in dict.fromkeys(task for _, task in results):
        figure, axes = pyplot.subplots(figsize=(7, 4.2))
        for contender in dict.fromkeys(contender for contender, _ in results):
            curves = np.array([outcome.anytime for outcome in results[contender, name]]) * 100
            policy, advisor = contender.split()
            style = {"study": "C0", "costudy": "C1", "branch": "C2", "asha": "C3"}.get(policy, "C4")
            line = {"random": "-", "tpe": "--", "gp": ":"}.get(advisor, "-.")
            axes.plot(range(1, curves.shape[1] + 1), curves.mean(axis=0), line, color=style, label=contender)
        final = [
            np.mean([outcome.anytime[-1] for outcome in side])
            for (_, t), side in results.items()
            if t == name
        ]
        axes.set_ylim(100 * float(min(final)) - 12, 100 * float(max(final)) + 1.5)
        axes.set_xlabel("epochs trained, all trials together")
        axes.set_ylabel("test accuracy of the best checkpoint, %")
        axes.set_title(f"{name}: mean of {len(curves)} seeds")
        axes.grid(alpha=0.3)
        axes.legend()
        paths.append(folder / f"tuning-{name}.png")
        figure.savefig(paths[-1], dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return paths


def _one_seed(job: tuple[int, int, Sequence[str]]) -> list[Outcome]:
    seed, epochs, contenders = job
    with threadpool_limits(1):
        return [run_study(task, contender, seed, epochs) for task in tasks(seed) for contender in contenders]


def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    os.nice(10)


def _by_contender(outcomes: Sequence[Outcome]) -> Results:
    results: Results = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.seed):
        results.setdefault((outcome.contender, outcome.task), []).append(outcome)
    return results


def _brief(outcome: Outcome) -> dict[str, object]:
    form = outcome.as_json()
    brief = {name: value for name, value in form.items() if name not in ("anytime", "best")}
    return brief | {"deployed": outcome.deployed, "over_time": outcome.over_time}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tuning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=shipped().budget_epochs, help="of a study")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), metavar="'POLICY ADVISOR'")
    return parser


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    main()
