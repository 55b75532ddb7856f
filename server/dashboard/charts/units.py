"""How a chart writes its values: a unit's name, and a number in it, short enough for an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = [
    "BYTES",
    "COUNT",
    "MILLISECONDS",
    "NUMBER",
    "PERCENT",
    "ROWS",
    "ROWS_PER_S",
    "SECONDS",
    "Unit",
    "utc_moment",
    "utc_time",
]

_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_LAST_S = 253_402_300_800.0  # the year 10000
_SPACE = "\N{NARROW NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Unit:
    """name: as it stands beside an axis. short: a value on an axis. whole: one in a table."""

    name: str
    short: Callable[[float], str]
    whole: Callable[[float], str]

    @property
    def beside(self) -> str:
        """The name, where the values do not say it themselves."""
        return "" if self.name in ("%", "bytes") else self.name


def _digits(value: float, digits: int = 3) -> str:
    """So many digits that count, never in exponents between a millionth and a million."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 1e6:
        return f"{value:.{digits - 1}g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _thousands(value: float) -> str:
    for factor, letter in _THOUSANDS:
        if factor <= abs(value) < 1e15:
            return f"{_digits(value / factor)}{letter}"
    return _digits(value)


def _grouped(value: float) -> str:
    if not math.isfinite(value):
        return _digits(value)
    if abs(value) < 1e15 and value == math.floor(value):
        return f"{value:,.0f}".replace(",", _SPACE)
    return f"{value:,.2f}".replace(",", _SPACE) if 1000 <= abs(value) < 1e15 else _digits(value, 4)


def _bytes(value: float) -> str:
    for factor, name in _BYTES:
        if abs(value) >= factor:
            return f"{_digits(value / factor)}{_SPACE}{name}"
    return f"{_digits(value)}{_SPACE}B"


def _percent(value: float) -> str:
    return f"{_digits(100 * value)}{_SPACE}%"


def _percent_whole(value: float) -> str:
    return f"{100 * value:.2f}{_SPACE}%"


NUMBER = Unit("", _thousands, _grouped)
COUNT = Unit("count", _thousands, _grouped)
ROWS = Unit("rows", _thousands, _grouped)
ROWS_PER_S = Unit("rows/s", _thousands, _grouped)
SECONDS = Unit("s", _thousands, _grouped)
MILLISECONDS = Unit("ms", _thousands, _grouped)
BYTES = Unit("bytes", _bytes, _bytes)
PERCENT = Unit("%", _percent, _percent_whole)


def utc_time(unix_s: float, span_s: float = 0.0) -> str:
    """A moment as an axis shows it: with seconds in a span of minutes, with the day in one of days."""
    form = "%H:%M:%S" if 0 < span_s < 600 else "%H:%M" if span_s <= 172_800 else "%d %b"
    return _at(unix_s, form)


def utc_moment(unix_s: float) -> str:
    """A moment in full."""
    return _at(unix_s, "%Y-%m-%d %H:%M:%S")


def _at(unix_s: float, form: str) -> str:
    """A dash for what no calendar has."""
    if not 0 <= unix_s < _LAST_S:
        return "–"
    return datetime.fromtimestamp(unix_s, UTC).strftime(form)
