"""What meals weigh and what they hold: the tables from which calories are learned.

`weighed` are meals that a dietician has measured; `portions` says of each photo how much was on the plate,
where somebody had a scale. Owns their numbers and their CSV files.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from examples.foodlog.labels import Label, Split

__all__ = ["Portion", "Weighed", "weigh", "write_scales"]

_KCAL_PER_G: Mapping[str, tuple[float, float]] = {  # and what a usual portion weighs, in g
    "chicken_rice": (1.55, 380),
    "curry": (1.35, 360),
    "fried_rice": (1.75, 350),
    "laksa": (1.10, 540),
    "pancakes": (2.30, 220),
    "pizza": (2.70, 260),
    "roti_prata": (3.10, 180),
    "salad": (0.60, 280),
    "satay": (2.10, 210),
    "sushi": (1.45, 240),
}
_COOKED: Mapping[str, float] = {"at home": 0.88, "hawker": 1.08, "restaurant": 1.0}  # by how much oil
_MEALS_PER_DISH = 150
_UNWEIGHED = 0.1  # of portions: nobody had a scale


@dataclass(frozen=True, slots=True)
class Weighed:
    """A row of `weighed`; portion_g: None where it was not noted."""

    meal_id: int
    food_name: str
    portion_g: int | None
    cooked: str
    calories: float
    split: Split


@dataclass(frozen=True, slots=True)
class Portion:
    """A row of `portions`."""

    image_path: str
    portion_g: int | None


def weigh(labels: Sequence[Label], seed: int) -> tuple[list[Weighed], list[Portion]]:
    """The dietician's meals, and a portion for each photo. The same arguments give the same."""
    rng = random.Random(f"scales/{seed}")
    turns = [(turn, dish) for turn in range(_MEALS_PER_DISH) for dish in _KCAL_PER_G]
    weighed = [_measured(number, turn, dish, rng) for number, (turn, dish) in enumerate(turns)]
    portions = [Portion(label.image_path, _noted(_weight(label.food_name, rng), rng)) for label in labels]
    return weighed, portions


def write_scales(folder: Path, weighed: Iterable[Weighed], portions: Iterable[Portion]) -> None:
    """Write `weighed.csv` and `portions.csv`."""
    for kind, rows in ((Weighed, weighed), (Portion, portions)):
        with (folder / f"{_FILES[kind]}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(kind))
            writer.writerows(map(astuple, rows))


_FILES: Mapping[type, str] = {Weighed: "weighed", Portion: "portions"}


def _measured(number: int, turn: int, dish: str, rng: random.Random) -> Weighed:
    weight_g = _weight(dish, rng)
    cooked = rng.choice(tuple(_COOKED))
    kcal = weight_g * _KCAL_PER_G[dish][0] * _COOKED[cooked] * rng.gauss(1.0, 0.06)
    split: Split = "holdout" if turn % 5 == 0 else "lesson"
    return Weighed(number, dish, _noted(weight_g, rng), cooked, round(kcal, 1), split)


def _weight(dish: str, rng: random.Random) -> int:
    return round(_KCAL_PER_G[dish][1] * rng.triangular(0.6, 1.6, 1.0))


def _noted(weight_g: int, rng: random.Random) -> int | None:
    return None if rng.random() < _UNWEIGHED else weight_g
