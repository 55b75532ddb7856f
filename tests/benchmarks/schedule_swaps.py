"""Models that come and go: the simulator and the running server on the same traces (`swaps` of bench-live).

Eight models of one known cost on two workers, by Zipf's popularity: four places a worker, where each model
finds one in the end, and three, where swapping never stops, with a goal that all rows meet and with one that
some cannot. The server is restarted before each trace, so that both workers begin with the same models; the
simulator begins with what they hold then, and has the server's l(b) and load times. It lacks what HTTP takes.

Which model is where soon depends on a millisecond here or there, and the p99 of one trace on a dozen rows; so
each case has several traces, and a last line of all their rows together.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import operator
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
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
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model

__all__ = ["swaps"]

_MODELS = 8
_WORKERS = 2
_ZIPF = 1.1
_MAX_BATCH = 16
_SIZES = (1, 4, 16)
_WARM_UPS = 3  # of each model and size, so that l̂ is known


@dataclass(frozen=True)
class _Case:
    """Places of a worker, the goal, and how many rows come; all models and both workers are alike."""

    places: int
    slo_s: float
    rows_per_s: float

    def slower(self, times: float) -> _Case:
        """The same where everything takes so many times as long."""
        return _Case(self.places, self.slo_s * times, self.rows_per_s / times)


_CASES = (_Case(4, 0.5, 70), _Case(3, 0.5, 70), _Case(3, 0.15, 110))


@dataclass(frozen=True)
class _Outcome:
    """Of one trace, or of several as one: latencies of the rows that were answered, seconds."""

    rows: int
    good: int
    refused: int
    loads: int
    latencies_s: tuple[float, ...]
    lost: int = 0

    def __add__(self, other: _Outcome) -> _Outcome:
        return _Outcome(
            self.rows + other.rows,
            self.good + other.good,
            self.refused + other.refused,
            self.loads + other.loads,
            self.latencies_s + other.latencies_s,
            self.lost + other.lost,
        )

    @property
    def goodput(self) -> float:
        return self.good / self.rows

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan

    def to_json(self) -> dict[str, float]:
        return {
            "goodput": self.goodput,
            "refused": self.refused,
            "lost": self.lost,
            "loads": self.loads,
            "p50_ms": self.quantile_ms(0.5),
            "p99_ms": self.quantile_ms(0.99),
        }


@dataclass(frozen=True)
class _Pair:
    """One trace, simulated and live; `lag_s`: how late the load generator was at worst."""

    simulated: _Outcome
    live: _Outcome
    lag_s: float
    load: float  # the machine's, over the last minute
    details: dict[str, Any]

    def __add__(self, other: _Pair) -> _Pair:
        lag_s, load = max(self.lag_s, other.lag_s), max(self.load, other.load)
        return _Pair(self.simulated + other.simulated, self.live + other.live, lag_s, load, {})

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.live.rows,
            "simulated": self.simulated.to_json(),
            "live": self.live.to_json(),
            "generator_lag_ms": 1000 * self.lag_s,
            "load": self.load,
            **self.details,
        }


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


def swaps(seconds: float, slower: float, rounds: int = 3) -> list[dict[str, Any]]:
    """Goodput, latencies and loads, simulated and live, by case; `rounds` traces each, and all of them."""
    columns = ("places", "goal ms", "rows", "in time", "p50 ms", "p99 ms", "loads", "lag ms · load")
    table = Table(*columns, title="8 models, 2 workers: simulated · live, and their ratio")
    records = []
    for plain in _CASES:
        case = plain.slower(slower)
        pairs = []
        for seed in range(1, rounds + 1):
            pairs.append(_compared(case, seed, seconds, _Cost(slower)))
            _add_row(table, case, pairs[-1])
            records.append({**asdict(case), "seed": seed, **pairs[-1].to_json()})
        together = functools.reduce(operator.add, pairs)
        _add_row(table, case, together)
        table.add_section()
        records.append({**asdict(case), "seed": None, **together.to_json()})
    console.print(table)
    return records


def _add_row(table: Table, case: _Case, pair: _Pair) -> None:
    sim, live = pair.simulated, pair.live
    cells = [str(case.places), f"{1000 * case.slo_s:.0f}", f"{live.rows:,}"]
    cells.append(f"{sim.goodput:.3f} · {live.goodput:.3f}\n{live.goodput / sim.goodput:.2f}")
    for share in (0.5, 0.99):
        simulated_ms, live_ms = sim.quantile_ms(share), live.quantile_ms(share)
        cells.append(f"{simulated_ms:.0f} · {live_ms:.0f}\n{live_ms / simulated_ms:.2f}")
    table.add_row(*cells, f"{sim.loads} · {live.loads}", f"{1000 * pair.lag_s:.0f} · {pair.load:.1f}")


def _compared(case: _Case, seed: int, seconds: float, cost: _Cost) -> _Pair:
    trace = _trace(seed, seconds, case.rows_per_s)
    flags = [f"--workers={_WORKERS}", f"--resident-models={case.places}"]
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-swaps-") as folder,
        inference_server(Path(folder) / "home", flags=[ANEW, *flags]) as server,
    ):
        for number in range(_MODELS):
            server.deploy(hashing_model(Path(folder), f"m{number}", **cost.options))
            _put(server, number, case)
        _warm_up(server)
        profile_s = _profile(server, cost)
        server.stop()  # a fresh one knows l̂, and fills its workers with what was used last
        server.start()
        held = _held(server, case.places)
        before = _loads(server)
        requests = _requests(server, [number for _, number in trace], case)
        live = asyncio.run(replay(server.url, [at_s for at_s, _ in trace], requests))
        load = os.getloadavg()[0]
        loads, swap_s = _loads(server) - before, _swap_s(server)
    return _Pair(
        _of_simulation(_simulated(trace, case, held, profile_s, swap_s)),
        _of_replay(live, case, loads),
        live.lag_s,
        load,
        {"held": held, "swap_s": swap_s, "profile_s": profile_s},
    )


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


def _put(server: InferenceServer, number: int, case: _Case) -> None:
    fields = {"models": [f"m{number}"], "slo_ms": 1000 * case.slo_s, "max_batch": _MAX_BATCH}
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


def _requests(server: InferenceServer, models: Sequence[int], case: _Case) -> Callable[[int], bytes]:
    def request(number: int) -> bytes:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [f"row {number}"]}
        body = {"parameters": {"timeout": int(case.slo_s * 1e6)}, "inputs": [tensor]}
        path = f"/v2/models/udf_{models[number]}/infer"
        return request_bytes(server.url, path, json.dumps(body).encode())

    return request


def _loads(server: InferenceServer) -> int:
    return len(re.findall(r"model loaded ", server.log))


def _swap_s(server: InferenceServer) -> float:
    """What a worker's place stays empty for, the messages to the worker and back included; the median."""
    left: dict[str, datetime] = {}
    found_s = []
    for at, event, worker in re.findall(r"^(\S+) .*model (evicted|loaded) worker=(\S+)", server.log, re.M):
        moment = datetime.fromisoformat(at)
        if event == "evicted":
            left[worker] = moment
        elif worker in left:
            found_s.append((moment - left.pop(worker)).total_seconds())
    return statistics.median(found_s)


def _profile(server: InferenceServer, cost: _Cost) -> dict[int, float]:
    """l(b) as the server measured it, the median of all models: one may have been measured at a busy moment.

    Sizes left out take what they were told.
    """
    lines = [line for line in server.log.splitlines() if "model profiled" in line]
    points = [point.split(":") for line in lines for point in line.rpartition("ms=")[2].split(",")]
    measured_s = {
        int(size): statistics.median(float(ms) / 1000 for rows, ms in points if rows == size)
        for size in dict(points)
    }
    overhead_s = measured_s[1] - cost.told_s(1)
    return {rows: measured_s.get(rows, overhead_s + cost.told_s(rows)) for rows in _SIZES}


def _of_replay(live: Replay, case: _Case, loads: int) -> _Outcome:
    return _Outcome(
        rows=len(live.outcomes),
        good=live.good(case.slo_s),
        refused=live.refused(),
        loads=loads,
        latencies_s=tuple(one.latency_s for one in live.outcomes if one.status == 200),
        lost=live.lost(),
    )


# ── the simulator ────────────────────────────────────────────────────────────────────────────────────


def _simulated(
    trace: Sequence[tuple[float, int]],
    case: _Case,
    held: Sequence[Sequence[str]],
    profile_s: dict[int, float],
    swap_s: float,
) -> SimulationResult:
    truth = LatencyModel(profile_s)
    functions = tuple(
        FunctionLoad(
            f"m{number}",
            [at_s for at_s, model in trace if model == number],
            case.slo_s,
            _MAX_BATCH,
            latency_s=lambda rows: truth(rows),
            predicted_s=LatencyModel(profile_s),
        )
        for number in range(_MODELS)
    )
    devices = tuple(
        SimulatedDevice(f"w{number}", case.places, in_flight_limit=2, resident=tuple(models))
        for number, models in enumerate(held)
    )
    return simulate(Workload(functions, devices, swap_s=swap_s, arbitration=MostInTime()))


def _of_simulation(result: SimulationResult) -> _Outcome:
    total = result.total
    return _Outcome(total.offered, total.good, total.refused, result.swaps, tuple(total.latencies_s))
