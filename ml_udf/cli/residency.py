"""`ml-udf residency`: which models are on which workers of a server, what moves, and what has moved."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer

from ml_udf.cli.console import console, fail
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.client import Client

__all__ = ["residency"]

_LOOK_S = 0.5
_UNITS = ("B", "kB", "MB", "GB", "TB")


@asks_a_server
def residency(
    events: Annotated[int, typer.Option("--events", "-n", min=0, help="so many of the last moves")] = 10,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="go on until Ctrl-C")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Show where a server's models are: on which device, in the host's memory, and what moved and why."""
    if server.endpoint.startswith("local:"):
        fail(
            "local: holds models in the process that asks for rows, and this command asks for none",
            "there: SELECT * FROM ml_udf.residency",
        )
    with server.asking() as client:
        if watch:
            _watch(client, events)
        else:
            console.print(_shown(client.get("/v1/residency"), events))


def _watch(client: Client, events: int) -> None:
    from rich.live import Live

    if not console.is_terminal:  # where nothing can be drawn anew
        _log(client, events)
    with Live(_shown(client.get("/v1/residency"), events), console=console, refresh_per_second=4) as live:
        while True:
            time.sleep(_LOOK_S)
            live.update(_shown(client.get("/v1/residency"), events))


def _log(client: Client, events: int) -> None:
    """All of it once, then each move as it comes."""
    told = client.get("/v1/residency")
    console.print(_shown(told, events))
    while True:
        known = told["residency_events"]
        time.sleep(_LOOK_S)
        told = client.get("/v1/residency")
        if new := [event for event in told["residency_events"] if event not in known]:
            console.print(_events(new[::-1], header=False))  # the newest comes last in a log


def _shown(told: dict[str, Any], events: int) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.console import Group

    hit_rate = told["hit_rate"]
    rows = told["resident_hits"] + told["resident_misses"]
    line = (
        "" if hit_rate is None else f"{hit_rate:.1%} of {rows:,} rows came while their models were resident"
    )
    parts = [_workers(told["workers"]), _models(told["residency"])]
    if events:
        parts.append(_events(told["residency_events"][:events]))
    return Group(*parts, line)


def _workers(workers: list[dict[str, Any]]) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.table import Table

    table = Table("worker", "device", "models", "bytes", "of", "in host", "link use", "link", box=None)
    for worker in workers:
        table.add_row(
            worker["worker"],
            worker["device"],
            str(worker["models"]),
            _bytes(worker["used_bytes"]),
            _bytes(worker["capacity_bytes"]) if worker["capacity_bytes"] else "",
            _bytes(worker["host_bytes"]),
            f"{worker['link_use']:.0%}",
            _moving(worker["moving"]),
        )
    return table


def _moving(moving: dict[str, Any] | None) -> str:
    if moving is None:
        return "idle"
    comes = f"loads {moving['loading']}" if moving["loading"] else ""
    leave = f"evicts {', '.join(moving['evicting'])}" if moving["evicting"] else ""
    said = ", ".join(part for part in (leave, comes) if part)
    return f"{said} ({moving['reason']})" if moving["reason"] else said


def _models(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.table import Table

    table = Table("worker", "tier", "model", "bytes", "since", "last used", "rows/s", "loads")
    for row in rows:
        table.add_row(
            row["worker"],
            row["tier"],
            row["model"],
            _bytes(row["size_bytes"]),
            _clock(row["since"]),
            _clock(row["last_used"]),
            "" if row["rows_per_s"] is None else f"{row['rows_per_s']:.1f}",
            "" if row["loads"] is None else str(row["loads"]),
        )
    return table


def _events(events: list[dict[str, Any]], *, header: bool = True) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.table import Table

    names = ("at", "worker", "", "model", "reason", "outcome", "ms")
    table = Table(*names, box=None, show_header=header)
    for event in events:
        table.add_row(
            _clock(event["at"]),
            event["worker"],
            event["event"],
            event["model"],
            event["reason"],
            f"{event['outcome']}: {event['error']}" if event["error"] else event["outcome"],
            f"{event['took_s'] * 1000:.1f}",
        )
    return table


def _bytes(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def _clock(at: str | None) -> str:
    """The time of day here."""
    return "" if at is None else datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
