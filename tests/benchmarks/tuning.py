"""`python -m tests.benchmarks.tuning`: the tuning policies against each other, by what they would deploy.

Each contender tunes each task with each seed through the real master, every epoch charged, at a study's share
of the default budget and at ten times it. What counts is the untouched test accuracy of what a deployment
makes of the study: the ensemble that is selected on validation rows. Beside it stand the best checkpoint, its
mean over the budget, and what would have been deployed where a job with a budget of time ends for its score.
Seeds pair the contenders (same rows, same first draws); paired Wilcoxon tests compare all with
`asha random`, p-values corrected by Holm within each measure and budget. A seed is one pair, its tasks
averaged: they share rows, draws of knobs and digits.

What is measured is what ships: longest trial, patience, cooling and first trial are those of a job that says
nothing (`tuning_run.shipped`), and the choice of members is a deployment's. Optuna's TPE with Hyperband
stands beside them. A run that was cut off goes on where it was (bench-results/tuning-*.jsonl).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from rich.table import Table
from scipy.stats import wilcoxon
from threadpoolctl import threadpool_limits

from tests.benchmarks import tuning_run
from tests.benchmarks.journal import Journal
from tests.benchmarks.report import RESULTS, console, write_json
from tests.benchmarks.tuning_run import OPTUNA, Outcome, run_study
from tests.benchmarks.tuning_task import tasks

CONTENDERS = ("study random", "costudy random", "asha random", "branch random", "branch-late random", OPTUNA)
TASKS = ("digits", "synthetic", "synthetic-hard")
OURS = "asha random"
# What a study gets of five minutes that three models share, where an epoch takes a second; and ten times it.
EPOCHS = (100, 1000)
# What is compared; each over all seeds is a family of tests.
MEASURES = {
    "ensemble": "as deployed",
    "best": "best checkpoint",
    "over_time": "best checkpoint, over the budget",
    "stopped": "as deployed where a job of minutes ends",
}
# A contender, a task: the outcomes in the order of seeds, so that lists are paired.
Results = dict[tuple[str, str], list[Outcome]]
Job = tuple[int, str, int, str]  # epochs, task, seed, contender: the order in which they are run


def main() -> None:
    flags = _parser().parse_args()
    seeds = range(flags.first_seed, flags.first_seed + flags.seeds)
    journal = Journal("tuning", tuning_run, packages=("training/studies", "training/promotion"))
    asked = itertools.product(sorted(flags.epochs), seeds, flags.tasks, flags.contenders)
    jobs = [(epochs, task, seed, contender) for epochs, seed, task, contender in asked]
    if not flags.report:
        left = [job for job in jobs if _key(job) not in journal.known]
        with ProcessPoolExecutor(flags.processes, initializer=_quiet) as pool:
            outcomes = zip(map(_key, left), pool.map(_outcome, left), strict=True)
            for done, key in enumerate(journal.keep(outcomes), 1):
                console.print(f"{done} of {len(left)}: {key}", style="dim")
    result: dict[str, Any] = {"first_seed": flags.first_seed}
    written: list[Path] = []
    for epochs in flags.epochs:
        of_budget = [job for job in jobs if job[0] == epochs]
        results = _results(of_budget, journal.known)
        if not results:
            continue
        pairs = len(next(iter(results.values())))
        title = f"{epochs} epochs, {pairs} seeds"
        result[title] = report(results, title)
        result[title]["outcomes"] = [_brief(each) for side in results.values() for each in side]
        written += draw(results, RESULTS, epochs)
    console.print(f"written: {', '.join(map(str, [write_json('tuning', result), *written]))}")


def _results(jobs: Sequence[Job], known: Mapping[str, Any]) -> Results:
    """Of the seeds that every contender has finished on every task, those of a run that was cut off too."""
    asked: dict[int, list[Job]] = {}
    for job in jobs:
        asked.setdefault(job[2], []).append(job)
    results: Results = {}
    for _, of_seed in sorted(asked.items()):
        if all(_key(job) in known for job in of_seed):
            for job in of_seed:
                results.setdefault((job[3], job[1]), []).append(Outcome(**known[_key(job)]))
    return results


def report(results: Results, title: str) -> dict[str, Any]:
    """Prints the tables of one budget; their numbers for the JSON."""
    names = list(dict.fromkeys(task for _, task in results))
    contenders = list(dict.fromkeys(contender for contender, _ in results))
    table = Table(
        "test accuracy %",
        *names,
        "as a job of minutes ends",
        title=f"{title}: best checkpoint / as deployed (mean, ± sd)",
    )
    means: dict[str, dict[str, list[float]]] = {}
    for contender in contenders:
        cells = []
        for name in names:
            outcomes = results[contender, name]
            single, together = (
                [100 * getattr(each, what) for each in outcomes] for what in ("best", "ensemble")
            )
            means.setdefault(contender, {})[name] = [statistics.mean(single), statistics.mean(together)]
            spread = statistics.stdev(together) if len(together) > 1 else 0.0
            cells.append(f"{statistics.mean(single):.2f} / {statistics.mean(together):.2f} (±{spread:.1f})")
        everyone = [outcome for name in names for outcome in results[contender, name]]
        stopped = statistics.mean(100 * outcome.stopped for outcome in everyone)
        after = statistics.mean(outcome.stopped_after for outcome in everyone)
        means[contender]["stopped"] = [stopped, after]
        table.add_row(contender, *cells, f"{stopped:.2f} after {after:.0f} epochs")
    console.print(table)
    return {
        "accuracy_percent": means,
        "tests": _tests(results, [name for name in contenders if name != OURS], names, title),
        "claims": _claims(results, names, title),
    }


def _tests(
    results: Results, others: Sequence[str], names: Sequence[str], title: str
) -> list[dict[str, object]]:
    """A family for each measure over all seeds, and one of the first task by task."""
    if (OURS, names[0]) not in results:
        return []
    families = [[_compared(results, other, names, measure) for other in others] for measure in MEASURES]
    families.append([_compared(results, other, [name], "ensemble") for other in others for name in names])
    tests = [test for family in families for test in _holm(family)]
    table = Table(
        "against",
        "task",
        "measure",
        "gain, points",
        "won/lost",
        "p",
        "p (Holm)",
        title=f"{title}: {OURS}, paired",
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


def _claims(results: Results, names: Sequence[str], title: str) -> list[dict[str, object]]:
    """Rafiki §7.1.1: CoStudy has a larger share of trials above 50 % (C1), and reaches Study's final best in
    fewer epochs (C2; runs that never do count with the whole budget).
    """
    claims: list[dict[str, object]] = []
    table = Table(
        "advisor",
        "task",
        "trials above 50 %",
        "epochs to Study's best",
        title=f"{title}: Rafiki's claims, Study → CoStudy",
    )
    for advisor, name in itertools.product(("random", "tpe"), names):
        study, costudy = (results.get((f"{policy} {advisor}", name), []) for policy in ("study", "costudy"))
        if not study or not costudy:
            continue
        shares = [
            statistics.mean(outcome.above_half / outcome.trials for outcome in side)
            for side in (study, costudy)
        ]
        final = [outcome.steps[-1][1] for outcome in study]
        reached = [
            [outcome.reaches(score) for outcome, score in zip(side, final, strict=True)]
            for side in (study, costudy)
        ]
        middle = [
            statistics.median(
                outcome.epochs if epoch is None else epoch for outcome, epoch in zip(study, side, strict=True)
            )
            for side in reached
        ]
        never = reached[1].count(None)
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


def draw(results: Results, folder: Path, epochs: int) -> list[Path]:
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
            style = {"study": "C0", "costudy": "C1", "branch": "C2", "asha": "C3", "branch-late": "C5"}.get(
                policy, "C4"
            )
            line = {"random": "-", "tpe": "--"}.get(advisor, "-.")
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
        paths.append(folder / f"tuning-{name}-{epochs}.png")
        figure.savefig(paths[-1], dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return paths


def _key(job: Job) -> str:
    epochs, task, seed, contender = job
    return f"{epochs} epochs, {task}, {seed}, {contender}"


def _outcome(job: Job) -> dict[str, Any]:
    epochs, name, seed, contender = job
    (task,) = [task for task in tasks(seed) if task.name == name]
    with threadpool_limits(1):
        return run_study(task, contender, seed, epochs).as_json()


def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    os.nice(10)


def _brief(outcome: Outcome) -> dict[str, Any]:
    form = outcome.as_json()
    del form["steps"]
    return form | {"over_time": outcome.over_time}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tuning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=3000)
    parser.add_argument(
        "--epochs", type=int, nargs="+", default=list(EPOCHS), help="of a study, each a table"
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument(
        "--report", action="store_true", help="run nothing: tables of the seeds that are done"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), metavar="'POLICY ADVISOR'")
    return parser


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    main()
