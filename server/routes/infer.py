"""`POST /v2/models/M[/versions/V]/infer`: the hot path, with neither ASGI nor a task for an ordinary request.

Body → request → call → reply → response; errors as the protocol has them. `tritonclient` sends binary
bodies without a content type, so nothing here looks at one. What takes long to read or to write does so
beside the event loop: in a thread where the work is Python's, in another process where it is a parser's that
lets nothing else run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ml_udf.oip import HEADER_LENGTH, InferRequest, WireError, decode_request, encode_response
from server.access.audit_entry import REFUSED, Auditing, entry_of
from server.access.masking import masked_fault
from server.access.seen_catalog import SeenCatalog, may_ask
from server.access.things import Things
from server.access.view import Views
from server.catalog.catalog import Catalog, unknown
from server.catalog.functions import Function
from server.errors import (
    BadInput,
    BadOption,
    DeadlineExceeded,
    NoMembers,
    Overloaded,
    ServiceError,
    VersionGone,
)
from server.http.application import (
    AlikeInProgress,
    AlikeRequests,
    Filled,
    RequestInProgress,
    WholeRequest,
)
from server.http.application import Reply as SendReply
from server.http.backpressure import RequestHint
from server.http.body import ClientGone, decompressed
from server.http.large_json import LargeJson
from server.http.replies import error_reply
from server.observability.metrics import Metrics
from server.routes.bulk_tag import bulk_request
from server.routes.call_templates import CallTemplates
from server.routes.codec import Codec, raw_request
from server.routes.reply_templates import ReplyTemplates
from server.serving.cached_calls import CachedCall
from server.serving.call_service import CallService
from server.serving.calls import Call, PendingReply, Reply
from server.serving.pipelines.calls import PipelineCall
from server.serving.shared_calls import RowsOver, SharedCall
from server.supervision import Tasks

__all__ = ["InferRoute", "is_infer"]

log = logging.getLogger("ml_udf.server.routes")

_PREFIX = "/v2/models/"
_SUFFIX = "/infer"
_HEADER_LENGTH = HEADER_LENGTH.lower().encode()
_INLINE_BYTES = 256 << 10  # read or written on the event loop: some milliseconds at the most
_INLINE_ROWS = 4096
_ID_COSTS_ROWS = 32  # what a prediction's id takes to write, of rows without one
_JSON_BYTES = 1 << 20  # more of it is read and written by another process
_NAMING = ("answered_by", "error", "decision")  # outputs that may name members
_MOVES = 8  # times that a request follows its function from version to version
_BULK_S = 1.0  # the goal by which bulk requests stand in line
_SAID = re.compile(rb'"(ml_udf_deadline_ms|timeout|ml_udf_slo_ms)": ?([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*[,}]')
_BULK = re.compile(rb'"ml_udf_class": ?"bulk"')
_HINT_BYTES = 64 << 10


def is_infer(path: str) -> bool:
    """Whether a path is the infer route's."""
    return path.startswith(_PREFIX) and path.endswith(_SUFFIX)


class InferRoute:
    """The route, as `application.Application` and `backpressure.Route` have it."""

    def __init__(
        self,
        catalog: Catalog,
        calls: CallService,
        codec: Codec,
        metrics: Metrics,
        large: LargeJson,
        tasks: Tasks,
        max_body_bytes: int,
        views: Views | None = None,
        audit: Auditing | None = None,
    ) -> None:
        """views: what each caller sees of the catalog; None = everything, of one without owners.

        audit: is told whose rows were refused
        """
        self._catalog = catalog
        self._views = views or Views(Things())
        self._calls = calls
        self._codec = codec
        self._metrics = metrics
        self._large = large
        self._tasks = tasks
        self._max_body_bytes = max_body_bytes
        self._audit = audit
        self._templates = ReplyTemplates(codec)
        self._calls_like = CallTemplates(codec)

    def takes(self, path: str) -> bool:
        """Whether a path, percent-decoded, is this route's."""
        return is_infer(path)

    def answer(self, whole: WholeRequest, reply: SendReply) -> RequestInProgress | None:
        """Answer a request: `reply` is called once, now or later."""
        asked = _Asked(whole, reply, self._answered)
        try:
            function = asked.function = self._resolve(whole)
            if len(whole.body) > _INLINE_BYTES or b"content-encoding" in whole.headers:
                asked.task = self._tasks.once("read a request", self._read_and_ask(asked))
                return asked
            if _is_raw(whole):
                asked.request, call = self._calls_like.raw(function, whole)
                return self._begin(asked, call)
            asked.request = whole.request or _request_of(function, whole.body, _header_length(whole))
            return self._ask(asked)
        except Exception as exc:
            self._fail(asked, exc)
            return None

    def answer_alike(self, alike: AlikeRequests, places: Sequence[int]) -> AlikeInProgress | None:
        """Answer those together; None where each is to come by itself, and hear what is wrong."""
        first, rows = alike.first, [alike.rows[place] for place in places]
        try:
            function = self._resolve(first)
            shared = self._calls_like.shared(function, first, rows)
            if shared is None or max(map(len, rows)) > _INLINE_BYTES:
                return None
            request, call = shared
        except ServiceError:
            return None
        asked = _AskedTogether(alike, places, function, request, self)
        try:
            asked.pending = self._calls.begin_shared(call, asked)
        except DeadlineExceeded as error:
            self._refuse_together(asked, error)
            return asked
        except ServiceError:
            return None
        except Exception:
            log.exception("alike requests not taken together function=%s", function.key)
            return None
        return None if asked.pending is None else asked

    def hint(self, whole: WholeRequest) -> RequestHint:
        """What a request says of itself, by a look at the part of its body that is not rows.

        A function that its caller does not see is none here either: how long its queue is tells nothing. And
        `answer` looks again, as what a caller sees may have changed meanwhile.
        """
        try:
            function = self._resolve(whole)
        except ServiceError:
            # `answer` will say what is wrong; a flood of such requests goes before nobody's rows.
            return RequestHint(("", ""), _BULK_S, math.inf, can_wait=True)
        end = min(_json_bytes(whole.body, _header_length(whole)), _HINT_BYTES)
        said = memoryview(whole.body)[:end]
        if _BULK.search(said) or whole.caller.bulk_only:
            return RequestHint((function.name, "bulk"), _BULK_S, math.inf, can_wait=True)
        goal_s, time_s = function.slo_ms / 1000, math.inf
        for name, value in _SAID.findall(said):
            if name == b"timeout":
                time_s = min(time_s, float(value) / 1e6 or math.inf)
            elif name == b"ml_udf_deadline_ms":
                time_s = min(time_s, float(value) / 1000)
            else:
                goal_s = float(value) / 1000 or goal_s
        return RequestHint((function.name, "interactive"), min(goal_s, time_s), time_s)

    def rest_s(self, *, is_busy: bool) -> float:
        """How long nobody need look for new requests."""
        return self._calls.rest_s(is_busy=is_busy)

    def refuse(self, whole: WholeRequest, reply: SendReply, alike_s: float) -> None:
        """Turn a request away without a look at its rows, and for so long those like it."""
        asked = _Asked(whole, reply, self._answered, self._resolve(whole))
        error = Overloaded("more requests come than can be read; try again in a second")
        error.alike_s = alike_s
        self._fail(asked, error)

    def _resolve(self, whole: WholeRequest) -> Function:
        """What a request is for, if its caller sees it. Raises `UnknownFunction`, `VersionGone`."""
        view = self._views.of(whole.caller)
        name, version = _named(whole.path)
        if not view.is_admin and not may_ask(self._catalog, view, name):
            raise unknown(name)
        return self._catalog.resolve(name, version)

    def _hidden(self, whole: WholeRequest, function: Function | None) -> Mapping[str, str]:
        """The names of members that the caller is not to read, where the reply may hold some."""
        view = self._views.of(whole.caller)
        if view.is_admin or function is None:
            return {}
        return SeenCatalog(self._catalog, view).hidden_members(function)

    # ── from a body to rows under way ────────────────────────────────────────────────────────────────

    async def _read_and_ask(self, asked: _Asked) -> None:
        try:
            asked.request = await self._read(asked)
            self._ask(asked)
        except Exception as exc:
            self._fail(asked, exc)

    async def _read(self, asked: _Asked) -> InferRequest:
        whole, function = asked.whole, asked.function
        assert function is not None
        body = whole.body
        encoding = whole.headers.get(b"content-encoding")
        if encoding is not None:
            name = encoding.decode("latin-1")
            body = await asyncio.to_thread(decompressed, [body], name, self._max_body_bytes)
        length = _header_length(whole)
        if _json_bytes(body, length) <= _JSON_BYTES:
            return await asyncio.to_thread(_request_of, function, body, length)
        return await self._large.decode(body, length, self._codec.max_rows)

    def _ask(self, asked: _Asked) -> RequestInProgress | None:
        assert asked.function is not None
        assert asked.request is not None
        return self._begin(asked, self._calls_like.call_of(asked.function, asked.request, asked.whole))

    def _begin(self, asked: _Asked, call: Call) -> RequestInProgress | None:
        if not call.rows:
            asked.reply(200, *_encoded(self._codec, _nothing(call.function), asked, {}))
            return None
        if call.row_class == "bulk":
            said = asked.whole.headers.get(b"ml-udf-job")
            call = replace(call, bulk=bulk_request(said, call.function.name, asked.whole.caller))
        asked.is_read = True
        pending = asked.pending = self._calls.begin(call, asked)
        if asked.gone:
            pending.fail(ClientGone())
        return asked

    # ── from answers to a reply ──────────────────────────────────────────────────────────────────────

    def _answered(self, asked: _Asked, reply: Reply | BaseException) -> None:
        assert asked.request is not None
        if isinstance(reply, BaseException):
            if not (isinstance(reply, VersionGone) and self._moves(asked)):
                self._fail(asked, reply)
            return
        try:
            rows = reply.rows * (_ID_COSTS_ROWS if reply.told else 1)
            if rows > _INLINE_ROWS or _number_bytes(reply) > _INLINE_BYTES:
                asked.task = self._tasks.once("write a reply", self._write(asked, reply))
                return
            filled = self._templates.filled(reply, asked.request)
            body, headers = filled or _encoded(self._codec, reply, asked, self._to_hide(asked))
        except Exception as exc:
            self._fail(asked, exc)
        else:
            asked.reply(200, body, headers)

    def _refuse_together(self, together: _AskedTogether, error: DeadlineExceeded) -> None:
        """All of them would be late: they hear it, and those like them are refused before they are read."""
        function, places, alike = together.function, together.places, together.alike
        error.message = masked_fault(error.code, error.message, self._hidden(alike.first, function))
        status, body, headers = error_reply(error)
        self._metrics.of(function).turned_away(error.code, len(places))
        self._shut(alike.first, function, error, (status, body, headers))
        for place in places:
            alike.reply(place, status, body, headers)

    def leave(self, together: _AskedTogether, place: int) -> None:
        """The client of one of those has gone."""
        if together.pending is not None:
            self._calls.leave(together.pending, together.places.index(place))

    def answered_together(self, together: _AskedTogether, over: RowsOver) -> None:
        """Some of those are over."""
        reply, places = over.outcome, [together.places[row] for row in over.places]
        filled: Sequence[Filled | None] | None = None
        if not isinstance(reply, BaseException) and _number_bytes(reply) <= _INLINE_BYTES:
            try:
                filled = self._templates.filled_each(reply, together.request)
            except Exception as exc:
                reply = exc
        if filled is not None:
            together.alike.reply_filled(places, filled)
        for at, place in enumerate(places):
            if filled is None or filled[at] is None:
                outcome = reply if isinstance(reply, BaseException) else reply.row(at)
                self._answered(together.by_itself(place, self._answered), outcome)

    def _to_hide(self, asked: _Asked) -> Mapping[str, str]:
        assert asked.request is not None
        names = any(output.name in _NAMING for output in asked.request.outputs)
        return self._hidden(asked.whole, asked.function) if names else {}

    def _moves(self, asked: _Asked) -> bool:
        """Whether a request that named no version goes on with the one that is served now."""
        _, version = _named(asked.whole.path)
        if version is not None or asked.moves >= _MOVES:
            return False
        asked.moves += 1
        try:
            function = asked.function = self._resolve(asked.whole)
            if _is_raw(asked.whole):
                asked.request = raw_request(function, asked.whole.body)  # a template's has no row
            self._ask(asked)
        except Exception as exc:
            self._fail(asked, exc)
        return True

    async def _write(self, asked: _Asked, reply: Reply) -> None:
        request = asked.request
        assert request is not None
        try:
            response = await asyncio.to_thread(
                self._codec.response_of, reply, request, self._to_hide(asked), asked.decision
            )
            nbytes = sum(column.nbytes for column in reply.columns.values())
            if nbytes <= _JSON_BYTES or all(request.wants_binary(tensor.name) for tensor in response.outputs):
                body, headers = await asyncio.to_thread(encode_response, response, request)
            else:
                body, headers = await self._large.encode(response, request)
        except Exception as exc:
            self._fail(asked, exc)
        else:
            asked.reply(200, body, headers)

    def _fail(self, asked: _Asked, exc: BaseException) -> None:
        if isinstance(exc, ClientGone):
            self._count(asked, "cancelled")
            return
        if isinstance(exc, WireError):
            exc = BadOption(str(exc))
        if isinstance(exc, ServiceError):
            if not isinstance(exc, BadInput):  # a row's fault, counted with the rows
                self._count(asked, exc.code)
            # Before that an error repeats the request's own words.
            if asked.is_read or isinstance(exc, NoMembers):
                of_stage = asked.function is not None and asked.function.pipeline is not None
                exc.message = masked_fault(
                    exc.code, exc.message, self._hidden(asked.whole, asked.function), of_stage=of_stage
                )
            error = exc
        else:
            log.error("infer failed function=%s", asked.function and asked.function.key, exc_info=exc)
            error = ServiceError("the server failed inside; its log holds the cause")
        if error.status in REFUSED and self._audit is not None:
            whole = asked.whole
            what = _named(whole.path)[0]
            self._audit.fold(entry_of(time.time(), whole.caller, "ask for rows", what, error.status))
        status, body, headers = error_reply(error)
        self._shut(asked.whole, asked.function, error, (status, body, headers))
        asked.reply(status, body, headers)

    def _shut(
        self,
        whole: WholeRequest,
        function: Function | None,
        error: ServiceError,
        reply: tuple[int, bytes, Mapping[str, str]],
    ) -> None:
        """Have those like a request that is refused turned away unread, where its error says for how long."""
        shut = whole.shut
        if error.alike_s and shut is not None and function is not None and self._calls.may_shut(function):
            count = partial(self._turned_away, function, error.code, _rows_said(whole.request))
            shut(error.alike_s, *reply, count)

    def _turned_away(self, function: Function, code: str, rows: int, requests: int) -> None:
        """Requests for so many rows each were refused before they were read."""
        self._metrics.of(function).turned_away(code, requests)
        self._calls.turned_away(function, rows * requests)

    def _count(self, asked: _Asked, code: str) -> None:
        if asked.function is not None:
            self._metrics.of(asked.function).failed(code, time.monotonic() - asked.whole.came_s)
        else:
            self._metrics.unresolved[code] += 1


@dataclass(slots=True)
class _Asked:
    """A request, and how far it is."""

    whole: WholeRequest
    reply: SendReply
    answered: Callable[[_Asked, Reply | BaseException], None]
    function: Function | None = None
    request: InferRequest | None = None
    pending: PendingReply | CachedCall | PipelineCall | None = None
    task: asyncio.Task[None] | None = None  # that reads the body, or writes the reply
    is_read: bool = False  # what goes wrong from now on is a row's fault, or ours
    gone: bool = False
    moves: int = 0

    @property
    def came_s(self) -> float:
        """See `call_service.Asker`."""
        return self.whole.came_s

    def over(self, outcome: Reply | BaseException) -> None:
        """See `call_service.Asker`."""
        self.answered(self, outcome)

    @property
    def decision(self) -> str:
        """Which model was chosen for it, and why."""
        return "" if self.pending is None else self.pending.call.decision

    def leave(self) -> None:
        """Its client has gone."""
        self.gone = True
        if self.pending is not None:
            self.pending.fail(ClientGone())


@dataclass(slots=True)
class _AskedTogether:
    """Requests that are alike, and how far they are. places: which of them are the rows of the call

    request: what each asks beside its row
    """

    alike: AlikeRequests
    places: Sequence[int]
    function: Function
    request: InferRequest
    route: InferRoute
    pending: SharedCall | None = None
    apart: dict[int, _Asked] = field(default_factory=dict)  # by place, those that go on by themselves

    @property
    def came_s(self) -> float:
        """See `call_service.SharedAsker`."""
        return self.alike.first.came_s

    def rows_over(self, over: RowsOver) -> None:
        """See `call_service.SharedAsker`."""
        self.route.answered_together(self, over)

    def by_itself(self, place: int, answered: Callable[[_Asked, Reply | BaseException], None]) -> _Asked:
        """One of them as if it had come alone."""
        whole = self.alike.whole(place)
        one = self.apart[place] = _Asked(whole, partial(self.alike.reply, place), answered, self.function)
        one.request, one.is_read = whole.request or self.request, True
        return one

    def leave(self, place: int) -> None:
        """See `application.AlikeInProgress`."""
        if (one := self.apart.get(place)) is not None:
            one.leave()
        else:
            self.route.leave(self, place)


def _encoded(
    codec: Codec, reply: Reply, asked: _Asked, hidden: Mapping[str, str]
) -> tuple[bytes, Mapping[str, str]]:
    assert asked.request is not None
    return encode_response(codec.response_of(reply, asked.request, hidden, asked.decision), asked.request)


def _is_raw(whole: WholeRequest) -> bool:
    """Whether a body is one row's bytes, without JSON, and was not read yet."""
    is_plain = whole.request is None and b"content-encoding" not in whole.headers
    return is_plain and whole.headers.get(_HEADER_LENGTH) == b"0"


def _request_of(function: Function, body: bytes, header_length: str | None) -> InferRequest:
    return raw_request(function, body) if header_length == "0" else decode_request(body, header_length)


def _rows_said(request: InferRequest | None) -> int:
    """How many rows a request says that it has; 1 where nothing says it."""
    shape = request.inputs[0].shape if request is not None else ()
    return max(1, shape[0]) if shape else 1


def _header_length(whole: WholeRequest) -> str | None:
    length = whole.headers.get(_HEADER_LENGTH)
    return None if length is None else length.decode("latin-1")


def _json_bytes(body: bytes, header_length: str | None) -> int:
    """How much of a body is JSON, as its request says: all, where it does not say so in digits."""
    said = header_length or ""
    return int(said) if said.isdigit() and len(said) < 10 else len(body)


def _nothing(function: Function) -> Reply:
    return Reply(function, 0, {}, {}, [], set())


def _number_bytes(reply: Reply) -> int:
    return sum(column.row_bytes * reply.rows for column in reply.columns.values())


def _named(path: str) -> tuple[str, str | None]:
    """Name and version in M/infer or M/versions/V/infer."""
    inner = path[len(_PREFIX) : -len(_SUFFIX)]
    name, versions, version = inner.partition("/versions/")
    return name, version if versions else None
