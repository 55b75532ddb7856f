"""JPEGs of one or a few scans decoded by simplejpeg, which lets go of the interpreter's lock for all of it.

Of a small picture Pillow does half in Python, which threads wait for one after the other. Rows/s of photos of
128×128 to 64×64 on two cores by the threads that decode: Pillow 15,400 (1), 20,600 (2), 16,300 (16);
simplejpeg 39,100, 76,500, 75,700.
Both are libjpeg-turbo, asked for the same scale, transform and upsampling: pixels are the same, which a test
holds. What simplejpeg is not given, or fails at, Pillow decodes or refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gpu_worker.pipeline.image_file import ImageFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

try:
    from simplejpeg import decode_jpeg
except ImportError:  # no wheel for this machine
    decode_jpeg = None

__all__ = ["NotDecoded", "TurboJpeg", "opened"]

_SCALES: Final = (8, 4, 2)  # the others that libjpeg-turbo has, Pillow does not ask for
# Of smaller ones two scales can have the same size.
_LEAST_SIDE: Final = 16
_COLOURS: Final = 3
# Nothing looks at the clock while it decodes, as with Pillow's reads: 0.2 s of a usual picture.
_MOST_SCANS: Final = 16  # encoders write about ten; a picture of any size may have so many
_MOST_SCANNED: Final = 1 << 28  # pixels of all scans


class NotDecoded(Exception):
    """simplejpeg does not decode it, or finds it damaged."""


class TurboJpeg:
    """A JPEG whose header was read. `size` and `draft` are as Pillow has them."""

    __slots__ = ("_data", "_scale", "size")

    def __init__(self, data: bytes, columns: int, rows: int) -> None:
        self._data = data
        self._scale = 1
        self.size = (columns, rows)

    def draft(self, _mode: str, size: tuple[int, int]) -> None:
        """Decode at the smallest scale that still covers `size`, (width, height)."""
        columns, rows = self.size
        most = min(columns // size[0], rows // size[1])
        self._scale = next((scale for scale in _SCALES if most >= scale), 1)

    @property
    def scaled_size(self) -> tuple[int, int]:
        """(width, height) at the scale that was asked for."""
        columns, rows = self.size
        return -(-columns // self._scale), -(-rows // self._scale)

    def pixels(self) -> NDArray[np.uint8]:
        """uint8 [rows, columns, 3], RGB, at the scale that was asked for. Raises `NotDecoded`."""
        columns, rows = self.scaled_size
        # Its own buffer bounds what a header read otherwise than here could make it take.
        buffer = np.empty((rows, columns, _COLOURS), np.uint8)
        try:
            found = decode_jpeg(self._data, "RGB", min_height=rows, min_width=columns, buffer=buffer)
        except ValueError as exc:
            raise NotDecoded from exc
        if found.shape != buffer.shape:
            raise NotDecoded
        return buffer


def opened(file: ImageFile, max_pixels: int) -> TurboJpeg | None:
    """The file, if it is a JPEG that simplejpeg may be given: in colours, and not too much to decode."""
    if decode_jpeg is None or file.frame is None:
        return None
    rows, columns, components = file.frame
    pixels = rows * columns
    if components != _COLOURS or min(rows, columns) < _LEAST_SIDE or pixels > max_pixels:
        return None
    if file.scans > 1 and (file.scans > _MOST_SCANS or file.scans * pixels > _MOST_SCANNED):
        return None
    return TurboJpeg(file.data, columns, rows)
