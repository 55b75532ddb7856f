"""What processes have used of the processor. Knows nothing of what they do."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["processor_s", "thread_processor_s"]


def processor_s(pid: int) -> float:
    """User and system time since it began. Raises FileNotFoundError if the process is gone."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def thread_processor_s(pid: int) -> float:
    """The same of its first thread alone, finer. Raises FileNotFoundError if the process is gone."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
