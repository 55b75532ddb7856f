"""A model whose answers are known beforehand and which costs only what it is told to cost.

It answers `classes[crc32(row) % len(classes)]` for the bytes of a row as they came, with confidence 1. Where
it is told to have them: its features are `crc32(row, number) / 2^32`, of numbers 0, 1, …; its value is the
first of these, in an interval of a tenth to each side; its boxes are of 10 by 10 pixels, number i at (10 i,
0), of class i and score 1 / (1 + i); its text is crc32(row) in hexadecimal, as JSON.
Everything around a model (batching, queues, cancelling, failure) is tested and measured with it.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from gpu_worker.errors import ModelUnusable
from gpu_worker.memory import Region
from gpu_worker.model_files.regular import MOST_FEATURES
from gpu_worker.networks.moved import Weights
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, Texts, check
from gpu_worker.tasks.task import BOX_NUMBERS, MOST_BOXES

__all__ = ["Hashing"]

_PIECE_S = 0.05  # how long it sleeps between two looks at `is_cancelled`
_OWN_BYTES = 1024
_MOST_WEIGHT_BYTES = 1 << 36
_WEIGHT = 0x5A  # each byte of its weights
_MOST_S = 60.0  # of a batch: whoever may register a model may not stop a worker with it


class Hashing:
    """`delay_ms` is slept once per batch, `row_delay_ms` per row: a device of exactly known speed.

    `load_ms` is how long its load keeps the link; `weight_bytes` are moved to the device as any weights are,
    and it answers wrongly where they did not come. A batch takes a minute at most, however many rows it has.
    """

    forms = frozenset(("path", "image", "text"))
    pixels: tuple[int, int] | None = None
    takes_views: ClassVar[Literal[True]] = True
    cuttable = False  # `delay_ms` belongs to a whole batch

    def __init__(
        self,
        classes: Sequence[str],
        *,
        delay_ms: float = 0.0,
        row_delay_ms: float = 0.0,
        features: float = 0.0,
        values: float = 0.0,
        boxes: float = 0.0,
        texts: float = 0.0,
        load_ms: float = 0.0,
        weight_bytes: float = 0.0,
    ) -> None:
        for delay in (delay_ms, row_delay_ms, load_ms):
            if not 0.0 <= delay <= _MOST_S * 1e3:
                raise ValueError(f"a delay must be from 0 to {_MOST_S * 1e3:g} ms, not {delay:g}")
        if not (0 <= features <= MOST_FEATURES and features == int(features)):
            raise ValueError(f"features must be a whole number from 0 to {MOST_FEATURES}, not {features:g}")
        if not (0 <= weight_bytes <= _MOST_WEIGHT_BYTES and weight_bytes == int(weight_bytes)):
            raise ValueError(f"weight_bytes must be a whole number up to {_MOST_WEIGHT_BYTES}")
        if values not in (0, 1, 3) or texts not in (0, 1) or boxes not in range(MOST_BOXES + 1):
            raise ValueError(f"values must be 0, 1 or 3, texts 0 or 1, boxes a whole number to {MOST_BOXES}")
        self._classes = len(classes)
        self.features_width = int(features)
        self.values_width, self.texts_width = int(values), int(texts)
        self.boxes_width = BOX_NUMBERS * int(boxes)
        self._delay_s = delay_ms / 1e3
        self._row_delay_s = row_delay_ms / 1e3
        self.load_s = load_ms / 1e3
        self.weight_bytes = int(weight_bytes)
        self.resident_bytes = _OWN_BYTES + self.weight_bytes
        self.weights: Weights | None = None

    @classmethod
    def from_options(cls, classes: Sequence[str], options: Mapping[str, Any]) -> Hashing:
        """The model that model.json's `architecture_options` describe. Raises `ModelUnusable`."""
        try:
            return cls(classes, **{name: float(value) for name, value in options.items()})
        except (TypeError, ValueError) as exc:
            raise ModelUnusable(f"architecture_options of 'hashing': {exc}") from exc

    def warm_up(self, rows: int) -> Floats:
        """There is nothing to warm; costs nothing."""
        own = self.boxes_width or self._classes or self.values_width or self.texts_width
        return np.zeros((rows, own or self.features_width), np.float32)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """One-hot [n, classes]. Raises `Cancelled` within 50 ms of being asked to stop."""
        self._take_time(inputs, is_cancelled)
        result = np.zeros((len(inputs), self._classes), np.float32)
        missing = self._missing()
        for index, row in enumerate(inputs):
            result[index, (zlib.crc32(row) + missing) % self._classes] = 1.0
        return result

    @staticmethod
    def fill(memory: Region, start: int, end: int) -> None:
        """Writes its weights from byte `start` to `end`."""
        ctypes.memset(memory.address + start, _WEIGHT, end - start)

    def _missing(self) -> int:
        """0 if its weights are where they should be."""
        if self.weights is None or not self.weights.nbytes:
            return 0
        view = self.weights.memory.view
        return int((view[0], view[-1]) != (_WEIGHT, _WEIGHT))

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width], as long as `scores`, and raises as it does."""
        self._take_time(inputs, is_cancelled)
        return _numbers(inputs, self.features_width)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width], as long as `scores`, and raises as it does."""
        self._take_time(inputs, is_cancelled)
        ends = np.array([0, -0.1, 0.1], np.float32)[: self.values_width]
        return _numbers(inputs, 1) + ends

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width], as long as `scores`, and raises as it does."""
        self._take_time(inputs, is_cancelled)
        found = [
            (10 * at, 0, 10 * at + 10, 10, 1 / (1 + at), at % max(1, self._classes))
            for at in range(self.boxes_width // BOX_NUMBERS)
        ]
        return np.tile(np.array(found, np.float32).reshape(1, -1), (len(inputs), 1))

    def texts(self, inputs: Inputs, is_cancelled: IsCancelled) -> Texts:
        """n texts, as long as `scores`, and raises as it does."""
        self._take_time(inputs, is_cancelled)
        return np.array([f'"{zlib.crc32(row):08x}"' for row in inputs], object)

    def _take_time(self, inputs: Inputs, is_cancelled: IsCancelled) -> None:
        ends_s = time.monotonic() + min(_MOST_S, self._delay_s + self._row_delay_s * len(inputs))
        check(is_cancelled)
        while (left_s := ends_s - time.monotonic()) > 0:
            time.sleep(min(_PIECE_S, left_s))
            check(is_cancelled)


def _numbers(inputs: Inputs, width: int) -> Floats:
    """From 0 to 1, of each row and each number from 0 to `width`: [n, width]."""
    found = [[zlib.crc32(row, number) / (1 << 32) for number in range(width)] for row in inputs]
    return np.array(found, np.float32).reshape(len(inputs), width)
