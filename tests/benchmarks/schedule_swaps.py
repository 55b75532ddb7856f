"""Models that come and go: the simulator and the running server on the same traces (`swaps` of bench-live).

Eight models of one known cost on two workers, by Zipf's popularity: four places a worker, where each model
finds one in the end, and three, where swapping never stops. The server is restarted before each trace, so
that both workers begin with the same models; the simulator begins with what they hold then, and has the
server's l(b) and load times.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from ml_udf.client import Client
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
from tests.benchmarks.load_generator import Replay, replay, request_bytes
from tests.benchmarks.report import console
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

__all__ = ["swaps"]

_MODELS = 8
_WORKERS = 2
_ZIPF = 1.1
_MAX_BATCH = 16
_SIZES = (1, 4, 16)
_WARM_UPS = 3  # of each model and size, so that l̂ is known


@dataclass(frozen=True)
class _Cost:
    """Rafiqi's run and swap, 22.5 and 90 ms; `slower` times as long, where a machine is busy."""

    slower: float

    @property
    def options(self) -> dict[str, Any]:
        return {
            "delay_ms": 20.0 * self.slower,
            "row_delay_ms": 2.5 * self.slower,
            "load_ms": 90.0 * self.slower,
        }

    def told_s(self, rows: int) -> float:
        return float(self.options["delay_ms"] + self.options["row_delay_ms"] * rows) / 1000

    @property
    def slo_s(self) -> float:
        return 0.5 * self.slower

    @property
    def rows_per_s(self) -> float:
        return 70.0 / self.slower


def swaps(seconds: float, slower: float, rounds: int = 3) -> list[dict[str, Any]]:
    """Goodput, latencies and loads, simulated and live, by places; `rounds` traces each."""
    table = Table(
        "places",
        "rows",
        "in time, sim · live",
        "ratio",
        "p50 ms",
        "p99 ms",
        "loads",
        title="8 models, 2 workers",
    )
    records = []
    for places in (4, 3):
        for seed in range(1, rounds + 1):
            record = _compared(places, seed, seconds, _Cost(slower))
            records.append(record)
            sim, live = record["simulated"], record["live"]
            table.add_row(
                str(places),
                f"{record['rows']:,}",
                f"{sim['goodput']:.3f} · {live['goodput']:.3f}",
                f"{live['goodput'] / sim['goodput']:.3f}",
                f"{sim['p50_ms']:.0f} · {live['p50_ms']:.0f}",
                f"{sim['p99_ms']:.0f} · {live['p99_ms']:.0f}",
                f"{sim['loads']} · {live['loads']}",
            )
    console.print(table)
    return records


def _compared(places: int, seed: int, seconds: float, cost: _Cost) -> dict[str, Any]:
    trace = _trace(seed, seconds, cost.rows_per_s)
    flags = [f"--workers={_WORKERS}", f"--resident-models={places}"]
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-swaps-") as folder,
        inference_server(Path(folder) / "home", flags=flags) as server,
    ):
        for number in range(_MODELS):
            server.deploy(hashing_model(Path(folder), f"m{number}", **cost.options))
            _put(server, number, cost)
        _warm_up(server)
        profile_s = _profile(server, cost)
        server.stop()  # a fresh one knows l̂, and fills its workers with what was used last
        server.start()
        held = _held(server, places)
        before = len(_load_times_s(server))
        requests = _requests(server, [number for _, number in trace], cost)
        live = asyncio.run(replay(server.url, [at_s for at_s, _ in trace], requests))
        loads_s = _load_times_s(server)
    swap_s = statistics.median(loads_s)
    simulated = _simulated(trace, places, held, profile_s, swap_s, cost)
    return {
        "places": places,
        "seed": seed,
        "rows": len(trace),
        "held": held,
        "swap_s": swap_s,
        "profile_s": profile_s,
        "simulated": _of_simulation(simulated),
        "live": _of_replay(live, cost.slo_s) | {"loads": len(loads_s) - before},
    }


def _trace(seed: int, seconds: float, rows_per_s: float) -> list[tuple[float, int]]:
    """(arrival in seconds, number of the model), the first model the most popular."""
    weights = [1 / (number + 1) ** _ZIPF for number in range(_MODELS)]
    arrivals = [
        (at_s, number)
        for number, weight in enumerate(weights)
        for at_s in poisson(Random(f"{seed} {number}"), rows_per_s * weight / sum(weights), seconds)
    ]
    return sorted(arrivals)


# ── the server ───────────────────────────────────────────────────────────────────────────────────────


def _put(server: InferenceServer, number: int, cost: _Cost) -> None:
    fields = {"models": [f"m{number}"], "slo_ms": 1000 * cost.slo_s, "max_batch": _MAX_BATCH}
    client = Client(server.url)
    try:
        client.put(f"/v1/functions/udf_{number}", {**fields, "policy": "goodput"})
    finally:
        client.close()


def _warm_up(server: InferenceServer) -> None:
    """Every model is asked for every size, the least popular first."""
    client = Client(server.url)
    try:
        for number in reversed(range(_MODELS)):
            for rows in _SIZES * _WARM_UPS:
                client.predict(f"udf_{number}", [f"{number} {row} {rows}" for row in range(rows)])
    finally:
        client.close()


def _held(server: InferenceServer, places: int) -> list[list[str]]:
    """What each worker holds once all places are taken, the models last asked for last."""
    client = Client(server.url)
    ends_s = time.monotonic() + 60
    try:
        while time.monotonic() < ends_s:
            workers = client.get("/v1/workers")["workers"]
            models = [[key.partition("/")[0] for key in worker["resident"]] for worker in workers]
            if all(len(held) == places for held in models):
                return [sorted(held, reverse=True) for held in models]  # as `_warm_up` asks
            time.sleep(0.05)
    finally:
        client.close()
    raise RuntimeError(f"the workers hold {models} and not {places} models each")


def _requests(server: InferenceServer, models: Sequence[int], cost: _Cost) -> Callable[[int], bytes]:
    def request(number: int) -> bytes:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [f"row {number}"]}
        body = {"parameters": {"timeout": int(cost.slo_s * 1e6)}, "inputs": [tensor]}
        path = f"/v2/models/udf_{models[number]}/infer"
        return request_bytes(server.url, path, json.dumps(body).encode())

    return request


def _load_times_s(server: InferenceServer) -> list[float]:
    return [float(found) for found in re.findall(r"model loaded .*load_s=([\d.]+)", server.log)]


def _profile(server: InferenceServer, cost: _Cost) -> dict[int, float]:
    """l(b) as the server measured it of the first model; sizes left out take what they were told."""
    line = next(line for line in server.log.splitlines() if "model profiled" in line)
    points = (point.split(":") for point in line.rpartition("ms=")[2].split(","))
    measured_s = {int(rows): float(ms) / 1000 for rows, ms in points}
    overhead_s = measured_s[1] - cost.told_s(1)
    return {rows: measured_s.get(rows, overhead_s + cost.told_s(rows)) for rows in _SIZES}


def _of_replay(live: Replay, slo_s: float) -> dict[str, Any]:
    return {
        "goodput": live.good(slo_s) / len(live.outcomes),
        "refused": live.refused(),
        "lost": live.lost(),
        "p50_ms": 1000 * live.quantile_s(0.5),
        "p99_ms": 1000 * live.quantile_s(0.99),
        "generator_lag_ms": 1000 * live.lag_s,
    }


# ── the simulator ────────────────────────────────────────────────────────────────────────────────────


def _simulated(
    trace: Sequence[tuple[float, int]],
    places: int,
    held: Sequence[Sequence[str]],
    profile_s: dict[int, float],
    swap_s: float,
    cost: _Cost,
) -> SimulationResult:
    truth = LatencyModel(profile_s)
    functions = tuple(
        FunctionLoad(
            f"m{number}",
            [at_s for at_s, model in trace if model == number],
            cost.slo_s,
            _MAX_BATCH,
            latency_s=lambda rows: truth(rows),
            predicted_s=LatencyModel(profile_s),
        )
        for number in range(_MODELS)
    )
    devices = tuple(
        SimulatedDevice(f"w{number}", places, in_flight_limit=2, resident=tuple(models))
        for number, models in enumerate(held)
    )
    return simulate(Workload(functions, devices, swap_s=swap_s, arbitration=MostInTime()))


def _of_simulation(result: SimulationResult) -> dict[str, Any]:
    total = result.total
    return {
        "goodput": total.goodput,
        "refused": total.refused,
        "p50_ms": 1000 * total.quantile_s(0.5),
        "p99_ms": 1000 * total.quantile_s(0.99),
        "loads": result.swaps,
    }
