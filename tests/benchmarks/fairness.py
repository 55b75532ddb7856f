"""`make bench-fairness`: one caller has a million rows, another asks for 20 a second, of one class and
function.

What the second's p99 is beside the first, and alone; what the first loses. Three rules: *one queue*, where
rows wait by their goals whoever's they are; the same with *thresholds* on how much of it one caller may hold
(`fair_share.py`, which is in force under the third, too); and *turns*, the server's. In the simulator all
three, for several models, seeds paired; on a running server the first and the third: two callers with one
token are one caller.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from ml_udf.client import Client, Options
from server.scheduling.arbitration import MostInTime
from server.scheduling.policy import RowClass
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
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model

MODELS = {"20 + b ms": (0.02, 0.001), "5 + b/4 ms": (0.005, 0.00025), "2 + b/10 ms": (0.002, 0.0001)}
CLASSES: tuple[RowClass, ...] = ("bulk", "interactive")
RULES = ("one queue", "thresholds", "turns")
MAX_BATCH, GOAL_S, RATE = 64, 0.25, 20.0
QUEUE_ROWS, REQUEST_ROWS = 100_000, 256
WARM_S = 5.0  # the small caller is there first, and is judged from when the big one comes
_ADMIN = "the-administrators-secret"
PATH = "/v2/models/udf_fair/infer"


@dataclass(frozen=True, slots=True)
class Pair:
    """One run: seconds, rows a second. refused: of the small caller's rows, the share."""

    alone_s: float
    beside_s: float
    unhurt: float
    left: float
    refused: float = 0.0

    @property
    def slower(self) -> float:
        """The small caller's p99, times what it is alone."""
        return self.beside_s / self.alone_s

    @property
    def kept(self) -> float:
        """What the big one has of its rows a second alone."""
        return self.left / self.unhurt


def main() -> None:
    flags = _parser().parse_args()
    result: dict[str, Any] = {"goal_s": GOAL_S, "rate": RATE, "seeds": flags.seeds}
    if "simulated" in flags.parts:
        result["simulated"] = _simulated(flags.seeds, flags.seconds)
    if "live" in flags.parts:
        result["live"] = _live(flags.rounds, flags.seconds, flags.slower)
    write_json("fairness", result)


# ── simulated ────────────────────────────────────────────────────────────────────────────────────────


def _simulated(seeds: int, seconds: float) -> list[dict[str, Any]]:
    table = _table("simulated", seeds)
    records = []
    for model, (fixed_s, row_s) in MODELS.items():
        for row_class in CLASSES:
            for rule in RULES:
                runs = [_pair(fixed_s, row_s, row_class, rule, seed, seconds) for seed in range(1, seeds + 1)]
                records.append(_told(table, {"model": model, "class": row_class, "rule": rule}, runs))
    console.print(table)
    return records


def _pair(fixed_s: float, row_s: float, row_class: RowClass, rule: str, seed: int, seconds: float) -> Pair:
    ends_s = WARM_S + seconds
    arrivals_s = poisson(Random(seed), RATE, ends_s)
    small = TenantLoad("small", arrivals_s=arrivals_s, row_class=row_class)
    held = QUEUE_ROWS if rule == "one queue" else QUEUE_ROWS * 3 // 4
    big = TenantLoad(
        "big",
        rows=1_000_000_000,
        rows_per_request=REQUEST_ROWS,
        in_flight=held // REQUEST_ROWS + (1 if rule == "one queue" else 0),
        begins_s=WARM_S,
        ends_s=ends_s,
        row_class=row_class,
    )

    def run(*tenants: TenantLoad) -> dict[str, TenantResult]:
        function = FunctionLoad(
            "f", (), GOAL_S, MAX_BATCH, partial(_latency_s, fixed_s, row_s), refuses=False, tenants=tenants
        )
        load = Workload(
            (function,),
            (SimulatedDevice(in_flight_limit=2),),
            arbitration=MostInTime(),
            tells_tenants=rule == "turns",
        )
        return {tenant: result for (_, tenant), result in simulate(load).tenants.items()}

    both = run(small, big)
    judged = (WARM_S, ends_s)
    return Pair(
        run(small)["small"].quantile_s(0.99, WARM_S),
        both["small"].quantile_s(0.99, WARM_S),
        run(big)["big"].rate(*judged),
        both["big"].rate(*judged),
        both["small"].refused / both["small"].offered,
    )


def _latency_s(fixed_s: float, row_s: float, rows: int) -> float:
    return fixed_s + row_s * rows


# ── live ─────────────────────────────────────────────────────────────────────────────────────────────


def _live(rounds: int, seconds: float, slower: float) -> list[dict[str, Any]]:
    """slower: all times so many times as long, for a busy machine."""
    table = _table("live", rounds)
    records = []
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-fair-") as folder,
        _server(Path(folder), slower) as (
            server,
            secrets,
        ),
    ):
        for row_class in CLASSES:
            runs: dict[str, list[Pair]] = {"one queue": [], "turns": []}
            for seed in range(1, rounds + 1):
                arrivals_s = poisson(Random(seed), RATE / slower, WARM_S + seconds)
                ask = partial(_ask, server, arrivals_s, row_class, secrets["small"])
                unhurt = _scanned(server, row_class, secrets["big"], seconds / 2, lambda: None)[0]
                alone_s = ask()
                for rule, token in (("one queue", secrets["small"]), ("turns", secrets["big"])):
                    left, beside_s = _scanned(server, row_class, token, seconds, ask)
                    runs[rule].append(Pair(alone_s, beside_s, unhurt, left))
            for rule, pairs in runs.items():
                records.append(_told(table, {"model": "20 + b ms", "class": row_class, "rule": rule}, pairs))
    console.print(table)
    return records


@contextmanager
def _server(folder: Path, slower: float) -> Iterator[tuple[InferenceServer, dict[str, str]]]:
    """With one worker, a model of 20 + b ms, and the secrets of two tokens."""
    admin = folder / "admin-token"
    admin.write_text(_ADMIN + "\n")
    admin.chmod(0o600)
    flags = ["--workers=1", f"--token-file={admin}"]
    connect = {"token": _ADMIN}
    with inference_server(folder / "home", flags=[ANEW, *flags], connect=connect) as server:
        model = hashing_model(folder, "fair", delay_ms=20.0 * slower, row_delay_ms=slower)
        server.deploy(model, "udf_fair", slo_ms=1000 * GOAL_S * slower, max_batch=MAX_BATCH)
        with server.client() as client:
            secrets = {
                name: client.post("/v1/tokens", {"name": name, "scopes": ["infer", "read"]})["secret"]
                for name in ("small", "big")
            }
        yield server, secrets


def _ask(server: InferenceServer, arrivals_s: list[float], row_class: RowClass, token: str) -> float:
    """The p99 of a caller of single rows, of those that come after `WARM_S`."""
    body = (
        b'{"parameters": {"ml_udf_class": "%b"}, "inputs": [{"name": "text", "shape": [1], '
        b'"datatype": "BYTES", "data": ["a row"]}]}' % row_class.encode()
    )
    head = f"\r\nAuthorization: Bearer {token}\r\nHost:".encode()
    request = request_bytes(server.url, PATH, body).replace(b"\r\nHost:", head, 1)
    found = asyncio.run(replay(server.url, arrivals_s, lambda number: request))
    if found.lost():
        raise RuntimeError(f"{found.lost()} rows had no answer")
    found.outcomes = [one for one in found.outcomes if one.at_s >= WARM_S]
    return found.quantile_s(0.99)


def _scanned(
    server: InferenceServer, row_class: RowClass, token: str, seconds: float, meanwhile: Callable[[], Any]
) -> tuple[float, Any]:
    """Rows a second of a caller of very many, in a process of its own, and what `meanwhile` finds.

    It comes `WARM_S` after `meanwhile` began.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_scan, server.url, row_class, token, 0.0, 0.0).result()  # the process is there
        scan = pool.submit(_scan, server.url, row_class, token, WARM_S, seconds)
        found = meanwhile()
        return scan.result(), found


def _scan(url: str, row_class: RowClass, token: str, after_s: float, seconds: float) -> float:
    """Distinct rows, as SQL sends them, for so long; rows a second after the first 2 s."""
    time.sleep(after_s)
    client = Client(url, token=token)
    options = Options(row_class=row_class, batch_rows=REQUEST_ROWS, max_in_flight=8, timeout_ms=600_000)
    rows, began_s = 0, math.inf
    entered_s = time.perf_counter()
    try:
        while (now_s := time.perf_counter()) < entered_s + seconds:
            client.predict("udf_fair", [f"scan {rows + row}" for row in range(8 * REQUEST_ROWS)], options)
            if now_s >= entered_s + 2.0:
                began_s = min(began_s, now_s)
                rows += 8 * REQUEST_ROWS
    finally:
        client.close()
    return rows / (time.perf_counter() - began_s)


# ── told ─────────────────────────────────────────────────────────────────────────────────────────────


def _table(title: str, runs: int) -> Table:
    return Table(
        "model",
        "class",
        "rule",
        "p99 alone, ms",
        "beside",
        "ratio",
        "big, of alone",
        title=f"{title}, {runs} runs",
    )


def _told(table: Table, case: dict[str, str], runs: list[Pair]) -> dict[str, Any]:
    slower, kept = [run.slower for run in runs], [run.kept for run in runs]
    table.add_row(
        *case.values(),
        f"{1000 * statistics.median(run.alone_s for run in runs):.1f}",
        f"{1000 * statistics.median(run.beside_s for run in runs):.1f}",
        _spread(slower),
        _spread(kept),
    )
    return {**case, "ratio": slower, "kept": kept, "runs": [asdict(run) for run in runs]}


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=["simulated", "live"], choices=["simulated", "live"])
    parser.add_argument("--seeds", type=int, default=5, help="of each simulated case")
    parser.add_argument("--rounds", type=int, default=3, help="of each live case")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--slower", type=float, default=1.0, help="live: all times so many times as long")
    return parser


if __name__ == "__main__":
    main()
