"""How benchmarks report: medians with their spread, ratios side by side, JSON beside the printed table."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path("bench-results")
console = Console()


@dataclass
class Series:
    """Repeated measurements of one contender, in rows/s."""

    name: str
    rows: int
    rows_per_s: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rows_per_s)

    def spread(self) -> str:
        return f"{min(self.rows_per_s):,.0f} to {max(self.rows_per_s):,.0f}"


def ratio(one: Series, other: Series) -> tuple[float, float, float]:
    """Median, least and greatest of the rounds' ratios; rounds are paired, so the machine's mood cancels."""
    ratios = [a / b for a, b in zip(one.rows_per_s, other.rows_per_s, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def print_series(title: str, series: Sequence[Series], *, against: Series) -> None:
    table = Table("", "rows a round", "rows/s (median)", "min to max", f"of {against.name}", title=title)
    for one in series:
        middle, low, high = ratio(one, against)
        table.add_row(
            f"{one.name}{' · ' + one.note if one.note else ''}",
            f"{one.rows:,}",
            f"{one.median:,.0f}",
            one.spread(),
            f"{middle:.2f} ({low:.2f} to {high:.2f})",
        )
    console.print(table)


def say(text: str = "") -> None:
    """A line as it is, however long: what is not a console cuts none."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def write_json(name: str, result: dict[str, Any]) -> Path:
    """Write `bench-results/NAME.json` with the machine and the date."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": _processor(),
    }
    content = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        **result,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"written: {path}")
    return path


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
