"""What has come of a stress test: what was stopped, killed and answered, and what backends held meanwhile."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["STOPS", "Held", "Outcome"]

STOPS = ("cancel", "timeout", "terminate")
# What a backend that lived through it may hold above what it held after a tenth of its statements.
GROWTH_MIB = 4.0
MORE_SOCKETS = 16
MOST_THREADS = 64 + 8  # the client's pool, and a few


@dataclass
class Held:
    """What a backend holds: private memory, threads, sockets (its open files are the tables')."""

    private_mib: float
    threads: int
    sockets: int

    @classmethod
    def by(cls, pid: int) -> Held:
        """The backend `pid`, now."""
        process = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        kib = int(status["RssAnon"].split()[0])
        sockets = 0
        for file in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sockets += os.readlink(file).startswith("socket:")
        return cls(kib / 1024, int(status["Threads"]), sockets)


@dataclass
class Outcome:
    """What has come of it so far."""

    statements: Counter[str] = field(default_factory=Counter)  # by kind
    stopped: Counter[str] = field(default_factory=Counter)  # by how, those that ended a statement
    late_ms: dict[str, list[float]] = field(default_factory=lambda: {how: [] for how in STOPS})
    lost: int = 0  # statements that failed since workers died twice under their rows
    told: int = 0  # statements of try_predict that told of that, or of the coming timeout, in their rows
    kills: int = 0
    wrong: list[str] = field(default_factory=list)
    held: list[list[Held]] = field(default_factory=list)  # of each backend that was never terminated
    queue_empty_after_s: float | None = None
    crashes: list[str] = field(default_factory=list)
    restarted: bool = False
    left_behind: int = 0  # backends and transactions
    elapsed_s: float = 0.0

    def complaints(self) -> list[str]:
        """What is not as it should be."""
        found = [*self.wrong, *self.crashes]
        if self.restarted:
            found.append("the cluster restarted")
        if self.queue_empty_after_s is None:
            found.append("rows wait in the server though nobody asks any more")
        if self.left_behind:
            found.append(f"{self.left_behind} backends are left behind")
        for samples in filter(None, self.held):
            settled, end = samples[len(samples) // 10], samples[-1]
            if end.private_mib > settled.private_mib + GROWTH_MIB:
                found.append(f"a backend grew from {settled.private_mib:.1f} to {end.private_mib:.1f} MiB")
            if end.sockets > settled.sockets + MORE_SOCKETS or end.threads > MOST_THREADS:
                found.append(f"a backend holds {end}, after a tenth of the time {settled}")
        return found

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "statements": sum(self.statements.values()),
            "statements_by_kind": dict(self.statements),
            "stopped": dict(self.stopped),
            "late_ms": {how: spread(late) for how, late in self.late_ms.items() if late},
            "workers_killed": self.kills,
            "statements_that_lost_workers_twice": self.lost,
            "statements_that_told_errors_of_rows": self.told,
            "wrong": self.wrong,
            "crashes": self.crashes,
            "cluster_restarted": self.restarted,
            "queue_empty_after_s": self.queue_empty_after_s,
            "backends": [
                {
                    "statements": len(samples),
                    "private_mib_first_tenth": samples[len(samples) // 10].private_mib,
                    "private_mib_most": max(held.private_mib for held in samples),
                    "private_mib_end": samples[-1].private_mib,
                    "threads_first_tenth": samples[len(samples) // 10].threads,
                    "threads_end": samples[-1].threads,
                    "sockets_first_tenth": samples[len(samples) // 10].sockets,
                    "sockets_end": samples[-1].sockets,
                }
                for samples in filter(None, self.held)
            ],
            "elapsed_s": self.elapsed_s,
        }


def spread(late: list[float]) -> dict[str, float]:
    ordered = sorted(late)
    at = int(len(ordered) * 0.99)
    return {"median": statistics.median(ordered), "p99": ordered[at], "most": ordered[-1]}
