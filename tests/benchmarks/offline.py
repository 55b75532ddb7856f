"""`make bench-offline`: bulk rows beside online ones, of one function and on one worker.

A scan that never ends, beside single rows that come as a Poisson process. Two rules: *backfill*, the
server's, and *threshold*, INFaaS's, where bulk rows run by themselves while the worker is less than 40 %
busy. What bulk rows get, what online rows bear, and what these would bear alone; in the simulator, seeds
paired, and on a running server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from ml_udf.client import Client, Options
from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    TenantLoad,
    TenantResult,
    Workload,
    simulate,
)
from tests.benchmarks.load_generator import replay, request_bytes
from tests.benchmarks.report import console, write_json
from tests.inference_server import ANEW, inference_server
from tests.models import hashing_model

RULES = ("backfill", "threshold")
MODELS = {"1 + 1.25 b ms": (0.001, 0.00125), "5 + b/4 ms": (0.005, 0.00025)}
RATES = {"1 + 1.25 b ms": (25.0, 100.0, 200.0, 400.0), "5 + b/4 ms": (25.0, 100.0, 400.0, 1000.0)}
MAX_BATCH, GOAL_S, REQUEST_ROWS = 64, 0.2, 256
WARM_S = 5.0
LIVE_MS = (10.0, 2.0)  # a batch, and a row of it
LIVE_RATES = (5.0, 15.0, 40.0)
LIVE_GOAL_S = 0.5
PATH = "/v2/models/udf_offline/infer"
BODY = (
    b'{"parameters": {"ml_udf_class": "interactive"}, "inputs": [{"name": "text", "shape": [1], '
    b'"datatype": "BYTES", "data": ["a row"]}]}'
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run. bulk: rows a second; over: the share of online rows over the goal."""

    bulk: float
    p99_s: float
    over: float


def main() -> None:
    flags = _parser().parse_args()
    result: dict[str, Any] = {"goal_s": GOAL_S, "seeds": flags.seeds}
    if "simulated" in flags.parts:
        result["simulated"] = _simulated(flags.seeds, flags.seconds)
    if "live" in flags.parts:
        result["live"] = _live(flags.rounds, flags.live_seconds)
    write_json("offline", result)


# ── simulated ────────────────────────────────────────────────────────────────────────────────────────


def _simulated(seeds: int, seconds: float) -> list[dict[str, Any]]:
    table = _table(f"simulated, {seeds} seeds, goal {1000 * GOAL_S:.0f} ms")
    records: list[dict[str, Any]] = []
    for model, (fixed_s, row_s) in MODELS.items():
        for rate in RATES[model]:
            run = partial(_run, fixed_s, row_s, rate, seconds)
            alone = [run(None, seed) for seed in range(seeds)]
            for rule in RULES:
                beside = [run(rule, seed) for seed in range(seeds)]
                records.append(_told(table, model, rate, rule, alone, beside))
    console.print(table)
    return records


def _run(fixed_s: float, row_s: float, rate: float, seconds: float, rule: str | None, seed: int) -> Run:
    """rule: None = without the scan."""
    ends_s = WARM_S + seconds
    online = TenantLoad("online", arrivals_s=poisson(Random(seed), rate, ends_s))
    scan = TenantLoad(
        "bulk",
        rows=1_000_000_000,
        rows_per_request=REQUEST_ROWS,
        begins_s=0.0,
        ends_s=ends_s,
        row_class="bulk",
    )
    function = FunctionLoad(
        "f",
        (),
        GOAL_S,
        MAX_BATCH,
        partial(_latency_s, fixed_s, row_s),
        refuses=False,
        tenants=(online, scan) if rule else (online,),
    )
    load = Workload(
        (function,),
        (SimulatedDevice(in_flight_limit=2),),
        arbitration=MostInTime(),
        bulk_sharing=rule or "backfill",
    )
    found: dict[str, TenantResult] = {tenant: told for (_, tenant), told in simulate(load).tenants.items()}
    rows = found["online"]
    late = sum(latency_s > GOAL_S for latency_s in rows.latencies_s)
    return Run(
        found["bulk"].rate(WARM_S, ends_s) if rule else 0.0,
        rows.quantile_s(0.99, WARM_S),
        (late + rows.refused) / rows.offered,
    )


def _latency_s(fixed_s: float, row_s: float, rows: int) -> float:
    return fixed_s + row_s * rows


# ── live ─────────────────────────────────────────────────────────────────────────────────────────────


def _live(rounds: int, seconds: float) -> list[dict[str, Any]]:
    table = _table(f"live, {rounds} rounds, goal {1000 * LIVE_GOAL_S:.0f} ms")
    found: dict[tuple[float, str | None], list[Run]] = {}
    batch_ms, row_ms = LIVE_MS
    for number in range(rounds):
        for rule in RULES:
            with tempfile.TemporaryDirectory(prefix="ml_udf-offline-") as folder:
                flags = [ANEW, "--workers=1", f"--bulk-sharing={rule}", "--answer-cache-bytes=0"]
                with inference_server(Path(folder) / "home", flags=flags) as server:
                    model = hashing_model(Path(folder), "offline", delay_ms=batch_ms, row_delay_ms=row_ms)
                    server.deploy(model, "udf_offline", slo_ms=1000 * LIVE_GOAL_S, max_batch=MAX_BATCH)
                    for rate in LIVE_RATES:
                        arrivals_s = poisson(Random(number), rate, WARM_S + seconds)
                        if rule == RULES[0]:
                            alone = found.setdefault((rate, None), [])
                            alone.append(_asked(server.url, arrivals_s))
                        found.setdefault((rate, rule), []).append(
                            _asked(server.url, arrivals_s, WARM_S + seconds)
                        )
    model_name = f"{batch_ms:g} + {row_ms:g} b ms"
    records = [
        _told(table, model_name, rate, rule, found[rate, None], found[rate, rule])
        for rate in LIVE_RATES
        for rule in RULES
    ]
    console.print(table)
    return records


def _asked(url: str, arrivals_s: list[float], scan_s: float = 0.0) -> Run:
    """Online rows, beside a scan of so many seconds in a process of its own."""
    request = request_bytes(url, PATH, BODY)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_scan, url, 0.0).result()  # the process is there
        scan = pool.submit(_scan, url, scan_s)
        rows = asyncio.run(replay(url, arrivals_s, lambda number: request))
        bulk = scan.result()
    if rows.lost():
        raise RuntimeError(f"{rows.lost()} rows had no answer")
    rows.outcomes = [one for one in rows.outcomes if one.at_s >= WARM_S]
    over = (rows.late(LIVE_GOAL_S) + rows.refused()) / len(rows.outcomes)
    return Run(bulk, rows.quantile_s(0.99), over)


def _scan(url: str, seconds: float) -> float:
    """Distinct rows, as SQL sends them, for so long; rows a second after `WARM_S`."""
    options = Options(row_class="bulk", batch_rows=64, max_in_flight=8, timeout_ms=600_000)
    client = Client(url)
    began_s, rows, judged_s = time.perf_counter(), 0, 0.0
    try:
        while (at_s := time.perf_counter() - began_s) < seconds:
            client.predict("udf_offline", [f"scan {rows + row}" for row in range(512)], options)
            if at_s >= WARM_S:
                rows += 512
                judged_s = judged_s or began_s + at_s
    finally:
        client.close()
    return rows / (time.perf_counter() - judged_s) if rows else 0.0


# ── told ─────────────────────────────────────────────────────────────────────────────────────────────


def _table(title: str) -> Table:
    columns = (
        "model",
        "online/s",
        "rule",
        "bulk rows/s",
        "online p99, ms",
        "alone",
        "ratio",
        "over the goal",
    )
    return Table(*columns, title=title)


def _told(
    table: Table, model: str, rate: float, rule: str, alone: Sequence[Run], beside: Sequence[Run]
) -> dict[str, Any]:
    ratios = [one.p99_s / other.p99_s for one, other in zip(beside, alone, strict=True)]
    bulk = [one.bulk for one in beside]
    table.add_row(
        model,
        f"{rate:g}",
        rule,
        f"{statistics.median(bulk):,.0f} ({min(bulk):,.0f} to {max(bulk):,.0f})",
        f"{1000 * statistics.median(one.p99_s for one in beside):.1f}",
        f"{1000 * statistics.median(one.p99_s for one in alone):.1f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{statistics.mean(one.over for one in beside):.3%}",
    )
    return {
        "model": model,
        "rate": rate,
        "rule": rule,
        "alone": [asdict(one) for one in alone],
        "beside": [asdict(one) for one in beside],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=["simulated", "live"], choices=["simulated", "live"])
    parser.add_argument("--seeds", type=int, default=10, help="of each simulated case")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each simulated run")
    parser.add_argument("--rounds", type=int, default=3, help="of each live case")
    parser.add_argument("--live-seconds", type=float, default=15.0, help="of each live run")
    return parser


if __name__ == "__main__":
    main()
