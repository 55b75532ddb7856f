"""`ml-udf postgres …`: install the extension, remove it, try it in a throw-away cluster."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ml_udf.cli.console import check_dsn, fail
from ml_udf.cli.pg_extension import has_module
from ml_udf.cli.pg_extension import install as install_extension
from ml_udf.cli.pg_extension import uninstall as uninstall_extension
from ml_udf.cli.pg_noting import noting
from ml_udf.cli.pg_preload import RESCUE, Unasked, preloads
from ml_udf.cli.pg_sandbox import sandbox as run_sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.cli.server_options import ServerOptions, asks_a_server

__all__ = ["app"]

app = typer.Typer(help="The PostgreSQL extension.", no_args_is_help=True)

PgConfig = Annotated[
    Path | None,
    typer.Option(help="pg_config of the server; by default the newest one found that has PL/Python."),
]
Root = Annotated[
    Path, typer.Option(help="Directory to install below, for a cluster with extension_destdir set to it.")
]
Local = Annotated[
    bool | None,
    typer.Option(
        "--local/--no-local",
        help="Whether local: endpoints (torch in the database) shall work; by default if they can.",
    ),
]


@app.command()
def install(
    pg_config: PgConfig = None,
    local: Local = None,
    batching: Annotated[
        bool | None,
        typer.Option(
            "--batching/--no-batching",
            help="Whether to build the batching module; by default if headers and a compiler are there.",
        ),
    ] = None,
    server_user: Annotated[
        str | None, typer.Option(help="Operating-system user the server runs as; by default postgres.")
    ] = None,
    root: Root = Path("/"),
) -> None:
    """Copy the extension to where the server finds it; then CREATE EXTENSION ml_udf CASCADE."""
    with _told():
        server = PostgresServer.find(pg_config)
        done = install_extension(server, root=root, local=local, batching=batching, server_user=server_user)
    typer.echo(f"ml_udf {done.version} for PostgreSQL {server.version}")
    typer.echo(f"  extension  {done.extension_dir}")
    typer.echo(f"  python     {done.python_dir}")
    if done.local_path:
        typer.echo(f"  local:     {done.local_path}")
    if done.module:
        typer.echo(f"  batching   {done.module}")
    for note in done.notes:
        typer.secho(f"  note       {note}", fg=typer.colors.YELLOW)
    typer.echo("Next, in each database that shall have it, as a superuser:")
    typer.echo("  CREATE EXTENSION ml_udf CASCADE;")
    typer.echo("  CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'http://127.0.0.1:8080');")
    if done.module:
        typer.echo("  ALTER DATABASE … SET session_preload_libraries = 'ml_udf_batch';   -- then reconnect")
    typer.echo("Databases that have an older version: ALTER EXTENSION ml_udf UPDATE; then reconnect.")


@app.command()
def uninstall(
    pg_config: PgConfig = None,
    root: Root = Path("/"),
    postgres: Annotated[
        str, typer.Option(metavar="DSN", help="a database of the cluster, to be asked who loads the module")
    ] = "dbname=postgres",
    force: Annotated[bool, typer.Option("--force", help="remove a module that is loaded")] = False,
) -> None:
    """Remove the extension's files; DROP EXTENSION ml_udf in every database first."""
    check_dsn(postgres)
    with _told():
        server = PostgresServer.find(pg_config)
        if has_module(server, root=root):
            _check_unused(postgres, force=force)
        removed = uninstall_extension(server, root=root)
    for path in removed:
        typer.echo(f"removed {path}")
    if not removed:
        typer.echo("nothing was installed")


@app.command()
@asks_a_server
def sandbox(
    pg_config: PgConfig = None,
    function: Annotated[
        list[str] | None, typer.Option(help="Create an SQL function for it; may be repeated.")
    ] = None,
    command: Annotated[str | None, typer.Option("--command", "-c", help="Run this SQL and end.")] = None,
    *,
    server: ServerOptions,
) -> None:
    """Start a private PostgreSQL with the extension, open psql on it, and remove it all afterwards."""
    with _told(), run_sandbox(PostgresServer.find(pg_config), batching=None) as cluster:
        database = cluster.database(
            "sandbox",
            url=server.endpoint,
            token=server.token,
            functions=function or [],
            options=server.of_foreign_server,
        )
        psql = cluster.program("psql", "-X", "-d", database)
        if command is None:
            typer.echo(f"PostgreSQL {cluster.server.version}, gone when psql ends: {database}")
        done = subprocess.run([*psql, *(["-c", command] if command is not None else [])], check=False)
    raise typer.Exit(done.returncode)


def _check_unused(dsn: str, *, force: bool) -> None:
    """Fail where sessions load the module, or triggers call it: they could not begin, or write, any more."""
    _check_not_noting(dsn, force=force)
    try:
        found = preloads(dsn)
    except Unasked as error:
        typer.secho(
            f"The cluster was not asked who loads the batching module ({error}; name it: --postgres DSN).\n"
            "Where session_preload_libraries still names it, nobody gets in any more, except a superuser:\n"
            f"  {RESCUE}",
            fg=typer.colors.YELLOW,
        )
        return
    if not found:
        return
    for one in found:
        typer.secho(f"{one.where} loads the batching module: {one.mend};", fg=typer.colors.YELLOW)
    if not force:
        fail(
            "nothing was removed: without the module's file no session could begin there",
            "run the statements above first, or remove it all the same with --force",
        )
    typer.secho(f"until that is done a superuser alone gets in: {RESCUE}", fg=typer.colors.YELLOW)


def _check_not_noting(dsn: str, *, force: bool) -> None:
    try:
        found = noting(dsn)
    except Unasked as error:
        typer.secho(
            f"Not all databases were asked whose watches note by the batching module ({error}).\n"
            "Writes to tables that such a watch keeps fresh fail once the module is gone:"
            " DROP EXTENSION ml_udf CASCADE in their database.",
            fg=typer.colors.YELLOW,
        )
        return
    for one in found:
        tables = ", ".join(one.tables)
        typer.secho(
            f"database {one.database}: watches of {tables} note by the batching module: {one.mend};",
            fg=typer.colors.YELLOW,
        )
    if found and not force:
        fail(
            "nothing was removed: without the module's file writes to these tables would fail",
            "run the statements above first, or remove it all the same with --force",
        )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Print what stands in the way, without a traceback."""
    try:
        yield
    except SetupError as error:
        fail(error.message, error.hint)
