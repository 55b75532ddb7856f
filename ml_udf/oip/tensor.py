"""One tensor of the Open Inference Protocol: its datatype, its shape, its bytes.

A BYTES element is a u32 little-endian length and the data; numbers are little-endian and row-major
(Triton's "Binary Tensor Data Extension"). Knows nothing of messages.
"""

from __future__ import annotations

import array
import math
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Tensor", "WireError", "data_from_json", "json_data", "pack_bytes", "unpack_bytes", "width_bytes"]

# datatype → (array typecode, bytes per element); FP16 and BF16 travel as raw 2-byte words.
_DATATYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("B", 1),
    "UINT8": ("B", 1),
    "UINT16": ("H", 2),
    "UINT32": ("I", 4),
    "UINT64": ("Q", 8),
    "INT8": ("b", 1),
    "INT16": ("h", 2),
    "INT32": ("i", 4),
    "INT64": ("q", 8),
    "FP16": ("H", 2),
    "BF16": ("H", 2),
    "FP32": ("f", 4),
    "FP64": ("d", 8),
}
_HALF_WORDS = {"FP16", "BF16"}
_COPIED_BYTES = 1 << 20


class WireError(ValueError):
    """The bytes are not a message of the protocol; the text says which part is wrong."""


@dataclass(slots=True)
class Tensor:
    """One named tensor. `data` is `list[bytes]` for BYTES, else raw little-endian bytes.

    `shape[0]` is the number of rows of the batch for every tensor that this project sends.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[bytes] | bytes | memoryview
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_bytes(cls, name: str, elements: list[bytes]) -> Tensor:
        """A BYTES column of shape [n]."""
        return cls(name, "BYTES", (len(elements),), elements)

    @classmethod
    def of_numbers(
        cls, name: str, datatype: str, numbers: Sequence[float], shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """A numeric tensor from Python numbers; `shape` defaults to [n]. Raises `WireError`."""
        typecode, _ = _typecode(datatype)
        if datatype in _HALF_WORDS:
            raise WireError(f"tensor {name!r}: {datatype} has no JSON form; send it as binary")
        try:
            values = array.array(typecode, numbers)
        except (TypeError, OverflowError) as exc:
            raise WireError(f"tensor {name!r}: data is not {datatype}: {exc}") from exc
        return cls(name, datatype, shape or (len(values),), _little_endian(values))

    @property
    def elements(self) -> list[bytes]:
        """The elements of a BYTES tensor. Raises `WireError` for another datatype."""
        if not isinstance(self.data, list):
            raise WireError(f"tensor {self.name!r} is {self.datatype}, expected BYTES")
        return self.data

    @property
    def raw(self) -> bytes | memoryview:
        """The little-endian bytes of a numeric tensor. Raises `WireError` for BYTES."""
        if isinstance(self.data, list):
            raise WireError(f"tensor {self.name!r} is BYTES, expected a numeric datatype")
        return self.data

    def numbers(self) -> list[Any]:
        """The values of a numeric tensor as Python numbers (booleans for BOOL), flat."""
        typecode, _ = _typecode(self.datatype)
        if self.datatype in _HALF_WORDS:
            if self.datatype == "FP16":
                return list(struct.unpack(f"<{len(self.raw) // 2}e", self.raw))
            words = array.array("H", bytes(self.raw))
            return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
        values = self._array(typecode)
        return [bool(v) for v in values] if self.datatype == "BOOL" else values.tolist()

    def floats(self) -> array.array[float] | None:
        """The values of an FP32 or FP64 tensor, flat; None for another datatype."""
        return self._array(_typecode(self.datatype)[0]) if self.datatype in ("FP32", "FP64") else None

    def _array(self, typecode: str) -> array.array[Any]:
        values = array.array(typecode)
        values.frombytes(self.raw)
        if sys.byteorder == "big":
            values.byteswap()
        return values


def width_bytes(datatype: str) -> int:
    """Bytes of one element of a numeric datatype. Raises `WireError`."""
    return _typecode(datatype)[1]


def data_from_json(name: str, datatype: str, values: object, count: int) -> list[bytes] | bytes | memoryview:
    """A tensor's data from its JSON form, nested or flat, `count` values in all. Raises `WireError`."""
    if not isinstance(values, list):
        raise WireError(f"tensor {name!r} has neither 'data' nor 'binary_data_size'")
    flat = _flatten(values)
    if len(flat) != count:
        raise WireError(f"tensor {name!r}: {len(flat)} values for a shape of {count}")
    if datatype == "BYTES":
        if not all(isinstance(value, str) for value in flat):
            raise WireError(f"tensor {name!r}: BYTES data in JSON must be strings")
        return [value.encode("utf-8", "surrogatepass") for value in flat]
    if datatype in ("FP32", "FP64"):
        flat = [math.nan if value is None else value for value in flat]
    return Tensor.of_numbers(name, datatype, flat).raw


def json_data(tensor: Tensor) -> list[Any]:
    """The flat JSON form of a tensor's data. Raises `WireError` for BYTES that are not UTF-8."""
    if isinstance(tensor.data, list):
        try:
            return [element.decode() for element in tensor.data]
        except UnicodeDecodeError as exc:
            raise WireError(
                f"tensor {tensor.name!r} holds bytes that JSON cannot carry; ask for binary"
            ) from exc
    values = tensor.floats()
    if values is None:
        return tensor.numbers()
    if math.isfinite(sum(values)):
        return values.tolist()
    # JSON has no word for what is no number but null, which numpy reads as one.
    return [value if math.isfinite(value) else None for value in values]


def pack_bytes(elements: list[bytes]) -> bytes:
    """A BYTES column in its binary form."""
    parts = [b""] * (2 * len(elements))
    parts[::2] = map(struct.Struct("<I").pack, map(len, elements))
    parts[1::2] = elements
    return b"".join(parts)


def unpack_bytes(name: str, blob: memoryview, count: int) -> list[bytes]:
    """The `count` elements of a binary BYTES tensor. Raises `WireError` where they do not fit."""
    unpack, at, end = struct.Struct("<I").unpack_from, 0, len(blob)
    raw = bytes(blob) if end <= _COPIED_BYTES else blob  # which is cut at half the time
    if end == 4 * count and raw == bytes(end):
        return [b""] * count  # as where no row has an error
    elements: list[bytes | memoryview] = []
    # Bounded by the blob, not by the sender's `count`: every element costs at least 4 bytes.
    while at + 4 <= end:
        (size,) = unpack(raw, at)
        at += 4
        if at + size > end:
            raise WireError(f"tensor {name!r}: element {len(elements)} runs past the tensor's end")
        elements.append(raw[at : at + size])
        at += size
    if at != end or len(elements) != count:
        raise WireError(f"tensor {name!r}: {len(elements)} elements for a shape of {count}")
    return list(map(bytes, elements)) if raw is blob else elements  # type: ignore[return-value]  # of bytes


def _flatten(values: list[Any]) -> list[Any]:
    if not any(isinstance(value, list) for value in values):
        return values
    flat: list[Any] = []
    pending = [iter(values)]
    while pending:  # an explicit stack: the nesting's depth is the sender's choice
        for value in pending[-1]:
            if isinstance(value, list):
                pending.append(iter(value))
                break
            flat.append(value)
        else:
            pending.pop()
    return flat


def _little_endian(values: array.array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _typecode(datatype: str) -> tuple[str, int]:
    try:
        return _DATATYPES[datatype]
    except KeyError:
        raise WireError(f"unknown datatype {datatype!r}") from None
