"""Whether answers are as often right as they say: accuracy by confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from server.dashboard.charts.axes import across, nothing, upright
from server.dashboard.charts.figure import SMALL, Plot, colour, figure, picture, table
from server.dashboard.charts.markup import node, titled
from server.dashboard.charts.scales import LinearScale, is_drawn
from server.dashboard.charts.units import PERCENT

__all__ = ["Bin", "bins_of", "expected_calibration_error", "reliability_chart"]

_BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of about the same confidence. confidence: their mean."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def bins_of(answers: Sequence[tuple[float, bool]], bins: int = _BINS) -> list[Bin]:
    """(confidence, whether it was right) in equal steps of confidence; steps without answers are left out."""
    found: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for confidence, is_right in answers:
        if is_drawn(confidence):
            place = int(min(1.0, max(0.0, confidence)) * bins)
            found[min(bins - 1, place)].append((confidence, is_right))
    return [
        Bin(
            place / bins,
            (place + 1) / bins,
            len(part),
            sum(confidence for confidence, _ in part) / len(part),
            sum(is_right for _, is_right in part) / len(part),
        )
        for place, part in enumerate(found)
        if part
    ]


def expected_calibration_error(bins: Sequence[Bin]) -> float | None:
    """The mean distance of confidence and accuracy, by rows (Guo et al. 2017); None of no rows."""
    rows = sum(each.rows for each in bins)
    return sum(each.rows * abs(each.confidence - each.accuracy) for each in bins) / rows if rows else None


def reliability_chart(title: str, bins: Sequence[Bin]) -> Markup:
    """A bar for each step of confidence; the line is where they would end if every confidence were true."""
    plot = Plot.within(SMALL)
    x_scale = LinearScale(0.0, 1.0, plot.left, plot.right)
    y_scale = LinearScale(0.0, 1.0, plot.bottom, plot.top, (0.0, 0.25, 0.5, 0.75, 1.0))
    boxes = []
    for each in bins:
        x, y = x_scale(each.low), y_scale(each.accuracy)
        box = node(
            "rect",
            x=x + 1,
            y=y,
            width=x_scale(each.high) - x - 2,
            height=plot.bottom - y,
            class_=f"bar {colour(0)}",
        )
        boxes.append(titled(box, _told(each)))
    error = expected_calibration_error(bins)
    note = "" if error is None else f"off by {100 * error:.1f} points on average"
    shown = picture(
        title,
        ". ".join([*filter(None, [note]), *map(_told, bins)]) or "nothing yet",
        SMALL,
        upright(plot, y_scale, PERCENT.short, "right"),
        across(plot, [(x_scale(share), PERCENT.short(share)) for share in (0.25, 0.5, 0.75)], "confidence"),
        *(boxes or [nothing(plot)]),
        node("line", x1=plot.left, y1=plot.bottom, x2=plot.right, y2=plot.top, class_="truth"),
    )
    rows = (
        [
            f"{100 * each.low:.0f} to {100 * each.high:.0f} %",
            str(each.rows),
            PERCENT.whole(each.confidence),
            PERCENT.whole(each.accuracy),
        ]
        for each in bins
    )
    numbers = table(["confidence", "rows", "mean confidence", "right"], rows) if bins else None
    return figure(title, note, shown, numbers)


def _told(each: Bin) -> str:
    right, confidence = PERCENT.short(each.accuracy), PERCENT.short(each.confidence)
    return f"{right} of {each.rows} right at a confidence of {confidence}"
