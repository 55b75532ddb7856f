"""What happened in a stretch of time: differences between two looks at the counters.

    Metrics ── read ──→ Reading, Reading ── between ──→ Stretch ── + ──→ a longer Stretch

Pure plain numbers, which pages show and the history keeps. Knows no page and no database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.observability.stats import LATENCY_S, FunctionStats

__all__ = ["OTHERS", "Counts", "Reading", "Stretch", "between", "counts_of", "quantile_s", "reading_of"]


OTHERS = ""  # functions that are not told apart; no function is called so
_NUMBERS = ("rows", "row_errors", "requests", "batches", "batch_rows", "cached_rows")
_MOST_FUNCTIONS = 20  # of a stretch that is kept, the busiest
_MOST_CODES = 8


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one function, all its versions together. rows and requests: answered ones · latency: requests by
    upper bound, `LATENCY_S` and everything above · errors: requests by code · cached_rows: of the rows, those
    that were answered by what was kept
    """

    rows: int = 0
    row_errors: int = 0
    requests: int = 0
    batches: int = 0
    batch_rows: int = 0
    latency: tuple[int, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    cached_rows: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(
            self.rows + other.rows,
            self.row_errors + other.row_errors,
            self.requests + other.requests,
            self.batches + other.batches,
            self.batch_rows + other.batch_rows,
            _sum(self.latency, other.latency, 1),
            dict(Counter(self.errors) + Counter(other.errors)),
            self.cached_rows + other.cached_rows,
        )

    def since(self, before: Counts) -> Counts:
        """What came since; a version that is served no more takes its counts along, and counts as nothing."""
        return Counts(
            max(0, self.rows - before.rows),
            max(0, self.row_errors - before.row_errors),
            max(0, self.requests - before.requests),
            max(0, self.batches - before.batches),
            max(0, self.batch_rows - before.batch_rows),
            tuple(max(0, each) for each in _sum(self.latency, before.latency, -1)),
            {
                code: more
                for code, now in self.errors.items()
                if (more := now - before.errors.get(code, 0)) > 0
            },
            max(0, self.cached_rows - before.cached_rows),
        )

    def to_json(self) -> dict[str, Any]:
        """As the history keeps it: what is 0 is left out."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        codes = Counter(self.errors).most_common(_MOST_CODES)
        told: dict[str, Any] = {name: number for name, number in numbers.items() if number}
        if any(self.latency):
            told["latency"] = list(self.latency)
        return told | ({"errors": dict(codes)} if codes else {})

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Counts:
        """What `to_json` wrote."""
        numbers = {name: int(told.get(name, 0)) for name in _NUMBERS}
        errors = {str(code): int(count) for code, count in told.get("errors", {}).items()}
        latency = tuple(map(int, told.get("latency", ())))
        return cls(**numbers, latency=latency if len(latency) == len(LATENCY_S) + 1 else (), errors=errors)

    @property
    def is_nothing(self) -> bool:
        """Whether nothing happened."""
        return not (self.rows or self.requests or self.batches or self.errors)

    @property
    def cached(self) -> float | None:
        """The share of the rows that was answered by what was kept; None where there were no rows."""
        return self.cached_rows / self.rows if self.rows else None

    @property
    def rows_a_batch(self) -> float | None:
        """On average; None where there was no batch."""
        return self.batch_rows / self.batches if self.batches else None

    def quantile_s(self, share: float) -> float | None:
        """The latency, in seconds, that so many of the requests kept; None where there were none."""
        return quantile_s(self.latency, share)


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment. at_s: monotonic · waiting: rows by function · used_bytes: of devices"""

    at_s: float
    functions: Mapping[str, Counts]
    unresolved: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened in so many seconds, by function. waiting: the most rows that were seen waiting.

    unresolved: requests that named nothing served, by code. used_bytes: of devices, at the end.
    """

    seconds: float = 0.0
    functions: Mapping[str, Counts] = field(default_factory=dict)
    unresolved: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    used_bytes: int = 0

    def __add__(self, later: Stretch) -> Stretch:
        """Both, one after the other."""
        names = self.functions.keys() | later.functions.keys()
        nothing = Counts()
        waits = self.waiting.keys() | later.waiting.keys()
        return Stretch(
            self.seconds + later.seconds,
            {name: self.functions.get(name, nothing) + later.functions.get(name, nothing) for name in names},
            dict(Counter(self.unresolved) + Counter(later.unresolved)),
            {name: max(self.waiting.get(name, 0), later.waiting.get(name, 0)) for name in waits},
            later.used_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """As the history keeps it, of a bounded size: functions beyond the busiest ones are added up."""
        by_rows = sorted(self.functions.items(), key=lambda pair: (-pair[1].rows, -pair[1].requests))
        kept = dict(by_rows[:_MOST_FUNCTIONS])
        if rest := by_rows[_MOST_FUNCTIONS:]:
            kept[OTHERS] = sum((counts for _, counts in rest), kept.get(OTHERS, Counts()))
        waiting = sorted(self.waiting.items(), key=lambda pair: -pair[1])[:_MOST_FUNCTIONS]
        return {
            "seconds": round(self.seconds, 3),
            "functions": {name: counts.to_json() for name, counts in kept.items()},
            "unresolved": dict(Counter(self.unresolved).most_common(_MOST_CODES)),
            "waiting": dict(waiting),
            "used_bytes": self.used_bytes,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Stretch:
        """What `to_json` wrote. Raises KeyError, TypeError, ValueError, AttributeError for anything else."""
        return cls(
            float(told["seconds"]),
            {str(name): Counts.from_json(counts) for name, counts in told["functions"].items()},
            {str(code): int(count) for code, count in told["unresolved"].items()},
            {str(name): int(rows) for name, rows in told["waiting"].items()},
            int(told["used_bytes"]),
        )

    def of(self, names: Iterable[str]) -> Counts:
        """These functions together."""
        total = Counts()
        for name in names:
            total += self.functions.get(name, Counts())
        return total

    def per_s(self, number: float) -> float | None:
        """A number of the stretch by second."""
        return number / self.seconds if self.seconds else None


def counts_of(stats: FunctionStats) -> Counts:
    """The counters of one version as they are now."""
    return Counts(
        stats.rows,
        stats.row_errors,
        stats.success.count,
        stats.batches,
        int(stats.batch_rows.total),
        tuple(stats.latency.counts),
        dict(stats.errors),
        stats.cache.hits,
    )


def between(before: Reading, after: Reading) -> Stretch:
    """What happened from one look to a later one."""
    nothing = Counts()
    functions = {
        name: counts.since(before.functions.get(name, nothing)) for name, counts in after.functions.items()
    }
    unresolved = Counter(after.unresolved) - Counter(before.unresolved)
    return Stretch(
        after.at_s - before.at_s,
        {name: counts for name, counts in functions.items() if not counts.is_nothing},
        dict(unresolved),
        {name: rows for name, rows in after.waiting.items() if rows},
        after.used_bytes,
    )


def quantile_s(latency: Sequence[int], share: float) -> float | None:
    """Of requests counted by upper bound: between two bounds they are taken to lie evenly.

    Of those above the last bound nothing more is known than that. None where there are none.
    """
    wanted = share * sum(latency)
    if not wanted:
        return None
    seen, lower_s = 0.0, 0.0
    for upper_s, count in zip(LATENCY_S, latency, strict=False):
        if count and seen + count >= wanted:
            return lower_s + (upper_s - lower_s) * (wanted - seen) / count
        seen, lower_s = seen + count, upper_s
    return lower_s


def _sum(one: Sequence[int], other: Sequence[int], sign: int) -> tuple[int, ...]:
    if not one:
        return tuple(sign * each for each in other)
    if not other:
        return tuple(one)
    return tuple(mine + sign * theirs for mine, theirs in zip(one, other, strict=True))


def reading_of(
    at_s: float,
    stats: Iterable[tuple[tuple[str, int], FunctionStats]],
    unresolved: Mapping[str, int],
    queue_depth: Mapping[tuple[str, int], tuple[int, int]],
    used_bytes: int = 0,
) -> Reading:
    """The counters as they are. queue_depth: (function, version) → rows and bytes that wait."""
    functions: dict[str, Counts] = {}
    for (name, _), each in stats:
        counts = counts_of(each)
        functions[name] = functions[name] + counts if name in functions else counts
    waiting: Counter[str] = Counter()
    for (name, _), (rows, _) in queue_depth.items():
        waiting[name] += rows
    return Reading(at_s, functions, dict(unresolved), waiting, used_bytes)
