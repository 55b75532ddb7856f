"""The replies to requests that are alike: written once, and filled with each one's answers.

Most requests are: the same function, as many rows, the same outputs, binary, without an id. What such a reply
says beside its data is the same to the byte, and takes more to write than the data of a row does.
"""

from __future__ import annotations

import contextlib
import itertools

from gpu_worker.wire.protocol import Column
from ml_udf.oip import InferRequest, ResponseTemplate, pack_bytes
from server.catalog.functions import Function
from server.http.application import Filled
from server.routes.codec import Codec
from server.serving.calls import Reply

__all__ = ["ReplyTemplates"]

_MOST_ROWS = 32  # of a reply: with more, its data is what takes time
_MOST = 256  # templates

# Function, rows, whether all of them were kept, outputs asked for.
_Key = tuple[str, int, bool, tuple[tuple[str, bool | None], ...]]


class ReplyTemplates:
    """Of one codec. On one event loop."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known: dict[_Key, tuple[Function, tuple[str, ...], ResponseTemplate | None]] = {}

    def filled(self, reply: Reply, request: InferRequest) -> Filled | None:
        """Body and headers, as `Codec.response_of` and `encode_response` have them; None where they are to.

        Raises as `Codec.response_of`.
        """
        known = None if reply.errors or reply.rows > _MOST_ROWS else self._of(reply, request)
        if known is None:
            return None
        names, template = known
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
        plain = next((row for row in range(reply.rows) if row not in reply.errors), None)
        known = None if plain is None else self._of(reply.row(plain), request)
        if known is None or any(name not in reply.columns for name in known[0]):
            return None
        names, template = known
        columns = [_blobs(reply.columns[name]) for name in names]
        if max(map(len, itertools.chain(*columns)), default=0) > self._codec.max_reply_bytes:
            return None  # it says how many characters there are
        filled: list[Filled | None] = []
        filled += template.fill_each(zip(*columns, strict=True))
        for row in reply.errors:
            filled[row] = None
        return filled

    def _of(self, reply: Reply, request: InferRequest) -> tuple[tuple[str, ...], ResponseTemplate] | None:
        """What its likes are filled into, and the outputs that come there; None where there is no such."""
        asked = tuple((output.name, output.binary) for output in request.outputs)
        is_binary = asked or request.parameters.get("binary_data_output", False)
        if request.id or not is_binary or reply.cached not in (0, reply.rows):
            return None
        key = (reply.function.key, reply.rows, reply.cached > 0, asked)
        known = self._known.get(key)
        if known is None or known[0] is not reply.function:
            known = self._learned(key, reply, request)
        _, names, template = known
        return None if template is None else (names, template)

    def _learned(
        self, key: _Key, reply: Reply, request: InferRequest
    ) -> tuple[Function, tuple[str, ...], ResponseTemplate | None]:
        names = tuple(name for name, _ in key[-1]) or tuple(reply.function.task.default_outputs)
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
    packed = {text: pack_bytes([text.encode()]) for text in set(column.data)}
    return [packed[text] for text in column.data]
