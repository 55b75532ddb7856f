"""Numbers as people read them: pure filters of the templates. None is shown as a dash: nothing is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypeGuard

__all__ = [
    "FILTERS",
    "ago",
    "byte_size",
    "clock",
    "count",
    "iso",
    "milliseconds",
    "percent",
    "quantity",
    "rate",
]

_NOTHING = "–"
_SPACE = "\N{NARROW NO-BREAK SPACE}"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def count(value: float | None) -> str:
    """A whole number, in groups of three: 12 345."""
    return _NOTHING if not _is_known(value) else f"{round(value):,}".replace(",", _SPACE)


def quantity(value: float | None, digits: int = 3) -> str:
    """A number with so many digits that count, and never an exponent: 0.0123, 1.23, 12 300."""
    if not _is_known(value):
        return _NOTHING
    if value == 0:
        return "0"
    after = digits - 1 - math.floor(math.log10(abs(value)))
    if after <= 0:
        return count(value)
    return f"{value:.{min(after, 9)}f}".rstrip("0").rstrip(".")


def rate(per_s: float | None) -> str:
    """Of rows or requests a second: 0, 0.25, 3.1, 120, 12 345."""
    if not _is_known(per_s):
        return _NOTHING
    return count(per_s) if per_s >= 100 else quantity(per_s, 2)


def milliseconds(value_s: float | None) -> str:
    """Seconds as milliseconds, with their unit."""
    if not _is_known(value_s):
        return _NOTHING
    value_ms = 1000 * value_s
    return f"{quantity(value_ms, 2) if value_ms < 100 else count(value_ms)}{_SPACE}ms"


def percent(share: float | None, digits: int = 1) -> str:
    """Of 1."""
    return _NOTHING if not _is_known(share) else f"{100 * share:.{digits}f}{_SPACE}%"


def byte_size(value: float | None) -> str:
    """In units of 1000 bytes: 12.3 MB."""
    if not _is_known(value):
        return _NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{quantity(value)}{_SPACE}{unit}"
        value /= 1000
    return f"{quantity(value)}{_SPACE}TB"


def ago(then_unix_s: float | None, now_unix_s: float) -> str:
    """How long since: 12 s, 5 min, 3 h, 2 d."""
    if not _is_known(then_unix_s):
        return _NOTHING
    since_s = max(0.0, now_unix_s - then_unix_s)
    for unit, size_s in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if since_s >= size_s:
            return f"{int(since_s // size_s)}{_SPACE}{unit} ago"
    return f"{int(since_s)}{_SPACE}s ago"


def iso(unix_s: float | None) -> str:
    """A time for `<time datetime>`."""
    if not _is_known(unix_s):
        return ""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


def clock(unix_s: float | None) -> str:
    """A time for people, in UTC until a script makes it local."""
    if not _is_known(unix_s):
        return _NOTHING
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


FILTERS: Mapping[str, Callable[..., str]] = {
    "ago": ago,
    "byte_size": byte_size,
    "clock": clock,
    "count": count,
    "iso": iso,
    "milliseconds": milliseconds,
    "percent": percent,
    "quantity": quantity,
    "rate": rate,
}
