"""Parallel coordinates: one line for each trial, through the value of every knob to its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from markupsafe import Markup

from server.dashboard.charts.axes import nothing
from server.dashboard.charts.figure import MOST_LISTED, WIDE, Plot, Size, figure, picture, table
from server.dashboard.charts.markup import classes, node, shortened, titled
from server.dashboard.charts.scales import CategoryScale, LogScale, Scale, finite, is_drawn, linear, spread
from server.dashboard.charts.units import NUMBER

__all__ = ["GRADES", "Axis", "Line", "axis_of", "parallel_coordinates"]

Value = float | int | str | None

GRADES = 5  # classes of lines, from the worst fifth to the best
_MOST_LINES = 500
_MOST_CATEGORIES = 12
_LOG_FROM = 30.0  # the greatest over the least, of values that are spread out evenly by their logarithm
_AXIS = 118  # least units between two


@dataclass(frozen=True, slots=True)
class Axis:
    """One knob. categories: its values where they are names; is_log: whether powers of ten lie equally far
    apart.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    categories: tuple[str, ...] = ()

    def value(self, given: Value) -> float | None:
        """What its scale places; None for a value that it has not."""
        if given is None:
            return None
        if self.categories:
            text = str(given)
            return float(self.categories.index(text)) if text in self.categories else None
        return float(given) if not isinstance(given, str) and is_drawn(float(given)) else None

    def scale(self, start: float, end: float) -> Scale:
        """Between two places."""
        if self.categories:
            return CategoryScale(len(self.categories), start, end)
        if self.is_log:
            return LogScale(self.low, self.high, start, end)
        return linear(self.low, self.high, start, end)

    def text(self, value: float) -> str:
        """A value beside the axis."""
        return shortened(self.categories[int(value)], 14) if self.categories else NUMBER.short(value)


@dataclass(frozen=True, slots=True)
class Line:
    """One trial. merit: the larger, the better its grade; None = it has no score yet."""

    name: str
    values: Mapping[str, Value]
    merit: float | None = None
    href: str = ""
    is_strong: bool = False


def axis_of(name: str, values: Sequence[Value]) -> Axis:
    """The axis that fits what was tried: names, a few whole numbers as they are, or a range."""
    given = [value for value in values if value is not None]
    texts = sorted({str(value) for value in given if isinstance(value, str)})
    if texts:
        return Axis(name, categories=tuple(texts[:_MOST_CATEGORIES]))
    numbers = finite(float(value) for value in given if not isinstance(value, str))
    different = sorted(set(numbers))
    if len(different) <= 5 and all(value == int(value) for value in different):
        return Axis(name, categories=tuple(str(int(value)) for value in different) or ("–",))
    low, high = spread(numbers)
    is_log = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_FROM
    return Axis(name, low, high, is_log)


def parallel_coordinates(
    title: str, axes: Sequence[Axis], lines: Sequence[Line], *, note: str = "", with_numbers: bool = True
) -> Markup:
    """The last axis is the score's. Of very many lines the best are drawn, the best on top.

    with_numbers: False where they stand in a table beside it.
    """
    size = Size(max(WIDE.width, _AXIS * len(axes)), 270, is_wide=True)
    plot = Plot(70, 40, size.width - 60, size.height - 16)
    ranked = sorted(lines, key=lambda line: (line.merit is not None, line.merit or 0.0))[-_MOST_LINES:]
    step = plot.width / max(1, len(axes) - 1)
    placed = [
        (axis, plot.left + place * step, axis.scale(plot.bottom, plot.top)) for place, axis in enumerate(axes)
    ]
    grades = _grades(ranked)
    has_links = 0 < len(ranked) <= 40 and any(line.href for line in ranked)
    drawn = [
        _line(line, grade, placed, links=has_links)
        for line, grade in zip(ranked, grades, strict=True)
        if len(axes) > 1
    ]
    shown = picture(
        title,
        f"{len(lines)} lines through {', '.join(axis.name for axis in axes) or 'no axis'}. {note}",
        size,
        node("g", *drawn, class_="lines parallel") if drawn else nothing(plot),
        *(
            _axis(axis, x, scale, plot, is_last=place == len(placed) - 1)
            for place, (axis, x, scale) in enumerate(placed)
        ),
        has_links=has_links,
    )
    more = f"the best {len(ranked)} of {len(lines)}" if len(ranked) < len(lines) else ""
    legend = [("g0", "worst fifth"), (f"g{GRADES - 1}", "best fifth")] if len(ranked) >= GRADES else []
    numbers = _numbers(axes, ranked[::-1][:MOST_LISTED]) if ranked and with_numbers else None
    return figure(title, "; ".join(filter(None, (note, more))), shown, numbers, legend=legend, is_wide=True)


def _grades(ranked: Sequence[Line]) -> list[str]:
    """The class of each line, by its place among those that have a score."""
    scored = sum(line.merit is not None for line in ranked)
    without = len(ranked) - scored
    return [
        "none" if place < without else f"g{min(GRADES - 1, GRADES * (place - without) // scored)}"
        for place in range(len(ranked))
    ]


def _line(line: Line, grade: str, placed: Sequence[tuple[Axis, float, Scale]], *, links: bool) -> Element:
    """Through the axes that it has a value on; its ends stay where its first and its last value are."""
    points = []
    for axis, x, scale in placed:
        value = axis.value(line.values.get(axis.name))
        if value is not None:
            points.append(f"{x:.1f} {scale(value):.1f}")
    path = node("path", d="M" + "L".join(points or ["0 0"]), fill="none", class_="stroke")
    told = "; ".join(
        f"{axis.name} {_told(line.values[axis.name])}"
        for axis, _, _ in placed
        if line.values.get(axis.name) is not None
    )
    named = f"{line.name}: {told}"
    drawn = titled(
        node("g", path, class_=classes("series", grade, "strong" if line.is_strong else "")), named
    )
    return node("a", drawn, href=line.href, aria_label=named) if links and line.href else drawn


def _axis(axis: Axis, x: float, scale: Scale, plot: Plot, *, is_last: bool) -> Element:
    marks = [
        node("line", x1=x, x2=x, y1=plot.top, y2=plot.bottom, class_="base"),
        titled(
            node(
                "text", shortened(axis.name, 17), x=x, y=plot.top - 20, text_anchor="middle", class_="value"
            ),
            axis.name,
        ),
    ]
    if axis.is_log:
        marks.append(node("text", "log", x=x, y=plot.top - 8, text_anchor="middle", class_="unit"))
    side, anchor = (5, "start") if is_last else (-5, "end")
    for value in scale.ticks():
        y = scale(value)
        marks.append(node("line", x1=x - 3, x2=x + 3, y1=y, y2=y, class_="base"))
        marks.append(node("text", axis.text(value), x=x + side, y=y + 3.5, text_anchor=anchor))
    return node("g", *marks, class_="axis")


def _told(value: Value) -> str:
    return NUMBER.whole(float(value)) if isinstance(value, int | float) else str(value)


def _numbers(axes: Sequence[Axis], lines: Sequence[Line]) -> Element:
    rows = [
        [
            line.name,
            *("" if line.values.get(axis.name) is None else _told(line.values[axis.name]) for axis in axes),
        ]
        for line in lines
    ]
    return table(["", *(axis.name for axis in axes)], rows)
