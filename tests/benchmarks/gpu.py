"""`make bench-gpu`: what a worker's device does: batches by size, in each way to run them; loads; scans.

batches: JPEGs of 128×128, each architecture in each way to run it. beside: single rows of one model while
others are loaded for the first time, and while others are swapped: how long they wait. scans: batches of
photos, small and of 12 megapixels, decoded by so many threads or by the device.

Every figure is of `Engine`, as the server uses it, without the socket. Nothing is measured where torch finds
no CUDA device, and the exit status says so; `--device cpu` tries the benchmark itself.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from rich.table import Table

from gpu_worker.device import usable_cores
from gpu_worker.engine import Engine
from gpu_worker.settings import Settings
from gpu_worker.zoo import ARCHITECTURES
from tests.benchmarks.load_rates import WIDTH, vgg_of
from tests.benchmarks.report import console, say, write_json
from tests.models import image_model
from tests.unit.gpu_worker.pictures import noise

SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
WAYS = {
    "float32, single kernels": {"precision": "float32", "cuda_graphs": False},
    "float32, graphs": {"precision": "float32", "cuda_graphs": True},
    "auto, graphs": {"precision": "auto", "cuda_graphs": True},
}
PARTS = ("batches", "beside", "scans")
SCAN_ROWS = 8_192
MOST_TIMED_ROWS = 1_280  # of batches of one size: small ones are timed 20 times, the largest 5
IN_FLIGHT = 4
OTHERS = ("resnet", "xception", "inception")  # that are loaded beside the one that serves
SWAPS = 30
PHOTOS = {"128×128": (128, 128), "4000×3000": (4000, 3000)}
SCANNED_ROWS = {"128×128": (4096, 256), "4000×3000": (128, 32)}  # in all, and of a batch
DECODE_THREADS = (4, 16)


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
    engine: Engine, found: Found, model: str, sizes: Sequence[int], scan_rows: int, most_times: int
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
        times = min(most_times, max(5, MOST_TIMED_ROWS // rows))
        for _ in range(3 + times):
            began_s = time.perf_counter()
            answer = engine.infer(["m"], "image", batch)
            taken.append((time.perf_counter() - began_s, answer.decode_s, answer.forward_s))
        each = (found.batch_ms, found.decode_ms, found.passes_ms)
        for kept, figures in zip(each, zip(*taken[3:], strict=True), strict=True):
            kept[rows] = 1e3 * statistics.median(figures)
    found.scan_rows_per_s = scanned(engine, pictures, scan_rows)


def scanned(engine: Engine, pictures: Sequence[bytes], rows: int, batch_rows: int = 256) -> float:
    """Rows/s of batches, some of them under way."""
    batch = [pictures[number % len(pictures)] for number in range(batch_rows)]
    engine.infer(["m"], "image", batch)
    began_s = time.perf_counter()
    under_way = [engine.begin(["m"], "image", batch) for _ in range(IN_FLIGHT)]
    done = 0
    while done < rows:
        engine.answer(under_way.pop(0))
        done += len(batch)
        under_way.append(engine.begin(["m"], "image", batch))
    took_s = time.perf_counter() - began_s
    for left in under_way:
        engine.answer(left)
    return done / took_s


@dataclass
class Waits:
    """How long single rows of one model took, ms, one after the other."""

    while_: str
    rows: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    loads: int = 0
    loads_took_s: float = 0.0

    def __str__(self) -> str:
        ms = f"p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}, longest {self.longest_ms:.1f} ms"
        loads = f"{self.loads} loads in {self.loads_took_s:.2f} s"
        return f"single rows, {self.while_}: {ms} of {self.rows}; {loads}"


def beside(folder: Path, device: str) -> list[Waits]:
    """Single rows alone, beside first loads of three other models, and beside swaps of four."""
    serving = str(image_model(folder, "serving", "squeezenet"))
    others = [str(image_model(folder, name, name)) for name in OTHERS]
    large = str(vgg_of(WIDTH, folder / "large"))
    engine = Engine(Settings(device=device, prepared=str(folder / "prepared"), host_bytes=4 << 30))
    picture = noise(1, 128, 128)

    def timed(until: Callable[[], bool]) -> list[float]:
        times = []
        while not until():
            began_s = time.perf_counter()
            engine.infer(["serving"], "image", [picture])
            times.append(1e3 * (time.perf_counter() - began_s))
        return times

    def waits(name: str, times: Sequence[float], loads: int = 0, took_s: float = 0.0) -> Waits:
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        return Waits(name, len(times), statistics.median(times), cuts[98], max(times), loads, took_s)

    def first() -> int:
        for number, other in enumerate(others):
            engine.load(f"other{number}", other)
        engine.load("large", large)
        return len(others) + 1

    def swaps() -> int:
        for _ in range(SWAPS):
            for number in range(len(others)):
                engine.unload(f"other{number}")
            engine.unload("large")
            first()
        return SWAPS * (len(others) + 1)

    try:
        engine.load("serving", serving)
        began_s = time.perf_counter()
        timed(lambda: time.perf_counter() - began_s > 1)
        began_s = time.perf_counter()
        found = [waits("alone", timed(lambda: time.perf_counter() - began_s > 3))]
        say(str(found[-1]))
        with ThreadPoolExecutor(1) as loader:
            for name, load in (("first loads", first), ("swaps", swaps)):
                began_s = time.perf_counter()
                loads = loader.submit(load)
                times = timed(loads.done)
                found.append(waits(name, times, loads.result(), time.perf_counter() - began_s))
                say(str(found[-1]))
        return found
    finally:
        engine.close()


@dataclass
class Scan:
    """Photos decoded in so many threads, or by the device."""

    photos: str
    decoded_by: str
    rows_per_s: float

    def __str__(self) -> str:
        return f"scan of {self.photos} JPEGs by {self.decoded_by}: {self.rows_per_s:,.0f} rows/s"


def scans(folder: Path, device: str) -> list[Scan]:
    """Of each kind of photo, by the CPU's threads and by the device."""
    model = str(image_model(folder, "scanned", "squeezenet"))
    found = []
    for name, (width, height) in PHOTOS.items():
        photos = [photo(seed, width, height) for seed in range(8)]
        for threads, on_device in [*((each, False) for each in DECODE_THREADS), (0, True)]:
            engine = Engine(Settings(device=device, threads=threads, jpeg_on_device=on_device))
            try:
                engine.load("m", model)
                by = "the device" if on_device else f"{threads} threads"
                found.append(Scan(name, by, scanned(engine, photos, *SCANNED_ROWS[name])))
                say(str(found[-1]))
            finally:
                engine.close()
    return found


def photo(seed: int, width: int, height: int) -> bytes:
    """A JPEG with as much in it as a photo has: blurred noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(
        encoded, "JPEG", quality=90
    )
    return encoded.getvalue()


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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
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
    waits: list[Waits] = []
    scanned_by: list[Scan] = []
    device = Engine(Settings(device=flags.device)).device.description
    with tempfile.TemporaryDirectory() as folder:
        for architecture in architectures if "batches" in flags.parts else ():
            model = str(image_model(Path(folder), architecture, architecture))
            for way, settings in ways.items():
                engine = Engine(Settings(device=flags.device, **settings))  # type: ignore[arg-type] # by name
                try:
                    found.append(Found(architecture, way))
                    measure(engine, found[-1], model, sizes, scan_rows, times)
                finally:
                    engine.close()
        if "beside" in flags.parts:
            waits = beside(Path(folder), flags.device)
        if "scans" in flags.parts and not flags.quick:
            scanned_by = scans(Path(folder), flags.device)
    console.print(f"{device}, torch {torch.__version__}, {usable_cores()} cores")
    if found:
        console.print("ms of a batch by its rows (of which passes)")
        console.print(shown(found, sizes))
    figures = {name: [asdict(one) for one in each] for name, each in (("found", found), ("beside", waits))}
    figures["scans"] = [asdict(one) for one in scanned_by]
    write_json("gpu", {"device": device, "torch": torch.__version__, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
