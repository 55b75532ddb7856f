"""Axes: lines across the plot with the values that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from xml.etree.ElementTree import Element

from server.dashboard.charts.figure import Plot
from server.dashboard.charts.markup import node
from server.dashboard.charts.scales import Scale

__all__ = ["across", "nothing", "upright"]


def upright(plot: Plot, scale: Scale, text: Callable[[float], str], unit: str) -> Element:
    """The axis at the left, a line over the plot for each value; the unit above it."""
    marks: list[Element] = []
    for value in scale.ticks():
        y = scale(value)
        marks.append(node("line", x1=plot.left, x2=plot.right, y1=y, y2=y, class_="grid"))
        marks.append(node("text", text(value), x=plot.left - 5, y=y + 3.5, text_anchor="end"))
    marks.append(node("text", unit, x=2, y=plot.top - 10, class_="unit"))
    return node("g", *marks, class_="axis")


def across(plot: Plot, places: Iterable[tuple[float, str]], unit: str) -> Element:
    """The axis at the bottom: places with their text; the unit stands at its end, above the line."""
    marks = [node("line", x1=plot.left, x2=plot.right, y1=plot.bottom, y2=plot.bottom, class_="base")]
    for x, text in places:
        anchor = "end" if x > plot.right - 14 else "middle"
        marks.append(node("line", x1=x, x2=x, y1=plot.bottom, y2=plot.bottom + 3, class_="base"))
        marks.append(node("text", text, x=x, y=plot.bottom + 14, text_anchor=anchor))
    marks.append(node("text", unit, x=plot.right, y=plot.top - 10, text_anchor="end", class_="unit"))
    return node("g", *marks, class_="axis")


def nothing(plot: Plot, text: str = "nothing yet") -> Element:
    """What stands where there is nothing to draw."""
    x, y = (plot.left + plot.right) / 2, (plot.top + plot.bottom) / 2
    return node("text", text, x=x, y=y, text_anchor="middle", class_="nothing")
