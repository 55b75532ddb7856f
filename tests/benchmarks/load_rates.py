"""`make bench-loads`: how fast a model of 233 MB gets onto a device, by what link and disk do.

The device is simulated, or a real one (`--device cuda:0`), whose link is as fast as a bare copy of as many
pinned bytes is, just before each load. Weights are float32 on both.

From the host's memory: the time that the link needs at its rate, as a share of the whole load. From the disk,
none of it in the page cache (posix_fadvise DONTNEED, where the filesystem obeys it), and from the page cache:
what arrives per second of the whole load, as a share of what `dd` reads of the same file in the same state
just before (from the page cache: of the link's rate, if that is less). Loads are those that a worker does
when the model comes back: its network is there and waits for its weights. The first ones, which prepare, are
shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from safetensors.torch import save_file

from gpu_worker.engine import Engine, LoadReport
from gpu_worker.model_files.regular import file_sha256
from gpu_worker.networks.build import build_module
from gpu_worker.settings import Settings
from tests.benchmarks.report import console, say, write_json
from tests.models import CLASSES, write_manifest

WIDTH = 457  # of a vgg: 58 million weights
SIDE = 8  # pixels: first passes should not be what is measured
LEAST_OF_LINK, LEAST_OF_DD = 0.9, 0.8


def vgg_of(width: int, folder: Path) -> Path:
    """An untrained vgg, as it would be registered."""
    torch.manual_seed(1)
    state = build_module("vgg", len(CLASSES), {"width": width}).state_dict()
    model = write_manifest(
        folder,
        "vgg",
        task="image-classification",
        architecture="vgg",
        architecture_options={"width": width},
        input={"form": "path", "height": SIDE, "width": SIDE},
        weights="model.safetensors",
    )
    save_file(state, model / "model.safetensors")
    manifest = json.loads((model / "model.json").read_text())
    manifest["sha256"] = file_sha256(str(model / "model.safetensors"))
    (model / "model.json").write_text(json.dumps(manifest))
    return model


def drop_from_page_cache(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def dd_bytes_per_s(path: Path) -> float:
    began_s = time.monotonic()
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4M"], check=True, capture_output=True)
    return path.stat().st_size / (time.monotonic() - began_s)


def loaded(engine: Engine, model: Path) -> LoadReport:
    report = engine.load("m", str(model))
    engine.unload("m")
    return report


def _row(what: str, rates: Sequence[float], shares: Sequence[float]) -> tuple[str, str, str, str]:
    spread = f"{min(shares):.2f} to {max(shares):.2f}"
    return what, f"{statistics.median(rates) / 1e9:.2f}", f"{statistics.median(shares):.2f}", spread


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-loads", description=__doc__)
    parser.add_argument("--rate", type=float, default=2.5, help="of the link, GB/s (default %(default)s)")
    parser.add_argument("--device", default="", help="a CUDA device in place of a simulated one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", default=None, help="on the disk to measure (default: the temporary one)")
    parser.add_argument("--quick", action="store_true", help="five rounds")
    flags = parser.parse_args()
    rounds = 5 if flags.quick else flags.rounds
    with tempfile.TemporaryDirectory(dir=flags.folder) as name:
        folder = Path(name)
        model = vgg_of(WIDTH, folder)
        prepared = folder / "prepared"
        settings = Settings(
            device=flags.device or f"sim:1GiB,{flags.rate:g}",
            threads=1,
            prepared=str(prepared),
            host_bytes=1 << 30,
            precision="float32",
        )
        first: dict[str, Any] = {}
        engine = Engine(settings)
        try:
            report = loaded(engine, model)
            first["from the weights"] = asdict(report)
            engine._loads.settle()
            (file,) = prepared.iterdir()
            rates = _measured(engine, model, file, rounds, _Link(flags.device, flags.rate * 1e9))
        finally:
            engine.close()
        fresh = Engine(settings)
        try:
            drop_from_page_cache(file)
            first["from the prepared file"] = asdict(loaded(fresh, model))
        finally:
            fresh.close()
        nbytes = file.stat().st_size
    _show(nbytes, first, rates)
    write_json(
        "load_rates",
        {
            "bytes": nbytes,
            "device": flags.device or f"simulated, {flags.rate:g} GB/s",
            "first": first,
            "bytes_per_s": asdict(rates),
        },
    )


class _Link:
    """What a device's link does, at best: as it was said, or as a bare copy finds it."""

    def __init__(self, device: str, said_bytes_per_s: float) -> None:
        self._said_bytes_per_s = said_bytes_per_s
        self._device = device

    def bytes_per_s(self, nbytes: int) -> float:
        if not self._device:
            return self._said_bytes_per_s
        there = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        here = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            began_s = time.monotonic()
            there.copy_(here, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.monotonic() - began_s)
        return nbytes / min(times)


@dataclass(slots=True)
class _Rates:
    """Bytes a second, round by round: of the link, of whole loads from where the model was, and of dd."""

    link: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)
    dd: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    dd_cached: list[float] = field(default_factory=list)


def _measured(engine: Engine, model: Path, file: Path, rounds: int, link: _Link) -> _Rates:
    host = engine._loads.host
    assert host is not None
    nbytes = file.stat().st_size
    rates = _Rates()

    def load(*, from_host: bool) -> float:
        if not from_host:
            host.clear()
        report = loaded(engine, model)
        assert (report.times.read_s == 0.0) == from_host
        return nbytes / report.load_s

    loaded(engine, model)
    for _ in range(rounds):
        rates.link.append(link.bytes_per_s(nbytes))
        rates.host.append(load(from_host=True))
        drop_from_page_cache(file)
        rates.dd.append(dd_bytes_per_s(file))
        rates.dd_cached.append(dd_bytes_per_s(file))
        rates.cached.append(load(from_host=False))
        drop_from_page_cache(file)
        rates.disk.append(load(from_host=False))
    return rates


def _show(nbytes: int, first: dict[str, Any], rates: _Rates) -> None:
    table = Table(
        "a load",
        "GB/s, median",
        "share",
        "min to max",
        title=f"{nbytes / 1e6:.0f} MB, a link of {statistics.median(rates.link) / 1e9:.3g} GB/s",
    )
    of_link = [ours / best for ours, best in zip(rates.host, rates.link, strict=True)]
    of_dd = [ours / theirs for ours, theirs in zip(rates.disk, rates.dd, strict=True)]
    of_cached = [
        ours / min(theirs, best)
        for ours, theirs, best in zip(rates.cached, rates.dd_cached, rates.link, strict=True)
    ]
    table.add_row(*_row("from the host, of the link's rate", rates.host, of_link))
    table.add_row(*_row("from the disk, of what dd reads", rates.disk, of_dd))
    table.add_row(*_row("dd", rates.dd, [1.0 for _ in rates.dd]))
    table.add_row(*_row("from the page cache, of dd's or the link's rate", rates.cached, of_cached))
    table.add_row(*_row("dd, from the page cache", rates.dd_cached, [1.0 for _ in rates.dd_cached]))
    console.print(table)
    for what, report in first.items():
        times = ", ".join(
            f"{name.removesuffix('_s')} {took_s:.2f}" for name, took_s in report["times"].items()
        )
        say(f"first load {what}: {report['load_s']:.2f} s ({times})")
    kept = statistics.median(of_link) >= LEAST_OF_LINK and statistics.median(of_dd) >= LEAST_OF_DD
    say(f"at least {LEAST_OF_LINK} of the link and {LEAST_OF_DD} of dd: {'yes' if kept else 'NO'}")


if __name__ == "__main__":
    main()
