"""What the benchmarks of papers' figures share: paired differences, and drawings below one another."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.benchmarks.report import RESULTS, console
from tests.benchmarks.schedule import half_width

__all__ = ["apart", "drawn", "give_way", "mean_curve", "mean_of", "spread", "wide"]

wide = Console(width=150)  # for tables: a log's console is taken to have 80 columns
_CHART = 'viewBox="0 0 880 360"'  # as `line_chart` begins


def give_way() -> None:
    """To whatever else runs, as `nice` would; once."""
    os.nice(max(0, 10 - os.nice(0)))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean over the splits, with half of its 95 % interval."""
    return f"{statistics.mean(values):.{digits}f} ± {half_width(values):.{digits}f}"


def apart(ours: Sequence[float], theirs: Sequence[float], digits: int = 1) -> str:
    """How far ours is above theirs, in the mean over the splits that both ran, with its 95 % interval."""
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    return f"{statistics.mean(differences):+.{digits}f} ± {half_width(differences):.{digits}f}"


def mean_of(values: Sequence[float]) -> float:
    return statistics.mean(values)


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Point by point."""
    return [statistics.mean(points) for points in zip(*curves, strict=True)]


def drawn(name: str, *charts: str) -> Path:
    """Write SVGs of `line_chart` as one, below one another, to `bench-results/NAME.svg`."""
    nested = [
        chart.replace(_CHART, f'y="{360 * place}" width="880" height="360" {_CHART}', 1)
        for place, chart in enumerate(charts)
    ]
    whole = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {360 * len(charts)}">'
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.svg"
    path.write_text("\n".join([whole, *nested, "</svg>", ""]))
    console.print(f"drawn: {path}")
    return path
