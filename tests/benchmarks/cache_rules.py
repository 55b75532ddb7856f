"""`make bench-cache-rules`: which answers a cache keeps. Hits of each eviction rule, and what it costs.

Hit rates are shares of the hits that a cache without bounds would have, over traces (`cache_traces.py`) and
sizes of the cache, seeds paired; beside Belady's, which knows what comes. Costs are of one thread, in
nanoseconds for a hit, and for what comes into a full cache and what leaves for it, without the store's part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from numpy.random import default_rng
from rich.table import Table

from server.cache.rule import MakeRule
from server.cache.rules.by_name import RULES
from tests.benchmarks.cache_belady import belady
from tests.benchmarks.cache_traces import LOOP_SHARES, SHARES, TRACES, hit_rate, trace_of
from tests.benchmarks.figures import apart, give_way, spread, wide
from tests.benchmarks.report import say, write_json

NAMES = [*RULES, "belady"]
REPORTED, TUNING = 1_000, 5_000  # the first seed: no constant may be chosen on those that are reported
_COSTS = 20_000  # answers that are held while costs are taken
_ROWS = 100  # of a request
_NS = 1e9


def main() -> None:
    flags = _parser().parse_args()
    give_way()
    first = TUNING if flags.set == "tune" else REPORTED
    requests = 20_000 if flags.quick else 100_000
    seeds = range(first, first + (2 if flags.quick else flags.seeds))
    cells = []
    for mixed in (False, True):
        found = [
            _cell(name, share, seeds, requests, mixed=mixed) for name in TRACES for share in _shares(name)
        ]
        _print_cells("answers of three sizes" if mixed else "answers of one size", found)
        cells += found
    costs = [_cost(name, make, rounds=3 if flags.quick else 9) for name, make in RULES.items()]
    _print_costs(costs)
    write_json("cache-rules", {"requests": requests, "seeds": list(seeds), "cells": cells, "costs": costs})


# ── hits ─────────────────────────────────────────────────────────────────────────────────────────────


def _shares(trace: str) -> Sequence[float]:
    return LOOP_SHARES if trace == "a loop" else SHARES


def _cell(trace: str, share: float, seeds: Sequence[int], requests: int, *, mixed: bool) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    for seed in seeds:
        asked = trace_of(TRACES[trace](default_rng(seed), requests), seed, mixed=mixed)
        capacity = int(share * asked.again_bytes)
        for name, make in RULES.items():
            rates[name].append(100 * hit_rate(make, capacity, asked))
        rates["belady"].append(100 * hit_rate(belady(asked.keys), capacity, asked))
    told = ", ".join(f"{name} {statistics.mean(found):.1f}" for name, found in rates.items())
    say(f"{trace}, {share:.0%}{', three sizes' if mixed else ''}: {told}")  # a run takes long
    return {"trace": trace, "share": share, "mixed": mixed, "rates": rates}


def _print_cells(title: str, cells: Sequence[dict[str, Any]]) -> None:
    table = Table("asked", "cache", *NAMES, "best − clock", title=f"hits, % of all that can be; {title}")
    for cell in cells:
        rates = cell["rates"]
        means = {name: statistics.mean(rates[name]) for name in RULES}
        best = max(means, key=means.__getitem__)
        shown = [f"[bold]{spread(rates[name])}[/]" if name == best else spread(rates[name]) for name in NAMES]
        table.add_row(cell["trace"], f"{cell['share']:.0%}", *shown, apart(rates[best], rates["clock"]))
    below = {name: statistics.mean(_below_best(cell["rates"], name) for cell in cells) for name in RULES}
    worst = {name: max(_below_best(cell["rates"], name) for cell in cells) for name in RULES}
    table.add_row("below the best rule: mean", "", *(f"{below[name]:.1f}" for name in RULES), "", "")
    table.add_row("below the best rule: most", "", *(f"{worst[name]:.1f}" for name in RULES), "", "")
    wide.print(table)


def _below_best(rates: dict[str, list[float]], name: str) -> float:
    """How far a rule's mean is below that of the best of those that can be run."""
    return max(statistics.mean(rates[each]) for each in RULES) - statistics.mean(rates[name])


# ── costs ────────────────────────────────────────────────────────────────────────────────────────────


def _cost(name: str, make: MakeRule, rounds: int) -> dict[str, Any]:
    """Of each round the ns of a hit, and of an admission for which another entry leaves."""
    hits, changes = [], []
    for _ in range(rounds):
        rule = make(_COSTS, lambda key: 1)
        held: set[bytes] = set()
        for keys in _made(0, 2 * _COSTS):
            rule.add(keys, len(keys))
            held.update(keys)
            while len(held) > _COSTS:
                held.remove(rule.evict())
        asked = list(held)
        began_s = time.thread_time()
        for _ in range(3):
            for first in range(0, len(asked), _ROWS):
                rule.hit(asked[first : first + _ROWS])
        hits.append(_NS * (time.thread_time() - began_s) / (3 * len(asked)))
        new = _made(2 * _COSTS, 2 * _COSTS)
        began_s = time.thread_time()
        for keys in new:
            rule.add(keys, len(keys))
            for _ in keys:
                rule.evict()
        changes.append(_NS * (time.thread_time() - began_s) / (2 * _COSTS))
    return {"rule": name, "hit_ns": hits, "change_ns": changes}


def _made(first: int, count: int) -> list[list[bytes]]:
    """Keys, as many at a time as a request has rows."""
    keys = [number.to_bytes(16, "little") for number in range(first, first + count)]
    return [keys[at : at + _ROWS] for at in range(0, count, _ROWS)]


def _print_costs(costs: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "rule", "ns a hit", "least", "ns a new one for an old one", "least", title="what a rule costs"
    )
    for cost in costs:
        hit, change = cost["hit_ns"], cost["change_ns"]
        table.add_row(
            cost["rule"],
            f"{statistics.median(hit):.0f}",
            f"{min(hit):.0f}",
            f"{statistics.median(change):.0f}",
            f"{min(change):.0f}",
        )
    wide.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests and seeds: does it run?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", choices=("report", "tune"), default="report", help="which seeds")
    return parser


if __name__ == "__main__":
    main()
