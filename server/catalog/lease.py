"""Which of the servers on one registry does what only one may do: a lease, as pure decisions.

    (the row, who asks, now) ─→ Take: with a higher fencing number | Renew | Wait

Times of the row are the database's clock alone, in Unix seconds: servers' clocks need not agree. A server
goes by its own clock for how long it may act (`Tenure`): from before it asked, so that it stops before the
row says that another may take over. What it writes carries its fencing number, and storage refuses a lower
one than it has seen: a server that was paused and wakes up writes nothing more (Kleppmann 2016, "How to do
distributed locking"; Burrows 2006, "The Chubby lock service", §2.4, sequencers). Immutable; knows no tables.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LEASE_S",
    "LOOK_S",
    "Holding",
    "Renew",
    "SeenServer",
    "Take",
    "Tenure",
    "Wait",
    "decide",
    "tenure",
]

LEASE_S = 6.0  # that a holder is waited for which says nothing
LOOK_S = 1.0  # between two looks of a server at the lease
_DRIFT_S = 0.5  # by which two clocks may differ in measuring LEASE_S


@dataclass(frozen=True, slots=True)
class Holding:
    """The row. holder: a server's id; None = nobody, by its own will. fence: grows with each holder."""

    holder: str | None
    fence: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Take:
    """Whoever asks holds it from now on."""

    fence: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Whoever asks holds it still. It may have run out meanwhile: nobody else took it."""

    fence: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Another holds it, for so long yet where it is not renewed."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Tenure:
    """What a server knows of its own lease. until_s: on its own clock."""

    fence: int
    until_s: float

    def holds(self, now_s: float) -> bool:
        """Whether it may act: surely nobody else holds the lease."""
        return now_s < self.until_s


@dataclass(frozen=True, slots=True)
class SeenServer:
    """One of the servers that share a registry. process: by which another on its machine sees that it has
    ended; times: Unix seconds by the database's clock.
    """

    id: str
    name: str
    version: str
    process: str = ""
    started_s: float = 0.0
    seen_s: float = 0.0


def decide(known: Holding, server: str, now_s: float, *, is_gone: bool = False) -> Take | Renew | Wait:
    """What a server that asks may do. is_gone: whether the holder's process has ended for certain.

    A fencing number is above the one before, and not below the time: one of a registry that was restored from
    a copy is above those that files have seen since.
    """
    if known.holder == server:
        return Renew(known.fence)
    if known.holder is None or is_gone or known.until_s <= now_s:
        return Take(max(known.fence + 1, int(now_s)))
    return Wait(known.until_s - now_s)


def tenure(fence: int, asked_s: float) -> Tenure:
    """Of a server that asked at that time of its own clock, and was told that it holds the lease."""
    return Tenure(fence, asked_s + LEASE_S - _DRIFT_S)
