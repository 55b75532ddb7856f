"""`python -m tests.benchmarks.schedule_live`: the simulator and the running server, side by side.

A model that takes exactly what it is told (20 ms a batch and 1 ms a row) is served by the real server; an
open-loop load generator replays traces that the simulator is given too, with l(b) as the server's profile of
the model has it. And what the papers and the design promise of a live server:
    Clipper's Figures 4 and 5   throughput of aimd and quantile against no batching, and with a 2 ms delay
    a scan beside callers       their p99 and the scan's throughput, together and each alone
    models that come and go     8 on 2 workers of 4 and of 3 places, simulated and live (schedule_swaps.py)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from ml_udf.client import Client
from ml_udf.config import Options
from server.scheduling.arbitration import MostInTime
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.arrivals import bursty, poisson, sine
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    FunctionResult,
    SimulatedDevice,
    Workload,
    simulate,
)
from tests.benchmarks.load_generator import Replay, closed_loop, replay, request_bytes
from tests.benchmarks.report import console, write_json
from tests.benchmarks.schedule_swaps import swaps
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model

MAX_BATCH = 64
SIZES = (1, 4, 16, 64)
_POLICIES = (
    "udf_single",
    "udf_aimd",
    "udf_quantile",
    "udf_delayed",
    "udf_goodput",
    "udf_goodput_delayed",
)


@dataclass(frozen=True)
class Pace:
    """The model that takes what it is told, and its goal; `slower` times as long, where a machine is busy."""

    slower: float = 1.0

    @property
    def fixed_ms(self) -> float:
        return 20.0 * self.slower

    @property
    def row_ms(self) -> float:
        return 1.0 * self.slower

    @property
    def slo_s(self) -> float:
        return 0.25 * self.slower

    def told_s(self, rows: int) -> float:
        """l(b), but for what sending and answering take."""
        return (self.fixed_ms + self.row_ms * rows) / 1000


@dataclass(frozen=True)
class Trace:
    """Arrivals, seconds, and how they came about."""

    name: str
    arrivals_s: Sequence[float]


def main() -> None:
    flags = _parser().parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-live-") as folder,
        inference_server(Path(folder) / "home", flags=[ANEW, "--workers=1"]) as server,
    ):
        pace = Pace(flags.slower)
        _deploy(server, Path(folder), pace)
        parts: dict[str, Callable[[], Any]] = {
            "scan": lambda: _scan(server, pace, flags.seconds / 2),
            "traces": lambda: _compare(server, pace, flags.seconds),
            "clipper": lambda: _clipper(server, flags.seconds / 4),
        }
        result = {name: part() for name, part in parts.items() if name in flags.parts}
    if "swaps" in flags.parts:
        result["swaps"] = swaps(flags.seconds, flags.slower)
    write_json("schedule_live", result)


def _deploy(server: InferenceServer, folder: Path, pace: Pace) -> None:
    known = hashing_model(folder, "known", delay_ms=pace.fixed_ms, row_delay_ms=pace.row_ms)
    server.deploy(known, "udf_known", slo_ms=1000 * pace.slo_s, max_batch=MAX_BATCH, policy="goodput")
    # High fixed cost, cheap rows: what batching is for.
    fixed = hashing_model(folder, "fixed", delay_ms=10.0, row_delay_ms=0.02)
    server.deploy(fixed)
    for name, policy, options, most in (
        ("udf_single", "greedy", {}, 1),
        ("udf_aimd", "aimd", {}, MAX_BATCH),
        ("udf_quantile", "quantile", {}, MAX_BATCH),
        ("udf_delayed", "aimd", {"delay_ms": 2}, MAX_BATCH),
        ("udf_goodput", "goodput", {}, MAX_BATCH),
        ("udf_goodput_delayed", "goodput", {"delay_ms": 2}, MAX_BATCH),
    ):
        _put(server, name, models=["fixed"], slo_ms=50, max_batch=most, policy=policy, policy_options=options)


def _put(server: InferenceServer, function: str, **fields: Any) -> None:
    client = Client(server.url)
    try:
        client.put(f"/v1/functions/{function}", fields)
    finally:
        client.close()


def _body(rows: Sequence[str], **parameters: Any) -> bytes:
    tensor = {"name": "text", "shape": [len(rows)], "datatype": "BYTES", "data": list(rows)}
    return json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()


def _requests(server: InferenceServer, function: str, **parameters: Any) -> Callable[[int], bytes]:
    path = f"/v2/models/{function}/infer"
    return lambda number: request_bytes(server.url, path, _body([f"row {number}"], **parameters))


# ── simulated and live ───────────────────────────────────────────────────────────────────────────────


def _compare(server: InferenceServer, pace: Pace, seconds: float) -> list[dict[str, Any]]:
    profile_s = _profile(server, pace)
    capacity = MAX_BATCH / profile_s[MAX_BATCH]
    traces = [
        Trace("Poisson, 80 %", poisson(Random(1), 0.8 * capacity, seconds)),
        Trace("bursty, 90 %", bursty(Random(2), 0.9 * capacity, seconds, period_s=pace.slower)),
        Trace("sine to 130 %", sine(Random(3), 1.3 * capacity / 1.1, seconds, seconds, 0.05 * pace.slower)),
    ]
    table = Table(
        "trace", "rows", "simulated", "live", "live / simulated", "p99 ms, sim · live", title="goodput"
    )
    records = []
    for trace in traces:
        requests = _requests(server, "udf_known", timeout=int(pace.slo_s * 1e6))
        live = asyncio.run(replay(server.url, trace.arrivals_s, requests))
        simulated = _simulated(trace, pace, profile_s)
        share = live.good(pace.slo_s) / len(trace.arrivals_s)
        table.add_row(
            trace.name,
            f"{len(trace.arrivals_s):,}",
            f"{simulated.goodput:.3f}",
            f"{share:.3f}",
            f"{share / simulated.goodput:.3f}",
            f"{1000 * simulated.quantile_s(0.99):.0f} · {1000 * live.quantile_s(0.99):.0f}",
        )
        records.append(
            {"trace": trace.name, "simulated": simulated.goodput, "live": share, **_record(live, pace.slo_s)}
        )
    console.print(table)
    return records


def _profile(server: InferenceServer, pace: Pace) -> dict[int, float]:
    """l(b) as the server measured it when it loaded the model; sizes left out take what they were told."""
    (line,) = (line for line in server.log.splitlines() if "model profiled" in line and "known/1" in line)
    points = (point.split(":") for point in line.rpartition("ms=")[2].split(","))
    measured_s = {int(rows): float(ms) / 1000 for rows, ms in points}
    overhead_s = measured_s[1] - pace.told_s(1)
    return {rows: measured_s.get(rows, overhead_s + pace.told_s(rows)) for rows in SIZES}


def _simulated(trace: Trace, pace: Pace, profile_s: dict[int, float]) -> FunctionResult:
    truth = LatencyModel(profile_s)
    function = FunctionLoad(
        "udf_known",
        trace.arrivals_s,
        pace.slo_s,
        MAX_BATCH,
        latency_s=lambda rows: truth(rows),
        predicted_s=LatencyModel(profile_s),
    )
    return simulate(
        Workload((function,), (SimulatedDevice(in_flight_limit=2),), arbitration=MostInTime())
    ).total


def _record(live: Replay, slo_s: float) -> dict[str, Any]:
    return {
        "rows": len(live.outcomes),
        "good": live.good(slo_s),
        "late": live.late(slo_s),
        "refused": live.refused(),
        "lost": live.lost(),
        "p50_ms": 1000 * live.quantile_s(0.5),
        "p99_ms": 1000 * live.quantile_s(0.99),
        "generator_lag_ms": 1000 * live.lag_s,
    }


# ── Clipper's figures ────────────────────────────────────────────────────────────────────────────────


def _clipper(server: InferenceServer, seconds: float) -> dict[str, dict[str, float]]:
    """Rows per second of 64 and of 16 callers in a closed loop, by policy."""
    rates: dict[str, dict[str, float]] = {}
    for callers in (64, 16):
        table = Table("policy", "rows/s", "of no batching", title=f"10 ms a batch, {callers} callers")
        measured = rates[f"{callers} callers"] = {}
        for function in _POLICIES:
            requests = _requests(server, function)
            asyncio.run(closed_loop(server.url, callers, seconds / 2, requests))  # AIMD has to grow first
            measured[function] = asyncio.run(closed_loop(server.url, callers, seconds, requests))
            share = measured[function] / measured["udf_single"]
            table.add_row(function.removeprefix("udf_"), f"{measured[function]:,.0f}", f"{share:.1f}")
        console.print(table)
    return rates


# ── a scan beside callers ────────────────────────────────────────────────────────────────────────────


def _scan(server: InferenceServer, pace: Pace, seconds: float) -> dict[str, float]:
    """A bulk scan and interactive callers on one function, each alone and both together."""
    rate = 20.0 / pace.slower
    arrivals_s = poisson(Random(5), rate, seconds)
    requests = _requests(server, "udf_known")
    alone = _scan_rows(server, seconds / 2)  # before any caller came: later, it would leave room for them
    calm = asyncio.run(replay(server.url, arrivals_s, requests))
    with ThreadPoolExecutor(1) as pool:
        scanning = pool.submit(_scan_rows, server, seconds, delay_s=0.5)
        beside = asyncio.run(replay(server.url, arrivals_s, requests))
        together = scanning.result()
    left = 1 - rate * pace.told_s(1)  # of the device, if every caller runs alone
    result = {
        "p99_alone_ms": 1000 * calm.quantile_s(0.99),
        "p99_beside_ms": 1000 * beside.quantile_s(0.99),
        "within_slo": beside.good(pace.slo_s) / len(arrivals_s),
        "scan_alone_rows_per_s": alone,
        "scan_beside_rows_per_s": together,
        "left": left,
        "scan_keeps": together / (alone * left),
    }
    table = Table("", "alone", "together", "ratio", title=f"a scan beside {rate:.0f} callers a second")
    p99 = (result["p99_alone_ms"], result["p99_beside_ms"])
    table.add_row("callers' p99, ms", f"{p99[0]:.1f}", f"{p99[1]:.1f}", f"{p99[1] / p99[0]:.2f}")
    keeps = f"{result['scan_keeps']:.2f} of what is left ({left:.0%})"
    table.add_row("scan, rows/s", f"{alone:,.0f}", f"{together:,.0f}", keeps)
    table.add_row("callers within their goal", "", f"{result['within_slo']:.1%}", "")
    console.print(table)
    return result


def _scan_rows(server: InferenceServer, seconds: float, delay_s: float = 0.0) -> float:
    """Scan distinct rows for so long, as SQL does: 256 a request, 4 requests in flight. Rows per second."""
    time.sleep(delay_s)
    client = Client(server.url)
    options = Options(row_class="bulk", batch_rows=256, max_in_flight=4)
    began_s, rows = time.perf_counter(), 0
    try:
        while (took_s := time.perf_counter() - began_s) < seconds - delay_s:
            client.predict("udf_known", [f"scan {rows + row}" for row in range(2048)], options)
            rows += 2048
    finally:
        client.close()
    return rows / took_s


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each trace")
    parser.add_argument(
        "--slower", type=float, default=1.0, help="all times so many times as long, for a busy machine"
    )
    parser.add_argument("--parts", nargs="+", default=["scan", "traces", "clipper", "swaps"])
    return parser


if __name__ == "__main__":
    main()
