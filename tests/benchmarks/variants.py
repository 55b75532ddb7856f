"""What variants are worth: the demo's five architectures, trained on drawn dishes, beside theirs.

Every variant is made as a server makes it (`gpu_worker.variants`), judged on the photos that taught nothing,
and timed in passes on one core, by turns with its original. With --weights EfficientNet-Lite0's checkpoint is
run through the same, calibrated by and judged on windows of photos from --pictures. Nobody has said which of
ImageNet's classes these show, so that its agreement with the original alone says something.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from examples.foodlog.dishes import DISHES
from examples.foodlog.photo import take_photo
from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.runtimes import files_bytes
from gpu_worker.train.__main__ import main as train
from gpu_worker.variants.judging import MakingRows, made_and_judged
from gpu_worker.wire.protocol import MakeVariant
from server.training.variants.verdict import accuracy_of
from tests.benchmarks.report import say, write_json

ARCHITECTURES = ("squeezenet", "resnet", "vgg", "inception", "xception")
RECIPES = ("onnx", "int8", "bf16")
SIZES = (1, 4, 16, 64)
SIDE_PX = 160
TURNS = 5


@dataclass(frozen=True, slots=True)
class Photos:
    csv: Path
    snapshot: Path


def drawn(folder: Path, count: int) -> Photos:
    """So many photos of ten dishes: 6 of 10 to learn from, 1 to validate by, 3 to judge by."""
    dishes = sorted(DISHES)[:10]
    (folder / "photos").mkdir()
    rows = []
    for number in range(count):
        dish = dishes[number % len(dishes)]
        path = folder / "photos" / f"{number}.jpg"
        path.write_bytes(take_photo(dish, SIDE_PX, 1, number))
        turn = number // len(dishes) % 10
        rows.append((str(path), dish, "train" if turn < 6 else "validation" if turn == 6 else "test"))
    paths, labels, splits = zip(*rows, strict=True)
    table = folder / "photos.csv"
    table.write_text("path,label,split\n" + "".join(f"{','.join(row)}\n" for row in rows))
    pq.write_table(pa.table({"input": paths, "target": labels, "split": splits}), folder / "rows.parquet")
    return Photos(table, folder / "rows.parquet")


def windows(folder: Path, pictures: Path, count: int) -> Photos:
    """So many square windows of real photos: those of every second photo are to judge by."""
    found = sorted(path for path in pictures.iterdir() if path.suffix in (".jpg", ".png"))
    if len(found) < 2:
        raise SystemExit(f"{pictures} has {len(found)} photos (.jpg, .png); at least 2 are needed")
    (folder / "windows").mkdir()
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        place = number % len(found)
        with Image.open(found[place]) as opened:
            photo = opened.convert("RGB")
        side = round(random.uniform(0.4, 1.0) * min(photo.size))
        left, top = (int(random.integers(0, room - side + 1)) for room in photo.size)
        path = folder / "windows" / f"{number}.png"
        window = photo.crop((left, top, left + side, top + side))
        window.resize((256, 256), Image.Resampling.BICUBIC).save(path)
        rows.append((str(path), "", "test" if place % 2 else "train"))
    paths, labels, splits = zip(*rows, strict=True)
    snapshot = folder / "windows.parquet"
    pq.write_table(pa.table({"input": paths, "target": labels, "split": splits}), snapshot)
    say(f"{count} windows of {len(found)} photos, {splits.count('test')} to judge by")
    return Photos(snapshot, snapshot)


def trained(folder: Path, architecture: str, photos: Photos, epochs: int) -> Path:
    words = ["--images", str(photos.csv), "--architecture", architecture, "--out", str(folder)]
    words += ["--name", architecture, "--epochs", str(epochs), "--size", "64", "--threads", "1"]
    with contextlib.redirect_stdout(io.StringIO()):
        if train(words):
            raise RuntimeError(f"{architecture} was not trained")
    return folder / architecture / "1"


def timed(folders: Sequence[Path]) -> dict[str, dict[int, list[float]]]:
    """By folder and rows, seconds of a pass in each turn, all folders by turns."""
    device = find_device("cpu", threads=1)
    networks: dict[str, Any] = {}
    for folder in folders:
        manifest = read_manifest(str(folder))
        network = load_network(manifest, device)
        warm_up(network, manifest)
        networks[str(folder)] = network
    random = np.random.default_rng(0)
    found: dict[str, dict[int, list[float]]] = {name: {size: [] for size in SIZES} for name in networks}
    for _ in range(TURNS):
        for size in SIZES:
            for name, network in networks.items():
                pixels = random.integers(0, 256, (size, *network.pixels, 3), np.uint8)
                least_s = min(_took_s(network, pixels) for _ in range(3))
                found[name][size].append(least_s)
    return found


def _took_s(network: Any, pixels: np.ndarray) -> float:
    began_s = time.perf_counter()
    network.scores(pixels, lambda: False)
    return time.perf_counter() - began_s


def compared(
    folder: Path, model: Path, photos: Photos, recipes: Sequence[str], rows: int
) -> list[dict[str, Any]]:
    """The original, then each variant: bytes, accuracy with its interval, agreement, speed-up by rows."""
    torch_threads_one()
    name = model.parent.name
    reading = MakingRows(lambda path: Path(path.decode()).read_bytes(), 1 << 26, lambda: None)
    made: list[tuple[str, Path, Any]] = []
    found: list[dict[str, Any]] = []
    for recipe in recipes:
        target = folder / f"{name}-{recipe}"
        message = MakeVariant(
            1, str(model), str(target), f"{name}~{recipe}", recipe, 1, str(photos.snapshot), "test", 256, rows
        )
        try:
            made.append((recipe, target, made_and_judged(message, reading)))
        except ModelUnusable as exc:
            say(f"{name} {recipe}: {exc}")
    times = timed([model, *(target for _, target, _ in made)])
    own = times[str(model)]
    first = made[0][2]
    original = accuracy_of(first.original_right, len(first.original_right))
    size = files_bytes(read_manifest(str(model)))
    found.append(_row(name, "original", size, original, own, own))
    for recipe, target, told in made:
        held_out = accuracy_of(told.right, told.agreed)
        found.append(_row(name, recipe, told.nbytes, held_out, own, times[str(target)]))
    return found


def _row(
    model: str,
    variant: str,
    nbytes: int,
    held_out: Any,
    own: dict[int, list[float]],
    took: dict[int, list[float]],
) -> dict[str, Any]:
    ratios = {size: np.array(own[size]) / np.array(took[size]) for size in SIZES}
    return {
        "model": model,
        "variant": variant,
        "bytes": nbytes,
        "accuracy": held_out.to_json(),
        "ms": {size: round(float(np.median(took[size])) * 1000, 3) for size in SIZES},
        "times_as_fast": {
            size: [round(float(part), 3) for part in (np.median(each), each.min(), each.max())]
            for size, each in ratios.items()
        },
    }


def torch_threads_one() -> None:
    import torch

    torch.set_num_threads(1)


def _shown(rows: Sequence[dict[str, Any]]) -> None:
    """A line each: MB, right (interval), agrees, then by rows ms (times as fast: median, least to most)."""
    for row in rows:
        told = row["accuracy"]
        speeds = " · ".join(
            f"{size}: {row['ms'][size]:.2f} ms ({row['times_as_fast'][size][0]:.2f}×, "
            f"{row['times_as_fast'][size][1]:.2f} to {row['times_as_fast'][size][2]:.2f})"
            for size in SIZES
        )
        say(
            f"{row['model']:<12} {row['variant']:<9} {row['bytes'] / 1e6:5.2f} MB  "
            f"{told['accuracy']:.3f} ({told['low']:.3f} to {told['high']:.3f}) "
            f"agrees {told['agreement']:.3f}  {speeds}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--architectures", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--weights", type=Path, help="EfficientNet-Lite0's checkpoint, for its row")
    parser.add_argument("--pictures", type=Path, help="folder of photos for that; without, drawn dishes")
    parser.add_argument("--windows", type=int, default=400, help="of these photos")
    flags = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        photos = drawn(folder, flags.photos)
        for architecture in flags.architectures:
            model = trained(folder, architecture, photos, flags.epochs)
            rows += compared(folder, model, photos, RECIPES, 10_000)
            _shown(rows[-1 - len(RECIPES) :])
        if flags.weights is not None:
            if flags.pictures is not None:
                photos = windows(folder, flags.pictures, flags.windows)
            rows += compared(folder, _imported(folder, flags.weights), photos, RECIPES, 1_000)
    say()
    _shown(rows)
    write_json("variants", {"photos": flags.photos, "epochs": flags.epochs, "variants": rows})


def _imported(folder: Path, weights: Path) -> Path:
    from gpu_worker.importing import recognised, staged

    found = recognised(weights, {"architecture": "efficientnet_lite0"})
    place = folder / "efficientnet_lite0" / "1"
    place.mkdir(parents=True)
    manifest = staged(found, "efficientnet_lite0", place)
    return Path(manifest.directory)


if __name__ == "__main__":
    main()
