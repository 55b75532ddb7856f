"""The rows of one lane that wait, in the order in which they would run.

Order: higher priority, then earlier goal, then arrival. Sorted lists: an insertion or a removal moves
pointers (microseconds at ten thousand requests), a decision touches only the rows it looks at. Knows
nothing of batches, workers or time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from server.scheduling.policy import RowRun
from server.scheduling.terms import Slice

__all__ = ["RowQueue"]

_Key = tuple[int, float, int, int]  # -priority, due, order of arrival, offset


class RowQueue:
    """Runs of rows, ordered. `rows` and `nbytes` are totals."""

    __slots__ = ("_arrivals", "_by_request", "_keys", "_runs", "nbytes", "rows")

    def __init__(self) -> None:
        self._keys: list[_Key] = []
        self._runs: list[RowRun] = []
        self._by_request: dict[int, list[_Key]] = {}
        self._arrivals = 0
        self.rows = 0
        self.nbytes = 0.0

    @property
    def runs(self) -> Sequence[RowRun]:
        """The live queue, to read and not to keep."""
        return self._runs

    @property
    def requests(self) -> Iterable[int]:
        """Whose rows wait."""
        return self._by_request

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_request

    def add(self, run: RowRun) -> None:
        """Queue a run."""
        self._arrivals += 1
        self._insert((-run.priority, run.due_s, self._arrivals, run.offset), run)
        self.rows += run.rows
        self.nbytes += run.rows * run.row_bytes

    def after(self, skip: int) -> RowRun:
        """The run that holds the row after the `skip` first ones. Raises IndexError past the end."""
        for run in self._runs:
            if skip < run.rows:
                return run
            skip -= run.rows
        raise IndexError(f"no row after {skip} more than the queue holds")

    def rows_before(self, priority: int, due_s: float) -> int:
        """How many rows would run before one that came now: of a long queue's middle at least so many."""
        keys, key = self._keys, (-priority, due_s, self._arrivals + 1, 0)
        return self.rows if not keys or key > keys[-1] else bisect_left(keys, key)

    def take(self, rows: int, skip: int = 0) -> list[RowRun]:
        """Remove `rows` rows after the `skip` first ones. Raises ValueError if there are not so many."""
        if rows < 1 or skip < 0 or skip + rows > self.rows:
            raise ValueError(f"cannot take {rows} rows after {skip} of a queue of {self.rows}")
        first = 0
        while skip and skip >= self._runs[first].rows:
            skip -= self._runs[first].rows
            first += 1
        if skip:
            self._split(first, skip)
            first += 1
        last, left = first, rows
        while left and left >= self._runs[last].rows:
            left -= self._runs[last].rows
            last += 1
        if left:
            self._split(last, left)
            last += 1
        return self._delete(first, last)

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out what is left of a request; empty if it is not here."""
        gone: list[RowRun] = []
        for key in self._by_request.get(request_id, [])[:]:
            at = bisect_left(self._keys, key)
            gone += self._delete(at, at + 1)
        return gone

    def remove_part(self, part: Slice) -> list[RowRun]:
        """Take out those of these rows of a request that are here."""
        gone: list[RowRun] = []
        end = part.offset + part.rows
        for key in self._by_request.get(part.request_id, [])[:]:
            at = bisect_left(self._keys, key)
            run = self._runs[at]
            before, after = part.offset - run.offset, run.offset + run.rows - end
            if before >= run.rows or after >= run.rows:
                continue
            if after > 0:
                self._split(at, run.rows - after)
            if before > 0:
                self._split(at, before)
                at += 1
            gone += self._delete(at, at + 1)
        return gone

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        return self._delete(0, len(self._runs))

    def _insert(self, key: _Key, run: RowRun) -> None:
        keys = self._keys
        at = len(keys) if not keys or key > keys[-1] else bisect_left(keys, key)
        keys.insert(at, key)
        self._runs.insert(at, run)
        self._by_request.setdefault(run.request_id, []).append(key)

    def _split(self, at: int, rows: int) -> None:
        """Cut the run at `at` into its first `rows` rows and the rest."""
        run, key = self._runs[at], self._keys[at]
        self._runs[at] = run.part(run.offset, rows)
        rest = run.part(run.offset + rows, run.rows - rows)
        rest_key = (key[0], key[1], key[2], rest.offset)
        self._runs.insert(at + 1, rest)
        self._keys.insert(at + 1, rest_key)
        self._by_request[run.request_id].append(rest_key)

    def _delete(self, first: int, last: int) -> list[RowRun]:
        gone = self._runs[first:last]
        self._forget(zip(gone, self._keys[first:last], strict=True))
        del self._runs[first:last]
        del self._keys[first:last]
        self.rows -= sum(run.rows for run in gone)
        self.nbytes = self.nbytes - sum(run.rows * run.row_bytes for run in gone) if self._runs else 0.0
        return gone

    def _forget(self, entries: Iterable[tuple[RowRun, _Key]]) -> None:
        for run, key in entries:
            keys = self._by_request[run.request_id]
            if len(keys) == 1:
                del self._by_request[run.request_id]
            else:
                keys.remove(key)
