"""What the commands share: the terminal, the options that name a server, and how a command fails."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import urlsplit

import typer
from rich.console import Console

from ml_udf.client import Client
from ml_udf.errors import MlUdfError

__all__ = [
    "ALLOW_PLAIN",
    "ENDPOINT",
    "INTERRUPTED",
    "SSLROOTCERT",
    "TOKEN_FILE",
    "asking",
    "check_dsn",
    "console",
    "fail",
    "note",
    "token_of",
]

INTERRUPTED = 130
"""The status after Ctrl-C: 128 + SIGINT, as of every program that the shell ran."""

console = Console()
_errors = Console(stderr=True)

ENDPOINT = Annotated[
    str,
    typer.Option(
        "--endpoint", "-e", envvar="ML_UDF_ENDPOINT", help="http://host:port, or local:/path/to/home"
    ),
]
TOKEN_FILE = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="ML_UDF_TOKEN_FILE", help="a file that holds the server's token"),
]

ALLOW_PLAIN = Annotated[
    bool,
    typer.Option(
        "--allow-plain",
        envvar="ML_UDF_ALLOW_PLAIN",
        help="let http:// leave this machine, where all between can read token and rows",
    ),
]
SSLROOTCERT = Annotated[
    str | None,
    typer.Option(
        "--sslrootcert",
        envvar="ML_UDF_SSLROOTCERT",
        help="file of the authorities (PEM) that may vouch for an https:// server",
    ),
]


def token_of(token_file: Path | None) -> str | None:
    """The token in the file; tokens are never given on a command line, where every user can read them."""
    if token_file is None:
        return None
    try:
        return token_file.read_text().strip() or None
    except OSError as exc:
        fail(f"the token file {token_file} cannot be read: {exc.strerror}")


@contextlib.contextmanager
def asking(
    endpoint: str, token_file: Path | None, allow_plain: bool, sslrootcert: str | None
) -> Iterator[Client]:
    """A client of the server that the options name; the command ends with what it raises, and at Ctrl-C."""
    try:
        made = Client(endpoint, token=token_of(token_file), allow_plain=allow_plain, sslrootcert=sslrootcert)
        with contextlib.closing(made) as client:
            yield client
    except MlUdfError as error:
        fail(error.message, error.hint)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def check_dsn(dsn: str) -> None:
    """Fail where a connection string holds a password: every user of the machine can read it here."""
    try:
        has_password = bool(urlsplit(dsn).password) or bool(re.search(r"(^|[\s?&])password\s*=", dsn))
    except ValueError:
        has_password = "@" in dsn
    if has_password:
        fail(
            "a password on a command line is for every user of this machine to read",
            "put it into ~/.pgpass, or into PGPASSWORD, or name a service of pg_service.conf",
        )


def note(text: str) -> None:
    """Say something beside what the command prints, so that this can be piped."""
    _errors.print(text, markup=False, highlight=False, soft_wrap=True)


def fail(message: str, hint: str = "", *, status: int = 1) -> NoReturn:
    """Say what is wrong and what to do, and end with that status."""
    _errors.print("error:", style="bold red", end=" ")
    _errors.print(message, markup=False, highlight=False)
    if hint:
        _errors.print(f"  {hint}", markup=False, highlight=False)
    raise typer.Exit(status)
