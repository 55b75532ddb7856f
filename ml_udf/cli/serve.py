"""`ml-udf serve`: the inference server in the foreground."""

from __future__ import annotations

import os
import sys

import typer

__all__ = ["serve"]


def serve(context: typer.Context) -> None:
    """Serve models over HTTP (`ml-udf serve --help` shows the server's own options)."""
    # The server takes this process's place: signals, exit status and terminal are its own.
    os.execv(sys.executable, [sys.executable, "-m", "server", *context.args])
