"""`POST /v2/models/M[/versions/V]/infer`: the hot path, on ASGI itself.

Body → request → call → reply → response; errors as the protocol has them. `tritonclient` sends binary
bodies without a content type, so nothing here looks at one.
"""

from __future__ import annotations

import logging
import time

from ml_udf.oip import HEADER_LENGTH, WireError, decode_request, encode_response
from server.calls import Reply
from server.catalog import Catalog
from server.errors import BadInput, BadOption, ServiceError
from server.functions import Function
from server.metrics import Metrics
from server.routes.asking import Asker
from server.routes.body import ClientGone, Receive, Scope, Send, header, read_body
from server.routes.codec import Codec, raw_request
from server.routes.replies import send_error, send_reply

__all__ = ["InferRoute", "is_infer"]

log = logging.getLogger("ml_udf.server.routes")

_PREFIX = "/v2/models/"
_SUFFIX = "/infer"
_HEADER_LENGTH = HEADER_LENGTH.lower().encode()


def is_infer(path: str) -> bool:
    """Whether a path is the infer route's."""
    return path.startswith(_PREFIX) and path.endswith(_SUFFIX)


class InferRoute:
    """The route as an ASGI application."""

    def __init__(
        self, catalog: Catalog, asker: Asker, codec: Codec, metrics: Metrics, max_body_bytes: int
    ) -> None:
        self._catalog = catalog
        self._asker = asker
        self._codec = codec
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        function: Function | None = None
        began_s = time.monotonic()
        try:
            if scope["method"] != "POST":
                raise _MethodNotAllowed(f"{scope['path'][:200]} does not take {scope['method']}")
            function = self._catalog.resolve(*_named(scope["path"]))
            body, headers = await self._answer(scope, receive, function, began_s)
        except BadInput as error:  # a row's fault, counted with the rows
            await send_error(send, error)
        except ServiceError as error:
            if function is not None:
                self._metrics.of(function).failed(error.code, time.monotonic() - began_s)
            else:
                self._metrics.unresolved[error.code] += 1
            await send_error(send, error)
        except ClientGone:
            if function is not None:
                self._metrics.of(function).failed("cancelled", time.monotonic() - began_s)
        except Exception:
            log.exception("infer failed function=%s", function.key if function else None)
            await send_error(send, ServiceError("the server failed inside; its log holds the cause"))
        else:
            await send_reply(send, 200, body, headers)

    async def _answer(
        self, scope: Scope, receive: Receive, function: Function, began_s: float
    ) -> tuple[bytes, dict[str, str]]:
        body = await read_body(scope, receive, self._max_body_bytes)
        header_length = header(scope, _HEADER_LENGTH)
        try:
            request = (
                raw_request(function, body) if header_length == "0" else decode_request(body, header_length)
            )
        except WireError as exc:
            raise BadOption(str(exc)) from exc
        call = self._codec.call_of(function, request, began_s)
        if not call.rows:
            empty = Reply(function, [], [], b"", {}, [], set())
            return encode_response(self._codec.response_of(empty, request), request)
        reply = await self._asker.ask(call, receive, began_s)
        try:
            return encode_response(self._codec.response_of(reply, request), request)
        except WireError as exc:
            raise BadOption(str(exc)) from exc


class _MethodNotAllowed(ServiceError):
    code = "bad_option"
    status = 405

    def headers(self) -> dict[str, str]:
        return {"Allow": "POST"}


def _named(path: str) -> tuple[str, str | None]:
    """Name and version in M/infer or M/versions/V/infer."""
    inner = path[len(_PREFIX) : -len(_SUFFIX)]
    name, versions, version = inner.partition("/versions/")
    return name, version if versions else None
