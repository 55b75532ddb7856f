"""Requests as dashboards, scans and callers make them, to replay eviction rules on. Seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from server.cache.rule import MakeRule

__all__ = ["LOOP_SHARES", "SHARES", "TRACES", "Trace", "hit_rate", "replayed", "trace_of"]

SHARES = (0.01, 0.05, 0.1, 0.25)  # of the bytes of all that is asked more than once
LOOP_SHARES = (0.5, 0.8, 0.9, 0.95)
_LABEL, _SCORES, _EMBEDDING = 350, 900, 3_400  # bytes of an answer with all that keeps it
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trace:
    """keys: of the requests in turn. nbytes: of the answer of each. again_bytes: of all that come twice."""

    keys: Sequence[bytes]
    nbytes: Sequence[int]
    again_bytes: int

    @property
    def possible(self) -> int:
        """How many hits a cache without bounds has."""
        return len(self.keys) - len(set(self.keys))


def replayed(make: MakeRule, capacity_bytes: int, trace: Trace) -> int:
    """The hits of a trace in a store of so many bytes."""
    kept: dict[bytes, int] = {}
    held_bytes = hits = 0
    rule = make(capacity_bytes, kept.__getitem__)
    hit, add, evict = rule.hit, rule.add, rule.evict
    for key, nbytes in zip(trace.keys, trace.nbytes, strict=True):
        if key in kept:
            hit((key,))
            hits += 1
            continue
        kept[key] = nbytes
        held_bytes += nbytes
        add((key,), nbytes)
        while held_bytes > capacity_bytes:
            held_bytes -= kept.pop(evict())
    return hits


def hit_rate(make: MakeRule, capacity_bytes: int, trace: Trace) -> float:
    """Hits as a share of those of a cache without bounds: what comes once is nobody's fault."""
    return replayed(make, capacity_bytes, trace) / trace.possible


def trace_of(numbers: Ints, seed: int, *, mixed: bool) -> Trace:
    """numbers: of the inputs in turn, from 0. mixed: answers of three sizes, else of one."""
    names = [blake2b(b"%d of %d" % (n, seed), digest_size=16).digest() for n in range(int(numbers.max()) + 1)]
    sizes = np.full(len(names), _LABEL)
    if mixed:
        sizes = default_rng(seed + 1).choice([_LABEL, _SCORES, _EMBEDDING], len(names), p=[0.6, 0.2, 0.2])
    again = np.bincount(numbers, minlength=len(names)) > 1
    return Trace([names[n] for n in numbers], sizes[numbers].tolist(), int(sizes[again].sum()))


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────


def zipf(alpha: float, rng: Generator, requests: int, keys: int = 50_000) -> Ints:
    """Independent requests; the i-th of the inputs with a probability of i^−alpha."""
    weights = 1.0 / np.arange(1, keys + 1) ** alpha
    drawn = rng.choice(keys, requests, p=weights / weights.sum())
    return rng.permutation(keys)[drawn]


def scan(rng: Generator, requests: int) -> Ints:
    """A hot set, and once a scan of ten times as many rows beside it, none of which comes again."""
    hot = zipf(1.0, rng, requests, 20_000)
    begin = requests // 4
    beside = requests // 2  # requests of the hot set while it lasts
    scanned = 20_000 + np.arange(10 * requests)
    mixed = np.concatenate([hot[begin : begin + beside], scanned])
    order = np.argsort(np.concatenate([rng.random(beside), np.linspace(0, 1, len(scanned))]), kind="stable")
    return np.concatenate([hot[:begin], mixed[order], hot[begin + beside :]])


def dashboards(rng: Generator, requests: int) -> Ints:
    """Forty of them with 50 to 1,000 rows, some in several; each time one is drawn, all its rows come."""
    pages = [rng.choice(30_000, int(rng.integers(50, 1_000)), replace=False) for _ in range(40)]
    weights = 1.0 / np.arange(1, len(pages) + 1) ** 0.8
    found: list[Ints] = []
    while sum(map(len, found)) < requests:
        found.append(pages[rng.choice(len(pages), p=weights / weights.sum())])
    return np.concatenate(found)[:requests]


def drift(rng: Generator, requests: int) -> Ints:
    """A hot set of which each twentieth of the requests replaces a tenth by what was not asked before."""
    ranks = zipf(1.0, rng, requests, 20_000)
    names = np.arange(20_000)
    fresh = len(names)
    found = []
    for part in np.array_split(ranks, 20):
        found.append(names[part])
        replaced = rng.choice(len(names), len(names) // 10, replace=False)
        names[replaced] = fresh + np.arange(len(replaced))
        fresh += len(replaced)
    return np.concatenate(found)


def loop(rng: Generator, requests: int) -> Ints:
    """The same 20,000 rows from the first to the last, again and again; one in ten requests is another's."""
    rows = np.arange(requests) % 20_000
    others = rng.random(requests) < 0.1
    rows[others] = rng.integers(0, 20_000, int(others.sum()))
    return rows


TRACES: dict[str, Callable[[Generator, int], Ints]] = {
    **{f"Zipf {alpha}": partial(zipf, alpha) for alpha in (0.6, 0.8, 1.0, 1.2)},
    "scan beside a hot set": scan,
    "dashboards that repeat": dashboards,
    "a hot set that drifts": drift,
    "a loop": loop,
}
