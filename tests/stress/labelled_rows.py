"""The labelled rows of `feedback.py`: as SQL makes them on both engines, and what of them must be kept.

Of n rows a tenth repeat an input with another label; some labels are NULL, some name no class, some inputs
are NULL. Which label an input must have in the end follows from the order of the rows.
"""

from __future__ import annotations

from tests.models import CLASSES

__all__ = ["faulty", "kept", "rows_sql"]

_NO_LABEL, _NO_CLASS, _NO_INPUT = 997, 1009, 991  # every so many-th row


def rows_sql(rows: int, series: str) -> str:
    """A query of `input` and `label`; series: a table of `i`, from 0 to `rows` - 1, in order."""
    distinct = _distinct(rows)
    classes = " ".join(f"WHEN {place} THEN '{label}'" for place, label in enumerate(CLASSES))
    return (
        f"SELECT CASE WHEN i % {_NO_INPUT} = 1 THEN NULL ELSE 'dish ' || (i % {distinct}) END AS input,"
        f" CASE WHEN i % {_NO_LABEL} = 1 THEN NULL WHEN i % {_NO_CLASS} = 1 THEN 'no class'"
        f" ELSE CASE (i % {distinct} + i / {distinct}) % {len(CLASSES)} {classes} END END AS label"
        f" FROM {series}"
    )


def kept(rows: int) -> dict[str, str]:
    """input → its last label, of the rows that count."""
    distinct = _distinct(rows)
    return {
        f"dish {row % distinct}": CLASSES[(row % distinct + row // distinct) % len(CLASSES)]
        for row in range(rows)
        if row % _NO_INPUT != 1 and row % _NO_LABEL != 1 and row % _NO_CLASS != 1
    }


def faulty(rows: int) -> int:
    """How many rows have no outcome: NULL, or a label that is no class."""
    return sum(row % _NO_INPUT == 1 or row % _NO_LABEL == 1 or row % _NO_CLASS == 1 for row in range(rows))


def _distinct(rows: int) -> int:
    return rows - rows // 10
