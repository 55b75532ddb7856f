"""Trays with several dishes on them, as one photo each, and where every dish is.

`take_tray` is a pure function of (dishes, size, seed, number), as `photo.take_photo`. Owns the table `trays`
and its CSV file, too: whose tray it was, what is on it, and who may learn from it.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops

from examples.foodlog.canvas import Canvas, Points, Pose, near, shade
from examples.foodlog.dishes import DISHES
from examples.foodlog.foodlog import User
from examples.foodlog.labels import Split
from examples.foodlog.photo import OVERSAMPLING, developed
from examples.foodlog.tableware import table

__all__ = ["Tray", "lay_trays", "take_tray", "write_trays"]

_MOST_DISHES = 4
_PLACES = ((-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0))  # of a tray's quarters, as world units go
_APART = 1.22  # from the middle, in a plate's radius
_TRAY = (2.75, 2.65)  # half its sides
_TRAYS = ((186, 148, 104), (70, 74, 82), (176, 66, 56), (64, 104, 92), (206, 202, 192))
_NOWHERE = (255, 0, 255)  # no dish and no table has this colour
_LESSONS = 5  # of so many trays one is held out

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels


@dataclass(frozen=True, slots=True)
class Tray:
    """A row of `trays`. dishes: JSON, [] of an empty one."""

    image_path: str
    user_id: int
    dishes: str
    split: Split


def lay_trays(count: int, users: Sequence[User], seed: int) -> list[tuple[Tray, tuple[str, ...]]]:
    """Trays, of which nobody has said yet where the dishes are, and the dishes on each: one to four of them.

    The same arguments give the same.
    """
    rng = random.Random(f"trays/{seed}")
    hunger = [rng.choice((1, 1, 2, 2, 3)) for _ in users]
    trays = []
    for number in range(count):
        place = rng.randrange(len(users))
        dishes = tuple(rng.choices(tuple(DISHES), k=rng.randint(hunger[place] - 1, _MOST_DISHES)))
        split: Split = "holdout" if number % _LESSONS == 0 else "lesson"
        path = f"trays/{number // 100:03d}/{number:06d}.jpg"
        trays.append((Tray(path, users[place].user_id, "[]", split), dishes))
    return trays


def write_trays(folder: Path, trays: Iterable[Tray]) -> None:
    """Write `trays.csv`."""
    with (folder / "trays.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Tray))
        writer.writerows(map(astuple, trays))


def take_tray(dishes: Sequence[str], size_px: int, seed: int, number: int) -> tuple[bytes, str]:
    """The JPEG, `size_px` square, of a tray with up to four dishes, and as JSON where each of them is.

    The same arguments give the same bytes. Raises KeyError for a dish that nobody paints, ValueError for more
    than fit on a tray.
    """
    if len(dishes) > len(_PLACES):
        raise ValueError(f"a tray holds {len(_PLACES)} dishes, not {len(dishes)}")
    rng = random.Random(f"{seed}/tray/{number}/{'/'.join(dishes)}")
    texture = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
    side_px, light_rad = size_px * OVERSAMPLING, rng.uniform(0, 2 * math.pi)
    pose = _pose(rng, side_px)
    canvas = Canvas(side_px, pose, light_rad, rng)
    table(canvas, texture)
    _tray(canvas)
    told: list[dict[str, object]] = []
    # What stands behind is painted first: the camera looks from below.
    for x, y in sorted(rng.sample(_PLACES, len(dishes)), key=lambda place: _below(canvas, place)):
        dish = dishes[len(told)]
        spot = np.array([[x, y]]) * _APART + np.array([[rng.uniform(-0.1, 0.1), rng.uniform(-0.1, 0.1)]])
        ((x_px, y_px),) = Canvas(side_px, pose, light_rad, rng).to_pixels(spot).tolist()
        canvas.move(
            replace(
                pose, center_x_px=x_px, center_y_px=y_px, turn_rad=pose.turn_rad + rng.uniform(0, 2 * math.pi)
            )
        )
        corners = _extent(dish, canvas, light_rad, size_px)
        DISHES[dish](canvas)
        told.append({"label": dish, "box": list(corners)})
    return developed(canvas.image, size_px, rng, texture), json.dumps(told)


def _pose(rng: random.Random, canvas_px: int) -> Pose:
    """Nearly from above, so that the whole tray is seen, whichever way it is turned."""
    return Pose(
        center_x_px=canvas_px * rng.gauss(0.5, 0.015),
        center_y_px=canvas_px * rng.gauss(0.5, 0.015),
        pixels_per_unit=canvas_px * rng.uniform(0.165, 0.19),
        turn_rad=rng.choice((0.0, math.pi / 2, math.pi)) + rng.gauss(0, 0.06),
        tilt_rad=math.radians(rng.triangular(0, 30, 12)),
    )


def _tray(canvas: Canvas) -> None:
    rng = canvas.rng
    color = near(rng, rng.choice(_TRAYS), 14)
    outline = canvas.block(0, 0, *_TRAY, 0.0, 0.12)
    canvas.shadow(outline, 0.2, 0.5)
    canvas.solid(outline, color, shade(color, 0.6), 0.0, 0.08, 3)
    canvas.fill(outline * 0.96, shade(color, 0.88), 0.08)
    canvas.fill(outline * 0.94, color, 0.06)


def _below(canvas: Canvas, place: tuple[float, float]) -> float:
    """How far down in the picture a place on the tray lies."""
    return float(canvas.to_pixels(np.array([place]))[0, 1])


def _extent(dish: str, canvas: Canvas, light_rad: float, size_px: int) -> Box:
    """Where a dish will be: it is painted by the same strokes on nothing, without its shadow."""
    aside = random.Random()
    aside.setstate(canvas.rng.getstate())
    alone = _Shadowless(canvas.size_px, canvas.pose, light_rad, aside)
    alone.backdrop(Image.new("RGB", alone.image.size, _NOWHERE))
    DISHES[dish](alone)
    found = ImageChops.difference(alone.image, Image.new("RGB", alone.image.size, _NOWHERE)).getbbox()
    assert found is not None
    x0, y0, x1, y1 = found
    scale = size_px / canvas.size_px
    return (
        math.floor(x0 * scale),
        math.floor(y0 * scale),
        min(size_px, math.ceil(x1 * scale)),
        min(size_px, math.ceil(y1 * scale)),
    )


class _Shadowless(Canvas):
    def shadow(self, outline: Points, lift: float, strength: float = 0.45, softness: float = 0.06) -> None:
        """A shadow is no part of the thing."""
