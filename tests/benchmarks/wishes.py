"""`make bench-wishes`: what it costs that a function names no model.

A million decisions on candidates and a load that moves, one after the other; then a live server: rows for a
function by wish and for one of the model that it chooses, in turns, one at a time. What the server's event
loop takes of a core is told beside the time that they take, which others on the machine share in.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from ml_udf.client import Client
from server.catalog.catalog import Catalog
from server.catalog.function_spec import function_of, single_model_function, spec_from
from server.catalog.functions import Function, ModelVersion
from server.observability.metrics import Metrics
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import Call
from server.serving.wishes import Wishes
from tests.benchmarks.processor_time import thread_processor_s
from tests.benchmarks.report import console, say, write_json
from tests.inference_server import ANEW, inference_server
from tests.models import write_manifest
from tests.unit.server.served import text_model

CANDIDATES = 8
DEFAULTS = {"slo_ms": 500.0, "max_batch": 64, "policy": "goodput"}
GOALS = ((None, None), (0.85, None), (0.9, 0.1), (None, 0.05))  # min_accuracy, slo_s of calls


class Moving:
    """Workers whose load and models move as time goes on, by a seed."""

    def __init__(self, models: tuple[ModelVersion, ...], seed: int) -> None:
        self._draw = random.Random(seed)
        self._models = models
        self.now_s = 0.0
        self._held = frozenset(model.key for model in models)

    def step(self, seconds: float) -> None:
        self.now_s += seconds

    def holdings(self) -> list[tuple[str, frozenset[str], str]]:
        if self._draw.random() < 0.02:  # one is evicted, or all are back
            gone = self._draw.choice(self._models).key
            whole = frozenset(model.key for model in self._models)
            self._held = self._held - {gone} if len(self._held) == len(whole) else whole
        return [(f"w{number}", self._held, "cpu") for number in range(2)]

    def held_changes(self) -> int:
        return 0  # they are looked at in turn

    def backlog_s(self) -> Mapping[str, float]:
        return {f"w{number}": self._draw.expovariate(50.0) for number in range(2)}

    def current(self, function: Function) -> Function:
        return function


async def _spread(group: tuple[ModelVersion, ...]) -> None:
    """Nothing is loaded here."""


async def decisions(calls: int, rate: float, seed: int) -> dict[str, Any]:
    """So many decisions at `rate` calls a second of the clock that they see: microseconds of a core each."""
    models = tuple(text_model(f"m{number}", accuracy=0.7 + 0.035 * number) for number in range(CANDIDATES))
    moving = Moving(models, seed)
    latencies = {
        model.key: LatencyModel({1: 0.002 * 1.6**number, 64: 0.01 * 1.6**number})
        for number, model in enumerate(models)
    }
    metrics = Metrics()
    wishes = Wishes(
        moving,
        lambda model: latencies[model.key],
        lambda model, device: 0.5,
        _spread,
        metrics,
        clock=lambda: moving.now_s,
    )
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    for model in models:
        catalog.add_model(model)
    wants = {"task": "text-classification", "min_accuracy": 0.8, "slo_ms": 200}
    function = function_of("f", 1, spec_from("f", {"wants": wants}, catalog, models), catalog, DEFAULTS)
    metrics.serve(function)
    asked = [
        Call(function, "text", [b"x"] * rows, rows, min_accuracy=least, slo_s=slo_s)
        for least, slo_s in GOALS
        for rows in (1, 3, 20)
    ]
    taken_us: list[float] = []
    clock = time.thread_time  # others have the machine too
    for number in range(calls):
        moving.step(1 / rate)
        call = asked[number % len(asked)]
        began_s = clock()
        wishes.answered_by(call)
        taken_us.append((clock() - began_s) * 1e6)
    taken_us.sort()
    return {
        "calls": calls,
        "candidates": CANDIDATES,
        "epochs": wishes.epoch,
        "median_us": taken_us[calls // 2],
        "p99_us": taken_us[calls * 99 // 100],
        "p999_us": taken_us[calls * 999 // 1000],
        "most_us": taken_us[-1],
    }


def live(rounds: int, calls: int) -> dict[str, Any]:
    """Rows for a function by wish and for one that names the same model, in turns: a ratio a round."""
    with tempfile.TemporaryDirectory(prefix="bench-wishes-") as folder:
        made = Path(folder) / "made"
        with inference_server(Path(folder) / "home", flags=[ANEW]) as server:
            for name, accuracy, delay_ms in (("small", 0.8, 0), ("middle", 0.9, 2), ("large", 0.97, 30)):
                server.deploy(_model(made, name, accuracy, delay_ms))
            client = Client(server.url)
            wants = {"purpose": "small", "min_accuracy": 0.7, "slo_ms": 500}
            client.put("/v1/functions/by_wish", {"wants": wants})
            client.put("/v1/functions/by_name", {"models": ["small"], "slo_ms": 500})
            _seconds(client, "by_wish", calls)
            _seconds(client, "by_name", calls)
            took_us = {"by_wish": list[float](), "by_name": list[float]()}
            core_us = {"by_wish": list[float](), "by_name": list[float]()}
            for number in range(rounds):
                for name in ("by_wish", "by_name") if number % 2 else ("by_name", "by_wish"):
                    began_s = thread_processor_s(server.pid)
                    took_us[name].append(_seconds(client, name, calls) / calls * 1e6)
                    core_us[name].append((thread_processor_s(server.pid) - began_s) / calls * 1e6)
            client.close()
    return {
        "rounds": rounds,
        "calls": calls,
        **_beside("", took_us),
        **_beside("core_", core_us),
    }


def _beside(kind: str, us: Mapping[str, list[float]]) -> dict[str, float]:
    """The ratio of each round: its median and quartiles; of a row, the medians of both."""
    ratios = sorted(one / other for one, other in zip(us["by_wish"], us["by_name"], strict=True))
    return {
        f"{kind}ratio": statistics.median(ratios),
        f"{kind}low": ratios[len(ratios) // 4],
        f"{kind}high": ratios[-1 - len(ratios) // 4],
        f"{kind}by_wish_us": statistics.median(us["by_wish"]),
        f"{kind}by_name_us": statistics.median(us["by_name"]),
    }


def _model(made: Path, name: str, accuracy: float, delay_ms: float) -> Path:
    return write_manifest(
        made,
        name,
        task="text-classification",
        architecture="hashing",
        architecture_options={"delay_ms": delay_ms},
        input={"form": "text"},
        accuracy=accuracy,
        score={"metric": "accuracy", "value": accuracy, "rows": 400},
    )


def _seconds(client: Client, function: str, calls: int) -> float:
    began_s = time.perf_counter()
    for number in range(calls):
        client.predict(function, [f"row {number}"])
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=2000.0, help="calls a second of the simulated clock")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--live-calls", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    calls, rounds = (50_000, 4) if given.quick else (given.calls, given.rounds)
    found = {
        "decisions": asyncio.run(decisions(calls, given.rate, seed=7)),
        "live": live(rounds, given.live_calls),
    }
    table = Table("", "")
    for part, told in found.items():
        for name, value in told.items():
            table.add_row(f"{part} {name}", f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    told = found["live"]
    say(f"by wish takes {told['ratio']:.3f} of the time of by name, and {told['core_ratio']:.3f} of its core")
    write_json("wishes", found)


if __name__ == "__main__":
    main()
