"""Bars: one value a name, and counts by the size of what was counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from markupsafe import Markup

from server.dashboard.charts.axes import across, nothing, upright
from server.dashboard.charts.figure import EMPTY, SMALL, Plot, Size, colour, figure, picture, table
from server.dashboard.charts.markup import classes, node, shortened, titled
from server.dashboard.charts.scales import finite, is_drawn, linear
from server.dashboard.charts.units import COUNT, NUMBER, Unit

__all__ = ["Bar", "bar_chart", "histogram"]

_MOST = 40  # bars; the rest stand in the table
_ROW = 22  # height of one
_NAME = 22  # characters beside a bar


@dataclass(frozen=True, slots=True)
class Bar:
    """A name and its value; NaN is drawn as nothing. href: where a click on it leads."""

    name: str
    value: float
    href: str = ""
    is_strong: bool = False


def bar_chart(
    title: str, bars: Sequence[Bar], unit: Unit = NUMBER, *, most: float | None = None, note: str = ""
) -> Markup:
    """Bars from the left, one below the other, in the order given. most: where a full bar ends, as 1 for
    shares; by default at the greatest.
    """
    shown = bars[:_MOST]
    height = max(3, len(shown)) * _ROW + 8
    size = Size(SMALL.width, height)
    plot = Plot(150, 4, size.width - 56, height - 4)
    values = finite(bar.value for bar in shown)
    full = most or max([*map(abs, values), 0.0]) or 1.0
    rows = [_bar(bar, place, plot, full, unit) for place, bar in enumerate(shown)]
    told = "; ".join(f"{bar.name}: {_value(bar.value, unit)}" for bar in shown[:12]) or "nothing yet"
    drawn = picture(
        title,
        f"{note}. {told}" if note else told,
        size,
        *(rows or [nothing(plot)]),
        has_links=any(bar.href for bar in shown),
    )
    heads = ["", unit.name or "value"]
    numbers = table(heads, ([bar.name, _value(bar.value, unit)] for bar in bars)) if bars else None
    more = f"{len(bars) - _MOST} more in the numbers" if len(bars) > _MOST else ""
    return figure(title, "; ".join(filter(None, (note, unit.beside, more))), drawn, numbers)


def histogram(
    title: str,
    bounds: Sequence[float],
    counts: Sequence[float],
    x_unit: Unit,
    *,
    y_unit: Unit = COUNT,
    goal: float | None = None,
    note: str = "",
) -> Markup:
    """Counts by upper bound; one count more than bounds is of everything above.

    goal: in the unit of the bounds: what lies above it is marked.
    """
    counts = [count if is_drawn(count) else 0.0 for count in counts]
    names = _between(bounds, x_unit)[: len(counts)]
    kept = _without_empty_ends(counts)
    size = SMALL if kept else EMPTY
    plot = Plot.within(size)
    total = sum(counts)
    y_scale = linear(0.0, max([*counts, 0.0]) or 1.0, plot.bottom, plot.top)
    columns: list[Element] = []
    places: list[tuple[float, str]] = []
    width = plot.width / max(1, len(kept))
    every = math.ceil(len(kept) / 7)
    for place, at in enumerate(kept):
        x, count = plot.left + place * width, counts[at]
        y = y_scale(count)
        is_late = goal is not None and (at >= len(bounds) or bounds[at] > goal)
        box = node(
            "rect",
            x=x + 1,
            y=y,
            width=max(1.0, width - 2),
            height=plot.bottom - y,
            class_=classes("bar", colour(0), "late" if is_late else ""),
        )
        share = f", {100 * count / total:.1f} %" if total else ""
        columns.append(titled(box, f"{names[at]} {x_unit.beside}: {y_unit.whole(count)}{share}"))
        if at < len(bounds) and place % every == every - 1 and place < len(kept) - 1:
            places.append((x + width, x_unit.short(bounds[at])))
    told = (
        "; ".join(f"{names[at]} {x_unit.beside}: {y_unit.whole(counts[at])}" for at in kept) or "nothing yet"
    )
    drawn = picture(
        title,
        told,
        size,
        upright(plot, y_scale, y_unit.short, y_unit.beside) if kept else None,
        across(plot, places, x_unit.beside) if kept else None,
        *(columns or [nothing(plot)]),
    )
    rows = ([names[at], y_unit.whole(counts[at])] for at in kept)
    numbers = table([x_unit.name or "value", y_unit.name], rows) if kept else None
    return figure(title, note, drawn, numbers)


def _bar(bar: Bar, place: int, plot: Plot, full: float, unit: Unit) -> Element:
    y = plot.top + place * _ROW
    length = plot.width * min(1.0, abs(bar.value) / full) if is_drawn(bar.value) else 0.0
    drawn = node(
        "g",
        node("text", shortened(bar.name, _NAME), x=plot.left - 8, y=y + 15, text_anchor="end"),
        node("rect", x=plot.left, y=y + 4, width=length, height=_ROW - 8, rx=2, class_="bar"),
        node("text", _value(bar.value, unit), x=plot.left + length + 5, y=y + 15, class_="value"),
        class_=classes("row", colour(0), "strong" if bar.is_strong else ""),
    )
    told = f"{bar.name}: {_value(bar.value, unit)}"
    titled(drawn, told)
    return node("a", drawn, href=bar.href, aria_label=told) if bar.href else drawn


def _value(value: float, unit: Unit) -> str:
    return unit.short(value) if is_drawn(value) else "–"


def _between(bounds: Sequence[float], unit: Unit) -> list[str]:
    """The names of the columns: up to the first bound, between two, above the last."""
    texts = [unit.short(bound) for bound in bounds]
    if not texts:
        return ["all"]
    between = [f"{low} to {high}" for low, high in pairwise(texts)]
    return [f"up to {texts[0]}", *between, f"above {texts[-1]}"]


def _without_empty_ends(counts: Sequence[float]) -> list[int]:
    """The places from the first count to the last, with one empty one at each side."""
    filled = [at for at, count in enumerate(counts) if count]
    if not filled:
        return []
    return list(range(max(0, filled[0] - 1), min(len(counts), filled[-1] + 2)))
