"""`ml-udf wish FUNCTION`: a function of whichever model keeps what is wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from ml_udf.cli.console import console
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.training import TrainingCalls

__all__ = ["wish"]


@asks_a_server
def wish(
    function: Annotated[
        str, typer.Argument(help="what SQL calls; a new one, or one that gets a new version")
    ],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="models that were trained on this dataset")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="models that do this, such as image-classification")
    ] = None,
    purpose: Annotated[
        str | None, typer.Option("--purpose", help="models that do what this model or function does")
    ] = None,
    min_accuracy: Annotated[
        float | None, typer.Option("--min-accuracy", help="right so often on held-out rows, 0.9 say")
    ] = None,
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="answered so soon")] = None,
    cost: Annotated[
        float | None,
        typer.Option("--cost", help="of 1,000 rows at the most: seconds of a device, or by --prices"),
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Make a function without naming a model: ml-udf wish udf_food --dataset food --min-accuracy 0.9."""
    wants = {
        "dataset": dataset,
        "task": task,
        "purpose": purpose,
        "min_accuracy": min_accuracy,
        "slo_ms": slo_ms,
        "cost": cost,
    }
    with server.asking() as client:
        told = TrainingCalls(client).wish(function, {name: v for name, v in wants.items() if v is not None})
    console.print(
        f"{function} version {told['version']}: {', '.join(told['models'])} answers at rest, of "
        f"{len(told['candidates'])} candidates: {', '.join(told['candidates'])}",
        markup=False,
    )
