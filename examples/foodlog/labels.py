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

__all__ = ["Label", "Split", "choose_labels", "write_labels"]

Split = Literal["lesson", "holdout"]

# Of 5 photos of a dish 4 are lessons, which the training service divides as it needs; 1 no model ever sees.
_SPLITS: tuple[Split, ...] = ("lesson", "holdout", "lesson", "lesson", "lesson")


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
