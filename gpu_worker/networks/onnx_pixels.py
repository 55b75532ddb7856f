"""Pixels as an ONNX graph wants them: into which input, in which layout, of which type, how many a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.networks.network import normalised, pixel_line

__all__ = ["PixelInput", "channels_axis"]

_TYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
_CHANNELS: Final = (1, 3)


def channels_axis(shape: Sequence[object]) -> int | None:
    """Where the channels are in [n, C, H, W] (1) or [n, H, W, C] (3); None in a shape that is neither."""
    if len(shape) != 4:
        return None
    for axis in (1, 3):
        if shape[axis] in _CHANNELS:
            return axis
    return 1 if not isinstance(shape[1], int) else None


class PixelInput:
    """The only input of a session. Raises `ModelUnusable` where it takes no pictures of the size.

    rows: how many go into one pass, where the graph says so; 0 = any number.
    """

    def __init__(self, session: onnxruntime.InferenceSession, spec: InputSpec, path: str) -> None:
        inputs = session.get_inputs()
        if len(inputs) != 1:
            raise ModelUnusable(
                f"{path} has {len(inputs)} inputs ({', '.join(str(each.name) for each in inputs)}); "
                "a picture is one input: make the others constants when you export it"
            )
        (given,) = inputs
        shape = given.shape
        axis = channels_axis(shape)
        sides = () if axis is None else (shape[2:] if axis == 1 else shape[1:3])
        wanted = (spec.height, spec.width)
        fits = axis is not None and all(
            not isinstance(have, int) or have == want for have, want in zip(sides, wanted, strict=True)
        )
        if given.type not in _TYPES or not fits:
            raise ModelUnusable(
                f"{path} takes {given.type} {shape}; pictures [n, 3, {spec.height}, {spec.width}] or "
                f"[n, {spec.height}, {spec.width}, 3] are needed, as float32, float16 or uint8"
            )
        self.name = str(given.name)
        self.rows = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else 0
        self._dtype: Any = _TYPES[given.type]
        self._channels_first = axis == 1
        self._channels = shape[axis] if axis is not None and isinstance(shape[axis], int) else 3
        self._is_raw = self._dtype is np.uint8  # such a graph does the arithmetic itself
        self._line = pixel_line(spec)

    def feeds(self, inputs: NDArray[Any]) -> Iterator[tuple[dict[str, NDArray[Any]], int]]:
        """What each pass is fed, and how many of its rows count. inputs: uint8 [n, H, W, 3], or float32
        [n, 3, H, W] as the network sees them."""
        pixels = self._arranged(inputs)
        step = self.rows or max(1, len(pixels))
        for start in range(0, len(pixels), step):
            part = pixels[start : start + step]
            count = len(part)
            if self.rows and count < self.rows:  # the rest of a pass of fixed size is looked at by nobody
                part = np.concatenate([part, np.repeat(part[-1:], self.rows - count, axis=0)])
            yield {self.name: np.ascontiguousarray(part)}, count

    def _arranged(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """In the graph's layout and type."""
        if inputs.dtype == np.uint8:
            if not self._is_raw:
                inputs = normalised(inputs, self._line)
            arranged = inputs.transpose(0, 3, 1, 2) if self._channels_first else inputs
        else:
            arranged = inputs if self._channels_first else inputs.transpose(0, 2, 3, 1)
            if self._is_raw:
                arranged = np.clip(np.rint(arranged), 0, 255)
        if self._channels == 1:  # a grey picture's three are alike
            arranged = arranged[:, :1] if self._channels_first else arranged[..., :1]
        return arranged.astype(self._dtype, copy=False)
