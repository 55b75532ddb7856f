"""`ml-udf pipeline NAME STAGES…`: a function made of functions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ml_udf.cli.console import console, fail
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.pipelines import create_pipeline

__all__ = ["pipeline", "stage_of"]


@asks_a_server
def pipeline(
    name: Annotated[str, typer.Argument(help="what it is called")],
    stages: Annotated[
        list[str],
        typer.Argument(help="functions, one after the other; crop, or crop:0.1 with a margin, between two"),
    ],
    slo_ms: Annotated[
        float | None, typer.Option("--slo-ms", help="latency goal; its stages' together, if not said")
    ] = None,
    goal_split: Annotated[
        str | None, typer.Option("--goal-split", help="of the goal among the stages: none, even, nexus")
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Make a function of functions: ml-udf pipeline udf_dishes udf_tray crop:0.1 udf_food_name."""
    try:
        listed = [stage_of(stage) for stage in stages]
    except ValueError as exc:
        fail(str(exc), "such as crop, or crop:0.1; a function by name, or NAME/VERSION")
    with server.asking() as client:
        told = create_pipeline(client, name, listed, slo_ms=slo_ms, goal_split=goal_split)
    shown = " → ".join(
        f"{stage['function']}/{stage['version']}" if "function" in stage else "crop"
        for stage in told["pipeline"]
    )
    console.print(f"function {name}, version {told['version']}: {shown}", markup=False)


def stage_of(text: str) -> dict[str, Any]:
    """A stage as the command line has it: a function, FUNCTION/VERSION, crop or crop:MARGIN.

    Raises ValueError.
    """
    word, colon, margin = text.partition(":")
    if word == "crop":
        try:
            return {"crop": {"margin": float(margin)} if colon else {}}
        except ValueError:
            raise ValueError(f"the margin of {text!r} is no number") from None
    function, slash, version = text.rpartition("/")
    if not slash:
        return {"function": text}
    if not version.isdecimal():
        raise ValueError(f"the version of {text!r} is no whole number")
    return {"function": function, "version": int(version)}
