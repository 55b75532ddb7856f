"""The command line, `ml-udf …`."""

from __future__ import annotations

import errno
import sys

from ml_udf.cli.ctrl_c import press_what_python_drops_again

__all__ = ["main"]


def main() -> None:
    """Run the command line; say what to install where it is missing."""
    press_what_python_drops_again()
    try:
        from ml_udf.cli.app import app
    except ModuleNotFoundError as exc:
        if exc.name not in ("typer", "rich"):
            raise
        sys.exit("the command line needs typer and rich: pip install 'ml_udf[cli]'")
    except ImportError as exc:
        if exc.name != "ML_UDF_CORE":
            raise
        sys.exit(f"ml_udf: {exc}")
    try:
        app()
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = exc.filename or "what it prints, or a file of its own,"
        sys.exit(f"error: {where} cannot be written: {exc.strerror}")
