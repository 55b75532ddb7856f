"""The tables of the comparison: a line for each server, ours first, and ratios of paired rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from tests.benchmarks.report import console
from tests.benchmarks.serving.cases import Case
from tests.benchmarks.serving.contenders import FRONTS, OURS
from tests.benchmarks.serving.measure import Measured, spread

Rounds = Sequence[Measured]


def print_case(case: Case, measured: Mapping[str, Rounds]) -> None:
    """One model: every server that could be measured."""
    table = Table(
        "server",
        "rows/s, p99 in time",
        "ours / it",
        "alone, p50 ms",
        "at half: p50 · p99 ms",
        "burst: in time (rows/s)",
        "late · refused · lost",
        title=f"{case.name}: {case.architecture}, goal {case.slo_ms:g} ms",
    )
    for name, rounds in measured.items():
        burst = max((one.burst for one in rounds), key=lambda one: one.in_time)
        table.add_row(
            name,
            _range([one.rate for one in rounds]),
            _ratio(measured.get(OURS), rounds),
            _ms([one.alone_ms for one in rounds]),
            f"{_ms([one.p50_ms for one in rounds])} · {_ms([one.p99_ms for one in rounds])}",
            f"{burst.in_time:.0%} ({burst.in_time_per_s:,.0f})",
            f"{burst.late:.0%} · {burst.refused:.0%} · {burst.lost:.0%}",
        )
    console.print(table)
    for verdict in verdicts(case, measured):
        console.print(verdict)


def verdicts(case: Case, measured: Mapping[str, Rounds]) -> list[str]:
    """Whether ours is first, line by line."""
    if OURS not in measured or len(measured) < 2:
        return []
    lines = {
        "rows/s": {name: spread([one.rate for one in rounds])[0] for name, rounds in measured.items()},
        "in time in the burst, rows/s": {
            name: spread([one.burst.in_time_per_s for one in rounds])[0] for name, rounds in measured.items()
        },
        "alone, ms": {
            name: -spread([one.alone_ms for one in rounds])[0] for name, rounds in measured.items()
        },
    }
    said = []
    for line, values in lines.items():
        first = max(values, key=lambda name: values[name])
        said.append(f"{case.name}, {line}: first is {first}" + ("" if first in FRONTS else " (MISSED)"))
    return said


def _ms(values: Sequence[float]) -> str:
    return f"{spread(values)[0]:.1f}"


def _range(values: Sequence[float]) -> str:
    middle, low, high = spread(values)
    return f"{middle:,.0f}" if len(values) == 1 else f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def _ratio(ours: Rounds | None, rounds: Rounds) -> str:
    if ours is None or ours is rounds or len(ours) != len(rounds) or not all(one.rate for one in rounds):
        return ""
    middle, low, high = spread([a.rate / b.rate for a, b in zip(ours, rounds, strict=True)])
    return f"{middle:.1f}" if len(rounds) == 1 else f"{middle:.1f} ({low:.1f} to {high:.1f})"
