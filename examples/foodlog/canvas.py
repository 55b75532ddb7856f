"""A table top seen by a tilted camera: projection, light and the strokes that painters use.

Owns the picture while it is being painted. Knows no dish, no plate and no file. World units: the radius of
a dinner plate is 1, `z` rises from the table towards the camera. Colours are RGB, or RGBA to let what lies
below shine through.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

__all__ = ["Canvas", "Color", "Points", "Pose", "mix", "near", "shade", "veil"]

Color = tuple[int, ...]
Points = NDArray[np.float64]

_CIRCLE_STEPS = 26
_ANGLES = np.linspace(0.0, 2 * math.pi, _CIRCLE_STEPS, endpoint=False)
_CIRCLE: Points = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
_SHADOW_REDUCTION = 4  # shadows are soft: a quarter of the resolution shows the same and blurs 16 × faster


@dataclass(frozen=True, slots=True)
class Pose:
    """Where the camera stands. The centre is in pixels; a tilt of 0 looks straight down."""

    center_x_px: float
    center_y_px: float
    pixels_per_unit: float
    turn_rad: float
    tilt_rad: float


def mix(first: Color, second: Color, share: float) -> Color:
    """The colour `share` of the way from `first` (0) to `second` (1)."""
    return tuple(round(a + (b - a) * share) for a, b in zip(first[:3], second[:3], strict=True))


def shade(color: Color, factor: float) -> Color:
    """The same hue, lighter (factor above 1) or darker; alpha is kept."""
    return tuple(min(255, max(0, round(channel * factor))) for channel in color[:3]) + tuple(color[3:])


def near(rng: random.Random, color: Color, spread: int = 10) -> Color:
    """A colour like this one: brightness and each channel moved at random by up to `spread`."""
    lift = rng.uniform(-spread, spread)
    half = spread / 2
    return tuple(min(255, max(0, round(channel + lift + rng.uniform(-half, half)))) for channel in color[:3])


def veil(color: Color, alpha: int) -> Color:
    """The colour made translucent; alpha is 0…255."""
    return (*color[:3], alpha)


class Canvas:
    """A square RGB picture with a camera over it. Later strokes cover earlier ones."""

    def __init__(self, size_px: int, pose: Pose, light_rad: float, rng: random.Random) -> None:
        self.size_px = size_px
        self.rng = rng
        self.image = Image.new("RGB", (size_px, size_px))
        self._draw = ImageDraw.Draw(self.image, "RGBA")
        self._light_px = np.array([math.cos(light_rad), math.sin(light_rad)])
        self.move(pose)

    def move(self, pose: Pose) -> None:
        """The camera stands elsewhere from now on: what is painted next lies elsewhere in the picture."""
        self.pose = pose
        self._turn = np.array(
            [
                [math.cos(pose.turn_rad), math.sin(pose.turn_rad)],
                [-math.sin(pose.turn_rad), math.cos(pose.turn_rad)],
            ]
        )
        self._flatten = math.cos(pose.tilt_rad)
        self._rise = math.sin(pose.tilt_rad)
        # The light's direction on the table, for highlights that must follow the light when the table turns.
        self.light = self._turn @ self._light_px

    def to_pixels(self, points: Points, z: float | Points = 0.0) -> Points:
        """World points `(n, 2)` at height z (one, or `(n,)`) as pixels `(n, 2)`."""
        turned: Points = points @ self._turn
        turned[:, 1] = turned[:, 1] * self._flatten - z * self._rise
        turned *= self.pose.pixels_per_unit
        turned += (self.pose.center_x_px, self.pose.center_y_px)
        return turned

    def backdrop(self, picture: Image.Image) -> None:
        """Lay a picture of the canvas's own size under everything."""
        self.image.paste(picture)

    # -- outlines: world points (n, 2) ---------------------------------------------------------------

    def ellipse(self, x: float, y: float, rx: float, ry: float | None = None, angle: float = 0.0) -> Points:
        """An ellipse's outline; a circle where `ry` is left out."""
        return _placed(_CIRCLE * (rx, rx if ry is None else ry), x, y, angle)

    def lump(
        self,
        x: float,
        y: float,
        rx: float,
        ry: float | None = None,
        *,
        angle: float = 0.0,
        wobble: float = 0.1,
    ) -> Points:
        """An ellipse with an uneven edge: what comes out of a pan."""
        radius = np.ones(_CIRCLE_STEPS)
        for harmonic in (2, 3, 5):
            phase = self.rng.uniform(0, 2 * math.pi)
            radius += (
                self.rng.uniform(0.3, 1.0) * wobble * np.cos(harmonic * _ANGLES + phase) / math.sqrt(harmonic)
            )
        outline = _CIRCLE * radius[:, None]
        return _placed(outline * (rx, rx if ry is None else ry), x, y, angle)

    def block(
        self,
        x: float,
        y: float,
        half_width: float,
        half_height: float,
        angle: float = 0.0,
        corner: float = 0.3,
    ) -> Points:
        """A rectangle with rounded corners; `corner` is the rounded share of the shorter side."""
        round_by = corner * min(half_width, half_height)
        inner = np.sign(_CIRCLE + 1e-9) * (half_width - round_by, half_height - round_by)
        return _placed(inner + _CIRCLE * round_by, x, y, angle)

    # -- strokes --------------------------------------------------------------------------------------

    def fill(self, outline: Points, color: Color, z: float | Points = 0.0) -> None:
        """A flat shape."""
        self._draw.polygon(self.to_pixels(outline, z).ravel().tolist(), fill=color)

    def solid(
        self, outline: Points, top: Color, side: Color, z: float, height: float, steps: int = 5
    ) -> None:
        """A prism standing at z: its side in one colour, its top in another."""
        for step in range(steps):
            level = z + height * step / steps
            self.fill(outline, shade(side, 0.85 + 0.15 * step / steps), level)
        self.fill(outline, top, z + height)

    def rounded(
        self, outline: Points, color: Color, z: float = 0.0, height: float = 0.1, contrast: float = 0.3
    ) -> None:
        """A soft body: dark at its foot, light where it faces the lamp."""
        center = outline.mean(axis=0)
        span = float(np.abs(outline - center).max())
        for step in range(5):
            share = step / 4
            inset = (outline - center) * (1 - 0.72 * share**1.6) + center + self.light * span * 0.25 * share
            tone = 1 - contrast * 0.7 + contrast * 1.3 * share
            self.fill(inset, shade(color, tone), z + height * math.sqrt(share))

    def line(self, points: Points, width: float, color: Color, z: float | Points = 0.0) -> None:
        """A bent line of a width in world units."""
        width_px = max(1, round(width * self.pose.pixels_per_unit))
        self._draw.line(self.to_pixels(points, z).ravel().tolist(), fill=color, width=width_px, joint="curve")

    def grains(
        self, centers: Points, length: float, width: float, colors: Sequence[Color], z: float | Points = 0.0
    ) -> None:
        """Many short straight bits, lying any way round: rice, seeds, crumbs."""
        count = len(centers)
        turns = np.array([self.rng.uniform(0, math.pi) for _ in range(count)])
        half = np.stack([np.cos(turns), np.sin(turns)], axis=1) * length / 2
        ends = np.concatenate(
            [self.to_pixels(centers - half, z), self.to_pixels(centers + half, z)], axis=1
        ).tolist()
        width_px = max(1, round(width * self.pose.pixels_per_unit))
        for end in ends:
            self._draw.line(end, fill=self.rng.choice(colors), width=width_px)

    def dots(self, centers: Points, radius: float, colors: Sequence[Color], z: float | Points = 0.0) -> None:
        """Many small round things of about one size: oil, peas, sesame."""
        for x, y in self.to_pixels(centers, z).tolist():
            rx = radius * self.pose.pixels_per_unit * self.rng.uniform(0.6, 1.4)
            ry = rx * self._flatten
            self._draw.ellipse((x - rx, y - ry, x + rx, y + ry), fill=self.rng.choice(colors))

    def shadow(self, outline: Points, lift: float, strength: float = 0.45, softness: float = 0.06) -> None:
        """What a thing of this outline, `lift` high, keeps the light from."""
        small_px = self.size_px // _SHADOW_REDUCTION
        mask = Image.new("L", (small_px, small_px))
        away = -self._light_px * lift * 0.8 * self.pose.pixels_per_unit
        shifted = (self.to_pixels(outline) + away) / _SHADOW_REDUCTION
        ImageDraw.Draw(mask).polygon(shifted.ravel().tolist(), fill=round(255 * strength))
        blur_px = max(0.5, softness * self.pose.pixels_per_unit / _SHADOW_REDUCTION)
        mask = mask.filter(ImageFilter.GaussianBlur(blur_px))
        dark = mask.getbbox()
        if dark is None:
            return
        # Only where it falls, and a little around: to darken the whole picture costs as much as painting it.
        left, top, right, bottom = dark
        left, top = max(0, left - 2), max(0, top - 2)
        right, bottom = min(small_px, right + 2), min(small_px, bottom + 2)
        scale = _SHADOW_REDUCTION
        here = (left * scale, top * scale, right * scale, bottom * scale)
        part = self.image.crop(here)
        kept = ImageChops.invert(
            mask.resize(part.size, Image.Resampling.BILINEAR, (left, top, right, bottom))
        )
        self.image.paste(ImageChops.multiply(part, Image.merge("RGB", (kept, kept, kept))), here)

    def gloss(self, x: float, y: float, size: float, z: float = 0.0, alpha: int = 120) -> None:
        """The lamp's reflection on something wet."""
        spot_x, spot_y = np.array([x, y]) + self.light * size
        angle = math.atan2(self.light[1], self.light[0]) + math.pi / 2
        self.fill(self.ellipse(spot_x, spot_y, size * 0.5, size * 0.18, angle), (255, 252, 240, alpha), z)

    # -- places ---------------------------------------------------------------------------------------

    def scatter(
        self, count: int, x: float, y: float, rx: float, ry: float | None = None, angle: float = 0.0
    ) -> Points:
        """`count` places spread evenly over an ellipse, `(count, 2)`."""
        spots = np.empty((count, 2))
        for index in range(count):
            radius = math.sqrt(self.rng.random())
            turn = self.rng.uniform(0, 2 * math.pi)
            spots[index] = radius * math.cos(turn), radius * math.sin(turn)
        return _placed(spots * (rx, rx if ry is None else ry), x, y, angle)

    def wander(self, x: float, y: float, length: float, bend: float = 0.8, steps: int = 7) -> Points:
        """A line that starts at a place and turns as it goes: a noodle, a drizzle. `(steps, 2)`."""
        heading = self.rng.uniform(0, 2 * math.pi)
        turn = self.rng.uniform(-bend, bend)
        points = [(x, y)]
        for _ in range(steps - 1):
            heading += turn + self.rng.uniform(-bend, bend) * 0.5
            x += math.cos(heading) * length / steps
            y += math.sin(heading) * length / steps
            points.append((x, y))
        return np.array(points)


def _placed(outline: Points, x: float, y: float, angle: float) -> Points:
    if angle:
        cosine, sine = math.cos(angle), math.sin(angle)
        outline = outline @ np.array([[cosine, sine], [-sine, cosine]])
    placed: Points = outline + np.array((x, y))
    return placed
