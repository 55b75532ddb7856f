"""Changes of a text: what stands at a place, and what shall stand there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ml_udf.duckdb.rewrite.conditions import Condition, Part

__all__ = ["Edit", "edited", "without"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters [start, end) become `text`."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with all of them, of which no two overlap."""
    for edit in sorted(edits, key=lambda each: each.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def without(parts: Sequence[Part | Condition], places: Iterable[int]) -> list[Edit]:
    """Takes the parts at `places` out of a list that AND joins, where others stay."""
    gone = set(places)
    found: list[Edit] = []
    first_kept = next(place for place in range(len(parts)) if place not in gone)
    for place in sorted(gone):
        if place < first_kept:
            found.append(Edit(parts[place].start, parts[place + 1].start, ""))
        else:
            found.append(Edit(parts[place - 1].end, parts[place].end, ""))
    return found
