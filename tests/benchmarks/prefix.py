"""`make bench-prefix`: functions whose heads stand on one backbone, with its passes shared and not.

    python -m tests.benchmarks.prefix --quick

Two servers, which differ in `--prefix-batching` alone, are asked by turns by the same clients, each of whom
has one request of a few photos under way, all functions alike. Untrained: what is measured is time. rows/s,
and the latency of a request. Before that the simulator, with the scheduler that serves: how much of a load is
answered in time where a pass takes nearly the same whatever is in it, as on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto, helper, save
from rich.table import Table

from examples.foodlog.photo import take_photo
from gpu_worker.device import find_device
from gpu_worker.model_files.backbone import backbone_sha256
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.regular import MANIFEST_FILE, read_json
from gpu_worker.networks.loader import load_network
from gpu_worker.networks.network import width_of
from gpu_worker.networks.row_network import PROBABILITIES
from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import FunctionLoad, Workload, simulate
from tests.benchmarks.report import console, say, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, image_model, write_manifest

_PHOTOS = 16
_SIDE_PX = 128


@dataclass(slots=True)
class Told:
    """Of one server: rows/s of each round, and the latencies of all requests, ms."""

    rows_per_s: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)


def heads(folder: Path, backbone: Path, count: int) -> list[Path]:
    """So many linear classifiers, of random weights, on the features of a model."""
    manifest = read_manifest(str(backbone))
    network = load_network(manifest, find_device("cpu", threads=1))
    network.warm_up(1)
    width = width_of(network, "features", 0)
    content = read_json(backbone / MANIFEST_FILE)
    below = {"name": manifest.name, "version": manifest.version, "sha256": backbone_sha256(content)}
    found = []
    for number in range(count):
        weights = np.random.default_rng(number).normal(size=(width, len(CLASSES))).astype(np.float32)
        nodes = [
            helper.make_node("MatMul", ["features", "w"], ["told"]),
            helper.make_node("Softmax", ["told"], [PROBABILITIES], axis=1),
        ]
        graph = helper.make_graph(
            nodes,
            "head",
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", width])],
            [helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["n", len(CLASSES)])],
            [helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
        )
        name = f"head{number}"
        made = write_manifest(
            folder,
            name,
            task="image-classification",
            runtime="head",
            architecture="logistic_regression",
            input=content["input"],
            weights="model.onnx",
            backbone=below,
        )
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), made / "model.onnx")
        found.append(made)
    return found


def asked(
    server: InferenceServer, functions: int, clients: int, rows: int, seconds: float, numbers: Iterator[int]
) -> tuple[float, list[float]]:
    """rows/s in a closed loop, and each request's latency in ms. A row is asked once in its life."""
    ends_s = time.monotonic() + seconds
    latencies_ms: list[float] = []
    failures: list[BaseException] = []
    lock = threading.Lock()

    def ask(number: int) -> None:
        try:
            with server.client() as client:
                while time.monotonic() < ends_s:
                    with lock:
                        own = [next(numbers) for _ in range(rows)]
                    photos = [_PICTURES[each % _PHOTOS] + str(each).encode() for each in own]
                    began_s = time.monotonic()
                    client.predict(f"udf_{number % functions}", photos, input_name="image")
                    with lock:
                        latencies_ms.append(1000 * (time.monotonic() - began_s))
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return len(latencies_ms) * rows / (time.monotonic() - began_s), latencies_ms


def measured(flags: argparse.Namespace, functions: int) -> dict[str, Any]:
    """Both servers by turns."""
    told = {"shared": Told(), "apart": Told()}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        backbone = image_model(folder / "made", "eyes", flags.backbone)
        made = heads(folder / "made", backbone, functions)
        servers = {}
        for way, flag in (("shared", "--prefix-batching"), ("apart", "--no-prefix-batching")):
            server = stack.enter_context(
                inference_server(folder / way, flags=[ANEW, "--workers=1", "--answer-cache-bytes=0", flag])
            )
            server.deploy(backbone)
            for number, head in enumerate(made):
                server.deploy(head, f"udf_{number}", max_batch=64)
            servers[way] = server
        numbers = itertools.count()
        for server in servers.values():  # l̂ is learned
            asked(server, functions, flags.clients, flags.rows, flags.seconds, numbers)
        for turn in range(flags.rounds):
            ways = list(servers) if turn % 2 else list(servers)[::-1]
            for way in ways:
                rate, latencies_ms = asked(
                    servers[way], functions, flags.clients, flags.rows, flags.seconds, numbers
                )
                told[way].rows_per_s.append(rate)
                told[way].latencies_ms += latencies_ms
        riding = _riding_rows(servers["shared"])
    ratios = [a / b for a, b in zip(told["shared"].rows_per_s, told["apart"].rows_per_s, strict=True)]
    return {
        "functions": functions,
        "riding_rows": riding,
        "times_as_many": ratios,
        **{
            way: {
                "rows_per_s": each.rows_per_s,
                "p50_ms": float(np.quantile(each.latencies_ms, 0.5)),
                "p99_ms": float(np.quantile(each.latencies_ms, 0.99)),
            }
            for way, each in told.items()
        },
    }


def most_in_goal(functions: int, *, shared: bool, seconds: float) -> float:
    """Simulated: of how many rows/s one device answers 99 % within 50 ms; ± 5 %, up to 2,000.

    A pass takes 10 ms and 0.1 ms a row, as of a network that keeps a GPU busy; single rows come at random, of
    all functions alike.
    """
    least, most = 20.0, 2_000.0
    while most > 1.05 * least:
        rate = math.sqrt(least * most)
        loads = tuple(
            FunctionLoad(
                f"f{number}",
                poisson(Random(f"{number} {functions}"), rate / functions, seconds),
                *(0.05, 64),
                lambda rows: 0.01 + 0.0001 * rows,
                prefix="eyes",
            )
            for number in range(functions)
        )
        result = simulate(Workload(loads, prefix_batching=shared, arbitration=MostInTime()))
        least, most = (rate, most) if result.total.goodput >= 0.99 else (least, rate)
    return least


def simulated(counts: Sequence[int], seconds: float) -> list[dict[str, float]]:
    """By how many functions there are."""
    found = []
    for functions in counts:
        shared, apart = (most_in_goal(functions, shared=way, seconds=seconds) for way in (True, False))
        say(f"simulated, {functions} functions: {shared:,.0f} rows/s in goal shared, {apart:,.0f} apart")
        found.append({"functions": functions, "shared": shared, "apart": apart})
    return found


def _riding_rows(server: InferenceServer) -> float:
    told = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in told if line.startswith("ml_udf_riding_rows_total"))


def _print(found: Sequence[dict[str, Any]]) -> None:
    table = Table("functions", "rows/s: shared", "apart", "shared / apart", "p50 ms", "p99 ms")
    for one in found:
        shared, apart, ratios = one["shared"], one["apart"], one["times_as_many"]
        table.add_row(
            str(one["functions"]),
            *(f"{statistics.median(each['rows_per_s']):,.0f}" for each in (shared, apart)),
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            *(f"{shared[name]:.0f} / {apart[name]:.0f}" for name in ("p50_ms", "p99_ms")),
        )
    console.print(table)


_PICTURES = [take_photo("laksa", _SIDE_PX, 7, number) for number in range(_PHOTOS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds: does it run?")
    parser.add_argument("--functions", type=int, nargs="*", default=[1, 4, 16], help="heads on the backbone")
    parser.add_argument("--backbone", default="resnet", help="architecture")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2, help="photos of a request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round")
    flags = parser.parse_args()
    if flags.quick:
        flags.rounds, flags.seconds, flags.functions = 2, 1.0, [4]
    in_goal = simulated(flags.functions, 1.5)
    load = [os.getloadavg()[0]]
    found = []
    for functions in flags.functions:
        found.append(measured(flags, functions))
        say(f"{functions} functions: {found[-1]['riding_rows']:,.0f} rows rode")
    load.append(os.getloadavg()[0])
    _print(found)
    write_json("prefix", {**vars(flags), "load": load, "found": found, "simulated": in_goal})


if __name__ == "__main__":
    main()
