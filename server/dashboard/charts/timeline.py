"""What lay where, and when: a lane for each thing, spans in it, and moments that stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element

from markupsafe import Markup

from server.dashboard.charts.axes import across, nothing
from server.dashboard.charts.figure import MOST_LISTED, WIDE, Plot, Size, colour, figure, picture, table
from server.dashboard.charts.markup import classes, node, shortened, titled
from server.dashboard.charts.scales import LinearScale, is_drawn, spread, time_ticks
from server.dashboard.charts.units import utc_moment, utc_time

__all__ = ["Lane", "Moment", "MomentKind", "Span", "timeline"]

MomentKind = Literal["load", "eviction", "failed"]

_LANE = 20  # height of one
_MOST = 30  # lanes
_NAME = 26  # characters beside a lane


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment to another, in Unix seconds; None = it was so before, or is so still."""

    from_s: float | None
    to_s: float | None
    told: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened. kind: a class of the style sheet."""

    at_s: float
    kind: MomentKind
    told: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One thing, in a group of its like: a model on a worker."""

    group: str
    name: str
    spans: Sequence[Span] = ()
    moments: Sequence[Moment] = ()


def timeline(title: str, lanes: Sequence[Lane], from_s: float, to_s: float, *, note: str = "") -> Markup:
    """Lanes in the order given, a group in one colour; those that have no room stand in the table."""
    shown = lanes[:_MOST]
    size = Size(WIDE.width, max(2, len(shown)) * _LANE + 54, is_wide=True)
    plot = Plot.within(size, left=210, top=26, right=12, bottom=24)
    low, high = spread([from_s, to_s])
    scale = LinearScale(low, high, plot.left, plot.right)
    groups = list(dict.fromkeys(lane.group for lane in shown))
    places = [
        (scale(moment), utc_time(moment, high - low))
        for moment in time_ticks(low, high, int(plot.width / 80))
    ]
    drawn = [_lane(lane, place, groups.index(lane.group), plot, scale) for place, lane in enumerate(shown)]
    counts = (sum(len(lane.moments) for lane in lanes), len(lanes))
    picture_of = picture(
        title,
        f"{counts[0]} moments of {counts[1]} lanes from {utc_moment(low)} to {utc_moment(high)} UTC",
        size,
        across(plot, places, "UTC"),
        *(drawn or [nothing(plot)]),
    )
    more = f"{len(lanes) - _MOST} more in the numbers" if len(lanes) > _MOST else ""
    legend = [(colour(place), group) for place, group in enumerate(groups[:12])]
    return figure(
        title,
        "; ".join(filter(None, (note, more))),
        picture_of,
        _numbers(lanes) if lanes else None,
        legend=legend if len(groups) > 1 else (),
        is_wide=True,
    )


def _lane(lane: Lane, place: int, group: int, plot: Plot, scale: LinearScale) -> Element:
    y = plot.top + place * _LANE
    marks = [
        node("line", x1=plot.left, x2=plot.right, y1=y + _LANE - 1, y2=y + _LANE - 1, class_="grid"),
        titled(
            node("text", shortened(lane.name, _NAME), x=plot.left - 8, y=y + 13.5, text_anchor="end"),
            f"{lane.name} on {lane.group}",
        ),
    ]
    for span in lane.spans:
        from_x = plot.left if span.from_s is None else scale(span.from_s)
        to_x = plot.right if span.to_s is None else scale(span.to_s)
        box = node("rect", x=from_x, y=y + 4, width=max(1.5, to_x - from_x), height=_LANE - 9, class_="bar")
        marks.append(titled(box, span.told))
    marks += [_moment(moment, y, scale) for moment in lane.moments if is_drawn(moment.at_s)]
    return node("g", *marks, class_=classes("lane", colour(group)))


def _moment(moment: Moment, y: float, scale: LinearScale) -> Element:
    """A load points up, an eviction down, a failure is a cross: told apart without their colours."""
    x, middle = scale(moment.at_s), y + _LANE / 2 - 0.5
    shapes = {
        "load": f"M{x - 4:.1f} {middle + 3.5:.1f}h8l-4 -7z",
        "eviction": f"M{x - 4:.1f} {middle - 3.5:.1f}h8l-4 7z",
        "failed": f"M{x - 4:.1f} {middle - 4:.1f}l8 8m0 -8l-8 8",
    }
    return titled(node("path", d=shapes[moment.kind], class_=f"moment {moment.kind}"), moment.told)


def _numbers(lanes: Sequence[Lane]) -> Element:
    moments = sorted(
        ((moment, lane) for lane in lanes for moment in lane.moments if is_drawn(moment.at_s)),
        key=lambda pair: -pair[0].at_s,
    )
    shown = moments[:MOST_LISTED]
    note = f"the last {len(shown)} of {len(moments)}" if len(shown) < len(moments) else ""
    rows = ([utc_moment(moment.at_s), lane.group, lane.name, moment.told] for moment, lane in shown)
    return table(["time, UTC", "where", "what", "what happened"], rows, note)
