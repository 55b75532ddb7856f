"""One photo of one meal: where the camera stands, how the light falls, what lens and JPEG leave of it.

`take_photo` is a pure function of (dish, size, seed, number). Knows no file and no table.
"""

from __future__ import annotations

import io
import math
import random

import numpy as np
from PIL import Image, ImageFilter

from examples.foodlog.canvas import Canvas, Pose
from examples.foodlog.dishes import DISHES
from examples.foodlog.tableware import clutter, table

__all__ = ["OVERSAMPLING", "developed", "take_photo"]

OVERSAMPLING = 2  # painted at twice the size: Pillow's strokes are not antialiased


def take_photo(dish: str, size_px: int, seed: int, number: int) -> bytes:
    """The JPEG, `size_px` square, of photo `number` of a seed. The same arguments give the same bytes.

    Raises KeyError for a dish that nobody paints.
    """
    paint = DISHES[dish]
    rng = random.Random(f"{seed}/{number}/{dish}")
    texture = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
    canvas = Canvas(
        size_px * OVERSAMPLING, _pose(rng, size_px * OVERSAMPLING), rng.uniform(0, 2 * math.pi), rng
    )
    table(canvas, texture)
    before, after = rng.choice(((True, False), (True, False), (False, True)))
    if before:
        clutter(canvas)
    paint(canvas)
    if after:  # things in front of the plate rather than behind it
        clutter(canvas)
    return developed(canvas.image, size_px, rng, texture)


def _pose(rng: random.Random, canvas_px: int) -> Pose:
    """A hand-held camera: nearly centred, from overhead to a seated person's view, near or far."""
    return Pose(
        center_x_px=canvas_px * rng.gauss(0.5, 0.04),
        center_y_px=canvas_px * rng.gauss(0.52, 0.04),
        pixels_per_unit=canvas_px * min(0.75, max(0.36, rng.gauss(0.51, 0.07))),
        turn_rad=rng.uniform(0, 2 * math.pi),
        tilt_rad=math.radians(rng.triangular(0, 48, 18)),
    )


def developed(painted: Image.Image, size_px: int, rng: random.Random, texture: np.random.Generator) -> bytes:
    """What lens, light and JPEG leave of a picture that was painted `OVERSAMPLING` times as large."""
    image = painted.resize((size_px, size_px), Image.Resampling.BOX)
    softness_px = size_px / 128 * rng.choice((0.0, 0.0, 0.4, 0.6, 0.8, 1.4))
    if softness_px:
        image = image.filter(ImageFilter.GaussianBlur(softness_px))
    values = np.asarray(image).astype(np.float32) / 255
    if rng.random() < 0.08:
        values = _shaken(values, rng, size_px)
    values = values * _light(rng, size_px)
    grey = values.mean(axis=2, keepdims=True)
    values = grey + (values - grey) * rng.uniform(0.75, 1.2)
    values = np.clip(values, 0, 1) ** rng.uniform(0.8, 1.25)
    noise = abs(rng.gauss(0, 0.022))
    values = values + texture.normal(0, noise, values.shape).astype(np.float32)
    final = Image.fromarray((np.clip(values, 0, 1) * 255).astype(np.uint8))
    file = io.BytesIO()
    final.save(file, "JPEG", quality=rng.randint(38, 92))
    return file.getvalue()


def _light(rng: random.Random, size_px: int) -> np.ndarray:
    """Exposure, white balance, fall-off to one side and vignette, as one factor per pixel and channel."""
    across = np.linspace(-1, 1, size_px, dtype=np.float32)
    x, y = across[None, :], across[:, None]
    direction = rng.uniform(0, 2 * math.pi)
    slope = rng.uniform(0, 0.28)
    fall_off = 1 + slope * (x * math.cos(direction) + y * math.sin(direction))
    vignette = 1 - rng.uniform(0, 0.25) * (x**2 + y**2) / 2
    warmth, tint = rng.gauss(0.0, 0.05), rng.gauss(0.0, 0.015)
    balance = np.array([1 + warmth, 1 + tint, 1 - warmth], dtype=np.float32)
    exposure = math.exp(rng.gauss(-0.02, 0.14))
    light: np.ndarray = (exposure * fall_off * vignette)[:, :, None] * balance
    return light


def _shaken(values: np.ndarray, rng: random.Random, size_px: int) -> np.ndarray:
    """A moving hand: the picture smeared along one direction."""
    reach = size_px / 128 * rng.uniform(1.5, 4.0)
    direction = rng.uniform(0, math.pi)
    steps = [-1.0, -0.5, 0.0, 0.5, 1.0]
    smeared = [
        np.roll(
            values,
            (round(step * reach * math.sin(direction)), round(step * reach * math.cos(direction))),
            (0, 1),
        )
        for step in steps
    ]
    mean: np.ndarray = np.mean(smeared, axis=0)
    return mean
