"""The replies to requests that are alike: written once, and filled with each one's answers.

Most requests are: the same function, as many rows, the same outputs, binary, without an id. What such a reply
says beside its data is the same to the byte, and takes more to write than the data of a row does.
"""

from __future__ import annotations

import contextlib
import itertools
import struct

from gpu_worker.wire.protocol import Column
from ml_udf.oip import InferRequest, ResponseTemplate, pack_bytes
from server.catalog.functions import Function
from server.http.application import Filled
from server.routes.codec import Codec
from server.serving.calls import Reply

__all__ = ["ReplyTemplates"]

_MOST_ROWS = 32  # of a reply: with more, its data is what takes time
_MOST = 256  # templates

_Key = tuple[str, int, tuple[tuple[str, bool | None], ...]]  # function, rows, outputs asked for


class ReplyTemplates:
    """Of one codec. On one event loop."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known: dict[_Key, tuple[Function, tuple[str, ...], ResponseTemplate | None]] = {}

    def filled(self, reply: Reply, request: InferRequest) -> Filled | None:
        """Body and headers, as `Codec.response_of` and `encode_response` have them; None where they are to.

        Raises as `Codec.response_of`.
        """
        if reply.errors or reply.cached or reply.rows > _MOST_ROWS or request.id:
            return None
        asked = tuple((output.name, output.binary) for output in request.outputs)
        if not request.parameters.get("binary_data_output", False) and not asked:
            return None
        key = (reply.function.key, reply.rows, asked)
        known = self._known.get(key)
        if known is None or known[0] is not reply.function:
            known = self._learned(key, reply, request)
        _, names, template = known
        if template is None:
            return None
        blobs: list[bytes | bytearray] = []
        for name in names:
            column = reply.columns.get(name)
            if column is None:
                return None
            if isinstance(column.data, list):
                blobs.append(pack_bytes([text.encode() for text in column.data]))
                if len(blobs[-1]) > self._codec.max_reply_bytes:
                    return None  # it says how many characters there are
            else:
                blobs.append(column.data)
        return template.fill(blobs)

    def filled_each(self, reply: Reply, request: InferRequest) -> list[Filled | None] | None:
        """The rows of a reply as the replies to requests for one row each; None, of a row or of all, where
        `Codec.response_of` is to say it. Raises as that.
        """
        asked = tuple((output.name, output.binary) for output in request.outputs)
        if not request.parameters.get("binary_data_output", False) and not asked:
            return None
        rows, errors = reply.rows, reply.errors
        key = (reply.function.key, 1, asked)
        known = self._known.get(key)
        if known is None or known[0] is not reply.function:
            plain = next((row for row in range(rows) if row not in errors), None)
            if plain is None:
                return None
            known = self._learned(key, reply.row(plain), request)
        _, names, template = known
        if template is None or any(name not in reply.columns for name in names):
            return None
        columns = [_blobs(reply.columns[name]) for name in names]
        if max(map(len, itertools.chain(*columns)), default=0) > self._codec.max_reply_bytes:
            return None  # it says how many characters there are
        filled: list[Filled | None] = []
        filled += template.fill_each(zip(*columns, strict=True))
        for row in errors:
            filled[row] = None
        return filled

    def _learned(
        self, key: _Key, reply: Reply, request: InferRequest
    ) -> tuple[Function, tuple[str, ...], ResponseTemplate | None]:
        names = tuple(name for name, _ in key[2]) or tuple(reply.function.task.default_outputs)
        template: ResponseTemplate | None = None
        if all(request.wants_binary(name) and name in reply.columns for name in names):
            response = self._codec.response_of(reply, request)
            with contextlib.suppress(ValueError):  # a function's name may hold whatever marks the sizes
                template = ResponseTemplate(response, request)
        if len(self._known) >= _MOST:
            self._known.clear()
        known = self._known[key] = (reply.function, names, template)
        return known


def _blobs(column: Column) -> list[bytes]:
    """By row, what a BYTES or a number tensor of that row alone holds."""
    if not isinstance(column.data, list):
        width = column.row_bytes
        return [bytes(column.data[at : at + width]) for at in range(0, len(column.data), width)]
    packed = {text: text.encode() for text in set(column.data)}
    packed = {text: struct.pack("<I", len(blob)) + blob for text, blob in packed.items()}
    return [packed[text] for text in column.data]
