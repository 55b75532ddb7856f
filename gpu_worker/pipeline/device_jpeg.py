"""JPEGs decoded on the device, many at once; what it does not take, or fails at, is left to the CPU.

Which files are offered is judged by their headers, as on the CPU: a picture of one scan, grey or of three
components, with no more pixels than one may have. Its answers are pixels of the input size, upright. They are
not bit for bit the CPU's, which decodes at a fraction of the size: a decoder that is far from it on a picture
of our own is not used.
"""

from __future__ import annotations

import importlib
import io
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from PIL import Image

from gpu_worker.errors import RowFault
from gpu_worker.pipeline.decode import Pixels, decode_image
from gpu_worker.pipeline.image_file import look_over

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["JpegDecoder", "Offered", "checked", "decoded_by", "decoder_on", "offered"]

_log = logging.getLogger(__name__)

_MOST_DIFFERENCE: Final = 4.0  # of a channel of 0 to 255, in the mean, on the picture that is tried
_SIDE: Final = 64
_MOST_TOGETHER_BYTES: Final = 64 << 20  # of pixels; four times that as numbers


@dataclass(frozen=True, slots=True)
class Offered:
    """A JPEG that the device may decode: its bytes, and how Exif says that it is turned (1 = upright)."""

    data: bytes
    orientation: int = 1


class JpegDecoder(Protocol):
    """A device's decoder."""

    def decode(self, files: Sequence[Offered], height: int, width: int) -> list[Pixels]:
        """Every file as [height, width, 3], upright. Raises whatever it raises if one of them is at fault."""
        ...


def offered(data: bytes, max_pixels: int) -> Offered | None:
    """What of a file the device is given; None for what the CPU must judge."""
    try:
        file = look_over(data)
    except RowFault:
        return None
    if file.frame is None or file.scans != 1:
        return None
    height, width, components = file.frame
    fits = 0 < height * width <= max_pixels and components in (1, 3)
    return Offered(file.data, file.orientation) if fits else None


def decoded_by(
    decoder: JpegDecoder, files: Sequence[Offered | None], height: int, width: int
) -> list[Pixels | None]:
    """The pixels of each file; None where there is none, or the decoder fails at it."""
    found: list[Pixels | None] = [None] * len(files)

    def decode(places: Sequence[int]) -> None:
        try:
            pixels = decoder.decode([file for at in places if (file := files[at]) is not None], height, width)
        except RuntimeError:
            if len(places) > 1:  # it says of none which it was
                decode(places[: len(places) // 2])
                decode(places[len(places) // 2 :])
            return
        for at, one in zip(places, pixels, strict=True):
            found[at] = one

    places = [at for at, file in enumerate(files) if file is not None]
    if places:
        decode(places)
    return found


def checked(decoder: JpegDecoder) -> JpegDecoder | None:
    """The decoder, if it sees a picture of ours as the CPU does."""
    ours = _picture()
    expected = decode_image(ours, _SIDE, _SIDE, max_pixels=1 << 20).astype(np.float32)
    try:
        (found,) = decoder.decode([Offered(ours)], _SIDE, _SIDE)
    except Exception as exc:  # whatever a library may raise that was never tried here
        _log.warning("JPEGs are decoded on the CPU: the device's decoder failed: %s", exc)
        return None
    difference = float(np.abs(found.astype(np.float32) - expected).mean())
    if found.shape == expected.shape and difference <= _MOST_DIFFERENCE:
        return decoder
    _log.warning("JPEGs are decoded on the CPU: the device's decoder is %.1f levels off", difference)
    return None


def decoder_on(device: str) -> JpegDecoder | None:
    """nvJPEG through torchvision on "cuda:N", checked; None, and why in the log, where there is none."""
    try:
        decode_jpeg = importlib.import_module("torchvision.io").decode_jpeg
    except Exception as exc:
        _log.warning("JPEGs are decoded on the CPU: torchvision cannot be loaded: %s", exc)
        return None
    return checked(_NvJpeg(device, decode_jpeg))


class _NvJpeg:
    """Not run where no CUDA is: `tests/gpu/test_jpeg_on_cuda.py` is what tries it."""

    def __init__(self, device: str, decode_jpeg: Callable[..., list[Tensor]]) -> None:
        self._device = device
        self._decode_jpeg = decode_jpeg

    def decode(self, files: Sequence[Offered], height: int, width: int) -> list[Pixels]:
        import torch

        encoded = [torch.frombuffer(bytearray(file.data), dtype=torch.uint8) for file in files]
        with torch.inference_mode():
            pictures = [
                _turned(picture, file.orientation)
                for picture, file in zip(
                    self._decode_jpeg(encoded, mode="RGB", device=self._device), files, strict=True
                )
            ]
            small = torch.empty((len(files), 3, height, width), dtype=torch.uint8, device=self._device)
            for places in _alike([tuple(picture.shape) for picture in pictures]):
                small[places] = _resized(torch.stack([pictures[at] for at in places]), height, width)
            pixels: Pixels = small.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        return list(pixels)


def _turned(picture: Tensor, orientation: int) -> Tensor:
    """[3, H, W], upright. (Exif 2.32 §4.6.)"""
    if orientation in (5, 6, 7, 8):
        picture = picture.transpose(1, 2)
    flips = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation)
    return picture.flip(flips) if flips else picture


def _alike(shapes: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """The places of pictures that are shrunk together: of one shape, and not more than fit beside models."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, shape in enumerate(shapes):
        by_shape.setdefault(shape, []).append(place)
    for shape, places in by_shape.items():
        most = max(1, _MOST_TOGETHER_BYTES // max(1, math.prod(shape)))
        for start in range(0, len(places), most):
            yield places[start : start + most]


def _resized(pictures: Tensor, height: int, width: int) -> Tensor:
    """[n, 3, height, width] of pictures [n, 3, H, W]."""
    from torch.nn import functional

    if pictures.shape[2:] == (height, width):
        return pictures
    small = functional.interpolate(
        pictures.float(), (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return small.round().clamp(0, 255).to(pictures.dtype)


def _picture() -> bytes:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(coarse).resize((200, 150), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=95)
    return encoded.getvalue()
