"""The replies to requests that are alike: written once, and filled with each one's answers.

Most requests are: the same function, as many rows, the same outputs, binary, without an id. What such a reply
says beside its data is the same to the byte, and takes more to write than the data of a row does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ml_udf.oip import InferRequest, ResponseTemplate, pack_bytes
from server.catalog.functions import Function
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

    def filled(self, reply: Reply, request: InferRequest) -> tuple[bytes, Mapping[str, str]] | None:
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
