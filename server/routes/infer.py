"""`POST /v2/models/M[/versions/V]/infer`: the hot path, on ASGI itself.

Body → request → call → reply → response; errors as the protocol has them. `tritonclient` sends binary
bodies without a content type, so nothing here looks at one.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from ml_udf.oip import HEADER_LENGTH, InferRequest, WireError, decode_request, encode_response
from server.calls import Pending, Reply
from server.catalog import Catalog
from server.errors import BadInput, BadOption, Overloaded, ServiceError
from server.functions import Function
from server.metrics import Metrics
from server.routes.asking import Asker
from server.routes.body import ClientGone, Receive, Scope, Send, header, read_body, too_large
from server.routes.codec import Codec, raw_request
from server.routes.replies import error_reply, send_error, send_reply
from server.shortcut import Reply as SendReply
from server.shortcut import Waiting, WholeRequest

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
        request = _request_of(function, body, header(scope, _HEADER_LENGTH))
        call = self._codec.call_of(function, request, began_s)
        if not call.rows:
            return self._encoded(_nothing(function), request)
        reply = await self._asker.ask(call, receive, began_s)
        return self._encoded(reply, request)

    def answer(self, whole: WholeRequest, reply: SendReply) -> Waiting | None:
        """Answer a request that came the short way: `reply` is called once, now or later."""
        asked = _Asked(whole.came_s, reply)
        try:
            function = asked.function = self._catalog.resolve(*_named(whole.path))
            if len(whole.body) > self._max_body_bytes:
                raise too_large(self._max_body_bytes)
            length = whole.headers.get(_HEADER_LENGTH)
            asked.request = _request_of(
                function, whole.body, None if length is None else length.decode("latin-1")
            )
            call = self._codec.call_of(function, asked.request, asked.began_s)
            if not call.rows:
                reply(200, *self._encoded(_nothing(function), asked.request))
                return None
            pending = asked.pending = self._asker.begin(call)
        except Exception as exc:
            self._fail(asked, exc)
            return None
        pending.future.add_done_callback(lambda _: self._answered(asked))
        return asked

    def goal_s(self, whole: WholeRequest) -> float:
        """The latency goal of what a request asks for."""
        try:
            return self._catalog.resolve(*_named(whole.path)).slo_ms / 1000
        except ServiceError:
            return math.inf  # `answer` will say what is wrong

    def refuse(self, whole: WholeRequest, reply: SendReply) -> None:
        """Turn a request away without a look at its body."""
        asked = _Asked(whole.came_s, reply, self._catalog.resolve(*_named(whole.path)))
        self._fail(asked, Overloaded("more requests come than can be read; try again in a second"))

    def _answered(self, asked: _Asked) -> None:
        assert asked.pending is not None
        assert asked.request is not None
        failure = self._asker.failure(asked.pending)
        if failure is not None:  # not raised: its traceback would hold on to all this, in a circle
            self._fail(asked, failure)
            return
        try:
            body, headers = self._encoded(self._asker.end(asked.pending, asked.began_s), asked.request)
        except Exception as exc:
            self._fail(asked, exc)
        else:
            asked.reply(200, body, headers)

    def _fail(self, asked: _Asked, exc: BaseException) -> None:
        if isinstance(exc, ClientGone):
            self._count(asked, "cancelled")
            return
        if isinstance(exc, ServiceError):
            if not isinstance(exc, BadInput):  # a row's fault, counted with the rows
                self._count(asked, exc.code)
            error = exc
        else:
            log.error("infer failed function=%s", asked.function and asked.function.key, exc_info=exc)
            error = ServiceError("the server failed inside; its log holds the cause")
        asked.reply(*error_reply(error))

    def _count(self, asked: _Asked, code: str) -> None:
        if asked.function is not None:
            self._metrics.of(asked.function).failed(code, time.monotonic() - asked.began_s)
        else:
            self._metrics.unresolved[code] += 1

    def _encoded(self, reply: Reply, request: InferRequest) -> tuple[bytes, dict[str, str]]:
        try:
            return encode_response(self._codec.response_of(reply, request), request)
        except WireError as exc:
            raise BadOption(str(exc)) from exc


@dataclass(slots=True)
class _Asked:
    """A request that came the short way, and how far it is."""

    began_s: float
    reply: SendReply
    function: Function | None = None
    request: InferRequest | None = None
    pending: Pending | None = None

    def leave(self) -> None:
        """Its client has gone."""
        if self.pending is not None:
            self.pending.fail(ClientGone())


class _MethodNotAllowed(ServiceError):
    code = "bad_option"
    status = 405

    def headers(self) -> dict[str, str]:
        return {"Allow": "POST"}


def _request_of(function: Function, body: bytes, header_length: str | None) -> InferRequest:
    try:
        return raw_request(function, body) if header_length == "0" else decode_request(body, header_length)
    except WireError as exc:
        raise BadOption(str(exc)) from exc


def _nothing(function: Function) -> Reply:
    return Reply(function, [], [], b"", {}, [], set())


def _named(path: str) -> tuple[str, str | None]:
    """Name and version in M/infer or M/versions/V/infer."""
    inner = path[len(_PREFIX) : -len(_SUFFIX)]
    name, versions, version = inner.partition("/versions/")
    return name, version if versions else None
