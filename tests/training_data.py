"""Photos that are easy to tell apart, for tests that train: class `a` is reddish, `b` greenish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("a", "b")


def draw_photos(folder: Path, count: int = 60) -> list[tuple[str, str]]:
    """Writes `count` small PNG files; (path relative to the folder, label) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        pixels = random.integers(0, 90, (24, 24, 3))
        pixels[:, :, number % 2] += 130
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        rows.append((f"{number}.png", CLASSES[number % 2]))
    return rows
