"""Lines over time, or over epochs: rates, latencies against their goal, learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element

from markupsafe import Markup

from server.dashboard.charts.axes import across, nothing, upright
from server.dashboard.charts.figure import (
    EMPTY,
    MOST_LISTED,
    SMALL,
    Plot,
    Size,
    colour,
    figure,
    picture,
    table,
)
from server.dashboard.charts.markup import classes, node, shortened, titled
from server.dashboard.charts.scales import LinearScale, finite, is_drawn, linear, spread, time_ticks
from server.dashboard.charts.units import NUMBER, Unit, utc_moment, utc_time

__all__ = ["Goal", "Series", "line_chart", "thinned"]

Point = tuple[float, float | None]

_FEW = 16  # series that can be told apart by a legend, and reached by the keyboard
_FEW_OF_GROUPS = 5
_LABEL = 40  # characters


@dataclass(frozen=True, slots=True)
class Series:
    """One line. points: x, rising, and y; None or NaN is a gap. href: where a click on it leads. is_strong:
    it stands out of the others. group: whose colour it has, and whose name stands in the legend.
    """

    name: str
    points: Sequence[Point]
    href: str = ""
    is_strong: bool = False
    group: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """A value that should not be passed."""

    name: str
    value: float


def line_chart(
    title: str,
    series: Sequence[Series],
    unit: Unit = NUMBER,
    *,
    x_axis: str = "time",
    goals: Sequence[Goal] = (),
    style: Literal["line", "area"] = "line",
    from_zero: bool = True,
    size: Size = SMALL,
    note: str = "",
) -> Markup:
    """Lines over one axis each. x_axis: "time" = x are Unix seconds; any other name = plain numbers.

    A line of more points than the picture has places keeps the least and the greatest of each place.
    """
    xs = finite(x for each in series for x, _ in each.points)
    ys = finite(y for each in series for _, y in each.points)
    is_empty = not xs or not ys
    size = EMPTY if is_empty else size
    plot = Plot.within(size)
    of_time = x_axis == "time"
    x_low, x_high = spread(xs)
    if of_time and len(set(xs)) == 1:
        x_low, x_high = xs[0] - 30, xs[0] + 30
    x_scale = LinearScale(x_low, x_high, plot.left, plot.right)
    low, high = spread([*ys, *finite(goal.value for goal in goals)] + ([0.0] if from_zero else []))
    if unit.name == "%" and ys and max(ys) <= 1.0:
        high = min(high, 1.0)
    y_scale = linear(low, high, plot.bottom, plot.top)
    groups = list(dict.fromkeys(each.group or each.name for each in series))
    lines = [
        _line(
            each,
            groups.index(each.group or each.name),
            x_scale,
            y_scale,
            unit,
            style,
            links=len(series) <= _FEW,
        )
        for each in sorted(series, key=lambda each: each.is_strong)
    ]
    places = _x_places(x_scale, of_time=of_time, of_whole=all(x == int(x) for x in xs))
    has_links = len(series) <= _FEW and any(each.href for each in series)
    drawn = picture(
        title,
        _described(series, goals, unit, note),
        size,
        None if is_empty else upright(plot, y_scale, unit.short, unit.beside),
        None if is_empty else across(plot, places, "UTC" if of_time else x_axis),
        nothing(plot) if is_empty else node("g", *lines, class_=_crowd(series)),
        *(None if is_empty else _goal(goal, plot, y_scale, unit) for goal in goals),
        has_links=has_links,
    )
    legend = [(colour(place), shortened(name, _LABEL)) for place, name in enumerate(groups)]
    return figure(
        title,
        note,
        drawn,
        None if is_empty else _numbers(series, unit, x_axis, of_time=of_time),
        legend=legend if 1 < len(groups) <= _FEW else (),
        is_wide=size.is_wide,
    )


def _crowd(series: Sequence[Series]) -> str | None:
    """The classes of all lines together: of many the strong ones stand out."""
    is_grouped = any(each.group for each in series)
    many = len(series) > (_FEW_OF_GROUPS if is_grouped else _FEW)
    return classes("lines", "many" if many else "", "grouped" if is_grouped else "")


def thinned(points: Sequence[Point], places: int) -> Sequence[Point]:
    """At most four points for each of so many places: the first, the least, the greatest, the last."""
    if len(points) <= 4 * places:
        return points
    kept: list[Point] = []
    step = len(points) / places
    for place in range(places):
        part = points[int(place * step) : int((place + 1) * step)]
        told = [at for at, (_, y) in enumerate(part) if is_drawn(y)]
        if not told:
            kept.append((part[0][0], None))
            continue
        chosen = {
            told[0],
            min(told, key=lambda at: part[at][1] or 0.0),
            max(told, key=lambda at: part[at][1] or 0.0),
            told[-1],
        }
        kept.extend(part[at] for at in sorted(chosen))
    return kept


def _line(
    series: Series,
    place: int,
    x_scale: LinearScale,
    y_scale: LinearScale,
    unit: Unit,
    style: str,
    *,
    links: bool,
) -> Element:
    runs = _runs(thinned(series.points, int(x_scale.end - x_scale.start)), x_scale, y_scale)
    marks: list[Element] = []
    for run in runs:
        if len(run) == 1:
            marks.append(node("circle", cx=run[0][0], cy=run[0][1], r=2.5))
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
        if style == "area":
            base = y_scale.start
            closed = f"{path}L{run[-1][0]:.1f} {base:.1f}L{run[0][0]:.1f} {base:.1f}Z"
            marks.append(node("path", d=closed, class_="area"))
        marks.append(node("path", d=path, fill="none", class_="stroke"))
    last = finite(y for _, y in series.points[-1:])
    told = f"{series.name}: {unit.whole(last[0])} {unit.beside}".strip() if last else series.name
    drawn = titled(
        node("g", *marks, class_=classes("series", colour(place), "strong" if series.is_strong else "")), told
    )
    if not (links and series.href):
        return drawn
    return node("a", drawn, href=series.href, aria_label=told)


def _runs(
    points: Sequence[Point], x_scale: LinearScale, y_scale: LinearScale
) -> list[list[tuple[float, float]]]:
    """The parts of a line between its gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if not is_drawn(y):
            if runs[-1]:
                runs.append([])
        else:
            runs[-1].append((x_scale(x), y_scale(y)))
    return [run for run in runs if run]


def _goal(goal: Goal, plot: Plot, y_scale: LinearScale, unit: Unit) -> Element | None:
    if not is_drawn(goal.value):
        return None
    y = y_scale(goal.value)
    return node(
        "g",
        node("line", x1=plot.left, x2=plot.right, y1=y, y2=y),
        node(
            "text",
            f"{shortened(goal.name, _LABEL)} {unit.short(goal.value)}",
            x=plot.right - 2,
            y=y - 3 if y - plot.top > 12 else y + 10,
            text_anchor="end",
        ),
        class_="goal",
    )


def _x_places(scale: LinearScale, *, of_time: bool, of_whole: bool) -> list[tuple[float, str]]:
    if of_time:
        span = scale.high - scale.low
        moments = time_ticks(scale.low, scale.high, int((scale.end - scale.start) / 70) + 1)
        return [(scale(moment), utc_time(moment, span)) for moment in moments]
    within = linear(scale.low, scale.high, 0, 1, steps=6).ticks()
    return [
        (scale(value), NUMBER.short(value))
        for value in within
        if scale.low <= value <= scale.high and (value == int(value) or not of_whole)
    ]


def _described(series: Sequence[Series], goals: Sequence[Goal], unit: Unit, note: str) -> str:
    """What a screen reader says of it: every line's range and last value, if they are few."""
    parts = [note] if note else []
    for each in series[:_FEW]:
        ys = finite(y for _, y in each.points)
        if ys:
            ends = f"{unit.whole(min(ys))} to {unit.whole(max(ys))}, last {unit.whole(ys[-1])}"
            parts.append(f"{each.name}: {ends} {unit.beside}".strip())
    if len(series) > _FEW:
        parts.append(f"and {len(series) - _FEW} more lines")
    parts += [f"{goal.name}: {unit.whole(goal.value)} {unit.beside}".strip() for goal in goals]
    return ". ".join(parts) or "nothing yet"


def _numbers(series: Sequence[Series], unit: Unit, x_axis: str, *, of_time: bool) -> Element:
    """A row for each x, of very many every n-th; a column for each line, of many the strong ones."""
    listed = sorted(series, key=lambda each: not each.is_strong)[:_FEW]
    found: list[dict[float, float | None]] = [dict(each.points) for each in listed]
    xs = sorted({x for each in found for x in each if is_drawn(x)})
    step = math.ceil(len(xs) / MOST_LISTED)
    rows = []
    for x in xs[::-1][::step] if of_time else xs[::step]:
        cells = [each.get(x) for each in found]
        rows.append(
            [
                utc_moment(x) if of_time else NUMBER.whole(x),
                *("" if not is_drawn(y) else unit.whole(y) for y in cells),
            ]
        )
    notes = [f"every {step}th of {len(xs)}"] if step > 1 else []
    if len(listed) < len(series):
        notes.append(f"{len(listed)} of {len(series)} lines")
    beside = f", {unit.beside}" if unit.beside else ""
    heads = ["time, UTC" if of_time else x_axis, *(each.name + beside for each in listed)]
    return table(heads, rows, "; ".join(notes))
