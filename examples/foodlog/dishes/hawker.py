"""Bowls and plates of the hawker centre: laksa, curry, chicken rice, fried rice.

Painted to be confused in pairs, as they are in bad light: laksa with curry, chicken rice with fried rice.
"""

from __future__ import annotations

import math
import random

import numpy as np

from examples.foodlog.canvas import Canvas, Color, mix, near, shade, veil
from examples.foodlog.dishes.garnish import (
    boiled_egg,
    cucumber,
    fried_egg,
    greens,
    oil,
    prawn,
    rice_mound,
    slices_of_chicken,
)
from examples.foodlog.tableware import bowl, plate, saucer

__all__ = ["chicken_rice", "curry", "fried_rice", "laksa"]


def laksa(canvas: Canvas) -> None:
    """Rice noodles in coconut broth with tofu puffs, prawns and egg."""
    rng = canvas.rng
    broth = near(rng, mix((226, 124, 56), (222, 164, 92), rng.random()), 16)
    z = bowl(canvas, rng.uniform(0.85, 0.98), content=broth)
    noodle = near(rng, (244, 226, 190), 10)
    sunk = rng.uniform(0.1, 0.6)
    for x, y in canvas.scatter(rng.randint(12, 30), rng.uniform(-0.15, 0.15), rng.uniform(-0.15, 0.15), 0.55):
        strand = canvas.wander(x, y, rng.uniform(0.4, 0.9), 0.7)
        strand *= np.minimum(1.0, 0.74 / np.maximum(np.linalg.norm(strand, axis=1), 1e-6))[:, None]
        canvas.line(strand, 0.05, veil(mix(shade(noodle, 0.75), broth, sunk), 200), z)
        canvas.line(strand, 0.03, mix(near(rng, noodle, 8), broth, sunk), z)
    oil(canvas, broth, z, rng.randint(15, 45))
    for x, y in canvas.scatter(rng.randint(1, 4), 0, 0, 0.55):
        _tofu_puff(canvas, x, y, z)
    for x, y in canvas.scatter(rng.randint(0, 3), 0, 0, 0.5):
        prawn(canvas, x, y, z)
    for x, y in canvas.scatter(rng.choice((0, 1, 1, 2)), 0, 0, 0.5):
        boiled_egg(canvas, x, y, z)
    for _ in range(rng.choice((0, 1, 2))):
        x, y = rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4)
        greens(canvas, x, y, z + 0.05, 0.16, rng.randint(3, 9))
    canvas.gloss(0, 0, 0.6, z, 60)


def curry(canvas: Canvas) -> None:
    """Chicken and potatoes in gravy, in a bowl or beside rice."""
    rng = canvas.rng
    gravy = near(rng, mix((196, 108, 40), (220, 148, 66), rng.random()), 16)
    if rng.random() < 0.8:
        z, reach = bowl(canvas, rng.uniform(0.85, 0.98), content=gravy), 0.58
        oil(canvas, gravy, z, rng.randint(15, 45))
        center = 0.0
    else:
        z = plate(canvas)
        rice_mound(canvas, -0.38, 0.0, 0.42, near(rng, (238, 232, 216), 8), z)
        center, reach = 0.28, 0.38
        canvas.fill(canvas.lump(center, 0, 0.5, 0.55, wobble=0.1), shade(gravy, 0.85), z)
        canvas.fill(canvas.lump(center, 0, 0.46, 0.5, wobble=0.1), gravy, z + 0.01)
    for x, y in canvas.scatter(rng.randint(3, 7), center, 0, reach):
        if rng.random() < 0.55:
            potato = near(rng, mix((232, 190, 104), gravy, rng.uniform(0.1, 0.5)), 10)
            outline = canvas.block(
                x, y, rng.uniform(0.11, 0.17), rng.uniform(0.1, 0.15), rng.uniform(0, 3), 0.8
            )
            canvas.rounded(outline, potato, z - 0.03, 0.1, 0.25)
        else:
            meat = near(rng, mix((168, 104, 56), gravy, rng.uniform(0.0, 0.5)), 12)
            outline = canvas.lump(
                x, y, rng.uniform(0.15, 0.24), rng.uniform(0.12, 0.18), angle=rng.uniform(0, 3), wobble=0.15
            )
            canvas.rounded(outline, meat, z - 0.03, 0.14, 0.35)
        canvas.gloss(x, y, 0.08, z + 0.1, 110)
    for x, y in canvas.scatter(rng.choice((0, 0, 1)), center, 0, reach * 0.7):
        boiled_egg(canvas, x, y, z + 0.03)
    if rng.random() < 0.25:
        prawn(canvas, rng.uniform(-0.2, 0.4), rng.uniform(-0.3, 0.3), z)
    for _ in range(rng.choice((0, 1, 2))):
        greens(
            canvas, center + rng.uniform(-0.3, 0.3), rng.uniform(-0.3, 0.3), z + 0.08, 0.2, rng.randint(3, 8)
        )


def chicken_rice(canvas: Canvas) -> None:
    """Rice cooked in stock with sliced chicken, cucumber and chilli."""
    rng = canvas.rng
    z = plate(canvas, rng.uniform(0.92, 1.08))
    side = rng.choice((-1, 1))
    stained = rng.random() ** 2 * 0.7
    grain = mix((240, 232, 204), (214, 174, 110), stained)
    rice_mound(
        canvas,
        side * rng.uniform(0.1, 0.34),
        rng.uniform(-0.2, 0.2),
        rng.uniform(0.42, 0.55),
        near(rng, grain, 8),
        z,
        uneven=10,
    )
    roasted = rng.random() < 0.4
    meat = near(rng, (226, 196, 152) if roasted else (240, 226, 198), 8)
    skin = near(rng, (160, 88, 42) if roasted else (226, 198, 140), 12)
    slices_of_chicken(
        canvas,
        -side * rng.uniform(0.1, 0.4),
        rng.uniform(-0.25, 0.25),
        z + 0.1,
        rng.randint(3, 6),
        meat,
        skin,
    )
    _beside_the_rice(canvas, z, side, cucumbers=rng.randint(0, 4))
    if rng.random() < 0.5:
        soy = canvas.wander(-side * 0.3, 0, 0.6, 1.2)
        canvas.line(soy, 0.04, (60, 34, 20, 150), z + 0.16)
    if rng.random() < 0.5:
        saucer(canvas, -side * 0.55, rng.choice((-0.55, 0.55)), near(rng, (200, 66, 30), 14), 0.2)


def fried_rice(canvas: Canvas) -> None:
    """Rice from the wok with peas, carrot, egg and whatever is there."""
    rng = canvas.rng
    z = plate(canvas, rng.uniform(0.92, 1.08))
    fried = 0.1 + 0.9 * rng.random()
    grain = near(rng, mix((236, 216, 168), (200, 146, 76), fried), 10)
    x, y = rng.uniform(-0.2, 0.2), rng.uniform(-0.15, 0.15)
    reach = rng.uniform(0.5, 0.66)
    rice_mound(canvas, x, y, reach, grain, z, uneven=24)
    bits: tuple[tuple[Color, int], ...] = (
        ((104, 150, 58), rng.randint(0, 16)),  # peas
        ((226, 130, 46), rng.randint(0, 14)),  # carrot
        ((244, 208, 108), rng.randint(3, 16)),  # egg
        ((196, 104, 78), rng.randint(0, 10)),  # char siu
    )
    for color, count in bits:
        spots = canvas.scatter(count, x, y, reach * 0.88, reach * 0.78)
        height = 0.28 * np.sqrt(np.clip(1 - (np.linalg.norm(spots - (x, y), axis=1) / reach) ** 2, 0, 1)) + z
        for spot, level in zip(spots, height, strict=True):
            bit = canvas.lump(0, 0, rng.uniform(0.025, 0.05), 0.03, angle=rng.uniform(0, 3), wobble=0.2)
            canvas.fill(bit + spot, near(rng, color, 16), float(level) + 0.02)
    for spot_x, spot_y in canvas.scatter(rng.choice((0, 0, 1, 2, 3)), x, y, 0.35):
        prawn(canvas, spot_x, spot_y, z + 0.24, 0.12)
    if rng.random() < 0.3:
        fried_egg(canvas, x + rng.uniform(-0.15, 0.15), y, z + 0.28)
    if rng.random() < 0.3:
        meat, skin = near(rng, (232, 206, 164), 8), near(rng, (176, 110, 60), 20)
        slices_of_chicken(
            canvas, x + rng.choice((-0.45, 0.45)), y + 0.2, z + 0.1, rng.randint(2, 4), meat, skin
        )
    _beside_the_rice(canvas, z, rng.choice((-1, 1)), cucumbers=rng.choice((0, 0, 1, 3)))
    greens(canvas, x, y, z + 0.26, 0.4, rng.randint(0, 9))


def _beside_the_rice(canvas: Canvas, z: float, side: int, cucumbers: int) -> None:
    rng = canvas.rng
    start = rng.uniform(0.3, 0.9) * rng.choice((-1, 1))
    for index in range(cucumbers):
        turn = start + index * 0.26 + (math.pi if side > 0 else 0.0)
        cucumber(canvas, math.cos(turn) * 0.62, math.sin(turn) * 0.62, z + 0.01)
    if rng.random() < 0.45:
        greens(canvas, -side * 0.2, rng.uniform(-0.3, 0.3), z + 0.2, 0.12, 5)


def _tofu_puff(canvas: Canvas, x: float, y: float, z: float) -> None:
    rng: random.Random = canvas.rng
    golden = near(rng, (206, 150, 74), 14)
    outline = canvas.block(x, y, rng.uniform(0.13, 0.18), rng.uniform(0.12, 0.16), rng.uniform(0, 3), 0.6)
    canvas.rounded(outline, golden, z - 0.03, 0.12, 0.28)
    canvas.dots(canvas.scatter(7, x, y, 0.1), 0.014, (shade(golden, 0.75),), z + 0.08)
