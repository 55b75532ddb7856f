"""The log: one line per event, `time level logger event key=value …`, to standard error.

Lines hold names, counts and times; never a token, a row or an answer.
"""

from __future__ import annotations

import logging
import sys
import traceback

__all__ = ["OneLine", "configure_logging"]

# What ends a line or moves a terminal's cursor, to some reader or other; names that were sent may hold it.
_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class OneLine(logging.Formatter):
    """A traceback becomes part of its line, so that a line is an event."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        error = record.exc_info[1] if record.exc_info else None
        record.exc_info, record.exc_text = None, None
        line = super().format(record)
        if error is not None:
            line += f" error={''.join(traceback.format_exception(error))!r}"
        return line.translate(_ESCAPED)


def configure_logging(level: str) -> None:
    """Send the log to standard error. Raises ValueError for an unknown level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("optuna").setLevel(logging.WARNING)
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # its warnings show parts of queries
