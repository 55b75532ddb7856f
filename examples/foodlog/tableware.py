"""What a dish stands on and among: tables, plates, bowls, cutlery and the things people leave beside them.

Knows how to paint them on a canvas. Knows no dish.
"""

from __future__ import annotations

import math
import random

import numpy as np
from PIL import Image

from examples.foodlog.canvas import Canvas, Color, Points, mix, near, shade, veil

__all__ = ["board", "bowl", "clutter", "leaf_mat", "plate", "saucer", "table"]

WOODS: tuple[Color, ...] = ((150, 104, 66), (112, 74, 48), (190, 150, 108), (84, 60, 46), (168, 120, 84))
CLOTHS: tuple[Color, ...] = ((196, 62, 58), (70, 110, 160), (88, 136, 96), (222, 190, 120), (120, 120, 128))
LAMINATES: tuple[Color, ...] = (
    (222, 216, 204),
    (196, 88, 60),
    (86, 136, 132),
    (236, 204, 120),
    (70, 72, 78),
    (176, 190, 200),
)
CHINA: tuple[Color, ...] = (
    (242, 240, 234),
    (242, 240, 234),
    (228, 230, 232),
    (236, 224, 200),
    (150, 196, 160),
    (236, 168, 96),
    (72, 76, 84),
    (110, 140, 170),
    (208, 96, 80),
)


# -- tables ---------------------------------------------------------------------------------------------


def table(canvas: Canvas, texture: np.random.Generator) -> None:
    """Cover the canvas with one of the tables. `texture` draws the surface's fine structure."""
    rng = canvas.rng
    kind = rng.choice((_wood, _wood, _stone, _cloth, _laminate, _laminate))
    kind(canvas, rng, texture)


def _wood(canvas: Canvas, rng: random.Random, texture: np.random.Generator) -> None:
    size = canvas.size_px
    span = round(size * 1.45)
    fine = _noise(texture, (10, 90), (span, span))
    broad = _noise(texture, (3, 14), (span, span))
    tone = 1 + 0.12 * fine + 0.14 * broad
    planks = rng.randint(3, 7)
    edges = (np.arange(span) * planks / span) % 1.0
    tone *= np.where(edges < 0.035, 0.7, 1.0)[None, :]
    tone *= texture.uniform(0.88, 1.1, planks)[np.minimum(np.arange(span) * planks // span, planks - 1)][
        None, :
    ]
    color = np.array(near(rng, rng.choice(WOODS), 14))
    grain = _picture(tone[:, :, None] * color).rotate(rng.uniform(0, 180), Image.Resampling.BILINEAR)
    margin = (span - size) // 2
    canvas.backdrop(grain.crop((margin, margin, margin + size, margin + size)))


def _stone(canvas: Canvas, rng: random.Random, texture: np.random.Generator) -> None:
    size = canvas.size_px
    pale = rng.random() < 0.6
    color = np.array(near(rng, (226, 222, 216) if pale else (74, 76, 80), 12))
    cloud = _noise(texture, (6, 6), (size, size))
    vein = np.exp(-((_noise(texture, (5, 5), (size, size)) * 7) ** 2))
    speck = _noise(texture, (size // 3, size // 3), (size, size))
    tone = 1 + 0.05 * cloud + 0.05 * speck - (0.22 if pale else -0.35) * vein * (0.5 + 0.5 * cloud)
    canvas.backdrop(_picture(tone[:, :, None] * color))


def _cloth(canvas: Canvas, rng: random.Random, texture: np.random.Generator) -> None:
    ground = near(rng, (236, 230, 220), 10)
    canvas.backdrop(Image.new("RGB", (canvas.size_px, canvas.size_px), ground))
    color = near(rng, rng.choice(CLOTHS), 16)
    width = rng.uniform(0.12, 0.32)
    lines = np.arange(-4.0, 4.0, 2 * width)
    for offset in lines:
        canvas.fill(canvas.block(offset, 0, width / 2, 6), veil(color, 150))
    if rng.random() < 0.6:
        for offset in lines:
            canvas.fill(canvas.block(0, offset, 6, width / 2), veil(color, 150))
    _roughen(canvas, texture, 0.05)


def _laminate(canvas: Canvas, rng: random.Random, texture: np.random.Generator) -> None:
    color = near(rng, rng.choice(LAMINATES), 14)
    canvas.backdrop(Image.new("RGB", (canvas.size_px, canvas.size_px), color))
    _roughen(canvas, texture, 0.035)
    if rng.random() < 0.35:  # a tray under the plate
        tray = near(rng, rng.choice(((150, 60, 44), (60, 96, 74), (98, 78, 62), (210, 200, 186))), 12)
        outline = canvas.block(rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2), 1.75, 1.35, 0, 0.25)
        canvas.shadow(outline, 0.08, 0.5)
        canvas.fill(outline, shade(tray, 0.8))
        canvas.fill((outline - outline.mean(axis=0)) * 0.94 + outline.mean(axis=0), tray)


def _noise(texture: np.random.Generator, cells: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    """Smooth noise in about −1…1: `cells` (rows, columns) random values stretched over `shape`."""
    coarse = Image.fromarray(texture.normal(0.0, 0.5, cells).astype(np.float32))
    return np.asarray(coarse.resize((shape[1], shape[0]), Image.Resampling.BICUBIC))


def _picture(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def _roughen(canvas: Canvas, texture: np.random.Generator, amount: float) -> None:
    size = canvas.size_px
    tone = 1 + amount * _noise(texture, (size // 4, size // 4), (size, size))
    canvas.backdrop(_picture(np.asarray(canvas.image) * tone[:, :, None]))


# -- vessels --------------------------------------------------------------------------------------------


def plate(canvas: Canvas, radius: float = 1.0, color: Color | None = None) -> float:
    """A plate in the middle of the table; answers the height at which food lies on it."""
    rng = canvas.rng
    china = near(rng, color or rng.choice(CHINA), 8)
    long = radius * rng.choice((1.0, 1.0, 1.0, 1.15))
    outline = canvas.ellipse(0, 0, long, radius, rng.uniform(0, math.pi))
    canvas.shadow(outline, 0.16, 0.55, 0.07)
    canvas.fill(outline * 0.9, shade(china, 0.6))
    canvas.fill(outline, shade(china, 0.82), 0.05)
    canvas.fill(outline * 0.985, china, 0.07)
    if rng.random() < 0.35:
        band = near(rng, rng.choice(((40, 70, 140), (160, 60, 50), (60, 110, 80), (190, 150, 70))), 15)
        canvas.fill(outline * 0.95, band, 0.07)
        canvas.fill(outline * rng.uniform(0.87, 0.92), china, 0.07)
    canvas.fill(outline * 0.78 + canvas.light * -0.015, shade(china, 0.88), 0.06)
    canvas.fill(outline * 0.74, shade(china, 0.97), 0.05)
    _rim_light(canvas, 0.87 * radius, 0.07)
    return 0.06


def _rim_light(canvas: Canvas, radius: float, z: float) -> None:
    """The lamp's reflection along the rim of glazed china."""
    middle = math.atan2(canvas.light[1], canvas.light[0])
    for half_turn, width in ((0.42, 0.03), (0.28, 0.055), (0.14, 0.075)):
        turns = middle + np.linspace(-half_turn, half_turn, 9)
        arc = np.stack([np.cos(turns), np.sin(turns)], axis=1) * radius
        canvas.line(arc, width, (255, 253, 246, 48), z)


def bowl(canvas: Canvas, radius: float = 0.92, *, content: Color) -> float:
    """A bowl filled with a liquid of the colour `content`; answers the height of the liquid's surface."""
    rng = canvas.rng
    china = near(rng, rng.choice(CHINA), 10)
    canvas.shadow(canvas.ellipse(0, 0, radius * 0.9), 0.4, 0.55, 0.1)
    for step in range(7):
        share = step / 6
        wall = radius * (0.55 + 0.45 * math.sqrt(share))
        canvas.fill(canvas.ellipse(0, 0, wall), shade(china, 0.58 + 0.22 * share), 0.4 * share)
    canvas.fill(canvas.ellipse(0, 0, radius), china, 0.42)
    canvas.fill(canvas.ellipse(0, 0, radius * 0.94), shade(china, 0.72), 0.42)
    canvas.fill(canvas.ellipse(0, 0, radius * 0.9), shade(content, 0.78), 0.36)
    canvas.fill(canvas.ellipse(0, 0, radius * 0.87) - canvas.light * 0.02, content, 0.36)
    return 0.36


def board(canvas: Canvas) -> float:
    """A wooden or slate board; answers the height at which food lies on it."""
    rng = canvas.rng
    color = near(rng, rng.choice(((176, 130, 84), (128, 88, 56), (52, 54, 58), (206, 172, 126))), 12)
    outline = canvas.block(
        0, 0, rng.uniform(1.0, 1.15), rng.uniform(0.75, 0.95), rng.uniform(-0.3, 0.3), 0.12
    )
    canvas.shadow(outline, 0.12, 0.55)
    canvas.solid(outline, color, shade(color, 0.65), 0.0, 0.07, 3)
    for _ in range(9):
        y = rng.uniform(-0.7, 0.7)
        canvas.line(
            np.array([[-0.9, y], [0.9, y + rng.uniform(-0.05, 0.05)]]), 0.012, shade(color, 0.88), 0.07
        )
    return 0.08


def leaf_mat(canvas: Canvas, z: float) -> None:
    """A piece of banana leaf to serve on."""
    rng = canvas.rng
    green = near(rng, (66, 122, 58), 14)
    angle = rng.uniform(0, math.pi)
    canvas.fill(canvas.block(0, 0, 0.92, 0.6, angle, 0.3), green, z)
    along = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-along[1], along[0]])
    for offset in np.linspace(-0.8, 0.8, 15):
        rib = np.stack([along * offset - across * 0.55, along * offset + across * 0.55])
        canvas.line(rib, 0.012, shade(green, 1.15), z)
    canvas.line(np.stack([along * -0.9, along * 0.9]), 0.04, shade(green, 1.3), z)


def saucer(canvas: Canvas, x: float, y: float, content: Color, radius: float = 0.26, z: float = 0.06) -> None:
    """A small dish of sauce."""
    rng = canvas.rng
    china = near(rng, rng.choice(CHINA[:5]), 10)
    canvas.shadow(canvas.ellipse(x, y, radius), 0.1 + z, 0.4, 0.05)
    for step in range(4):
        canvas.fill(
            canvas.ellipse(x, y, radius * (0.75 + 0.25 * step / 3)),
            shade(china, 0.65 + 0.08 * step),
            z + 0.04 * step,
        )
    canvas.fill(canvas.ellipse(x, y, radius), china, z + 0.14)
    canvas.fill(canvas.ellipse(x, y, radius * 0.86), shade(content, 0.8), z + 0.12)
    canvas.fill(canvas.ellipse(x, y, radius * 0.8), content, z + 0.12)
    canvas.gloss(x, y, radius * 0.45, z + 0.12)


# -- clutter --------------------------------------------------------------------------------------------


def clutter(canvas: Canvas) -> None:
    """Up to four of the things that lie about on tables, outside the plate."""
    rng = canvas.rng
    pieces = rng.sample(
        (_chopsticks, _spoon, _fork, _napkin, _glass, _phone, _saucer_aside, _crumbs), rng.randint(0, 4)
    )
    for piece in pieces:
        turn = rng.uniform(0, 2 * math.pi)
        distance = rng.uniform(1.18, 1.5)
        piece(canvas, rng, math.cos(turn) * distance, math.sin(turn) * distance, turn + math.pi / 2)


def _chopsticks(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    color = near(rng, rng.choice(((92, 50, 32), (40, 36, 36), (206, 168, 116), (150, 40, 36))), 12)
    for gap in (-0.05, 0.05):
        tilt = angle + rng.uniform(-0.06, 0.06)
        stick = canvas.block(x + gap, y + gap, 1.0, 0.026, tilt, 0.9)
        canvas.shadow(stick, 0.05, 0.4, 0.03)
        canvas.fill(stick, color, 0.03)


def _steel(rng: random.Random) -> Color:
    return near(rng, (196, 198, 204), 14)


def _spoon(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    steel = _steel(rng)
    handle = canvas.block(x, y, 0.55, 0.04, angle, 0.9)
    cup_x, cup_y = x + math.cos(angle) * 0.68, y + math.sin(angle) * 0.68
    cup = canvas.ellipse(cup_x, cup_y, 0.22, 0.145, angle)
    canvas.shadow(cup, 0.06, 0.4, 0.04)
    canvas.fill(handle, shade(steel, 0.9), 0.02)
    canvas.fill(cup, shade(steel, 0.75), 0.02)
    canvas.fill((cup - (cup_x, cup_y)) * 0.8 + (cup_x, cup_y), steel, 0.02)
    canvas.gloss(cup_x, cup_y, 0.1, 0.02, 200)


def _fork(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    steel = _steel(rng)
    along = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-along[1], along[0]])
    middle = np.array([x, y])
    canvas.shadow(canvas.block(x, y, 0.85, 0.06, angle, 0.9), 0.05, 0.35, 0.04)
    canvas.line(np.stack([middle - along * 0.6, middle + along * 0.3]), 0.07, shade(steel, 0.92), 0.02)
    canvas.fill(canvas.block(0, 0, 0.12, 0.11, angle, 0.6) + middle + along * 0.4, steel, 0.02)
    for prong in (-0.09, -0.03, 0.03, 0.09):
        foot = middle + along * 0.45 + across * prong
        canvas.line(np.stack([foot, foot + along * 0.32]), 0.028, steel, 0.02)


def _napkin(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    paper = near(rng, rng.choice(((244, 242, 238), (230, 150, 130), (150, 180, 210), (240, 220, 160))), 8)
    outline = canvas.block(x * 1.1, y * 1.1, 0.5, 0.4, angle + rng.uniform(-0.4, 0.4), 0.08)
    canvas.shadow(outline, 0.05, 0.35, 0.05)
    canvas.fill(outline, paper, 0.01)
    fold: Points = outline[[3, 16]]
    canvas.line(fold, 0.02, shade(paper, 0.86), 0.01)


def _glass(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    drink = rng.choice(((120, 66, 36), (226, 170, 90), (214, 226, 230), (190, 60, 60), (236, 228, 210)))
    radius = rng.uniform(0.3, 0.4)
    x, y = x * 1.12, y * 1.12
    canvas.shadow(canvas.ellipse(x, y, radius), 0.5, 0.4, 0.1)
    for step in range(5):
        canvas.fill(
            canvas.ellipse(x, y, radius * (0.85 + 0.03 * step)),
            veil(mix(drink, (230, 236, 238), 0.3), 150),
            0.14 * step,
        )
    canvas.fill(canvas.ellipse(x, y, radius), (235, 240, 242, 130), 0.7)
    canvas.fill(canvas.ellipse(x, y, radius * 0.9), near(rng, drink, 8), 0.62)
    if rng.random() < 0.5:
        for spot in canvas.scatter(3, x, y, radius * 0.5):
            canvas.fill(canvas.block(0, 0, 0.09, 0.09, rng.uniform(0, 3)) + spot, (245, 250, 252, 110), 0.63)
    canvas.gloss(x, y, radius * 0.55, 0.66, 150)


def _phone(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    outline = canvas.block(x * 1.15, y * 1.15, 0.5, 0.26, angle, 0.3)
    canvas.shadow(outline, 0.06, 0.45, 0.04)
    canvas.solid(outline, near(rng, (32, 34, 38), 8), (18, 18, 20), 0.0, 0.04, 2)
    canvas.gloss(x * 1.15, y * 1.15, 0.3, 0.04, 50)


def _saucer_aside(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    sauce = rng.choice(((60, 32, 22), (190, 56, 30), (226, 180, 90), (96, 140, 60)))
    saucer(canvas, x, y, near(rng, sauce, 12), rng.uniform(0.2, 0.28), 0.0)


def _crumbs(canvas: Canvas, rng: random.Random, x: float, y: float, angle: float) -> None:
    crumb = near(rng, (190, 140, 80), 20)
    canvas.dots(canvas.scatter(12, x, y, 0.4), 0.02, (crumb, shade(crumb, 0.8)))
