"""A function that is trained again, by order or on a schedule: what is asked, and what came of it.

Several servers may share a registry: who does what is due holds it by a lease, renewed while its job runs,
and another takes it over when that has run out. Immutable; knows no tables and no studies. Times are aware,
in UTC; servers' clocks are taken to agree to within a few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

__all__ = ["LEASE_S", "ORPHAN_S", "Retraining"]

LEASE_S = 30.0
ORPHAN_S = 60.0  # after which a job is lost to the server that ran it: until then that one may come back


@dataclass(frozen=True, slots=True)
class Retraining:
    """every_s: None = once. budget: of each job, as text; "" = that of the job before. roles: of a database,
    in whose name a dataset's query is run again; None = the token's holder. next_at: None = never again.
    job: the one that trains now. outcome: of the last time, for people. owner: the server that holds it,
    until leased_until; None = nobody.
    """

    function: str
    every_s: float | None = None
    budget: str = ""
    roles: tuple[str, ...] | None = None
    next_at: datetime | None = None
    job: int | None = None
    outcome: str = ""
    ended_at: datetime | None = None
    owner: str | None = None
    leased_until: datetime | None = None

    @property
    def state(self) -> str:
        """running, waiting, or done."""
        if self.job is not None:
            return "running"
        return "done" if self.next_at is None else "waiting"

    def is_due(self, now: datetime) -> bool:
        """Whether there is something to do: a job to look after, or one to begin."""
        return self.job is not None or (self.next_at is not None and self.next_at <= now)

    def held_by(self, owner: str, now: datetime, *, runs_here: bool) -> Retraining | None:
        """The same, held by that server from now on; None where there is nothing to do, or another holds it.

        runs_here: whether the server runs the job; another one's job is taken over later.
        """
        if not self.is_due(now):
            return None
        if self.owner not in (None, owner) and self.leased_until is not None:
            grace_s = 0.0 if self.job is None or runs_here else ORPHAN_S - LEASE_S
            if now < self.leased_until + timedelta(seconds=grace_s):
                return None
        return replace(self, owner=owner, leased_until=now + timedelta(seconds=LEASE_S))
