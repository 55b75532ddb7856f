"""`ml-udf bulk`: what asks a server for bulk rows; pause it, resume it, cap it, cancel it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ml_udf.bulk import BulkCalls
from ml_udf.cli.console import console
from ml_udf.cli.server_options import ServerOptions, asks_a_server

__all__ = ["app"]

app = typer.Typer(
    help="What asks a server for bulk rows (statements, tables, watches): list, pause, cap, cancel.",
    no_args_is_help=True,
)

_Id = Annotated[str, typer.Argument(help="its id, as ml-udf bulk list shows it")]


@app.command("list")
@asks_a_server
def list_jobs(*, server: ServerOptions) -> None:
    """Show the bulk jobs of this token, to an admin's all; idle ones for a minute."""
    from rich.table import Table

    with server.asking() as client:
        found = BulkCalls(client).all()
    table = Table("id", "whose", "function", "what", "state", "rows", "lag", "rows/s", "cap", "since")
    for job in found:
        whose = " ".join(word for word in (job["owner"], job["claimed_user"]) if word)
        what = f"{job['kind']} {job['what']}" if job["what"] else job["kind"]
        table.add_row(
            job["id"],
            whose,
            job["function"],
            what,
            job["state"],
            _rows(job),
            "" if job["lag_rows"] is None else f"{job['lag_rows']:,}",
            f"{job['rows_per_s']:,.0f}",
            "" if job["max_rows_per_s"] is None else f"{job['max_rows_per_s']:g}",
            job["since"][:19].replace("T", " "),
        )
    console.print(table)


@app.command()
@asks_a_server
def pause(job: _Id, *, server: ServerOptions) -> None:
    """Let nothing of it go on until it is resumed; whoever asked waits."""
    with server.asking() as client:
        _show(BulkCalls(client).pause(job))


@app.command()
@asks_a_server
def resume(job: _Id, *, server: ServerOptions) -> None:
    """Go on with a paused one."""
    with server.asking() as client:
        _show(BulkCalls(client).resume(job))


@app.command()
@asks_a_server
def cap(
    job: _Id,
    rows_per_s: Annotated[str, typer.Argument(help="rows a second at the most, or none")],
    *,
    server: ServerOptions,
) -> None:
    """Ask for so many rows of it a second at the most: ml-udf bulk cap 5f2c… 100."""
    if rows_per_s == "none":
        limit = None
    else:
        try:
            limit = float(rows_per_s)
        except ValueError:
            raise typer.BadParameter(f"{rows_per_s!r} is no number, and not 'none'") from None
    with server.asking() as client:
        _show(BulkCalls(client).cap(job, limit))


@app.command()
@asks_a_server
def cancel(job: _Id, *, server: ServerOptions) -> None:
    """End it: its statement fails as one that is cancelled; what was stored stays."""
    with server.asking() as client:
        _show(BulkCalls(client).cancel(job))


def _rows(job: dict[str, Any]) -> str:
    done = f"{job['rows_done']:,}"
    return done if job["rows_total"] is None else f"{done} of {job['rows_total']:,}"


def _show(job: dict[str, Any]) -> None:
    limit = job["max_rows_per_s"]
    words = job["state"] if limit is None else f"{job['state']}, capped at {limit:g} rows/s"
    console.print(f"bulk job {job['id']}: {words}", markup=False)
