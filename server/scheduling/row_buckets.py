"""Rows that wait for a member, by what they need next: those of higher priority first, then by their goal.

Knows neither members nor devices; a row knows its evidence and its choice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from server.ensemble.selection import Choice, RowEvidence
from server.scheduling.policy import RowRun

__all__ = ["PooledRow", "RowBuckets", "order_of"]


@dataclass(slots=True, eq=False)
class PooledRow:
    """A row of the pool; `waits`: in a bucket, and not only under way. is_late: its goal has passed."""

    number: int
    run: RowRun
    evidence: RowEvidence
    choice: Choice
    waits: bool = False
    is_late: bool = False


def order_of(row: PooledRow) -> tuple[int, float]:
    """Higher priority first, then the sooner goal."""
    return -row.run.priority, row.run.due_s


class RowBuckets:
    """`states`: how many states of evidence there are."""

    def __init__(self, states: int) -> None:
        self._buckets: dict[Choice, list[PooledRow]] = {}
        self.counts = [0] * states  # waiting rows, by state of evidence

    def items(self) -> Iterable[tuple[Choice, list[PooledRow]]]:
        """Every need that a row has, and its rows; none is empty."""
        return self._buckets.items()

    def put(self, row: PooledRow) -> None:
        """Have it wait for what its choice says."""
        bucket = self._buckets.get(row.choice)
        if bucket is None:
            self._buckets[row.choice] = [row]
        elif order_of(bucket[-1]) <= order_of(row):
            bucket.append(row)
        else:
            insort(bucket, row, key=order_of)
        row.waits = True
        self.counts[row.evidence.state] += 1

    def take(self, row: PooledRow) -> None:
        """Take out one row."""
        self.take_all((row,))

    def take_all(self, rows: Iterable[PooledRow]) -> None:
        """Take out rows that wait."""
        touched: dict[Choice, None] = {}
        for row in rows:
            row.waits = False
            self.counts[row.evidence.state] -= 1
            touched[row.choice] = None
        for choice in touched:
            left = [row for row in self._buckets[choice] if row.waits]
            if left:
                self._buckets[choice] = left
            else:
                del self._buckets[choice]

    def drain(self) -> Iterator[PooledRow]:
        """Take out all."""
        rows = [row for bucket in self._buckets.values() for row in bucket]
        self.take_all(rows)
        return iter(rows)
