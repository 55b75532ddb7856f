"""Real image files of every kind that the worker must cope with, drawn on the spot."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

LEFT, RIGHT = (220, 40, 30), (30, 60, 200)


def picture(width: int = 96, height: int = 64) -> Image.Image:
    """Left half red, right half blue; the top quarter is darker, so that every turn can be told."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = LEFT, RIGHT
    pixels[: height // 4] //= 2
    return Image.fromarray(pixels)


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    if form == "JPEG":
        options = {"quality": 95, **options}
    image.save(file, form, **options)
    return file.getvalue()


def noise(seed: int, width: int = 96, height: int = 64) -> bytes:
    """A JPEG of smooth noise: no two seeds look alike to a network."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return encoded(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def huge_png(side: int = 30_000) -> bytes:
    """A well-formed PNG of side×side black pixels in a few hundred kilobytes: a decompression bomb."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes(1 + -(-side // 8))  # 1 bit a pixel
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
