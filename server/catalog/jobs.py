"""What training leaves in the registry, as records: snapshots of datasets, jobs, looks at test rows.

Immutable; knows no tables and no studies. Times are aware, in UTC.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.errors import UnknownFunction

__all__ = ["ACTIVE", "PAUSED", "Job", "Look", "Snapshot", "unknown_dataset", "unknown_job"]

ACTIVE = ("running",)  # states of jobs that go on when the server starts again
PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dataset's frozen rows: what it was asked for, and what came of it."""

    dataset: str
    id: str
    spec: dict[str, Any]
    facts: dict[str, Any]
    taken_at: datetime


@dataclass(frozen=True, slots=True)
class Job:
    """A training job; `state` is running, paused, done, cancelled or failed.

    found: of a job that does not run, its studies as people see them; None where that is not known.
    owner: the token that began it; "" = nobody's. damage: why its spec cannot be read, and is empty; "" = it
    can.
    """

    id: int
    dataset: str
    snapshot: str
    spec: dict[str, Any]
    state: str
    reason: str
    created_at: datetime
    ended_at: datetime | None
    found: dict[str, Any] | None = None
    owner: str = ""
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What some models answered to the test rows of a snapshot.

    members: a name of the models together. rival: of those that they were compared with; "" = none. number:
    which look it was, 1 for the first. right: a bit for each of `rows`, nothing where answers are no classes.
    score: by the metric; None of looks from before there were several. function, version: what was deployed
    of it; None = nothing.
    """

    dataset: str
    snapshot: str
    members: str
    rival: str
    job: int
    rows: int
    right: bytes
    best_single: float
    number: int = 0
    id: int = 0
    function: str | None = None
    version: int | None = None
    looked_at: datetime | None = None
    metric: str = "accuracy"
    score: float | None = None

    @staticmethod
    def packed(right: NDArray[np.bool_]) -> bytes:
        """`right`, as it is stored."""
        return zlib.compress(np.packbits(right).tobytes())

    def answered_rightly(self) -> NDArray[np.bool_]:
        """For each test row, whether it was answered rightly."""
        bits = np.frombuffer(zlib.decompress(self.right), np.uint8)
        return np.unpackbits(bits, count=self.rows).astype(np.bool_)


def unknown_dataset(name: str, which: str = "") -> UnknownFunction:
    """What asking for a dataset raises that is not there; which: of its snapshots, in words."""
    return UnknownFunction(f"there is no dataset {name!r}{which} here")


def unknown_job(job: int) -> UnknownFunction:
    """What asking for a job raises that is not there."""
    return UnknownFunction(f"there is no job {job} here; the view of jobs (GET /v1/jobs) lists them")
