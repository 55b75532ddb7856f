"""What processes have used of the processor. Knows nothing of what they do."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["children_of", "family_processor_s", "processor_s", "thread_processor_s"]


def processor_s(pid: int) -> float:
    """User and system time since it began. Raises FileNotFoundError if the process is gone."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def thread_processor_s(pid: int) -> float:
    """The same of its first thread alone, finer. Raises FileNotFoundError if the process is gone."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def children_of(pid: int) -> list[int]:
    """The processes that it has started and that are there still."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found += map(int, task.read_text().split())
    return found


def family_processor_s(pid: int) -> float:
    """As `processor_s`, of a process and of all below it that are there still."""
    own_s = 0.0
    with suppress(OSError):  # it has just ended
        own_s = processor_s(pid)
    return own_s + sum(map(family_processor_s, children_of(pid)))
