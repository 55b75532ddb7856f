"""Line charts as SVG, drawn with the standard library. Knows numbers and colours, not what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["line_chart"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 880, 360, 64, 170, 40, 44
# Okabe and Ito's colours, which the colour-blind can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#555555", "#000000")


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    bottom: float = 0.0,
    top: float | None = None,
) -> str:
    """An SVG document: one line per series over `x`; the first series is drawn dashed, as a background.

    bottom, top: of the axis; what is beyond is drawn at its edge. top: by default a round number above all.

    Raises ValueError if there is nothing to draw or a series is not as long as `x`.
    """
    if len(x) < 2 or not series or any(len(line) != len(x) for line in series.values()):
        raise ValueError("a chart needs two points and series as long as its axis")
    top = _round_up(max(max(line) for line in series.values())) if top is None else top
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for step in range(5):
        value = bottom + (top - bottom) * step / 4
        y = _y(value, bottom, top)
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        )
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for step in range(6):
        value = x[0] + (x[-1] - x[0]) * step / 5
        lines.append(
            f'<text x="{_x(value, x):.1f}" y="{_HEIGHT - 26}" text-anchor="middle">{value:.4g}</text>'
        )
    lines.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{escape(x_label)}</text>')
    lines.append(f'<text x="{_LEFT}" y="{_TOP - 4}" fill="#555555">{escape(y_label)}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[(number - 1) % len(_COLOURS)] if number else "#999999"
        places = [(_x(at, x), _y(value, bottom, top)) for at, value in zip(x, line, strict=True)]
        points = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        dash = "" if number else ' stroke-dasharray="5 4"'
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        row = _TOP + 12 + 18 * number
        lines.append(
            f'<rect x="{_WIDTH - _RIGHT + 14}" y="{row - 8}" width="12" height="4" fill="{colour}"/>'
        )
        lines.append(f'<text x="{_WIDTH - _RIGHT + 32}" y="{row}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _x(value: float, x: Sequence[float]) -> float:
    return _LEFT + (value - x[0]) / (x[-1] - x[0]) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, bottom: float, top: float) -> float:
    share = (min(max(value, bottom), top) - bottom) / (top - bottom)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8, 10 times a power of ten; 1 for an empty chart."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10
    while power / 10 >= value:
        power /= 10
    return next(power / 10 * step for step in (1, 2, 4, 5, 8, 10) if power / 10 * step >= value)
