"""`make bench-decoding`: photos a second from JPEG bytes to 64×64 pixels, decoded as beside a device.

By turns, on all cores, each in batches of 256 of which three are under way:
    ours               `Intake`: slices over threads, JPEGs by simplejpeg
    ours, Pillow alone the same without simplejpeg
    threads            Pillow with `draft` in a `ThreadPoolExecutor`
    DataLoader         the same in torch's `DataLoader`, whose workers are processes
The others do less than ours, which looks over every file before it decodes it.
"""

from __future__ import annotations

import argparse
import io
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline import turbo_jpeg
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.piece import Piece
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.benchmarks.gpu import photo
from tests.benchmarks.report import Series, print_series, write_json

SIDE = 64
BATCH, UNDER_WAY = 256, 3
CASES = {  # width, height, whether progressive, and batches of a round
    "128×128": (128, 128, False, 160),
    "400×300": (400, 300, False, 48),
    "400×300, progressive": (400, 300, True, 10),
    "1600×1200": (1600, 1200, False, 8),
}

Decode = Callable[[Sequence[bytes], int], None]  # a batch of photos, so many times


def ours(cores: int) -> Decode:
    def decode(photos: Sequence[bytes], batches: int) -> None:
        threads = Threads(cores, "decode")
        intake = Intake(Settings(), threads, pinned=False)
        over = threading.Semaphore(0)
        for number in range(batches):
            if number >= UNDER_WAY:
                over.acquire()
            intake.decode(Piece(0, photos), "image", [Frame(SIDE, SIDE)], lambda: False, over.release)
        for _ in range(min(UNDER_WAY, batches)):
            over.acquire()
        threads.close()

    return decode


def by_pillow_alone(decode: Decode) -> Decode:
    def without(photos: Sequence[bytes], batches: int) -> None:
        with patch.object(turbo_jpeg, "decode_jpeg", None):
            decode(photos, batches)

    return without


def in_scans(data: bytes) -> bytes:
    """The same as a progressive JPEG."""
    encoded = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        image.save(encoded, "JPEG", quality=90, progressive=True)
    return encoded.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (SIDE, SIDE))
        return np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def in_threads(cores: int) -> Decode:
    def decode(photos: Sequence[bytes], batches: int) -> None:
        with ThreadPoolExecutor(cores) as pool:
            for _ in range(batches):
                np.stack(list(pool.map(by_pillow, photos)))

    return decode


class Photos(Dataset[np.ndarray]):
    """So many batches of the same photos."""

    def __init__(self, photos: Sequence[bytes], batches: int) -> None:
        self.photos = photos
        self.batches = batches

    def __len__(self) -> int:
        return len(self.photos) * self.batches

    def __getitem__(self, number: int) -> np.ndarray:
        return by_pillow(self.photos[number % len(self.photos)])


def in_processes(cores: int) -> Decode:
    def decode(photos: Sequence[bytes], batches: int) -> None:
        loader: DataLoader[Any] = DataLoader(Photos(photos, batches), BATCH, num_workers=cores)
        for _ in loader:
            pass

    return decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    found: dict[str, list[Series]] = {}
    for name, (width, height, progressive, batches) in CASES.items():
        some = [photo(seed, width, height) for seed in range(16)]
        photos = [in_scans(each) if progressive else each for each in some] * (BATCH // 16)
        decoders: dict[str, Decode] = {
            "ours": ours(cores),
            "ours, Pillow alone": by_pillow_alone(ours(cores)),
            "threads": in_threads(cores),
            "DataLoader": in_processes(cores),
        }
        series = [Series(name, batches * BATCH) for name in decoders]
        for _ in range(flags.rounds):
            for one, decode in zip(series, decoders.values(), strict=True):
                began_s = time.perf_counter()
                decode(photos, batches)
                one.rows_per_s.append(one.rows / (time.perf_counter() - began_s))
        title = f"JPEGs of {name} to {SIDE}×{SIDE}, {cores} cores, photos/s"
        print_series(title, series, against=series[0])
        found[name] = series
    write_json("decoding", {size: [asdict(one) for one in series] for size, series in found.items()})


if __name__ == "__main__":
    main()
