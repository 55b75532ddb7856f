"""A function that is trained again, by order or on a schedule: what is asked, and what came of it.

Immutable; knows no tables and no studies. Times are aware, in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["Retraining"]


@dataclass(frozen=True, slots=True)
class Retraining:
    """every_s: None = once. budget: of each job, as text; "" = that of the job before. roles: of a database,
    in whose name a dataset's query is run again; None = the token's holder. next_at: None = never again.
    job: the one that trains now. outcome: of the last time, for people.
    """

    function: str
    every_s: float | None = None
    budget: str = ""
    roles: tuple[str, ...] | None = None
    next_at: datetime | None = None
    job: int | None = None
    outcome: str = ""
    ended_at: datetime | None = None

    @property
    def state(self) -> str:
        """running, waiting, or done."""
        if self.job is not None:
            return "running"
        return "done" if self.next_at is None else "waiting"
