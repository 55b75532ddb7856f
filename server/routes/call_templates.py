"""The calls of requests that are alike: read once, and made again with each one's rows and deadline.

What a request asks for beside its rows (outputs, parameters, its caller's rights) takes longer to read and to
check than its rows do. Raw bodies of one function and caller are alike, and so are the requests of one
`RequestTemplate`. Whatever else differs from one to the next is read each time, by the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml_udf.oip import InferRequest, Tensor
from server.access.caller import Caller
from server.catalog.functions import Function
from server.http.application import WholeRequest
from server.routes.codec import Codec, deadline_s, raw_request
from server.serving.calls import Call

__all__ = ["CallTemplates"]

_MOST = 1024


@dataclass(frozen=True, slots=True)
class _Known:
    """A call that others are like. request: of a raw body, without its row."""

    function: Function
    caller: Caller
    alike: object
    call: Call
    request: InferRequest | None = None


class CallTemplates:
    """Of one codec. On one event loop."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known: dict[tuple[str, int, int], _Known] = {}

    def raw(self, function: Function, whole: WholeRequest) -> tuple[InferRequest, Call]:
        """A raw body: as `raw_request` and `Codec.call_of` have it, and raises as they do."""
        known = self._of(function, whole.caller, None)
        if known is not None and known.request is not None:
            return known.request, known.call.of_rows([whole.body], len(whole.body))
        request = raw_request(function, whole.body)
        call = self._codec.call_of(function, request, whole.came_s, whole.caller)
        if not function.row_bytes(function.form):
            without = InferRequest([Tensor.of_bytes(function.input_name, [])], parameters=request.parameters)
            self._keep(_Known(function, whole.caller, None, call.of_rows([], 0), without))
        return request, call

    def call_of(self, function: Function, request: InferRequest, whole: WholeRequest) -> Call:
        """As `Codec.call_of`, and raises as it does."""
        if whole.alike is None:
            return self._codec.call_of(function, request, whole.came_s, whole.caller)
        known = self._of(function, whole.caller, whole.alike)
        if known is not None:
            rows = request.inputs[0].elements
            until_s = deadline_s(request.parameters, whole.came_s)
            return known.call.of_rows(rows, sum(map(len, rows)), until_s)
        call = self._codec.call_of(function, request, whole.came_s, whole.caller)
        # Whose members answer within a goal or an accuracy changes with what is known of them.
        has_limits = call.slo_s is not None or call.min_accuracy is not None
        if call.form != "tensor" and not has_limits:
            self._keep(_Known(function, whole.caller, whole.alike, call.of_rows([], 0)))
        return call

    def shared(
        self, function: Function, first: WholeRequest, rows: Sequence[bytes]
    ) -> tuple[InferRequest, Call] | None:
        """One call of the rows of requests that are all like `first`, and what they ask beside their rows.

        None where no request like it was read before. Raises as `deadline_s`.
        """
        known = self._of(function, first.caller, first.alike)
        request = first.request or (None if known is None else known.request)
        if known is None or request is None:
            return None
        until_s = deadline_s(request.parameters, first.came_s)
        return request, known.call.of_rows(list(rows), sum(map(len, rows)), until_s)

    def _of(self, function: Function, caller: Caller, alike: object) -> _Known | None:
        """By identity: what has the same place in memory now may be another."""
        known = self._known.get((function.key, id(caller), id(alike)))
        if known is None or known.function is not function or known.caller is not caller:
            return None
        return known if known.alike is alike else None

    def _keep(self, known: _Known) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[known.function.key, id(known.caller), id(known.alike)] = known
