"""The overview's charts of the last hour or day: pure, from slots to SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from server.dashboard.charts import units
from server.dashboard.charts.lines import Goal, Series, line_chart
from server.observability.history import Slot
from server.observability.readings import OTHERS, Counts, Stretch

__all__ = ["Span", "charts_of"]

_REFUSED = ("overloaded", "forbidden", "unauthorized")
_LATE = ("deadline_exceeded",)
_FEW = 3  # functions that have a line of their own


@dataclass(frozen=True, slots=True)
class Span:
    """A ring as it is drawn. slot_s: between two points; a longer pause is a gap"""

    name: str
    slot_s: int


def charts_of(
    slots: Sequence[Slot], span: Span, names: Sequence[str], goals_s: Sequence[float], *, sees_all: bool
) -> list[Markup]:
    """names: of the functions that the caller sees · sees_all: what is not told apart counts too."""
    names = [*names, OTHERS] if sees_all else list(names)
    known = set(names)
    if sees_all:  # what was served then, and is no more
        known |= {name for slot in slots for name in slot.stretch.functions}

    def total(stretch: Stretch) -> Counts:
        return stretch.of(name for name in stretch.functions if name in known)

    def line(name: str, value_of: Callable[[Stretch], float | None]) -> Series:
        return Series(name, list(_points(slots, span.slot_s, value_of)))

    def errors(codes: Sequence[str], stretch: Stretch) -> float:
        counted = total(stretch).errors
        return sum(counted.get(code, 0) for code in codes)

    def others(stretch: Stretch) -> float:
        counted = total(stretch).errors
        unresolved = sum(stretch.unresolved.values()) if sees_all else 0
        return unresolved + sum(count for code, count in counted.items() if code not in (*_REFUSED, *_LATE))

    sums = {
        name: sum(slot.stretch.functions[name].rows for slot in slots if name in slot.stretch.functions)
        for name in names
    }
    busiest = sorted((name for name in sums if sums[name]), key=lambda name: -sums[name])
    rows = [line("all", lambda stretch: stretch.per_s(total(stretch).rows))]
    if 1 < len(busiest) <= _FEW:
        rows = [line(name or "others", _rows_of(name)) for name in busiest]
    if any(total(slot.stretch).cached_rows for slot in slots):
        rows.append(line("kept answers", lambda stretch: stretch.per_s(total(stretch).cached_rows)))
    goal_s = set(goals_s)
    goals = [Goal("goal", 1000 * each) for each in goal_s] if len(goal_s) == 1 else []
    return [
        line_chart("Rows a second", rows, units.ROWS_PER_S, style="area"),
        line_chart(
            "Latency of requests",
            [
                line("p50", lambda stretch: _ms(total(stretch).quantile_s(0.5))),
                line("p99", lambda stretch: _ms(total(stretch).quantile_s(0.99))),
            ],
            units.MILLISECONDS,
            goals=goals,
        ),
        line_chart(
            "What failed",
            [
                line("requests refused", lambda stretch: errors(_REFUSED, stretch)),
                line("late", lambda stretch: errors(_LATE, stretch)),
                line("with other errors", others),
                line("rows at fault", lambda stretch: total(stretch).row_errors),
            ],
            units.COUNT,
            note=f"in {span.slot_s} s each",
        ),
        line_chart(
            "Rows waiting, and rows a batch",
            [
                line(
                    "waiting",
                    lambda stretch: sum(rows for name, rows in stretch.waiting.items() if name in known),
                ),
                line("a batch", lambda stretch: total(stretch).rows_a_batch),
            ],
            units.ROWS,
        ),
    ]


def _rows_of(name: str) -> Callable[[Stretch], float | None]:
    return lambda stretch: stretch.per_s(stretch.functions.get(name, Counts()).rows)


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else 1000 * value_s


def _points(
    slots: Sequence[Slot], slot_s: int, value_of: Callable[[Stretch], float | None]
) -> Iterator[tuple[float, float | None]]:
    """By the middle of each slot; where the server was down there is a gap."""
    before_s: int | None = None
    for slot in slots:
        if before_s is not None and slot.at_s - before_s > 1.5 * slot_s:
            yield before_s + 1.5 * slot_s, None
        yield slot.at_s + slot_s / 2, value_of(slot.stretch)
        before_s = slot.at_s
