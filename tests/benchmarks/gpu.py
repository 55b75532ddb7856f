"""`make bench-gpu`: what a worker's device does: batches by size, in each way to run them; loads; a scan.

Every figure is of `Engine`, as the server uses it, without the socket. Rows are JPEGs of 128×128. Nothing is
measured where torch finds no CUDA device, and the exit status says so; `--device cpu` tries the benchmark
itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from gpu_worker.engine import Engine
from gpu_worker.settings import Settings
from gpu_worker.zoo import ARCHITECTURES
from tests.benchmarks.report import console, write_json
from tests.models import image_model
from tests.unit.gpu_worker.pictures import noise

SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
WAYS = {
    "float32, single kernels": {"precision": "float32", "cuda_graphs": False},
    "float32, graphs": {"precision": "float32", "cuda_graphs": True},
    "auto, graphs": {"precision": "auto", "cuda_graphs": True},
}
SCAN_ROWS = 16_384
IN_FLIGHT = 4


@dataclass
class Found:
    """One model, run in one way. Times by rows of a batch: the whole, of which decoding, and passes."""

    architecture: str
    way: str
    precision: str = ""
    load_ms: float = 0.0  # the first, warm-up included
    again_ms: float = 0.0  # after it has left
    batch_ms: dict[int, float] = field(default_factory=dict)
    decode_ms: dict[int, float] = field(default_factory=dict)
    passes_ms: dict[int, float] = field(default_factory=dict)
    scan_rows_per_s: float = 0.0


def measure(
    engine: Engine, found: Found, model: str, sizes: Sequence[int], scan_rows: int, times: int
) -> None:
    """Fill in the figures."""
    report = engine.load("m", model)
    found.precision, found.load_ms = report.precision, 1e3 * report.load_s
    engine.unload("m")
    found.again_ms = 1e3 * engine.load("m", model).load_s
    pictures = [noise(seed, 128, 128) for seed in range(64)]
    for rows in sizes:
        batch = [pictures[number % len(pictures)] for number in range(rows)]
        taken: list[tuple[float, float, float]] = []
        for _ in range(3 + times):
            began_s = time.perf_counter()
            answer = engine.infer(["m"], "image", batch)
            taken.append((time.perf_counter() - began_s, answer.decode_s, answer.forward_s))
        each = (found.batch_ms, found.decode_ms, found.passes_ms)
        for kept, figures in zip(each, zip(*taken[3:], strict=True), strict=True):
            kept[rows] = 1e3 * statistics.median(figures)
    batch = [pictures[number % len(pictures)] for number in range(256)]
    began_s = time.perf_counter()
    under_way = [engine.begin(["m"], "image", batch) for _ in range(IN_FLIGHT)]
    done = 0
    while done < scan_rows:
        engine.answer(under_way.pop(0))
        done += len(batch)
        under_way.append(engine.begin(["m"], "image", batch))
    found.scan_rows_per_s = done / (time.perf_counter() - began_s)
    for left in under_way:
        engine.answer(left)


def shown(found: Sequence[Found], sizes: Sequence[int]) -> Table:
    """A row for each way to run each model."""
    table = Table("model", "way", "precision", "load ms", "again", *map(str, sizes), "scan rows/s")
    for one in found:
        batches = (f"{one.batch_ms[rows]:.2f} ({one.passes_ms[rows]:.2f})" for rows in sizes)
        loads = (f"{one.load_ms:.0f}", f"{one.again_ms:.0f}")
        table.add_row(
            one.architecture, one.way, one.precision, *loads, *batches, f"{one.scan_rows_per_s:,.0f}"
        )
    return table


def main() -> int:
    """Exit status 1 where there is nothing to measure on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="one small model, few sizes, once each")
    flags = parser.parse_args()
    import torch

    if flags.device.startswith("cuda") and not torch.cuda.is_available():
        console.print(f"NO CUDA DEVICE (torch {torch.__version__}): nothing was measured", style="bold red")
        return 1
    architectures = ["resnet"] if flags.quick else sorted(ARCHITECTURES)
    sizes = (1, 8) if flags.quick else SIZES
    scan_rows, times = (512, 1) if flags.quick else (SCAN_ROWS, 20)
    ways = dict([*WAYS.items()][:1]) if flags.quick else WAYS
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in architectures:
            model = str(image_model(Path(folder), architecture, architecture))
            for way, settings in ways.items():
                engine = Engine(Settings(device=flags.device, **settings))  # type: ignore[arg-type] # by name
                try:
                    found.append(Found(architecture, way))
                    measure(engine, found[-1], model, sizes, scan_rows, times)
                    device = engine.device.description
                finally:
                    engine.close()
    console.print(f"{device}, torch {torch.__version__}; ms of a batch by its rows (of which passes)")
    console.print(shown(found, sizes))
    write_json("gpu", {"device": device, "torch": torch.__version__, "found": [asdict(one) for one in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
