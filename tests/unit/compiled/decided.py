"""`python -m tests.unit.compiled.decided`: which core serves, and what it decides of rows that are drawn.

Prints a line of JSON: the core's name, and of each case the digest of every row's fate, to the last digit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from server.compiled.finder import chosen_core
from server.ensemble.policies.by_name import selection_policy
from server.scheduling.arbitration import MostInTime
from server.scheduling.core import BatchTimes, Idle, RunBatch, Scheduler, Slice, WorkerView
from server.scheduling.simulation.arrivals import bursty
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from tests.benchmarks.residency_cells import CONTENDERS, drawn_cell, workload
from tests.unit.scheduling.cores import batches, core, rows, spec, worker
from tests.unit.scheduling.test_following_functions import BEST_RATE, following, run
from tests.unit.scheduling.test_pooled_functions import ENSEMBLE, NAMES, asked, pooled
from tests.unit.scheduling.views import affine

POLICIES = ("goodput", "clockwork", "window", "greedy", "aimd", "ewma", "ewma-code", "quantile")
SELECTIONS = ("value", "gear", "slackfit", "async", "all")
CELL = replace(drawn_cell("compiled", 5, several=True), seconds=3.0)


def main() -> None:
    decided = {name: _digest(result) for name, result in _cases()} | {"asked": _asked(), "kinds": _kinds()}
    print(json.dumps({"core": chosen_core().name, "decided": decided}))  # noqa: T201  # a script's word


def _cases() -> Iterator[tuple[str, SimulationResult]]:
    for policy in POLICIES:
        functions = tuple(
            FunctionLoad(
                name,
                bursty(Random(f"{policy} {name}"), 600, 1.0),
                0.05,
                64,
                affine,
                policy=policy,
                rows_per_request=rows,
            )
            for name, rows in (("a", 1), ("b", 3), ("c", 1))
        )
        devices = (SimulatedDevice("d0", places=2), SimulatedDevice("d1", places=2))
        yield policy, simulate(Workload(functions, devices, 0.01, 0.05, 7, MostInTime()))
    for policy in SELECTIONS:
        yield (
            f"select {policy}",
            run(following("e", policy, 1.1 * BEST_RATE, 0.5), following("f", policy, 500, 0.5)),
        )
    for contender in CONTENDERS:
        yield f"place {contender.name}", simulate(workload(CELL, contender))


def _asked() -> str:
    """All that a dispatcher asks of a core and tells it, beside what the simulator does."""
    scheduler = core(spec("f"), spec("g"), workers=(worker("w", "f", "g"), worker("v", "g")))
    said: list[object] = []
    for number in range(40):
        now_s = 0.004 * number
        function, row_class = "fg"[number % 2], ("interactive", "bulk")[number % 5 == 0]
        submission = rows(number, 1 + number % 7, function, row_class=row_class)
        said.append(scheduler.submit(now_s, submission))
        said += [scheduler.room("f"), scheduler.room("g"), scheduler.queue_depth(), scheduler.waiting()]
        said += [scheduler.backlog_s(now_s), scheduler.saved_s("f", "", 7), scheduler.shares(now_s)]
        said += [scheduler.hung(now_s, 0.01), sorted(scheduler.doubtful(now_s)), scheduler.take_faults()]
        if number % 4 == 1:
            said.append(scheduler.cancel_part(now_s, Slice(number, 0, 1)))
        if number % 9 == 2:
            said += [scheduler.cancel(now_s, number), scheduler.take_back(now_s, number - 1)]
        sent = batches(scheduler, now_s)
        said.append(sent)
        for batch in sent[:1]:
            scheduler.finished(now_s + 0.003, batch.batch_id)
    said.append(scheduler.remove(1.0, "f"))
    return repr(said)


def _kinds() -> str:
    """What is known of a kind of device on which nothing ran: asked for too early, it is an older guess."""
    scheduler = Scheduler()
    scheduler.configure(0.0, pooled())
    scheduler.follow(0.0, "e", "", ENSEMBLE, selection_policy("best", ENSEMBLE))
    scheduler.set_worker(0.0, WorkerView("w", True, frozenset(NAMES), device="cpu"))
    scheduler.set_worker(0.0, WorkerView("v", True, frozenset(NAMES[:1]), device="gpu"))
    said: list[object] = []
    for number in range(12):
        now_s = 0.02 * number
        said.append(scheduler.submit(now_s, asked(number, 2)))
        while not isinstance(action := scheduler.next_action(now_s), Idle):
            said.append(action)
            if isinstance(action, RunBatch):
                scheduler.finished(now_s, action.batch_id, worked=BatchTimes(0.01, 0.01), sure=[0.5] * 2)
    scheduler.set_worker(1.0, WorkerView("w", False, frozenset()))
    scheduler.set_worker(1.0, WorkerView("v", True, frozenset(NAMES), device="gpu"))
    said += [scheduler.submit(1.0, asked(99, members=NAMES[2:])), scheduler.backlog_s(1.0)]
    return repr(said)


def _digest(result: SimulationResult) -> str:
    text = json.dumps([result.to_json(), result.total.latencies_s, result.total.overdue_at_s])
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
