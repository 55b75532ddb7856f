"""Ingredients that several dishes share: rice, egg, cucumber, prawns, green leaves.

Knows how to paint one of each at a place. Knows no dish: that is what makes some dishes look alike.
"""

from __future__ import annotations

import math

import numpy as np

from examples.foodlog.canvas import Canvas, Color, Points, mix, near, shade, veil

__all__ = [
    "boiled_egg",
    "cucumber",
    "fried_egg",
    "greens",
    "oil",
    "prawn",
    "rice_mound",
    "slices_of_chicken",
    "tomato",
]


def rice_mound(
    canvas: Canvas,
    x: float,
    y: float,
    radius: float,
    color: Color,
    z: float,
    *,
    height: float = 0.3,
    uneven: int = 14,
) -> Points:
    """A heap of rice; answers its outline. `uneven` is how much single grains differ in brightness."""
    rng = canvas.rng
    outline = canvas.lump(x, y, radius, radius * rng.uniform(0.78, 1.0), angle=rng.uniform(0, 3), wobble=0.07)
    canvas.shadow(outline, 0.18, 0.4, 0.06)
    canvas.rounded(outline, color, z, height, 0.2)
    tones = [near(rng, color, uneven) for _ in range(9)]
    spots = canvas.scatter(190, x, y, radius * 0.97, radius * 0.85)
    far = np.linalg.norm(spots - (x, y), axis=1) / radius
    canvas.grains(spots, 0.075, 0.022, tones, z + height * np.sqrt(np.clip(1 - far**2, 0, 1)))
    return outline


def boiled_egg(canvas: Canvas, x: float, y: float, z: float, size: float = 0.2) -> None:
    """Half a boiled egg, yolk up."""
    rng = canvas.rng
    angle = rng.uniform(0, math.pi)
    yolk = near(rng, rng.choice(((244, 180, 50), (238, 150, 36), (246, 206, 96))), 10)
    canvas.fill(canvas.ellipse(x, y, size * 1.06, size * 0.84, angle), (120, 90, 60, 120), z)
    canvas.fill(canvas.ellipse(x, y, size, size * 0.78, angle), near(rng, (248, 244, 234), 6), z + 0.04)
    canvas.fill(canvas.ellipse(x, y, size * 0.55, size * 0.5, angle), yolk, z + 0.05)
    canvas.gloss(x, y, size * 0.3, z + 0.05, 150)


def fried_egg(canvas: Canvas, x: float, y: float, z: float) -> None:
    """A fried egg with a browned edge."""
    rng = canvas.rng
    white = canvas.lump(x, y, rng.uniform(0.26, 0.36), wobble=0.14)
    canvas.shadow(white, 0.05, 0.3, 0.03)
    canvas.fill(white, near(rng, (222, 178, 110), 12), z)
    canvas.fill((white - (x, y)) * 0.9 + (x, y), near(rng, (250, 246, 236), 5), z + 0.01)
    spot_x, spot_y = x + rng.uniform(-0.06, 0.06), y + rng.uniform(-0.06, 0.06)
    canvas.rounded(canvas.ellipse(spot_x, spot_y, 0.12), near(rng, (250, 178, 40), 12), z + 0.01, 0.06, 0.2)
    canvas.gloss(spot_x, spot_y, 0.07, z + 0.06, 180)


def cucumber(canvas: Canvas, x: float, y: float, z: float, size: float = 0.14) -> None:
    """A slice of cucumber."""
    rng = canvas.rng
    canvas.fill(canvas.ellipse(x, y, size), near(rng, (62, 120, 52), 12), z + 0.02)
    canvas.fill(canvas.ellipse(x, y, size * 0.86), near(rng, (198, 222, 160), 8), z + 0.03)
    canvas.fill(canvas.ellipse(x, y, size * 0.5), near(rng, (216, 232, 184), 6), z + 0.03)
    canvas.dots(canvas.scatter(6, x, y, size * 0.38), 0.012, ((176, 198, 130),), z + 0.03)


def tomato(canvas: Canvas, x: float, y: float, z: float, size: float = 0.16) -> None:
    """A slice of tomato."""
    rng = canvas.rng
    red = near(rng, (206, 52, 40), 14)
    canvas.fill(canvas.ellipse(x, y, size), shade(red, 0.85), z + 0.02)
    canvas.fill(canvas.ellipse(x, y, size * 0.88), red, z + 0.03)
    for turn in np.linspace(0, 2 * math.pi, 4, endpoint=False) + rng.uniform(0, 1):
        seed_x, seed_y = x + math.cos(turn) * size * 0.5, y + math.sin(turn) * size * 0.5
        canvas.fill(canvas.ellipse(seed_x, seed_y, size * 0.22, size * 0.16, turn), (232, 128, 80), z + 0.03)
    canvas.gloss(x, y, size * 0.5, z + 0.03, 110)


def prawn(canvas: Canvas, x: float, y: float, z: float, size: float = 0.17) -> None:
    """A curled, cooked prawn."""
    rng = canvas.rng
    start = rng.uniform(0, 2 * math.pi)
    turns = start + np.linspace(0, 1.25 * math.pi, 8)
    curl = np.stack([x + np.cos(turns) * size, y + np.sin(turns) * size], axis=1)
    pink = near(rng, (240, 142, 104), 14)
    canvas.line(curl, size * 0.78, shade(pink, 0.8), z)
    canvas.line(curl[:-1], size * 0.66, pink, z + 0.04)
    for index in range(1, 7):
        inward = (curl[index] - (x, y)) * 0.3
        canvas.line(np.stack([curl[index] - inward, curl[index] + inward]), 0.02, (252, 222, 206), z + 0.045)


def slices_of_chicken(
    canvas: Canvas, x: float, y: float, z: float, count: int, meat: Color, skin: Color
) -> None:
    """A row of sliced chicken, the skin along one edge."""
    rng = canvas.rng
    angle = rng.uniform(-0.6, 0.6) + rng.choice((0.0, math.pi / 2))
    along = np.array([math.cos(angle), math.sin(angle)])
    row = canvas.block(x, y, 0.085 * count, 0.24, angle, 0.5)
    canvas.shadow(row, 0.12, 0.4, 0.05)
    for index in range(count):
        place = np.array([x, y]) + along * (index - (count - 1) / 2) * 0.15
        length = rng.uniform(0.2, 0.28)
        outline = canvas.block(0, 0, 0.085, length, angle + rng.uniform(-0.15, 0.15), 0.6) + place
        canvas.fill(outline, shade(skin, 0.8), z)
        canvas.fill(outline, near(rng, skin, 8), z + 0.07)
        canvas.fill((outline - place) * (0.72, 0.9) + place, near(rng, meat, 7), z + 0.08)


def greens(canvas: Canvas, x: float, y: float, z: float, reach: float = 0.15, count: int = 5) -> None:
    """A little coriander or spring onion, strewn."""
    rng = canvas.rng
    green = near(rng, (72, 130, 50), 20)
    for spot_x, spot_y in canvas.scatter(count, x, y, reach):
        leaf = canvas.lump(
            spot_x, spot_y, rng.uniform(0.03, 0.065), 0.035, angle=rng.uniform(0, 3), wobble=0.25
        )
        canvas.fill(leaf, near(rng, green, 14), z)


def oil(canvas: Canvas, color: Color, z: float, count: int, radius: float = 0.78) -> None:
    """Drops of oil afloat on a soup or gravy, and the broad patches between them."""
    rng = canvas.rng
    dark, light = veil(shade(color, 0.8), 90), veil(mix(color, (255, 214, 120), 0.5), 110)
    for spot_x, spot_y in canvas.scatter(7, 0, 0, radius * 0.85):
        canvas.fill(
            canvas.lump(spot_x, spot_y, rng.uniform(0.1, 0.3), 0.12, angle=rng.uniform(0, 3), wobble=0.2),
            rng.choice((dark, light)),
            z,
        )
    canvas.dots(canvas.scatter(count, 0, 0, radius), 0.03, (dark, light, veil(shade(color, 0.65), 110)), z)
