"""`ml-udf train-actor`: the network of `select: actor_critic`, trained in the simulator for one function.

It reads what the home folder knows of the function: how often each subset of its members is right, and how
long their batches take. The arrivals are drawn between the rates that are named.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from ml_udf.cli.console import console, fail
from server.ensemble.evidence import evidence_of_subsets, subset_of
from server.ensemble.selection import Ensemble, EnsembleMember, line_through
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.actor_training import Lesson, train_actor
from server.scheduling.simulation.arrivals import bursty, poisson

__all__ = ["train_actor_command"]

_GOALS = 12  # that a lesson lasts
_SIZES = (16, 32, 64)


def train_actor_command(
    function: Annotated[str, typer.Argument(help="a function that was deployed from a training job")],
    rates: Annotated[str, typer.Option(metavar="LOW:HIGH", help="rows per second that may come")],
    home: Annotated[Path, typer.Option(help="the server's home folder")] = Path("~/.ml_udf"),
    out: Annotated[Path, typer.Option(metavar="FILE.json", help="where the network goes")] = Path(
        "actor.json"
    ),
    updates: Annotated[int, typer.Option(min=1, help="of the network; each takes six simulated loads")] = 50,
    workers: Annotated[int, typer.Option(min=1, help="that hold all members")] = 1,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train the network of the selection policy actor_critic for one function.

    PUT the file's content as the function's field `actor`, with "select": "actor_critic".
    """
    try:
        ensemble, slo_s = _known(home.expanduser(), function)
        low, high = (float(each) / workers for each in rates.split(":"))
        if not 0 < low <= high:
            raise ValueError
    except ValueError as exc:
        fail(str(exc) or f"--rates is LOW:HIGH in rows per second, not {rates!r}")

    def lesson(draw: Random) -> Lesson:
        rate = draw.uniform(low, high)
        arrivals = bursty if draw.random() < 0.3 else poisson
        times_s = arrivals(draw, rate, max(_GOALS * slo_s, 400 / rate))
        return Lesson(ensemble, times_s, slo_s, _SIZES[-1], _SIZES)

    def heard(update: int, regret: float) -> None:
        told = f"update {update + 1} of {updates}: {1 - regret:.1%} right and in time"
        console.print(told, end="\r" if console.is_terminal else "\n")

    network = train_actor(lesson, updates=updates, seed=seed, heard=heard)
    try:
        out.write_text(json.dumps(network.to_json()))
    except OSError as exc:
        fail(f"{out} cannot be written: {exc.strerror}")
    if console.is_terminal:
        console.print()
    console.print(f'written: {out}; PUT it as \'actor\', with "select": "actor_critic"')


def _known(home: Path, function: str) -> tuple[Ensemble, float]:
    """The ensemble, and the goal in seconds. Raises ValueError for what is not there, or cannot be read."""
    told = _read(home / "functions" / f"{Path(function).name}.json")
    try:
        fit = told["fit"]
        if not fit:
            raise ValueError(
                f"{function} has no fit: a training job fits the members of an ensemble, two or more"
            )
        names = [str(name) for name in fit["members"]]
        versions = {str(each["model"]): each for each in told["members"]}
        right = {subset_of(map(int, each["members"])): float(each["accuracy"]) for each in fit["subsets"]}
        members = [_member(home, versions[name]) for name in names]
        return Ensemble(tuple(members), evidence_of_subsets(len(names), right)), float(told["slo_ms"]) / 1000
    except (KeyError, TypeError) as exc:
        raise ValueError(f"what {home} knows of {function} cannot be read: {exc!r} is missing") from exc


def _member(home: Path, member: dict[str, Any]) -> EnsembleMember:
    key = f"{member['model']}/{member['version']}"
    latency = LatencyModel.from_json(_read(home / "latencies" / f"{key}.json"))
    return EnsembleMember(key, float(member["accuracy"]), *line_through(latency, _SIZES[-1]))


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes())
    except OSError as exc:
        raise ValueError(f"{path} cannot be read: {exc.strerror}; is --home the server's?") from exc
    if not isinstance(told, dict):
        raise ValueError(f"{path} is no JSON object")
    return told
