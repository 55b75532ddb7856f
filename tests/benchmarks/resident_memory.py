"""Resident memory of processes, at once and by time. Knows nothing of what they do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MemoryByTime", "resident_bytes"]


def resident_bytes(pid: int) -> int:
    """Raises FileNotFoundError if the process is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class MemoryByTime:
    """What some processes hold, each group of them together, every so many seconds of a block."""

    def __init__(self, *groups: Sequence[int], every_s: float) -> None:
        self._groups = groups
        self._every_s = every_s
        self._seen: list[tuple[float, list[float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryByTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    def quarters(self) -> list[tuple[float, list[float]]]:
        """Seconds since the beginning, and megabytes by group: then, after each quarter, at the end."""
        last = len(self._seen) - 1
        return [self._seen[last * quarter // 4] for quarter in range(5)]

    def _watch(self) -> None:
        began_s = time.monotonic()
        while True:
            held_mb = [sum(map(resident_bytes, pids)) / 1e6 for pids in self._groups]
            self._seen.append((time.monotonic() - began_s, held_mb))
            if self._over.wait(self._every_s):
                return
