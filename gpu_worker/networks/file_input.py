"""The bytes of any file as numbers that a graph takes: its beginning and its end, each of a fixed length.

    beginning = file[:strip_bytes], white space at its start left out, cut to first_bytes, filled at the end
    end       = file[-strip_bytes:], white space at its end left out, cut to last_bytes, filled at the start

Each byte is its number, what fills is `padding`. Google's Magika has its files so (python/src/magika,
`_extract_features_from_seekable`); with `strip_bytes` 0 nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.preprocess import Preprocess

__all__ = ["FileInput"]

_TYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "tensor(uint8)": np.uint8,
        "tensor(int32)": np.int32,
        "tensor(int64)": np.int64,
        "tensor(float)": np.float32,
    }
)
_MOST_BYTE: Final = 255


class FileInput:
    """Rows that are files, whole or their two ends, into one input [n, first_bytes + last_bytes]."""

    def __init__(self, inputs: Sequence[Any], how: Preprocess, path: str) -> None:
        self._how = how
        self._width = how.first_bytes + how.last_bytes
        only = inputs[0]
        if len(inputs) != 1 or only.type not in _TYPES or len(only.shape) != 2:
            told = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
            raise ModelUnusable(f"{path} takes {told}; a graph of files' bytes needs one input [n, bytes]")
        if isinstance(only.shape[1], int) and only.shape[1] != self._width:
            raise ModelUnusable(
                f"{path} takes {only.shape[1]} bytes of a file, and model.json says "
                f"{how.first_bytes} of its beginning and {how.last_bytes} of its end"
            )
        self._name = str(only.name)
        self._type = _TYPES[only.type]
        if self._type is np.uint8 and how.padding > _MOST_BYTE:
            raise ModelUnusable(
                f"{path} takes bytes alone, and 'input.preprocess.padding' is {how.padding}: say one to "
                f"{_MOST_BYTE}"
            )
        self.empty = bytes(max(1, how.least_bytes))

    def feed(self, rows: Sequence[bytes]) -> tuple[dict[str, NDArray[Any]], Sequence[int]]:
        """As `RowInput` has it."""
        how = self._how
        numbers = np.full((len(rows), self._width), how.padding, self._type)
        faults = []
        for place, row in enumerate(rows):
            first, last = self._ends(row)
            numbers[place, : len(first)] = np.frombuffer(first, np.uint8)
            numbers[place, self._width - len(last) :] = np.frombuffer(last, np.uint8)
            if len(first) < how.least_bytes:
                faults.append(place)
        return {self._name: numbers}, faults

    def fault_of(self, row: bytes) -> str | None:
        """Why a file cannot be read; None of one that can."""
        least, has = self._how.least_bytes, len(self._ends(row)[0])
        if has >= least:
            return None
        return f"the file has {has} bytes, white space at its start left out, and the model needs {least}"

    def _ends(self, row: bytes) -> tuple[bytes, bytes]:
        how = self._how
        first, last = row, row
        if how.strip_bytes:
            first, last = row[: how.strip_bytes].lstrip(), row[-how.strip_bytes :].rstrip()
        return first[: how.first_bytes], last[max(0, len(last) - how.last_bytes) :]
