"""What the commands share: the terminal, secrets that no command line shows, and how a command fails."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import typer
from rich.console import Console

__all__ = [
    "INTERRUPTED",
    "check_dsn",
    "console",
    "fail",
    "has_edge",
    "note",
    "token_of",
]

INTERRUPTED = 130
"""The status after Ctrl-C: 128 + SIGINT, as of every program that the shell ran."""

_WIDE = 1_000_000


def _console(*, stderr: bool) -> Console:
    # What is in brackets or between colons is text: a value, a row of a table, an error's code.
    made = Console(stderr=stderr, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _WIDE  # a file and a program have no edge to cut values or break lines at
    return made


console = _console(stderr=False)
_errors = _console(stderr=True)


def has_edge(of: Console) -> bool:
    """Whether lines must keep within a width."""
    return of.width < _WIDE


def token_of(token_file: Path | None) -> str | None:
    """The token in the file; tokens are never given on a command line, where every user can read them."""
    if token_file is None:
        return None
    try:
        return token_file.read_text().strip() or None
    except OSError as exc:
        fail(f"the token file {token_file} cannot be read: {exc.strerror}")
    except UnicodeDecodeError:
        fail(f"the token file {token_file} cannot be read: it holds no text", "it is one word, on one line")


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
