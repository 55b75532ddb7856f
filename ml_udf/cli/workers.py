"""`ml-udf workers`: the worker processes of a server; by hand one more, or one less, while rows flow."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ml_udf.cli.console import console, fail, note
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.client import Client

__all__ = ["app"]

app = typer.Typer(help="The worker processes of a server: listed, added, drained.", no_args_is_help=True)

_LOOK_S = 0.2
_REASON = typer.Option("--reason", help="why, for the timeline of capacity and the audit trail")
_WAIT = typer.Option("--wait/--no-wait", help="until that is over")


@app.command("list")
@asks_a_server
def list_workers(*, server: ServerOptions) -> None:
    """Show every worker: its state, its device, and what it holds."""
    with _asking(server) as client:
        told = client.get("/v1/workers")
    console.print(_table(told["workers"]))
    console.print(f"at least {told['least']}, at most {told['most']}")


@app.command()
@asks_a_server
def add(
    reason: Annotated[str, _REASON] = "asked for",
    wait: Annotated[bool, _WAIT] = True,
    *,
    server: ServerOptions,
) -> None:
    """Have one more worker; it takes rows of a model as soon as that is loaded there."""
    with _asking(server) as client:
        name = client.post("/v1/workers", {"reason": reason})["name"]
        note(f"worker {name} joins")
        if wait:
            _wait_for(client, name, "joining")
            found = _state_of(client, name)
            if found is None or found["state"] == "given up":
                why = "it is gone" if found is None else found["last_error"]
                fail(f"worker {name} did not get ready: {why}", "the server's log says more")
            note(f"worker {name} has joined")


@app.command()
@asks_a_server
def drain(
    name: Annotated[str, typer.Argument(help="a worker, or a node, as `ml-udf workers list` has it")],
    reason: Annotated[str, _REASON] = "asked for",
    wait: Annotated[bool, _WAIT] = True,
    *,
    server: ServerOptions,
) -> None:
    """Have a worker finish what it has, and end; what rows need of its models is elsewhere first.

    Of a node of a cluster, have its workers moved to others; it gets none until it is undrained.
    """
    with _asking(server) as client:
        if _state_of(client, name) is None and _is_node(client, name):
            moved = client.post(f"/v1/nodes/{quote(name, safe='')}/drain", {"reason": reason})["workers"]
            note(f"node {name} is drained; workers that move: {', '.join(moved) or 'none'}")
            for worker in moved if wait else ():
                _wait_for(client, worker, "moving")
            return
        client.post(f"/v1/workers/{name}/drain", {"reason": reason})
        note(f"worker {name} leaves")
        if wait:
            _wait_for(client, name, "leaving")
            if _state_of(client, name) is not None:
                event = next(
                    each for each in client.get("/v1/capacity")["capacity"] if each["worker"] == name
                )
                fail(f"worker {name} stays: {event['error']}", "ml-udf workers list")
            note(f"worker {name} has left")


@app.command()
@asks_a_server
def undrain(
    node: Annotated[str, typer.Argument(help="that was drained")],
    *,
    server: ServerOptions,
) -> None:
    """Let a node of a cluster have workers again, as they are started."""
    with _asking(server) as client:
        client.delete(f"/v1/nodes/{quote(node, safe='')}/drain")
        note(f"node {node} gets workers again")


def _is_node(client: Client, name: str) -> bool:
    return any(worker.get("node") == name for worker in client.get("/v1/workers")["workers"])


def _asking(server: ServerOptions) -> Any:  # noqa: ANN401  # what `ServerOptions.asking` returns
    if server.endpoint.startswith("local:"):
        fail(
            "local: has no workers: it answers in the process that asks", "give a server: --endpoint http://…"
        )
    return server.asking()


def _wait_for(client: Client, name: str, state: str) -> None:
    while (found := _state_of(client, name)) is not None and found["state"] == state:
        time.sleep(_LOOK_S)


def _state_of(client: Client, name: str) -> dict[str, Any] | None:
    workers: list[dict[str, Any]] = client.get("/v1/workers")["workers"]
    return next((worker for worker in workers if worker["name"] == name), None)


def _table(workers: list[dict[str, Any]]) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.table import Table

    has_nodes = any(worker.get("node") for worker in workers)
    nodes = ["node"] if has_nodes else []
    table = Table("worker", "state", *nodes, "device", "pid", "restarts", "models", "last error", box=None)
    for worker in workers:
        table.add_row(
            worker["name"],
            worker["state"],
            *([worker["node"]] if has_nodes else []),
            worker["device"] or "",
            "" if worker["pid"] is None else str(worker["pid"]),
            str(worker["restarts"]),
            str(len(worker["resident"])),
            worker["last_error"],
        )
    return table
