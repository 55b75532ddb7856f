"""`ml-udf jobs`: what trains on a server, once or as it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from ml_udf.cli.console import console, fail, has_edge
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.training import TrainingCalls

__all__ = ["jobs", "watch_jobs"]

_TRIALS_SHOWN = 8
_LOOK_S = 0.5
_LOG_S = 5.0  # between lines of a log, so that hours of training leave one that can be read


@asks_a_server
def jobs(
    job: Annotated[int | None, typer.Argument(help="a job's number; all jobs when left out")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="follow it until it ends (or all)")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="stop the job; what it has found stays")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="let the job rest")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a paused job")] = False,
    extend: Annotated[
        str | None,
        typer.Option("--extend", help="go on with an ended job: so much in all, '20 minutes', '400 epochs'"),
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Show the training jobs of a server: how far they are, and the best that they have found."""
    asked = {"cancel": cancel, "pause": pause, "resume": resume, "extend": extend is not None}
    verbs = [verb for verb, is_asked in asked.items() if is_asked]
    if verbs and (job is None or len(verbs) > 1):
        fail(f"--{verbs[0]} needs a job, and no other verb", f"ml-udf jobs 3 --{verbs[0]}")
    with server.asking() as client:
        calls = TrainingCalls(client)
        if job is not None:
            _tell(calls, job, verbs, extend)
        wanted = None if job is None else [job]
        if watch:
            watch_jobs(calls, wanted, console)
        else:
            console.print(_table(calls, wanted, console))


def _tell(calls: TrainingCalls, job: int, verbs: Sequence[str], budget: str | None) -> None:
    for verb in verbs:
        if verb == "extend" and budget is not None:
            calls.extend(job, int(budget) if budget.isdecimal() else budget)
        else:
            {"cancel": calls.cancel, "pause": calls.pause, "resume": calls.resume}[verb](job)


def watch_jobs(calls: TrainingCalls, wanted: Sequence[int] | None, to: Console) -> None:
    """Show the jobs of these numbers (None = all) as they go, until none of them runs."""
    from rich.live import Live

    if not to.is_terminal:  # where nothing can be drawn anew
        _log_jobs(calls, wanted, to)
        to.print(_table(calls, wanted, to))
        return
    with Live(_table(calls, wanted, to), console=to, refresh_per_second=4) as live:
        while any(found["state"] == "running" for found in _found(calls, wanted)):
            time.sleep(_LOOK_S)
            live.update(_table(calls, wanted, to))
        live.update(_table(calls, wanted, to))


def _log_jobs(calls: TrainingCalls, wanted: Sequence[int] | None, to: Console) -> None:
    """A line of each study that has gone on, and of each job that has ended, until none of them runs."""
    said: dict[str, str] = {}
    said_s = -math.inf
    while True:
        found = _found(calls, wanted)
        over = not any(job["state"] == "running" for job in found)
        if over or time.monotonic() - said_s >= _LOG_S:
            lines = {key: line for job in found for key, line in _lines(job).items()}
            for key, line in lines.items():
                if said.get(key) != line:
                    to.print(f"{datetime.now():%H:%M:%S}  {line}", highlight=False)
            said, said_s = lines, time.monotonic()
        if over:
            return
        time.sleep(_LOOK_S)


def _lines(job: dict[str, Any]) -> dict[str, str]:
    name = f"job {job['id']}, {job['dataset']}"
    lines = {name: f"{name}: {job['state']}"}
    for model, study in job["studies"].items():
        best = "" if study["best_score"] is None else f", best {_score(study['best_score'])}"
        lines[f"{name}, {model}"] = (
            f"{name}, {model}: {_epochs(study)} epochs, {study['trials']} trials{best}"
        )
    return lines


def _found(calls: TrainingCalls, wanted: Sequence[int] | None) -> list[dict[str, Any]]:
    return calls.jobs() if wanted is None else [calls.job(number) for number in wanted]


def _table(calls: TrainingCalls, wanted: Sequence[int] | None, to: Console) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table("job", "dataset", "state", "model", "epochs", "", "trials", "best", title_justify="left")
    for found in _found(calls, wanted):
        if not found["studies"]:  # they are not there yet, or the server cannot read them
            table.add_row(str(found["id"]), found["dataset"], found["state"], end_section=True)
        for place, (model, study) in enumerate(found["studies"].items()):
            first = place == 0
            table.add_row(
                str(found["id"]) if first else "",
                found["dataset"] if first else "",
                found["state"] if first else "",
                model,
                _epochs(study),
                ProgressBar(1.0, _share_used(study), width=24),
                str(study["trials"]),
                _score(study["best_score"]),
                end_section=place == len(found["studies"]) - 1,
            )
    wanted = wanted or ()
    most = max(2, _TRIALS_SHOWN // max(1, len(wanted)))
    return Group(table, *(_trials(calls, number, most, to) for number in wanted))


def _trials(calls: TrainingCalls, job: int, most: int, to: Console) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.table import Table

    table = Table("trial", "state", "epochs", "score", "best", "from", box=None, expand=has_edge(to))
    table.add_column("knobs", no_wrap=True, overflow="ellipsis", ratio=1)  # what the others leave
    latest = sorted(calls.trials(job), key=lambda trial: (trial["state"] != "running", -trial["trial"]))
    for trial in latest[:most]:
        knobs = ", ".join(f"{name} {_short(value)}" for name, value in trial["knobs"].items())
        table.add_row(
            f"{trial['model']} {trial['trial']}",
            trial["state"],
            str(trial["epochs"]),
            _score(trial["score"]),
            _score(trial["best_score"]),
            "" if trial["parent_trial"] is None else str(trial["parent_trial"]),
            knobs,
        )
    return table


def _epochs(study: dict[str, Any]) -> str:
    """How many, and of how many where the budget is of epochs."""
    most = study["epochs_budget"]
    return f"{study['epochs_used']}/{most}" if most else str(study["epochs_used"])


def _share_used(study: dict[str, Any]) -> float:
    """Of its budget; an older server has budgets of epochs alone, and does not say."""
    known: float | None = study.get("share_used")
    return float(study["epochs_used"] / study["epochs_budget"]) if known is None else known


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.3f}"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
