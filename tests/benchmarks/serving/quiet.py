"""Whether anybody else uses the machine: measurements begin when nobody does, and say so if somebody did."""

from __future__ import annotations

import time
from pathlib import Path

_QUIET = 0.85  # idle share of all cores
_LOOK_S = 1.0
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def await_quiet(patience_s: float = 30.0) -> float:
    """Wait until the machine is idle, or the patience is over: the idle share of the last second."""
    deadline_s = time.monotonic() + patience_s
    while True:
        before = _ticks()
        time.sleep(_LOOK_S)
        idle, total = (b - a for a, b in zip(before, _ticks(), strict=True))
        share = idle / max(1, total)
        if share >= _QUIET or time.monotonic() > deadline_s:
            return share


def _ticks() -> tuple[int, int]:
    """Idle and all ticks since the machine started.

    What runs at a low priority gives way, and counts as idle, unless sessions are scheduled as groups.
    """
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    grouped = _AUTOGROUP.exists() and _AUTOGROUP.read_text().strip() == "1"
    gives_way = 0 if grouped else fields[1]
    return gives_way + fields[3] + fields[4], sum(fields)
