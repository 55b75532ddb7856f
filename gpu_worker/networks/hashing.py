"""A model whose answers are known beforehand and which costs only what it is told to cost.

It answers `classes[crc32(row) % len(classes)]` for the bytes of a row as they came, with confidence 1. Its
features, where it is told to have some, are `crc32(row, number) / 2^32` for the numbers 0, 1, …
Everything around a model (batching, queues, cancelling, failure) is tested and measured with it.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_worker.errors import ModelUnusable
from gpu_worker.memory import Region
from gpu_worker.model_files.regular import MOST_FEATURES
from gpu_worker.networks.moved import Weights
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, check

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
    cuttable = False  # `delay_ms` belongs to a whole batch

    def __init__(
        self,
        classes: Sequence[str],
        *,
        delay_ms: float = 0.0,
        row_delay_ms: float = 0.0,
        features: float = 0.0,
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
        self._classes = len(classes)
        self.features_width = int(features)
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
        return np.zeros((rows, self._classes or self.features_width), np.float32)

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
        numbers = range(self.features_width)
        found = [[zlib.crc32(row, number) / (1 << 32) for number in numbers] for row in inputs]
        return np.array(found, np.float32).reshape(len(inputs), self.features_width)

    def _take_time(self, inputs: Inputs, is_cancelled: IsCancelled) -> None:
        ends_s = time.monotonic() + min(_MOST_S, self._delay_s + self._row_delay_s * len(inputs))
        check(is_cancelled)
        while (left_s := ends_s - time.monotonic()) > 0:
            time.sleep(min(_PIECE_S, left_s))
            check(is_cancelled)
