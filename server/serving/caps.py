"""What one token may have at most, whoever else is there: rows a second, rows and bytes that wait.

A cap is the token's own; what all share is bounded by `fair_share.py` and the queue itself, and who goes
first is the scheduler's. Pure: time is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.access.caller import Shares
from server.errors import QuotaExceeded
from server.scheduling.token_bucket import TokenBucket

__all__ = ["Caps"]

_SOON_S = 1.0  # until some of what waits has left, as a guess
_FORGET_EVERY = 1024


@dataclass(slots=True)
class _Held:
    rows: int = 0
    nbytes: int = 0


class Caps:
    """Of all callers; nothing is kept of one that has no cap, or has nothing waiting and owes nothing."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._most_buckets = _FORGET_EVERY

    def take(self, now_s: float, caller: str, shares: Shares, rows: int, nbytes: int) -> None:
        """Rows come. Raises `QuotaExceeded`, and then nothing is taken; `give` them back once, or `undo` it.

        Who has nothing waiting may have any one request: it would never run otherwise.
        """
        bucket = self._bucket(now_s, caller, shares.rows_per_s) if shares.rows_per_s > 0 else None
        if bucket is not None and (wait_s := bucket.wait_s(now_s)) > 0:
            message = f"this token may ask for {shares.rows_per_s:g} rows/s; try again in {wait_s:.2g} s"
            raise QuotaExceeded(message, wait_s)
        if shares.queued_rows or shares.queued_bytes:
            held = self._held.get(caller) or _Held()
            if held.rows:
                _check(shares.queued_rows, held.rows + rows, "rows")
                _check(shares.queued_bytes, held.nbytes + nbytes, "bytes")
            self._held[caller] = held
            held.rows += rows
            held.nbytes += nbytes
        if bucket is not None:
            bucket.take(now_s, rows)

    def give(self, caller: str, shares: Shares, rows: int, nbytes: int) -> None:
        """They wait no more."""
        if not shares.queued_rows and not shares.queued_bytes:
            return
        held = self._held[caller]
        held.rows -= rows
        held.nbytes -= nbytes
        if not held.rows:
            del self._held[caller]

    def undo(self, now_s: float, caller: str, shares: Shares, rows: int, nbytes: int) -> None:
        """They were refused after all: they wait no more, and nothing is owed for them."""
        self.give(caller, shares, rows, nbytes)
        bucket = self._buckets.get(caller) if shares.rows_per_s > 0 else None
        if bucket is not None:
            bucket.take(now_s, -rows)

    def _bucket(self, now_s: float, caller: str, rate: float) -> TokenBucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= self._most_buckets:
                self._buckets = {one: each for one, each in self._buckets.items() if not each.is_full(now_s)}
                self._most_buckets = 2 * len(self._buckets) + _FORGET_EVERY
            bucket = self._buckets[caller] = TokenBucket.full(rate, now_s)
        bucket.rate = rate
        return bucket


def _check(cap: int, wanted: int, what: str) -> None:
    if cap and wanted > cap:
        raise QuotaExceeded(f"{wanted} {what} of this token would wait, and it may have {cap}", _SOON_S)
