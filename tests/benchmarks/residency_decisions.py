"""What a decision about residency costs: CPU time of the placement, in cells of `make bench-residency`.

python -m tests.benchmarks.residency_decisions [CELL …], each as SET/one|several/NUMBER/SECONDS. Cells of one
device are like a server; of several, every device is a kind of its own there, whose load times are learned
apart, which a server with like devices is spared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.table import Table

from server.placement import core
from server.placement.core import Step
from server.placement.policy import GroupKeys, WaitingRows
from tests.benchmarks.figures import wide
from tests.benchmarks.residency_cells import CONTENDERS, OURS, Cell, drawn_cell, run

CELLS = (
    *(f"report/one/{number}/8" for number in (0, 14, 24, 33)),
    *(f"report/several/{number}/6" for number in (1, 5, 9, 18, 25, 28, 31, 37)),
)


@dataclass(slots=True)
class _Spent:
    decisions: int = 0
    ns: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", default=CELLS)
    parser.add_argument("--policy", default=OURS, choices=[one.name for one in CONTENDERS])
    parser.add_argument("--rounds", type=int, default=3, help="the least of so many is given")
    flags = parser.parse_args()
    table = Table("cell", "decisions", "µs each, of CPU time", title=f"decisions of {flags.policy}")
    for cell in flags.cells:
        rounds = [_measured(cell, flags.policy) for _ in range(flags.rounds)]
        least = min(rounds, key=lambda one: one.ns)
        title = f"{cell}: {_cell(cell).devices} devices, {_cell(cell).models} models"
        table.add_row(title, str(least.decisions), f"{least.ns / least.decisions / 1000:.0f}")
    wide.print(table)


def _cell(text: str) -> Cell:
    of, kind, number, seconds = text.split("/")
    return replace(drawn_cell(of, int(number), kind == "several"), seconds=float(seconds))


def _measured(cell: str, policy: str) -> _Spent:
    spent = _Spent()
    steps = core.Placement.steps

    def timed(
        self: core.Placement, now_s: float, waited_for: Mapping[GroupKeys, WaitingRows]
    ) -> tuple[list[Step], float]:
        began_ns = time.thread_time_ns()
        found = steps(self, now_s, waited_for)
        spent.ns += time.thread_time_ns() - began_ns
        spent.decisions += 1
        return found

    core.Placement.steps = timed  # type: ignore[method-assign]
    try:
        run(_cell(cell), next(one for one in CONTENDERS if one.name == policy))
    finally:
        core.Placement.steps = steps  # type: ignore[method-assign]
    return spent


if __name__ == "__main__":
    main()
