"""From the griddle and the oven: pancakes, roti prata, pizza.

Pancakes and prata are painted to be confused: both round, flat, golden, and served with something in a dish.
"""

from __future__ import annotations

import math

import numpy as np

from examples.foodlog.canvas import Canvas, Color, Points, mix, near, shade, veil
from examples.foodlog.tableware import board, plate, saucer

__all__ = ["pancakes", "pizza", "roti_prata"]

GOLD: tuple[Color, Color] = ((226, 176, 100), (196, 130, 62))


def pancakes(canvas: Canvas) -> None:
    """A stack of one to five, with butter, syrup or berries, or plain."""
    rng = canvas.rng
    z = plate(canvas, rng.uniform(0.95, 1.1))
    golden = near(rng, mix(*GOLD, rng.random()), 12)
    count = rng.choice((1, 1, 2, 3, 4, 5))
    radius = rng.uniform(0.48, 0.62)
    for layer in range(count):
        spread = 0.3 if count <= 2 else 0.06
        x, y = rng.uniform(-spread, spread), rng.uniform(-spread, spread)
        outline = canvas.lump(x, y, radius, radius * rng.uniform(0.92, 1.0), wobble=0.03)
        if layer == 0 or count <= 2:
            canvas.shadow(outline, 0.1 * count, 0.45, 0.06)
        _griddled(canvas, outline, golden, z, thickness=rng.uniform(0.08, 0.12))
        z += 0.1
    if rng.random() < 0.55:
        _syrup(canvas, x, y, radius, z)
    if rng.random() < 0.45:
        butter = canvas.block(
            x + rng.uniform(-0.1, 0.1), y + rng.uniform(-0.1, 0.1), 0.11, 0.1, rng.uniform(0, 2), 0.2
        )
        canvas.solid(butter, near(rng, (250, 228, 136), 8), (226, 196, 100), z, 0.06, 3)
    if rng.random() < 0.4:
        fruit = rng.choice(((52, 52, 110), (196, 36, 52), (240, 216, 150)))
        for spot_x, spot_y in canvas.scatter(rng.randint(3, 8), x, y, 0.42):
            canvas.rounded(canvas.ellipse(spot_x, spot_y, 0.065), near(rng, fruit, 14), z, 0.08, 0.4)
    if rng.random() < 0.3:
        saucer(canvas, 0.62, rng.choice((-0.5, 0.5)), near(rng, (140, 70, 24), 16), 0.2)


def roti_prata(canvas: Canvas) -> None:
    """Flaky flatbread, round or folded, with a dish of curry."""
    rng = canvas.rng
    z = plate(canvas, rng.uniform(0.95, 1.1))
    golden = near(rng, mix(*GOLD, rng.random()), 14)
    count = rng.choice((1, 1, 2, 2, 3))
    for layer in range(count):
        spread = 0.05 if count == 1 else 0.28
        x, y = rng.uniform(-spread, spread), rng.uniform(-spread, spread)
        size = rng.uniform(0.46, 0.62)
        if rng.random() < 0.6:
            outline = canvas.lump(
                x, y, size, size * rng.uniform(0.85, 1.0), angle=rng.uniform(0, 3), wobble=0.06
            )
        else:
            outline = canvas.block(x, y, size * 0.9, size * rng.uniform(0.7, 0.9), rng.uniform(0, 3), 0.35)
        canvas.shadow(outline, 0.07, 0.45, 0.05)
        _griddled(canvas, outline, golden, z + 0.05 * layer, thickness=0.05)
        _flakes(canvas, x, y, size, golden, z + 0.05 * layer + 0.05)
    if rng.random() < 0.6:
        saucer(
            canvas,
            rng.choice((-0.6, 0.6)),
            rng.uniform(-0.5, 0.5),
            near(rng, (188, 100, 38), 20),
            rng.uniform(0.22, 0.3),
        )


def pizza(canvas: Canvas) -> None:
    """A whole pizza, one with a slice gone, or a single slice."""
    rng = canvas.rng
    z = board(canvas) if rng.random() < 0.4 else plate(canvas, rng.uniform(1.0, 1.1))
    crust = near(rng, mix((224, 172, 104), (186, 118, 60), rng.random()), 14)
    sauce = near(rng, (196, 66, 36), 16)
    cheese = near(rng, mix((246, 214, 128), (240, 190, 92), rng.random()), 12)
    missing = rng.choice((0.0, 0.0, 0.0, 0.0, math.pi / 4, math.pi / 2, 1.4 * math.pi))
    start = rng.uniform(0, 2 * math.pi)
    radius = rng.uniform(0.74, 0.86)
    body = _pie(radius, start, missing)
    canvas.shadow(body, 0.1, 0.45, 0.05)
    canvas.solid(body, crust, shade(crust, 0.65), z, 0.08, 4)
    canvas.rounded(body, crust, z + 0.06, 0.04, 0.12)
    canvas.fill(_pie(radius * 0.86, start, missing), sauce, z + 0.08)
    canvas.fill(_pie(radius * 0.82, start, missing), mix(sauce, cheese, rng.uniform(0.55, 0.85)), z + 0.09)
    lying = _within_pie(canvas.scatter(60, 0, 0, radius * 0.74), start, missing)
    level = z + 0.09
    for x, y in lying[:22]:
        melt = canvas.lump(
            x, y, rng.uniform(0.06, 0.16), rng.uniform(0.05, 0.1), angle=rng.uniform(0, 3), wobble=0.2
        )
        canvas.fill(melt, veil(near(rng, cheese, 14), 210), level)
    _toppings(canvas, lying[22:], level)
    for cut in np.linspace(0, 2 * math.pi, 8, endpoint=False) + start:
        if missing <= (cut - start) % (2 * math.pi) and rng.random() < 0.8:
            canvas.line(
                np.array([[0.0, 0.0], [math.cos(cut) * radius, math.sin(cut) * radius]]),
                0.014,
                (120, 60, 30, 130),
                level,
            )


def _griddled(canvas: Canvas, outline: Points, golden: Color, z: float, thickness: float) -> None:
    """A flat thing fried on both sides: pale edge, brown top, uneven."""
    rng = canvas.rng
    center = outline.mean(axis=0)
    canvas.solid(
        outline, mix(golden, (244, 218, 160), 0.45), mix(golden, (238, 206, 140), 0.4), z, thickness, 4
    )
    canvas.fill((outline - center) * 0.95 + center, shade(golden, 0.95), z + thickness)
    canvas.fill((outline - center) * 0.88 + center, golden, z + thickness)
    span = float(np.abs(outline - center).max())
    for x, y in canvas.scatter(rng.randint(5, 12), 0, 0, span * 0.66) + center:
        patch = canvas.lump(
            x, y, rng.uniform(0.06, 0.2), rng.uniform(0.05, 0.12), angle=rng.uniform(0, 3), wobble=0.25
        )
        canvas.fill(patch, veil(shade(golden, rng.uniform(0.72, 1.12)), 90), z + thickness)


def _flakes(canvas: Canvas, x: float, y: float, size: float, golden: Color, z: float) -> None:
    """What tells a prata: layers wound from the middle, and charred spots."""
    rng = canvas.rng
    for _ in range(rng.randint(2, 6)):
        start = rng.uniform(0, 2 * math.pi)
        turns = start + np.linspace(0, rng.uniform(1.0, 3.0), 8)
        reach = size * np.linspace(rng.uniform(0.15, 0.5), rng.uniform(0.5, 0.85), 8)
        swirl = np.stack([x + np.cos(turns) * reach, y + np.sin(turns) * reach * 0.85], axis=1)
        canvas.line(swirl, 0.02, veil(shade(golden, 0.74), 170), z)
        canvas.line(swirl + 0.018, 0.016, veil(mix(golden, (250, 230, 180), 0.5), 170), z)
    for spot_x, spot_y in canvas.scatter(rng.randint(4, 13), x, y, size * 0.75):
        spot = canvas.lump(
            spot_x, spot_y, rng.uniform(0.025, 0.08), 0.035, angle=rng.uniform(0, 3), wobble=0.3
        )
        canvas.fill(spot, veil(near(rng, (118, 66, 30), 16), rng.randint(110, 220)), z)


def _syrup(canvas: Canvas, x: float, y: float, radius: float, z: float) -> None:
    rng = canvas.rng
    amber = near(rng, (150, 74, 22), 16)
    canvas.fill(canvas.lump(x, y, radius * rng.uniform(0.35, 0.75), wobble=0.25), veil(amber, 150), z)
    for _ in range(rng.randint(0, 4)):
        turn = rng.uniform(0, 2 * math.pi)
        edge = np.array([x + math.cos(turn) * radius, y + math.sin(turn) * radius])
        flow = np.stack([np.array([x, y]) + (edge - (x, y)) * 0.3, edge, edge])
        canvas.line(flow, 0.07, veil(amber, 170), np.array([z, z, z - 0.1]))
    canvas.gloss(x, y, radius * 0.4, z, 130)


def _toppings(canvas: Canvas, spots: Points, z: float) -> None:
    rng = canvas.rng
    kinds = rng.sample(("pepperoni", "basil", "olive", "mushroom", "pepper"), rng.randint(1, 3))
    for x, y in spots[: rng.randint(8, 22)]:
        kind = rng.choice(kinds)
        if kind == "pepperoni":
            canvas.fill(canvas.ellipse(x, y, 0.105), (130, 30, 22), z)
            canvas.fill(canvas.ellipse(x, y, 0.09), near(rng, (186, 52, 36), 12), z + 0.015)
        elif kind == "basil":
            canvas.fill(
                canvas.lump(x, y, 0.1, 0.06, angle=rng.uniform(0, 3)), near(rng, (54, 104, 40), 12), z + 0.02
            )
        elif kind == "olive":
            canvas.fill(canvas.ellipse(x, y, 0.045), near(rng, (44, 40, 36), 8), z + 0.02)
            canvas.fill(canvas.ellipse(x, y, 0.018), (150, 90, 50), z + 0.02)
        elif kind == "mushroom":
            canvas.rounded(
                canvas.lump(x, y, 0.08, 0.055, angle=rng.uniform(0, 3)),
                near(rng, (214, 190, 156), 10),
                z,
                0.03,
                0.3,
            )
        else:
            pepper = near(rng, rng.choice(((70, 130, 50), (206, 60, 40), (236, 180, 50))), 12)
            canvas.line(canvas.wander(x, y, 0.2, 0.9, 5), 0.03, pepper, z + 0.02)


def _pie(radius: float, start: float, missing: float) -> Points:
    """The outline of a disc that lacks the sector from `start` on."""
    turns = start + np.linspace(missing, 2 * math.pi, 40)
    rim = np.stack([np.cos(turns), np.sin(turns)], axis=1) * radius
    return np.concatenate([rim, np.zeros((1, 2))]) if missing else rim


def _within_pie(spots: Points, start: float, missing: float) -> Points:
    turns = (np.arctan2(spots[:, 1], spots[:, 0]) - start) % (2 * math.pi)
    inside: Points = spots[turns > missing + 0.05] if missing else spots
    return inside
