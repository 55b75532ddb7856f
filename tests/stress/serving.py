"""A real server with real workers under callers of every kind, while workers hang and die.

Another process locks its registry, and two of its functions have policies with a bug. First a short calm, so
that buffers and pools have their size; then callers and faults; then calm again, in
which l̂ must come back to the truth; then nothing, and what is left is counted.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model
from tests.stress.callers import KINDS, MOST_ROWS, Caller, Tally
from tests.stress.faults import Faults, Plan
from tests.stress.outcome import Held, Outcome, Samples, learned_s
from tests.waiting import wait_until

__all__ = ["stressed"]

_FLAGS = ("--workers=2", "--threads=1", "--allow-import", "--log-level=warning")
_FAULTY = "tests.unit.faulty_policies"
_DELAY_MS, _ROW_DELAY_MS = 40.0, 4.0
_LARGEST = 16  # rows of a batch of `steady`
_CALLERS: Mapping[str, int] = {
    "plain": 6,
    "with deadlines": 6,
    "of a faulty policy": 4,
    "bulk": 1,
    "huge": 1,
    "slow": 3,
    "vanishing": 3,
    "malformed": 2,
}
_WARM_S, _CALM_S = 3.0, 8.0
_WARM_SHARE = 0.2  # of the time: as many callers as then, so that whatever grows with them has
_TASKS = ("worker", "watch workers", "store notes", "train")


def stressed(seconds: float, plan: Plan, seed: int) -> Outcome:
    """Run it all; the outcome says what is not as it should be."""
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-stress-") as folder,
        inference_server(Path(folder) / "home", flags=[ANEW, *_FLAGS]) as server,
    ):
        _deploy(server, Path(folder) / "made")
        asyncio.run(_ask(server, _CALLERS, max(_WARM_S, _WARM_SHARE * seconds), f"{seed} warm"))
        asyncio.run(_start_reader(server))
        before = Held.by(server)
        callers, faults = asyncio.run(_storm(server, seconds, plan, seed))
        wait_until(lambda: len(server.worker_pids()) == 2, 60.0)
        asyncio.run(_ask(server, {"plain": 8}, _CALM_S, f"{seed} calm"))
        waited_s = asyncio.run(_waited(server))
        wait_until(lambda: Samples.of(server).total("ml_udf_queue_rows") == 0, 30.0)
        metrics = Samples.of(server)
        after = Held.by(server)
        server.stop()
        return Outcome(
            seconds=seconds,
            seed=seed,
            callers=callers,
            hung=faults.hung,
            killed=faults.killed,
            locked=faults.locked,
            admin=faults.admin,
            before=before,
            after=after,
            task_failures=metrics.by_labels("ml_udf_task_failures_total"),
            tasks={kind: metrics.total("ml_udf_tasks", f'"{kind}"') for kind in _TASKS},
            queued_rows=metrics.total("ml_udf_queue_rows"),
            policies_put_aside=metrics.total("ml_udf_policy_faults_total"),
            worker_restarts=metrics.total("ml_udf_worker_restarts_total"),
            slept_s={rows: (_DELAY_MS + _ROW_DELAY_MS * rows) / 1000 for rows in waited_s},
            waited_s=waited_s,
            learned_s={rows: learned_s(server.home, "steady_hash", rows) for rows in waited_s},
            server_errors=_errors(server.log),
            wrong=faults.wrong,
        )


def _deploy(server: InferenceServer, made: Path) -> None:
    quick = hashing_model(made, "quick_hash")
    server.deploy(quick, "quick")
    steady = hashing_model(made, "steady_hash", delay_ms=_DELAY_MS, row_delay_ms=_ROW_DELAY_MS)
    server.deploy(steady, "steady", max_batch=_LARGEST, slo_ms=2000)
    for method in ("decide", "observe"):
        policy = f"{_FAULTY}:RaisesIn{method.capitalize()}"
        server.deploy(quick, f"faulty_{method}", policy=policy)


async def _ask(
    server: InferenceServer, callers: Mapping[str, int], seconds: float, seed: str
) -> dict[str, Tally]:
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, until.set)
    return await _asking(server, callers, until, seed)


async def _asking(
    server: InferenceServer, callers: Mapping[str, int], until: asyncio.Event, seed: str
) -> dict[str, Tally]:
    tallies = {kind: Tally() for kind in callers}
    await asyncio.gather(
        *(
            Caller(server.port, kind, tallies[kind], f"{seed} {kind} {number}").run(until)
            for kind, count in callers.items()
            for number in range(count)
        )
    )
    return tallies


async def _start_reader(server: InferenceServer) -> None:
    """Send what is read by a process that the server keeps from then on, with its pipes and threads."""
    caller = Caller(server.port, "huge", Tally(), "reader")
    await caller.asked("quick", caller.rows(MOST_ROWS, MOST_ROWS))
    caller.hang_up()
    assert caller.tally.answered == 1, caller.tally


async def _waited(server: InferenceServer) -> dict[int, float]:
    """Rows → seconds that a batch of them takes now, as a caller sees it who is alone."""
    taken_s = {}
    for rows in (1, 4, 8):
        tally, times_s = Tally(), []
        caller = Caller(server.port, "plain", tally, str(rows))
        for _ in range(15):
            began_s = time.perf_counter()
            await caller.asked("steady", caller.rows(rows, rows))
            times_s.append(time.perf_counter() - began_s)
        caller.hang_up()
        taken_s[rows] = statistics.median(times_s)
    return taken_s


async def _storm(
    server: InferenceServer, seconds: float, plan: Plan, seed: int
) -> tuple[dict[str, Tally], Faults]:
    until, faults = asyncio.Event(), Faults(server, plan, seed)
    asyncio.get_running_loop().call_later(seconds, until.set)
    tallies, _ = await asyncio.gather(_asking(server, _CALLERS, until, str(seed)), faults.run(until))
    return tallies, faults


def _errors(log: str) -> list[str]:
    """Lines with a traceback that no faulty policy of ours explains."""
    lines = [line for line in log.splitlines() if "Traceback" in line and _FAULTY not in line]
    return [re.sub(r"\\n.*\\n", " … ", line)[:400] for line in lines]


assert _CALLERS.keys() == KINDS.keys()
