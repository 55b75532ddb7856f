"""Encoded image → pixels of a model's input size. Knows Pillow; knows no files and no models.

Most JPEGs are decoded by `turbo_jpeg`, the others and PNGs by Pillow, which also resizes all of them.

A JPEG is decoded at the smallest of the scales 1, 1/2, 1/4, 1/8 that still covers the target (Pillow's
`draft`): the inverse DCT and everything after it then run on a fraction of the pixels. Where a model says how
it wants its pictures resized, it must cover the target fourfold.
Training and serving both go through here, so a model sees the same pixels in both.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile as PillowFile
from PIL.JpegImagePlugin import JpegImageFile

from gpu_worker.errors import RowFault
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline.image_file import ImageFile, look_over
from gpu_worker.pipeline.turbo_jpeg import NotDecoded, TurboJpeg, opened

__all__ = ["Pixels", "decode_image", "decode_picture", "decode_whole", "upright_size"]

Pixels = NDArray[np.uint8]
_Opened = PillowFile | TurboJpeg
_Made = TypeVar("_Made")

_MOST_S: Final = 10.0  # of this thread's time for one image: twenty times what the largest picture takes
_BLOCK_BYTES: Final = 4096  # that a decoder gets of a file of many scans between two looks at the clock
# EXIF orientation → how to turn the stored pixels upright.
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LEAST_SHRINKING: Final = 4  # times, by the interpolation that was asked for
_RESAMPLING: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
_TURNS_SIDEWAYS: Final = frozenset((5, 6, 7, 8))


def decode_image(data: bytes, height: int, width: int, *, max_pixels: int) -> Pixels:
    """As `decode_picture`, where the whole image fills the target and its aspect ratio is not kept."""
    return decode_picture(data, Frame(height, width), max_pixels=max_pixels)


def decode_picture(data: bytes, frame: Frame, *, max_pixels: int) -> Pixels:
    """The image as uint8 of shape [frame.height, frame.width, 3], upright, transparency over white.

    Size and scans are judged by the header, before any pixel is decoded, and decoding has a bounded time.
    Raises `RowFault` (input_undecodable, input_too_large).
    """
    return _decoded(data, max_pixels, lambda image, turn: _fit(image, turn, frame, max_pixels))


def decode_whole(data: bytes, *, max_pixels: int) -> Image.Image:
    """The image in all its pixels, upright, in RGB, transparency over white. Raises as `decode_picture`."""

    def whole(image: _Opened, turn: int) -> Image.Image:
        found = _opaque(_eight_bit(image))
        return found.transpose(_UPRIGHT[turn]) if turn in _UPRIGHT else found

    return _decoded(data, max_pixels, whole)


def _decoded(data: bytes, max_pixels: int, made: Callable[[_Opened, int], _Made]) -> _Made:
    """What is made of the opened picture, with its Exif orientation. Raises `RowFault`."""
    if not data:
        raise RowFault("input_undecodable", "the image is empty (0 bytes)")
    try:
        file = look_over(data)
        if (jpeg := opened(file, max_pixels)) is not None:
            with suppress(NotDecoded):  # Pillow says why, or decodes it all the same
                return made(jpeg, file.orientation)
        # A picture of one scan takes a time that its pixels bound; and every read would be a call in Python.
        timed = file.scans > 1
        with _open(file, _TimedBytes(file.data) if timed else io.BytesIO(file.data)) as image:
            columns, rows = image.size
            if columns * rows > max_pixels:
                raise _too_many_pixels(f"{columns}×{rows}", max_pixels)
            if timed:
                file.check_scans(columns * rows, max_pixels)
                image.decodermaxblock = _BLOCK_BYTES
            return made(image, file.orientation)
    except RowFault:
        raise
    except UnidentifiedImageError as exc:
        raise RowFault("input_undecodable", "the bytes are not a JPEG or PNG image") from exc
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError) as exc:
        # Pillow has a limit of its own, beyond which it does not even look.
        raise _too_many_pixels(
            "too many", min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels))
        ) from exc
    except Exception as exc:  # Pillow's readers raise OSError, SyntaxError, ValueError, struct.error, …
        raise RowFault("input_undecodable", f"the image is damaged: {exc}") from exc


def upright_size(data: bytes) -> tuple[int, int]:
    """(H, W) of an encoded image by its header, the right way up.

    (0, 0) for one that cannot be decoded: `decode_image` says why.
    """
    try:
        file = look_over(data)
        if file.frame is not None:
            height, width, _ = file.frame
        else:
            with _open(file, io.BytesIO(file.data)) as image:
                width, height = image.size
    except Exception:  # as above
        return 0, 0
    return (width, height) if file.orientation in _TURNS_SIDEWAYS else (height, width)


def _open(file: ImageFile, opened: io.BytesIO) -> PillowFile:
    """The picture, its header read. Raises what Pillow's readers raise."""
    if not file.is_jpeg:
        return Image.open(opened, formats=("PNG",))
    # What `Image.open` does beside this takes a twentieth of a small picture's decode.
    image = JpegImageFile(opened)
    if Image.MAX_IMAGE_PIXELS is not None and image.width * image.height > 2 * Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError
    return image


class _TimedBytes(io.BytesIO):
    """The bytes of a file, until the thread that reads them has worked on it for too long.

    A decoder asks for its input block by block. Raises `RowFault` (input_too_large).
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._ends_s = time.thread_time() + _MOST_S

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self._ends_s:
            raise RowFault("input_too_large", f"decoding the image takes longer than {_MOST_S:g} s")
        return super().read(size)


def _too_many_pixels(has: str, max_pixels: int) -> RowFault:
    return RowFault("input_too_large", f"the image has {has} pixels; the limit is {max_pixels} in all")


def _fit(image: _Opened, turn: int, frame: Frame, max_pixels: int) -> Pixels:
    sideways = turn in _TURNS_SIDEWAYS
    columns, rows = reversed(image.size) if sideways else image.size
    upright = frame.scaled(columns, rows)
    # Of a picture a few pixels high the short side alone may say how large it becomes.
    if upright[0] * upright[1] > max(max_pixels, frame.width * frame.height):
        raise _too_many_pixels(f"{columns}×{rows} and, resized, {upright[0]}×{upright[1]}", max_pixels)
    size = (upright[1], upright[0]) if sideways else upright
    # Halving is not the interpolation that was asked for: what it leaves must still be shrunk by that.
    times = 1 if frame.is_plain else _LEAST_SHRINKING
    image.draft("RGB", (times * size[0], times * size[1]))
    if isinstance(image, TurboJpeg) and image.scaled_size == size and frame.is_plain and turn not in _UPRIGHT:
        return image.pixels()  # through Pillow 12 µs more, of 43 in all
    small = _eight_bit(image)
    if small.size != size:
        how = _RESAMPLING[frame.interpolation]
        small = small.resize(size, how, reducing_gap=2.0 if frame.is_plain else None)
    if turn in _UPRIGHT:
        small = small.transpose(_UPRIGHT[turn])
    return _in_order(_framed(_opaque(small), frame), frame)


def _framed(image: Image.Image, frame: Frame) -> Image.Image:
    """The picture cropped, and what it leaves of the frame filled."""
    if image.size == (frame.width, frame.height):
        return image
    framed = Image.new("RGB", (frame.width, frame.height), frame.fill)
    framed.paste(image, frame.origin(*image.size))
    return framed


def _in_order(image: Image.Image, frame: Frame) -> Pixels:
    if frame.channels == "grey":
        return np.repeat(np.asarray(image.convert("L"))[:, :, None], 3, axis=2)
    pixels: Pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[:, :, ::-1]) if frame.channels == "bgr" else pixels


def _eight_bit(image: _Opened) -> Image.Image:
    """The image in a mode of 8-bit channels that can be resampled: RGB, RGBA, L, LA or CMYK."""
    if isinstance(image, TurboJpeg):
        return Image.fromarray(image.pixels())
    if image.mode in ("RGBA", "LA"):
        image.load()
        return image
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion clips at 255 instead of scaling.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGB", "L", "CMYK"):
        image.load()
        return image
    return image.convert("RGB")


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA"):
        layer = image.convert("RGBA")
        paper = Image.new("RGB", layer.size, (255, 255, 255))
        paper.paste(layer, mask=layer.getchannel("A"))
        return paper
    return image if image.mode == "RGB" else image.convert("RGB")
