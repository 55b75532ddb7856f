"""`make bench-selection`: what it costs in the scheduler's core that rows are asked of members one by one.

CPU time of a row's whole way: `submit`, its share of `next_action` until it is answered, and of `finished` of
every batch that it is in. Beside it the ordinary lane, where a row goes to all members in one message. The
clock is not real, and workers answer when their time has come; the loop that plays them is in all figures.
Rounds are interleaved, so that the machine's mood cancels in what selection adds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from rich.table import Table

from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, SelectionPolicy
from server.scheduling.core import (
    AnswerKnown,
    FunctionSpec,
    Idle,
    MemberSpec,
    RunBatch,
    Scheduler,
    Submission,
    WorkerView,
)
from server.scheduling.latency_model import LatencyModel
from tests.benchmarks.report import console, write_json
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of

ORDINARY = "all, one message"
POLICIES = ("value", "gear", "slackfit", "async", "best", "all", "exp3")
ROWS = (1, 32, 1000)
MEMBERS = {2: (0.7, 0.85), 3: (0.6, 0.75, 0.9), 6: (0.6, 0.65, 0.7, 0.75, 0.8, 0.9)}
MAX_BATCH = 64
LOAD = 0.7  # of what the worker can do where every row goes to all members
TARGET_US = 5.0


@dataclass
class Cost:
    """CPU time of one contender, µs a row, a figure of each round; and how its rows went."""

    us_a_row: list[float] = field(default_factory=list)
    batches: int = 0
    rows_a_batch: float = 0.0
    members_a_row: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.us_a_row)


def main() -> None:
    flags = _parser().parse_args()
    found: list[dict[str, Any]] = []
    for members in MEMBERS:
        for rows in ROWS:
            costs = measured(members, rows, flags.rows, flags.repeats)
            found += _printed(members, rows, costs)
    write_json(
        "selection_cost", {"rows_a_round": flags.rows, "repeats": flags.repeats, "load": LOAD, "cells": found}
    )


def measured(members: int, rows: int, total: int, repeats: int) -> dict[str, Cost]:
    """Every contender in turn, round after round."""
    outcomes = outcomes_of(*drawn(MEMBERS[members]))
    ensemble = ensemble_of(outcomes, [0.05 * 1.6**number for number in range(members)])
    sure = [each for subset in outcomes.confidence for each in outcomes.confidence[subset]]
    Random(0).shuffle(sure)
    policies: dict[str, SelectionPolicy | None] = {ORDINARY: None}
    policies |= {name: selection_policy(name, ensemble) for name in POLICIES}
    costs: dict[str, Cost] = defaultdict(Cost)
    for _ in range(repeats + 1):  # the first one warms up
        for name, policy in policies.items():
            _round(costs[name], ensemble, policy, sure, rows, total)
    for cost in costs.values():
        del cost.us_a_row[0]
    return costs


def _round(
    cost: Cost,
    ensemble: Ensemble,
    policy: SelectionPolicy | None,
    sure: Sequence[float],
    rows: int,
    total: int,
) -> None:
    latencies = [
        {size: each.fixed_s + size * each.per_row_s for size in (1, MAX_BATCH)} for each in ensemble.members
    ]
    whole_s = sum(each[MAX_BATCH] for each in latencies)
    every_s = rows * whole_s / MAX_BATCH / LOAD
    goal_s = max(0.5, 20 * rows * whole_s / MAX_BATCH)
    specs = tuple(
        MemberSpec(each.name, each.accuracy, LatencyModel(latency))
        for each, latency in zip(ensemble.members, latencies, strict=True)
    )
    core = Scheduler()
    sizes = (1, 2, 4, 8, 16, 32, MAX_BATCH)
    core.configure(
        0.0, FunctionSpec("f", goal_s, MAX_BATCH, sizes, specs, "goodput", {}, 10**9, 10**9, pooled=True)
    )
    names = [each.name for each in specs]
    core.set_worker(0.0, WorkerView("w", True, frozenset(names)))
    if policy is not None:
        core.follow(0.0, "f", "", ensemble, policy)
    took_s = dict(zip(names, latencies, strict=True))
    requests = max(8, total // rows)
    arrivals_s = [number * every_s for number in range(requests)]
    gc.collect()
    began_s = time.process_time()
    answered, batches, asked = _play(core, rows, arrivals_s, took_s, sure)
    cost.us_a_row.append(1e6 * (time.process_time() - began_s) / (rows * requests))
    assert answered == rows * requests, f"{rows * requests - answered} rows were not answered"
    cost.batches, cost.members_a_row = batches, asked / answered
    cost.rows_a_batch = asked / batches if policy is not None else answered / batches


def _play(
    core: Scheduler,
    rows: int,
    arrivals_s: Sequence[float],
    took_s: dict[str, dict[int, float]],
    sure: Sequence[float],
) -> tuple[int, int, int]:
    """Rows answered, batches, and rows asked of a member."""
    answered = batches = asked = number = at = 0
    last = len(sure) - MAX_BATCH
    ends: list[tuple[float, int, int, bool]] = []
    free_s = wake_s = 0.0
    while number < len(arrivals_s) or ends or answered < rows * number:
        now_s = wake_s
        if ends and ends[0][0] < now_s:
            now_s = ends[0][0]
        if number < len(arrivals_s) and arrivals_s[number] < now_s:
            now_s = arrivals_s[number]
        while number < len(arrivals_s) and arrivals_s[number] <= now_s:
            core.submit(now_s, Submission(number, "f", rows, 100 * rows))
            number += 1
        while ends and ends[0][0] <= now_s:
            _, batch_id, count, is_pooled = heappop(ends)
            if is_pooled:
                at = (at + count) % last
                core.finished(now_s, batch_id, sure=sure[at : at + count])
            else:
                core.finished(now_s, batch_id)
                answered += count
        while not isinstance(action := core.next_action(now_s), Idle):
            if isinstance(action, RunBatch):
                per_s = 0.0
                for member in action.members:
                    one_s, most_s = took_s[member].values()
                    per_s += one_s + (most_s - one_s) * (action.rows - 1) / (MAX_BATCH - 1)
                free_s = max(free_s, now_s) + per_s
                heappush(ends, (free_s, action.batch_id, action.rows, bool(action.choices)))
                batches += 1
                asked += action.rows * len(action.members)
            elif isinstance(action, AnswerKnown):
                for part, _ in action.parts:
                    answered += part.rows
            else:
                raise AssertionError(f"nothing should be too late: {action}")
        wake_s = max(action.until_s, now_s + 1e-6)
    return answered, batches, asked


def _printed(members: int, rows: int, costs: dict[str, Cost]) -> list[dict[str, Any]]:
    table = Table(
        "", "µs a row", "selection adds", "min to max", "of the ordinary", "rows a batch", "members a row",
        title=f"{members} members, requests of {rows:,} rows",
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    base = costs[ORDINARY].us_a_row
    for name, cost in costs.items():
        added = [us - ordinary for us, ordinary in zip(cost.us_a_row, base, strict=True)]
        ratio = statistics.median(us / ordinary for us, ordinary in zip(cost.us_a_row, base, strict=True))
        table.add_row(
            name,
            f"{cost.median:.2f}",
            f"{statistics.median(added):+.2f}",
            f"{min(added):+.2f} to {max(added):+.2f}",
            f"{ratio:.2f}",
            f"{cost.rows_a_batch:.0f}",
            f"{cost.members_a_row:.2f}",
        )
        records.append(
            {
                "members": members,
                "rows": rows,
                "select": name,
                "us_a_row": [round(us, 3) for us in cost.us_a_row],
                "added_us": [round(us, 3) for us in added],
                "added_us_median": round(statistics.median(added), 3),
                "ratio": round(ratio, 3),
                "batches": cost.batches,
                "rows_a_batch": round(cost.rows_a_batch, 1),
                "members_a_row": round(cost.members_a_row, 3),
                "is_met": statistics.median(added) <= TARGET_US,
            }
        )
    console.print(table)
    return records


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000, help="of each round")
    parser.add_argument("--repeats", type=int, default=7)
    return parser


if __name__ == "__main__":
    main()
