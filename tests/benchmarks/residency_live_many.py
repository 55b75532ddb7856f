"""1,000 registered models of which 20 fit, on a running server, beside the simulator.

Part of `make bench-residency-live`. As in residency_many.py rows come by Zipf's law with exponent 1.0, 20 a
second, a load takes 50 ms, the goal is a second. What is looked at: memory of the server and of its worker by
time, the longest that a model's rows waited, what was refused and why, loads a minute. The simulator gets the
same rows, the l̂ of the most popular model and the load times that the server measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from server.scheduling.arbitration import MostInTime
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from tests.benchmarks.figures import wide
from tests.benchmarks.load_generator import Outcome, Replay, replay
from tests.benchmarks.report import say
from tests.benchmarks.residency_live_server import (
    add_models,
    infer_request,
    l_hat_of,
    load_times,
    loads_logged,
    resident,
    wait_for_quiet,
)
from tests.benchmarks.residency_many import GOAL_S, LOAD_S, MODELS, PLACES, ROWS_PER_S
from tests.benchmarks.resident_memory import MemoryByTime
from tests.inference_server import ANEW, InferenceServer, inference_server

__all__ = ["many_models_live", "what_became"]

_NAMES = tuple(f"m{number}" for number in range(MODELS))
_WEIGHT_BYTES = 100_000
_PLACE_BYTES = 102_000  # a model takes a little more than its weights
_HOST_BYTES = 20_000_000  # full within a minute, so that memory can be flat from then on
_MAX_BATCH = 32
_DELAY_MS, _ROW_DELAY_MS = 4.5, 0.5
_EVERY_S = 2.0
_MINUTE_S = 60.0


def many_models_live(folder: Path, seconds: float, placement: str = "value") -> dict[str, Any]:
    """One run of so many seconds."""
    draw = Random(f"many live {seconds:g}")
    times_s = poisson(draw, ROWS_PER_S, seconds)
    weights = [1 / (rank + 1) for rank in range(MODELS)]
    models = draw.choices(range(MODELS), weights, k=len(times_s))
    add_models(folder, _NAMES, delay_ms=_DELAY_MS, row_delay_ms=_ROW_DELAY_MS, weight_bytes=_WEIGHT_BYTES)
    flags = [
        "--workers=1",
        f"--device=sim:{PLACES * _PLACE_BYTES / 1e3:g}kB,{_WEIGHT_BYTES / LOAD_S / 1e6:g}MB/s",
        "--resident-models=0",
        f"--host-bytes={_HOST_BYTES}",
        f"--placement={placement}",
        f"--default-slo-ms={1000 * GOAL_S:.0f}",
        f"--default-max-batch={_MAX_BATCH}",
    ]
    began_s = time.monotonic()
    with inference_server(folder, flags=[ANEW, *flags]) as server:
        registered_s = time.monotonic() - began_s
        with server.client() as client:
            known = len(client.get("/v1/models")["models"])
        wait_for_quiet(server, 1, for_s=1.0)  # it fills its places first
        held = resident(server)
        since_s = time.time()
        with MemoryByTime([server.pid], server.worker_pids(), every_s=_EVERY_S) as memory:
            live = asyncio.run(
                replay(
                    server.url,
                    times_s,
                    lambda number: infer_request(
                        server, _NAMES[models[number]], f"row {number}", timeout_s=GOAL_S
                    ),
                    keeps_answers=True,
                )
            )
        load = os.getloadavg()[0]
        loads_s = [at_s - since_s for at_s in loads_logged(server) if at_s >= since_s]
        loads, hits = load_times(server), _hits(server)
        server.stop()
        l_hat = l_hat_of(folder, _NAMES[0])
    simulated = simulate(_workload(times_s, models, held, l_hat, loads.swap_s, placement))
    result = {
        "placement": placement,
        "seconds": seconds,
        "models": known,
        "started_in_s": round(registered_s, 1),
        **what_became(live, models),
        "loads_per_minute": 60 * len(loads_s) / seconds,
        "loads_by_minute": _by_minute(loads_s, seconds),
        "load_s": loads.load_s,
        "l1_s": l_hat.typical_s(1),
        "hit_rate": hits,
        "memory": [
            {"at_s": round(at_s), "server_mb": round(server_mb, 1), "worker_mb": round(worker_mb, 1)}
            for at_s, (server_mb, worker_mb) in memory.quarters()
        ],
        "generator_lag_ms": 1000 * live.lag_s,
        "load": load,
        "simulated": _simulated_rows(simulated, seconds),
    }
    _print(result)
    return result


def _hits(server: InferenceServer) -> float | None:
    """The share of rows that came while their models were resident."""
    with server.client() as client:
        rate = client.get("/v1/residency")["hit_rate"]
    return None if rate is None else float(rate)


def what_became(live: Replay, models: Sequence[int]) -> dict[str, Any]:
    """Every row is answered, or refused with a reason; what each model's rows got."""
    by_model: dict[int, list[Outcome]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for model, one in zip(models, live.outcomes, strict=True):
        by_model[model].append(one)
        if one.status != 200:
            reasons[_reason(one)] += 1
    answered = {
        model: [one.latency_s for one in rows if one.status == 200] for model, rows in by_model.items()
    }
    without = [model for model, latencies_s in answered.items() if not latencies_s]
    return {
        "rows": len(live.outcomes),
        "answered_in_goal": live.good(GOAL_S),
        "answered_late": live.late(GOAL_S),
        "refused": live.refused(),
        "lost": live.lost(),
        "reasons": dict(reasons),
        "p50_ms": 1000 * live.quantile_s(0.5),
        "p99_ms": 1000 * live.quantile_s(0.99),
        "longest_wait_s": max((max(one) for one in answered.values() if one), default=0.0),
        "models_asked": len(by_model),
        "models_without_an_answer": len(without),
        "most_rows_of_those": max((len(by_model[model]) for model in without), default=0),
        "worst_model_of_20_rows": min(
            (_share(rows) for rows in by_model.values() if len(rows) >= 20), default=1.0
        ),
    }


def _share(rows: Sequence[Outcome]) -> float:
    """Of the rows, those answered in their goal."""
    return sum(one.status == 200 and one.latency_s <= GOAL_S for one in rows) / len(rows)


def _reason(one: Outcome) -> str:
    """The code with which a row was refused; that there was none, or no answer, is said too."""
    if not one.status:
        return "no answer"
    try:
        text = str(json.loads(one.body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{one.status} without a reason"
    return f"{one.status} {text.partition(':')[0]}"


def _by_minute(loads_s: Sequence[float], seconds: float) -> list[int]:
    """Loads in each whole minute; of a shorter run, in it."""
    counts = Counter(int(at_s // _MINUTE_S) for at_s in loads_s if at_s < seconds)
    return [counts[minute] for minute in range(max(1, int(seconds // _MINUTE_S)))]


def _workload(
    times_s: Sequence[float],
    models: Sequence[int],
    held: Sequence[str],
    l_hat: LatencyModel,
    swap_s: float,
    placement: str,
) -> Workload:
    arrivals: list[list[float]] = [[] for _ in _NAMES]
    for at_s, model in zip(times_s, models, strict=True):
        arrivals[model].append(at_s)
    functions = tuple(
        FunctionLoad(name, came_s, GOAL_S, _MAX_BATCH, l_hat.typical_s, l_hat)
        for name, came_s in zip(_NAMES, arrivals, strict=True)
    )
    device = SimulatedDevice("w0", PLACES, in_flight_limit=2, resident=tuple(held))
    return Workload(functions, (device,), swap_s=swap_s, arbitration=MostInTime(), placement=placement)


def _simulated_rows(result: SimulationResult, seconds: float) -> dict[str, Any]:
    total = result.total
    return {
        "answered_in_goal": total.good,
        "answered_late": total.late,
        "refused": total.refused,
        "p50_ms": 1000 * total.quantile_s(0.5),
        "p99_ms": 1000 * total.quantile_s(0.99),
        "longest_wait_s": max(total.latencies_s, default=0.0),
        "loads_per_minute": 60 * result.swaps / seconds,
        "models_without_an_answer": sum(
            bool(one.offered) and not one.latencies_s for one in result.functions.values()
        ),
    }


# ── what is printed ──────────────────────────────────────────────────────────────────────────────────


def _print(result: dict[str, Any]) -> None:
    simulated = result["simulated"]
    title = f"{result['models']:,} models, {PLACES} fit, {result['seconds']:g} s, {result['placement']}"
    table = Table("", "simulated", "live", title=title)
    for what, key, form in (
        ("answered in goal", "answered_in_goal", "{:,}"),
        ("answered late", "answered_late", "{:,}"),
        ("refused", "refused", "{:,}"),
        ("p50 ms", "p50_ms", "{:.0f}"),
        ("p99 ms", "p99_ms", "{:.0f}"),
        ("longest wait of a row that was answered, s", "longest_wait_s", "{:.2f}"),
        ("models that were asked and never answered", "models_without_an_answer", "{}"),
        ("loads a minute", "loads_per_minute", "{:.0f}"),
    ):
        table.add_row(what, form.format(simulated[key]), form.format(result[key]))
    wide.print(table)
    memory = result["memory"]
    say(
        f"rows: {result['rows']:,}; models asked: {result['models_asked']}; refused: {result['reasons'] or 0}"
    )
    say(f"most rows of a model that was never answered: {result['most_rows_of_those']}")
    say(f"loads by minute: {result['loads_by_minute']}; rows whose model was there: {result['hit_rate']}")
    for process in ("server", "worker"):
        values = " → ".join(f"{one[f'{process}_mb']:.1f}" for one in memory)
        say(f"memory of the {process}, MB, by quarters: {values}")
