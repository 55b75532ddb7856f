"""Requests alike but for the bytes of their one tensor and some numbers: their JSON is read once."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from ml_udf.oip.messages import InferRequest, decode_request
from ml_udf.oip.tensor import Tensor, WireError, unpack_bytes, width_bytes

__all__ = ["RequestTemplate"]

_MARK = 10**14  # stands for a number while the rest is read
_LENGTH = struct.Struct("<I")  # before each element of a BYTES tensor


class RequestTemplate:
    """What is the same in all of them; `fill` makes one. Only NUMBERS differ."""

    NUMBERS = ("binary_data_size", "timeout", "ml_udf_deadline_ms")
    __slots__ = ("_count", "_parameters", "_places", "_request", "_size_at", "_tensor")

    def __init__(self, pieces: Sequence[bytes], names: Sequence[str]) -> None:
        """pieces: of the JSON, one more than `names`; between each two stands the number of that name.

        Raises ValueError, `WireError` too, where a number is not what its name says in every request of that
        JSON, or where they are alike in other ways than here.
        """
        marks = [b"%d" % (_MARK + place) for place in range(len(names))]
        text = b"".join(piece + mark for piece, mark in zip(pieces, [*marks, b""], strict=True))
        if any(text.count(mark) != 1 for mark in marks):
            raise ValueError("the number of a template stands in the request")
        head = json.loads(text)
        inputs = head.get("inputs") if isinstance(head, dict) else None
        if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
            raise ValueError("the request has not one input")
        tensor: dict[str, Any] = inputs[0]
        inside, outside = tensor.get("parameters"), head.get("parameters")
        if not isinstance(inside, dict):
            raise ValueError("the request's data is not binary")
        for place, name in enumerate(names):
            where = inside if name == "binary_data_size" else outside
            if name not in self.NUMBERS or not isinstance(where, dict) or where.get(name) != _MARK + place:
                raise ValueError(f"{name!r} is not where it belongs")
        if len(set(names)) != len(names) or "binary_data_size" not in names or head.get("id"):
            raise ValueError("the request is not of the ordinary kind")
        # Read as ever, but of a tensor that has no data: its shape gets a dimension of 0 for the while.
        parameters = {**inside, "binary_data_size": 0}
        empty = {**tensor, "shape": [*tensor["shape"], 0], "parameters": parameters}
        self._request = decode_request(json.dumps({**head, "inputs": [empty]}).encode(), None)
        (like,) = self._request.inputs
        self._tensor = Tensor(like.name, like.datatype, like.shape[:-1], b"", like.parameters)
        self._count = math.prod(self._tensor.shape)
        self._size_at = list(names).index("binary_data_size")
        self._places = [(name, place) for place, name in enumerate(names) if name != "binary_data_size"]
        if like.datatype != "BYTES":
            width_bytes(like.datatype)

    def row(self, body: bytes, json_size: int, numbers: Sequence[int]) -> bytes | None:
        """The one row of a request that has one, of bytes; None of any other, and where `fill` would fail."""
        if self._count != 1 or self._tensor.datatype != "BYTES":
            return None
        size = numbers[self._size_at]
        if size < _LENGTH.size or json_size + size != len(body):
            return None
        (length,) = _LENGTH.unpack_from(body, json_size)
        return body[json_size + _LENGTH.size :] if length == size - _LENGTH.size else None

    def beside_size(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """The numbers of a request without its size."""
        return tuple([numbers[place] for _, place in self._places])

    def fill(self, body: bytes, json_size: int, numbers: Sequence[int]) -> InferRequest:
        """The request with these numbers; the first `json_size` bytes of `body` are this template's JSON.

        Raises `WireError`.
        """
        size = numbers[self._size_at]
        like, request = self._tensor, self._request
        if json_size + size != len(body):
            raise WireError(f"tensor {like.name!r}: binary_data_size {size} does not fit the body")
        blob = memoryview(body)[json_size:]
        data: list[bytes] | memoryview = blob
        if like.datatype == "BYTES":
            data = unpack_bytes(like.name, blob, self._count)
        elif size != self._count * width_bytes(like.datatype):
            raise WireError(
                f"tensor {like.name!r}: {size} bytes do not make {like.datatype} of shape {list(like.shape)}"
            )
        parameters = dict(request.parameters)
        for name, place in self._places:
            parameters[name] = numbers[place]
        tensor = Tensor(like.name, like.datatype, like.shape, data, dict(like.parameters))
        return InferRequest([tensor], request.outputs, "", parameters)
