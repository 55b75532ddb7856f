"""The truth about the photos: which dish each shows, and who may learn from it.

Owns the choice and its CSV file. The food log itself never holds a label: naming dishes is the models' work.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal

__all__ = ["Label", "Split", "choose_labels", "read_labels", "write_labels"]

Split = Literal["train", "validation", "holdout"]

# Of 20 photos of a dish 14 train the models, 2 choose among them, and 4 no model ever sees. Interleaved, so
# that a small album has some of each.
_SPLITS: tuple[Split, ...] = (
    *("train", "holdout", "train", "train", "validation"),
    *("train", "holdout", "train", "train", "train"),
) * 2


@dataclass(frozen=True, slots=True)
class Label:
    """One photo: its path below the media root, what it shows, and its part in training."""

    image_path: str
    food_name: str
    split: Split


def choose_labels(images: int, dishes: Sequence[str], seed: int) -> list[Label]:
    """`images` labels, the dishes equally often, in an order that gives nothing away."""
    rng = random.Random(f"labels/{seed}")
    per_dish = [
        (dish, _SPLITS[turn % len(_SPLITS)]) for turn in range(-(-images // len(dishes))) for dish in dishes
    ][:images]
    rng.shuffle(per_dish)
    return [
        Label(f"meals/{number // 100:03d}/{number:06d}.jpg", dish, split)
        for number, (dish, split) in enumerate(per_dish)
    ]


def write_labels(path: Path, labels: Iterable[Label]) -> None:
    """Write the labels as CSV with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Label))
        writer.writerows(map(astuple, labels))


def read_labels(path: Path) -> list[Label]:
    """The labels of a file that `write_labels` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Label(row["image_path"], row["food_name"], _split(row["split"])) for row in csv.DictReader(file)
        ]


def _split(word: str) -> Split:
    for split in ("train", "validation", "holdout"):
        if word == split:
            return split
    raise ValueError(f"{word!r} is no split: train, validation or holdout")
