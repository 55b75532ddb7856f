"""`ml-udf token …`: who may ask a server. `ml-udf login`: a link that logs a browser in."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ml_udf.cli.console import console, fail, note
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.tokens import TokenCalls

__all__ = ["app", "login"]

app = typer.Typer(help="Who may ask a server: tokens, made, listed and revoked.", no_args_is_help=True)

_PATTERNS = "patterns with commas between them; all when left out"
_FOLDERS = "folders with commas between them; all when left out"
_KINDS = ("functions", "models", "datasets", "sources", "media_roots")


@app.command()
@asks_a_server
def create(
    name: Annotated[str, typer.Argument(help="letters, digits and ._@-")],
    scope: Annotated[str, typer.Option("--scope", help="of infer, read, train, deploy, admin, with commas")],
    functions: Annotated[str, typer.Option("--functions", help=_PATTERNS)] = "",
    models: Annotated[str, typer.Option("--models", help=_PATTERNS)] = "",
    datasets: Annotated[str, typer.Option("--datasets", help=_PATTERNS)] = "",
    sources: Annotated[str, typer.Option("--sources", help=_PATTERNS)] = "",
    media_roots: Annotated[str, typer.Option("--media-roots", help=_FOLDERS)] = "",
    users: Annotated[str, typer.Option("--users", help="database users that it may speak for")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="90d, 12h, or a day; else never")] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="share beside others; 1")] = None,
    rows_per_s: Annotated[float | None, typer.Option("--rows-per-s", help="most rows a second")] = None,
    queued_rows: Annotated[int | None, typer.Option("--queued-rows", help="most rows that wait")] = None,
    queued_bytes: Annotated[int | None, typer.Option("--queued-bytes", help="most bytes that wait")] = None,
    uploads: Annotated[int | None, typer.Option("--uploads", help="most uploads at a time")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="most epochs at a time")] = None,
    row_class: Annotated[str | None, typer.Option("--row-class", help="highest: interactive, bulk")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="most urgent; 1 is, 0 = none")] = None,
    *,
    server: ServerOptions,
) -> None:
    """Make a token, and print its secret, this once: ml-udf token create NAME --scope infer > FILE."""
    patterns = dict(zip(_KINDS, (functions, models, datasets, sources, media_roots), strict=True))
    shares: dict[str, Any] = {
        "weight": weight,
        "rows_per_s": rows_per_s,
        "queued_rows": queued_rows,
        "queued_bytes": queued_bytes,
        "uploads": uploads,
        "epochs": epochs,
        "row_class": row_class,
        "priority": priority,
    }
    with server.asking() as client:
        made = TokenCalls(client).create(
            name,
            _parts(scope),
            patterns={kind: _parts(text) for kind, text in patterns.items() if text},
            shares={share: value for share, value in shares.items() if value is not None},
            users=_parts(users),
            expires=expires,
        )
    until = made["expires_at"] or "it is revoked"
    note(f"token {made['name']} ({', '.join(made['scopes'])}), until {until}. Its secret is shown this once:")
    typer.echo(made["secret"])
    note("give it as --token-file FILE, as the user mapping's token, or on the page /login")
    if server.token_file is None:
        note("the server wants tokens from now on, of this command too: --token-file FILE")


@app.command("list")
@asks_a_server
def list_tokens(
    revoked: Annotated[bool, typer.Option("--revoked", help="those that were revoked too")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Show the tokens of a server."""
    from rich.table import Table

    with server.asking() as client:
        found = TokenCalls(client).all()
    table = Table("name", "state", "scopes", "reaches", "expires", "last used", "made by")
    for each in found:
        if each["state"] != "revoked" or revoked:
            reaches = [f"{kind} {','.join(each[kind])}" for kind in _KINDS if each[kind] != ["*"]]
            table.add_row(
                each["name"],
                each["state"],
                ",".join(each["scopes"]),
                "; ".join(reaches) or "everything",
                each["expires_at"] or "never",
                each["last_used_at"] or "",
                each["created_by"],
            )
    console.print(table)


@app.command()
@asks_a_server
def revoke(
    name: Annotated[str, typer.Argument(help="the token's name")],
    *,
    server: ServerOptions,
) -> None:
    """Let a token count no more, at once, on open connections too."""
    with server.asking() as client:
        TokenCalls(client).revoke(name)
    note(f"token {name} is revoked")


@asks_a_server
def login(*, server: ServerOptions) -> None:
    """Print a link that logs a browser in once, within ten minutes, as the token that is given here."""
    if server.endpoint.startswith("local:"):
        fail("local: has no pages", "start a server: ml-udf serve")
    with server.asking() as client:
        link, seconds = TokenCalls(client).login_link()
    typer.echo(link)
    if seconds is None:
        note("the server wants no tokens: everybody on its machine may do everything")
    else:
        note(f"it works once, within {seconds // 60} minutes; whoever follows it may do what your token may")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
