"""Dates and times of rows: the text that SQL writes → when that is. Standard library only.

ISO 8601, with a blank or a T; one without a zone is taken as UTC. What lies before the year 1 or after 9999
in UTC has no place, as in the snapshots that models are taught by, nor has infinity. The year that a text
shows is that of its zone: `10000-01-01T05:29:59+05:30` still lies within 9999.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["moment_s"]

_ENDLESS: Final = frozenset(("infinity", "-infinity"))  # PostgreSQL's and DuckDB's
# PostgreSQL writes BC at the end, and DuckDB behind the day.
_DATED: Final = re.compile(r"([0-9]{4,7})(-[0-9]{2}-[0-9]{2})( \(BC\))?(.*?)( BC)?", re.ASCII | re.DOTALL)
_CYCLE: Final = timedelta(days=146_097)  # 400 years, after which the calendar is the same again
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC) - _EPOCH
_LAST: Final = datetime.max.replace(tzinfo=UTC) - _EPOCH


def moment_s(text: str) -> float | None:
    """Seconds since 1970 in UTC; None of what has no place. Raises `ValueError` for what is no moment."""
    if text in _ENDLESS:
        return None
    since = timedelta()
    found = _DATED.fullmatch(text)
    if found is not None:
        year, day, is_before, rest, is_before_too = found.groups()
        number = 1 - int(year) if is_before or is_before_too else int(year)
        if not 0 <= number <= 10_000:
            return None  # in every zone
        if number == 0:
            text, since = f"0400{day}{rest}", -_CYCLE
        elif number == 10_000:
            text, since = f"9600{day}{rest}", _CYCLE
    moment = datetime.fromisoformat(text)
    since += (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return since.total_seconds() if _FIRST <= since <= _LAST else None
