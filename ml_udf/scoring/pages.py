"""A page of rows on their way: what a store reads, and gets back with answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ml_udf.client.column import Value
from ml_udf.client.statement import Outcome

__all__ = ["Key", "Page", "Store", "first_rows", "next_rows"]

PAGE_BYTES = 64 << 20
FIRST_ROWS = {"bytes": 32, "text": 256}  # until it is known how large the values are

Key = tuple[str, ...]  # of one row: its key columns as text


@dataclass(slots=True)
class Page:
    """Rows in the order of their key. `hashes[i]` is the same for equal inputs alone."""

    keys: list[Key] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, begin: int, end: int) -> Page:
        """The rows from `begin` up to `end`."""
        return Page(self.keys[begin:end], self.hashes[begin:end], self.values[begin:end])

    @property
    def nbytes(self) -> int:
        """About how much memory the inputs take."""
        return sum(_nbytes(value) for value in self.values)


class Store(Protocol):
    """The table and its answers. Every method leaves no transaction open.

    gathers: whether a transaction costs it more than its rows; then `write` is called by a thread of its own,
    for many pages at once, while others are read.
    """

    gathers: bool

    def due_rows(self, row_limit: int | None) -> int:
        """How many rows are due, counted up to `row_limit`."""
        ...

    def page(self, after: Key | None, rows: int) -> Page:
        """The next rows that are due, behind the key `after`; at most `rows`, none at the end."""
        ...

    def write(self, page: Page, answers: Sequence[Outcome], version: str) -> int:
        """Store answers in one transaction, committed on return.

        Returns how many rows were stored: a row that changed since it was read, or is gone, or is no
        longer due, is not.
        """
        ...

    def stop_writing(self) -> None:
        """Let a `write` of another thread end soon, whatever comes of it."""
        ...


def next_rows(page: Page, batch_rows: int) -> int:
    """How many rows the next page may have, so that some of them fit into memory."""
    return max(1, min(batch_rows, PAGE_BYTES * len(page) // max(1, page.nbytes)))


def first_rows(input_kind: str, batch_rows: int) -> int:
    """How many rows the first page may have."""
    return min(batch_rows, FIRST_ROWS.get(input_kind, batch_rows))


def _nbytes(value: Value) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return 8 * len(value) if isinstance(value, Sequence) else 8
