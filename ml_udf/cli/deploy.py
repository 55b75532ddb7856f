"""`ml-udf deploy FUNCTION JOB`: a function that answers with what a job has found."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from ml_udf.cli.console import console
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.training import TrainingCalls

__all__ = ["cascade_told", "deploy"]


class _Promote(StrEnum):
    always = "always"
    if_better = "if_better"


@asks_a_server
def deploy(
    function: Annotated[
        str, typer.Argument(help="what SQL calls; a new one, or one that gets a new version")
    ],
    job: Annotated[int, typer.Argument(help="the job's number: ml-udf jobs lists them")],
    choose: Annotated[
        str, typer.Option("--choose", help="ensemble, best, or one of the job's models")
    ] = "ensemble",
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="latency goal")] = None,
    promote: Annotated[
        _Promote, typer.Option("--promote", help="always, or if_better than what answers now")
    ] = _Promote.always,
    task: Annotated[str | None, typer.Option("--task", help="another one that the job's models do")] = None,
    cascade: Annotated[
        float | None,
        typer.Option(
            "--cascade",
            help="let a cheap model answer first, as the full function would of this share of rows, 0.98 say;"
            " 0 ends it",
        ),
    ] = None,
    proxy: Annotated[
        str | None, typer.Option("--proxy", help="the cheap model, or a function of one; else one of its own")
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Deploy what a job has found: ml-udf deploy udf_food_quick 7 --cascade 0.98."""
    with server.asking() as client:
        told = TrainingCalls(client).deploy(
            job,
            function,
            choose=choose,
            slo_ms=slo_ms,
            promote=promote.value,
            task=task,
            cascade=cascade,
            proxy=proxy,
        )
    if not told["promoted"]:
        console.print(f"{function} stays as it is: what job {job} has found is not better", markup=False)
        return
    console.print(f"{function} version {told['version']}: {', '.join(told['models'])}", markup=False)
    if told.get("warning"):
        console.print(told["warning"], markup=False)
    if told.get("cascade") is not None:
        console.print(cascade_told(told["cascade"]), markup=False)


def cascade_told(told: Mapping[str, Any]) -> str:
    """What came of the cascade that was asked for."""
    if not told["is_used"]:
        return f"no proxy: {told['reason']}"
    return (
        f"{told['proxy']} answers first, {told['share']:.1%} of rows alone: of {told['proof_rows']} held-out"
        f" rows {told['agrees']:.1%} are answered as by the full function, {told['low']:.1%} at the least;"
        " it is kept off while it saves no time"
    )
