"""Width and height of a photo as it is shown, from its first bytes. Pure.

Boxes are drawn over the photo in its own pixels, and a page without a script has to know how many there are.
(ITU-T T.81 B.2.2; Exif 2.32 §4.6.4; PNG Third Edition §11.2.1.)
"""

from __future__ import annotations

import struct

__all__ = ["image_size", "media_type_of"]

_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_TURNED = range(5, 9)  # orientations in which width and height change places
_ORIENTATION = 0x0112
_PNG = b"\x89PNG\r\n\x1a\n"


def media_type_of(content: bytes) -> str:
    """Of a photo that browsers show and workers read; "" of anything else."""
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/png" if content.startswith(_PNG) else ""


def image_size(content: bytes) -> tuple[int, int] | None:
    """(width, height) in pixels; None where they cannot be read."""
    try:
        if content.startswith(_PNG):
            width, height = struct.unpack_from(">II", content, 16)
            return width, height
        return _of_jpeg(content) if content.startswith(b"\xff\xd8") else None
    except (struct.error, IndexError):
        return None


def _of_jpeg(content: bytes) -> tuple[int, int] | None:
    at, orientation = 2, 1
    while at < len(content):
        if content[at] != 0xFF:
            return None
        marker = content[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", content, at + 2)
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", content, at + 5)
            return (height, width) if orientation in _TURNED else (width, height)
        if marker == 0xE1 and content[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(content[at + 10 : at + 2 + length])
        at += 2 + length
    return None


def _orientation(tiff: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    (at,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, at)
    for number in range(count):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, at + 2 + 12 * number)
        if tag == _ORIENTATION and kind == 3:
            return int(value)
    return 1
