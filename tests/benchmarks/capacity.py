"""`make bench-capacity`: how capacity follows the load. INFaaS's experiments, simulated, under every policy.

The fleet is simulated event by event with real batches (capacity_fleet.py); the policies are the server's.
Loads, profiles and fleets: capacity_loads.py. Cost is 1 for a gigabyte and second of copies on a CPU, 7.97 on
a GPU. Rows over the goal are late or refused. A reversal turns round, within 30 s, what was done to the same
function or kind of worker. Seeds of `--set report` were not used to set any constant (`--set tune` draws
those that were). Then all of it with service 20 % slower than the profiles that policies see.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from server.capacity.policies.by_name import POLICIES, policy_named
from server.capacity.policy import Policy
from tests.benchmarks.capacity_fleet import FleetSimulation, Outcome
from tests.benchmarks.capacity_loads import FIGURE_12, ONE_FUNCTION, scene_of_many, scene_of_one
from tests.benchmarks.capacity_oracle import Oracle
from tests.benchmarks.figures import spread, wide
from tests.benchmarks.report import say, write_json

REPORTED, TUNING = 1_000, 5_000  # the first seed of each set
BASE = "infaas"
SLOWER = 1.2
# Load, policy → at most so much of INFaaS's cost, at most such a share late: of its own share, or absolute.
TARGETS: dict[tuple[str, str], tuple[float, float, str]] = {
    ("flat", "forecast"): (0.5, 0.01, "absolute"),
    ("steady", "forecast"): (1.02, 0.001, "absolute"),
    ("fluctuating", "forecast"): (1.25, 0.5, "of INFaaS's"),
    ("fluctuating", "forecast-warm"): (1.0, 0.25, "of INFaaS's"),
    ("Twitter-like", "forecast"): (1.1, 0.5, "of INFaaS's"),
    ("step", "forecast"): (1.02, 0.8, "of INFaaS's"),
    ("step", "forecast-warm"): (float("inf"), 0.003, "absolute"),
    (FIGURE_12, "forecast"): (0.9, 0.6, "of INFaaS's"),
}
_MOST_ACTIONS = 1 / 3  # of INFaaS's, in Figure 12


@dataclass(frozen=True)
class Job:
    """One run."""

    load: str
    policy: str
    seed: int
    slower: float = 1.0
    rows: int = 113_420
    seconds: int = 300


def main() -> None:
    flags = _parser().parse_args()
    flags.seeds = flags.seeds or (1 if flags.quick else 10)
    began_s = time.perf_counter()
    first = TUNING if flags.set == "tune" else REPORTED
    jobs = list(_jobs(flags, range(first, first + flags.seeds)))
    found: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(flags.jobs, initializer=os.nice, initargs=(10,)) as pool:
        for done, (job, outcome) in enumerate(zip(jobs, pool.map(run, jobs), strict=True), 1):
            found.setdefault((job.load, job.slower, job.policy), []).append(outcome)
            if done % 20 == 0:
                say(f"{done} of {len(jobs)} runs, {time.perf_counter() - began_s:.0f} s")
    for load, slower in dict.fromkeys(key[:2] for key in found):
        _print_load(load, slower, {key[2]: runs for key, runs in found.items() if key[:2] == (load, slower)})
    verdicts = _verdicts(found)
    _print_verdicts(verdicts)
    _print_times(found)
    took_s = round(time.perf_counter() - began_s, 1)
    say(f"{len(jobs)} runs in {took_s:.0f} s")
    cells = [
        {"load": load, "slower": slower, "policy": policy, "runs": runs}
        for (load, slower, policy), runs in found.items()
    ]
    write_json(
        "capacity",
        {
            "set": flags.set,
            "seeds": [first, flags.seeds],
            "took_s": took_s,
            "targets": verdicts,
            "cells": cells,
        },
    )


def _jobs(flags: argparse.Namespace, seeds: Sequence[int]) -> Sequence[Job]:
    size = {"rows": 3_000, "seconds": 20} if flags.quick else {}
    jobs = [
        Job(load.name, policy, seed, slower)
        for slower in flags.slower
        for load in ONE_FUNCTION
        for policy in _contenders(flags, load.name, slower)
        for seed in seeds
        if load.name in flags.loads
    ]
    many = [
        Job(FIGURE_12, policy, seed, slower, **size)
        for slower in flags.slower
        for policy in _contenders(flags, FIGURE_12, slower)
        for seed in seeds
    ]
    return jobs + (many if FIGURE_12 in flags.loads else [])


def _contenders(flags: argparse.Namespace, load: str, slower: float) -> list[str]:
    """All; where service is slower those that are compared; the oracle knows one function."""
    names = [*POLICIES, "oracle"] if slower == 1 else [BASE, "infaas-warm", "forecast", "forecast-warm"]
    if load == FIGURE_12:
        names = [name for name in names if name != "oracle" and (slower == 1 or "warm" not in name)]
    return [name for name in names if not flags.policies or name in flags.policies]


def run(job: Job) -> dict[str, Any]:
    """One simulation, as plain numbers."""
    if job.load == FIGURE_12:
        scene = scene_of_many(job.seed, job.policy, rows=job.rows, seconds=job.seconds)
    else:
        load = next(one for one in ONE_FUNCTION if one.name == job.load)
        scene = scene_of_one(load, job.seed, job.policy)
    policy: Policy = Oracle(scene) if job.policy == "oracle" else policy_named(job.policy)
    return _plain(job, FleetSimulation(scene, policy, slower=job.slower).run())


def _plain(job: Job, outcome: Outcome) -> dict[str, Any]:
    times = sorted(outcome.decide_ms)
    return {
        "seed": job.seed,
        "cost": round(outcome.cost, 2),
        "rows": outcome.rows,
        "late": outcome.late,
        "actions": len(outcome.actions),
        "reversals": outcome.reversals,
        "refused": len(outcome.refused),
        "worker_s": {kind: round(seconds) for kind, seconds in outcome.worker_s.items()},
        "decide_ms": [round(times[int(share * (len(times) - 1))], 3) for share in (0.5, 0.99, 1.0)],
    }


def _shares(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [100 * one["late"] / max(1, one["rows"]) for one in runs]


def _print_load(load: str, slower: float, runs: dict[str, list[dict[str, Any]]]) -> None:
    title = f"{load}{f', service {slower - 1:.0%} slower than its profile' if slower != 1 else ''}"
    table = Table("policy", "cost", "of infaas's", "over the goal, %", "actions", "reversals", title=title)
    for name, found in runs.items():
        ratios = _ratios(found, runs[BASE]) if BASE in runs else []
        table.add_row(
            name,
            spread([one["cost"] for one in found], 0),
            spread(ratios, 2) if ratios else "",
            spread(_shares(found), 2),
            f"{statistics.mean(one['actions'] for one in found):.1f}",
            f"{statistics.mean(one['reversals'] for one in found):.1f}",
        )
    wide.print(table)


def _ratios(found: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> list[float]:
    return [one["cost"] / other["cost"] for one, other in zip(found, base, strict=True)]


def _verdicts(found: dict[tuple[str, float, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each target beside what came out; the late share's ratio is of the means."""
    verdicts = []
    for (load, policy), (most_cost, most_late, against) in TARGETS.items():
        runs, base = found.get((load, 1.0, policy)), found.get((load, 1.0, BASE))
        warm = found.get((load, 1.0, "infaas-warm"))
        if not runs or not base:
            continue
        cost = statistics.mean(_ratios(runs, base))
        late, theirs = statistics.mean(_shares(runs)), statistics.mean(_shares(base))
        measured = late / 100 if against == "absolute" else late / max(1e-9, theirs)
        verdict: dict[str, Any] = {
            "load": load,
            "policy": policy,
            "cost": round(cost, 3),
            "most_cost": most_cost if most_cost < float("inf") else None,
            "late": round(measured, 5),
            "most_late": most_late,
            "late_is": against,
            "met": cost <= most_cost and measured <= most_late,
        }
        if load == FIGURE_12:
            actions = statistics.mean(one["actions"] for one in runs)
            verdict["actions"] = round(actions / max(1, statistics.mean(one["actions"] for one in base)), 2)
            verdict["met"] = verdict["met"] and verdict["actions"] <= _MOST_ACTIONS
        if warm:
            verdict["infaas-warm"] = {
                "cost": round(statistics.mean(_ratios(warm, base)), 3),
                "late_percent": round(statistics.mean(_shares(warm)), 3),
            }
        verdicts.append(verdict)
    return verdicts


def _print_verdicts(verdicts: Sequence[dict[str, Any]]) -> None:
    table = Table("load", "policy", "cost", "at most", "late", "at most", "met", title="targets")
    for one in verdicts:
        absolute = one["late_is"] == "absolute"
        late, most = (
            f"{one[name]:.2%}" if absolute else f"{one[name]:.2f}×" for name in ("late", "most_late")
        )
        actions = f" · actions {one['actions']:.2f}× of {_MOST_ACTIONS:.2f}×" if "actions" in one else ""
        table.add_row(
            one["load"],
            one["policy"],
            f"{one['cost']:.2f}×",
            f"{one['most_cost']:.2f}×" if one["most_cost"] else "",
            late,
            most,
            f"{'yes' if one['met'] else '[red]no[/]'}{actions}",
        )
    wide.print(table)


def _print_times(found: dict[tuple[str, float, str], list[dict[str, Any]]]) -> None:
    table = Table("policy", "functions", "ms a time asked: median", "p99", "most", title="decisions")
    for policy in POLICIES:
        for many in (False, True):
            times = [
                one["decide_ms"]
                for (load, _, name), runs in found.items()
                if name == policy and (load == FIGURE_12) == many
                for one in runs
            ]
            if times:
                middle, high = (statistics.median(one[place] for one in times) for place in (0, 1))
                most = max(one[2] for one in times)
                table.add_row(policy, "21" if many else "1", f"{middle:.2f}", f"{high:.1f}", f"{most:.0f}")
    wide.print(table)


def _parser() -> argparse.ArgumentParser:
    loads = [*(load.name for load in ONE_FUNCTION), FIGURE_12]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, a small Fig. 12: does it run?")
    parser.add_argument("--seeds", type=int, help="how many (10; 1 if quick)")
    parser.add_argument("--set", choices=("report", "tune"), default="report", help="which seeds")
    parser.add_argument("--loads", nargs="+", choices=loads, default=loads)
    parser.add_argument("--policies", nargs="+", help="by name; all if not said")
    parser.add_argument("--slower", nargs="+", type=float, default=[1.0, SLOWER], help="times the profile")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    return parser


if __name__ == "__main__":
    main()
