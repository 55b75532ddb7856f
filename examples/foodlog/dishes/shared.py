"""Things laid out to be shared: satay, sushi, salad."""

from __future__ import annotations

import math

import numpy as np

from examples.foodlog.canvas import Canvas, Color, mix, near, shade, veil
from examples.foodlog.dishes.garnish import boiled_egg, cucumber, slices_of_chicken, tomato
from examples.foodlog.tableware import board, bowl, leaf_mat, plate, saucer

__all__ = ["salad", "satay", "sushi"]


def satay(canvas: Canvas) -> None:
    """Skewers from the charcoal with peanut sauce, cucumber and onion."""
    rng = canvas.rng
    z = plate(canvas, rng.uniform(0.98, 1.12))
    if rng.random() < 0.4:
        leaf_mat(canvas, z)
    meat = near(rng, mix((176, 102, 50), (128, 70, 38), rng.random()), 12)
    angle = rng.uniform(-0.4, 0.4)
    count = rng.randint(3, 7)
    for index in range(count):
        tilt = angle + rng.uniform(-0.12, 0.12)
        _skewer(canvas, (index - (count - 1) / 2) * rng.uniform(0.15, 0.19), tilt, meat, z)
    if rng.random() < 0.7:
        saucer(
            canvas,
            rng.choice((-0.5, 0.5)),
            rng.choice((-0.55, 0.55)),
            near(rng, (170, 96, 46), 16),
            rng.uniform(0.22, 0.3),
        )
    for x, y in canvas.scatter(rng.randint(0, 4), -0.55, 0.35, 0.25):
        chunk = canvas.block(x, y, 0.09, 0.07, rng.uniform(0, 3), 0.3)
        canvas.solid(chunk, near(rng, (198, 222, 160), 8), (70, 124, 58), z, 0.07, 3)
    for x, y in canvas.scatter(rng.randint(0, 4), 0.5, 0.4, 0.22):
        onion = canvas.lump(x, y, 0.09, 0.06, angle=rng.uniform(0, 3))
        canvas.fill(onion, near(rng, (196, 130, 160), 14), z + 0.03)
        canvas.fill((onion - (x, y)) * 0.7 + (x, y), near(rng, (240, 222, 232), 8), z + 0.04)


def sushi(canvas: Canvas) -> None:
    """Nigiri and rolls in rows, with wasabi, ginger and soy."""
    rng = canvas.rng
    z = board(canvas) if rng.random() < 0.6 else plate(canvas, 1.05)
    angle = rng.uniform(-0.25, 0.25)
    along = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-along[1], along[0]])
    rolls_share = rng.choice((0.0, 0.4, 0.5, 1.0))
    for row in np.linspace(-0.36, 0.36, rng.randint(2, 3)):
        rolls = rng.random() < rolls_share
        fish = near(rng, rng.choice(((238, 128, 84), (196, 52, 60), (244, 222, 210), (246, 200, 90))), 12)
        for step in np.linspace(-0.6, 0.6, rng.randint(4, 6) if rolls else rng.randint(3, 4)):
            x, y = along * (step + rng.uniform(-0.03, 0.03)) + across * (row + rng.uniform(-0.03, 0.03))
            if rolls:
                _roll(canvas, x, y, fish, z)
            else:
                _nigiri(canvas, x, y, angle + math.pi / 2 + rng.uniform(-0.15, 0.15), fish, z)
    if rng.random() < 0.6:
        canvas.rounded(canvas.lump(0.8, 0.1, 0.09, wobble=0.2), near(rng, (150, 184, 90), 10), z, 0.1, 0.25)
    if rng.random() < 0.5:
        for x, y in canvas.scatter(4, 0.78, -0.25, 0.1):
            canvas.fill(
                canvas.lump(x, y, 0.09, 0.05, angle=rng.uniform(0, 3), wobble=0.2),
                near(rng, (244, 196, 182), 8),
                z + 0.02,
            )
    if rng.random() < 0.5:
        saucer(canvas, rng.uniform(-0.8, -0.6), rng.choice((-0.7, 0.7)), (44, 24, 18), 0.22)


def salad(canvas: Canvas) -> None:
    """Leaves with whatever is on them."""
    rng = canvas.rng
    green = near(rng, mix((98, 148, 58), (136, 172, 74), rng.random()), 14)
    z = bowl(canvas, content=shade(green, 0.5)) if rng.random() < 0.6 else plate(canvas)
    for layer, (x, y) in enumerate(canvas.scatter(26, 0, 0, 0.6)):
        color = near(rng, (122, 60, 82), 14) if rng.random() < 0.08 else near(rng, green, 26)
        level = z + 0.006 * layer
        leaf = canvas.lump(
            x, y, rng.uniform(0.16, 0.3), rng.uniform(0.1, 0.18), angle=rng.uniform(0, 3), wobble=0.22
        )
        canvas.fill(leaf - canvas.light * 0.03, veil(shade(color, 0.5), 160), level)
        canvas.fill(leaf, color, level + 0.02)
        canvas.fill((leaf - (x, y)) * 0.6 + (x, y) + canvas.light * 0.02, shade(color, 1.12), level + 0.025)
        canvas.line(leaf[[0, 13]], 0.014, mix(color, (230, 240, 200), 0.45), level + 0.025)
    top = z + 0.17
    for x, y in canvas.scatter(rng.randint(0, 4), 0, 0, 0.5):
        cucumber(canvas, x, y, top, 0.13)
    for x, y in canvas.scatter(rng.randint(1, 5), 0, 0, 0.5):
        tomato(canvas, x, y, top, rng.uniform(0.1, 0.16))
    if rng.random() < 0.25:
        boiled_egg(canvas, rng.uniform(-0.3, 0.3), rng.uniform(-0.3, 0.3), top, 0.17)
    if rng.random() < 0.25:
        slices_of_chicken(
            canvas, 0, 0, top, rng.randint(3, 4), near(rng, (236, 214, 172), 8), near(rng, (190, 130, 70), 10)
        )
    crouton: Color = near(rng, (206, 158, 92), 14)
    for x, y in canvas.scatter(rng.choice((0, 0, 5, 8)), 0, 0, 0.5):
        canvas.solid(
            canvas.block(x, y, 0.055, 0.05, rng.uniform(0, 2), 0.2),
            crouton,
            shade(crouton, 0.7),
            top,
            0.06,
            2,
        )
    if rng.random() < 0.4:
        for _ in range(5):
            dressing = canvas.wander(rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4), 0.6, 1.0)
            canvas.line(dressing, 0.022, (250, 244, 224, 190), top + 0.03)


def _skewer(canvas: Canvas, offset: float, angle: float, meat: Color, z: float) -> None:
    rng = canvas.rng
    along = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-along[1], along[0]])
    middle = across * offset + along * rng.uniform(-0.06, 0.06)
    canvas.shadow(canvas.block(0, 0, 0.72, 0.06, angle) + middle, 0.1, 0.35, 0.03)
    canvas.line(
        np.stack([middle - along * 0.62, middle + along * 1.0]),
        0.026,
        near(rng, (222, 190, 134), 8),
        z + 0.03,
    )
    for step in np.linspace(-0.5, 0.28, rng.randint(4, 5)):
        piece = middle + along * step
        outline = canvas.lump(0, 0, 0.115, rng.uniform(0.07, 0.095), angle=angle, wobble=0.1)
        canvas.rounded(outline + piece, near(rng, meat, 16), z + 0.02, 0.09, 0.4)
        char = canvas.lump(0, 0, 0.045, 0.025, angle=rng.uniform(0, 3))
        canvas.fill(char + piece + canvas.scatter(1, 0, 0, 0.06)[0], (50, 28, 18, 150), z + 0.09)
        x, y = piece
        canvas.gloss(x, y, 0.05, z + 0.1, 90)


def _nigiri(canvas: Canvas, x: float, y: float, angle: float, fish: Color, z: float) -> None:
    rng = canvas.rng
    rice = canvas.block(x, y, 0.22, 0.095, angle, 0.9)
    canvas.shadow(rice, 0.12, 0.45, 0.04)
    canvas.rounded(rice, (244, 242, 236), z, 0.09, 0.15)
    slab = canvas.block(x, y, 0.25, 0.1, angle, 0.7)
    canvas.fill(slab, shade(fish, 0.82), z + 0.09)
    canvas.fill((slab - (x, y)) * 0.92 + (x, y), fish, z + 0.12)
    along = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-along[1], along[0]])
    for step in (-0.14, -0.05, 0.04, 0.13):
        stripe = np.array([x, y]) + along * step
        canvas.line(
            np.stack([stripe - across * 0.08, stripe + across * 0.08 + along * 0.04]),
            0.012,
            mix(fish, (255, 240, 230), 0.55),
            z + 0.125,
        )
    if rng.random() < 0.1:
        canvas.line(
            np.stack([np.array([x, y]) - across * 0.11, np.array([x, y]) + across * 0.11]),
            0.05,
            (32, 40, 34),
            z + 0.13,
        )


def _roll(canvas: Canvas, x: float, y: float, core: Color, z: float) -> None:
    rng = canvas.rng
    size = rng.uniform(0.105, 0.125)
    outline = canvas.ellipse(x, y, size)
    canvas.shadow(outline, 0.14, 0.4, 0.04)
    canvas.solid(outline, (30, 38, 32), (24, 30, 26), z, 0.14, 4)
    canvas.fill(canvas.ellipse(x, y, size * 0.86), near(rng, (244, 242, 234), 5), z + 0.14)
    canvas.fill(canvas.lump(x, y, size * 0.42, wobble=0.15), core, z + 0.14)
    canvas.dots(canvas.scatter(5, x, y, size * 0.7), 0.01, ((216, 212, 200),), z + 0.14)
