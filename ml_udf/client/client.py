"""Columns in, columns out: the client that every engine shares.

Owns NULLs, duplicates, the order of rows and the sub-batches in flight. Knows neither PostgreSQL nor
DuckDB, and not how bytes travel (`ml_udf.client.transport`).
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.claim import NO_CLAIM, Claim, ClaimingTransport
from ml_udf.client.column import InputColumn, SubBatch, Value
from ml_udf.client.endpoints import endpoints_of
from ml_udf.client.exchange import ROW_FAULTS, Exchange, Outcomes
from ml_udf.client.failover import FailoverTransport
from ml_udf.client.function_info import (
    REPOSITORY_INDEX,
    FunctionInfo,
    ServerInfo,
    function_info,
    json_of,
    repository_rows,
)
from ml_udf.client.pending_call import PendingCall
from ml_udf.client.prediction import CallStats, Prediction, all_failed, short, spread
from ml_udf.client.request_pool import RequestPool
from ml_udf.client.retry import left_s, with_retries
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse, HttpTransport, Transport
from ml_udf.config import Options

__all__ = ["CallStats", "Client", "FunctionInfo", "Options", "Prediction"]

DESCRIBE_TIMEOUT_S = 10.0
DEFAULT_OPTIONS = Options()
_MAX_KNOWN = 256
_CONNECT_OF_SEVERAL_S = 2.0  # a machine that is off answers nothing, and another endpoint waits
_ROUTES = {"residency_events": "residency", "bulk_jobs": "bulk-jobs"}  # of views that are called otherwise


@dataclass(slots=True)
class _Known:
    """What a server has said of itself, for all clients of its connections."""

    server: ServerInfo | None = None
    functions: dict[tuple[str, str, str | None, str | None], FunctionInfo] = field(default_factory=dict)


class Client:
    """A connection to one endpoint: `http://…`, `https://…`, or `local:` (see `ml_udf.local`); or to several
    that share a registry, between commas, each of which is asked where those before it cannot be.

    Cheap to make, no I/O before the first call, safe to share between threads. Raises `BadOption` for an
    endpoint that is none.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        token: str | None = None,
        transport: Transport | None = None,
        allow_plain: bool = False,
        sslrootcert: str | None = None,
        sslcert: str | None = None,
        sslkey: str | None = None,
        claim: Claim = NO_CLAIM,
    ) -> None:
        """allow_plain, sslrootcert, sslcert, sslkey: see `ml_udf.client.transport.HttpTransport`.

        claim: on whose behalf everything is asked; `on_behalf_of` makes clients of others
        """
        self.endpoint = endpoint
        self._transport = transport or _transport(
            endpoint, token, allow_plain=allow_plain, sslrootcert=sslrootcert, sslcert=sslcert, sslkey=sslkey
        )
        self._failover = self._transport if isinstance(self._transport, FailoverTransport) else None
        if claim != NO_CLAIM:
            self._transport = ClaimingTransport(self._transport, claim)
        self._request_pool = RequestPool()
        self._known = _Known()
        self._job: BulkJob | None = None

    @property
    def answering(self) -> str:
        """The endpoint that is asked: of several the one that answered last."""
        return self.endpoint if self._failover is None else self._failover.answering

    def on_behalf_of(self, claim: Claim) -> Client:
        """A client over the same connections, threads and knowledge, whose requests carry that claim.

        It need not be closed: that would close this one.
        """
        other = copy.copy(self)
        other._transport = ClaimingTransport(self._transport, claim)
        return other

    def of_job(self, job: BulkJob) -> Client:
        """A client over the same connections, whose rows are a part of that job. It need not be closed."""
        other = copy.copy(self)
        other._job = job
        return other

    def describe(
        self,
        function: str,
        *,
        version: str | None = None,
        input_name: str | None = None,
        output_name: str | None = None,
        timeout_s: float = DESCRIBE_TIMEOUT_S,
    ) -> FunctionInfo:
        """The current version of a function, asked anew; or `version`, from memory where it was seen.

        Raises the errors of `ml_udf.errors`.
        """
        if (info := self._seen(function, version, input_name, output_name)) is not None:
            return info
        server = self._server_info(timeout_s)
        path = f"/v2/models/{quote(function, safe='')}"
        metadata = self.get(path, timeout_s=timeout_s)
        info = function_info(
            {"name": function, **metadata},
            {} if server.ours else self._triton_config(path, timeout_s),
            server=server,
            version=version,
            input_name=input_name,
            output_name=output_name,
        )
        known = self._known.functions
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[(function, info.version, input_name, output_name)] = info
        return info

    def look_up(
        self,
        function: str,
        *,
        version: str | None = None,
        input_name: str | None = None,
        output_name: str | None = None,
        deadline_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> FunctionInfo:
        """`describe`, tried again where that is safe, inside the deadline, and cancellable by `on_wait`."""
        if (info := self._seen(function, version, input_name, output_name)) is not None:
            return info
        end_s = time.monotonic() + DESCRIBE_TIMEOUT_S
        if deadline_s is not None:
            end_s = min(end_s, deadline_s)

        def describe(_task: None, abort: Abort) -> FunctionInfo:
            return with_retries(
                lambda: self.describe(
                    function,
                    version=version,
                    input_name=input_name,
                    output_name=output_name,
                    timeout_s=left_s(end_s),
                ),
                deadline_s=end_s,
                abort=abort,
            )

        # In flight like the rows: a server that accepts and then says nothing must not outlast a cancel.
        ((_, info),) = self._request_pool.run([None], describe, max_in_flight=1, on_wait=on_wait)
        return info

    def predict(
        self,
        function: str,
        values: Sequence[Value],
        options: Options = DEFAULT_OPTIONS,
        *,
        version: str | None = None,
        input_name: str | None = None,
        output_name: str | None = None,
        deadline_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
        detail: bool = False,
    ) -> Prediction:
        """Answer a column: order and length kept, None for None, equal values sent once.

        version      of the function; None = the current one
        deadline_s   on `time.monotonic()`'s clock; travels to the server
        on_wait      called in this thread at least every 50 ms; what it raises aborts the call
        detail       whether to ask how each row was answered, in `Prediction.details`

        With `on_error='error'` the lowest faulty row raises its error; with 'null' it is reported in
        `Prediction.errors`. Raises the errors of `ml_udf.errors`.
        """
        started_s = time.monotonic()
        try:
            info = self.look_up(
                function,
                version=version,
                input_name=input_name,
                output_name=output_name,
                deadline_s=deadline_s,
                on_wait=on_wait,
            )
        except ROW_FAULTS as error:
            if options.on_error == "error":
                raise
            return all_failed(values, error, time.monotonic() - started_s)
        column = InputColumn.of(values, info.input_datatype, info.column_names)
        until_s = math.inf if deadline_s is None else deadline_s
        exchange = Exchange(self._transport, info, options, until_s, detail, self._job)
        answers, batches = self._answers(column, exchange, on_wait)
        prediction = spread(column, answers, exchange, batches=batches)
        prediction.stats.elapsed_s = time.monotonic() - started_s
        if options.on_error == "error" and (found := prediction.first_error()):
            row, fault = found
            if not fault.detail:
                fault.detail = f"first at row {row + 1} of the call: {function}({short(values[row])})"
            raise fault
        return prediction

    def begin(
        self,
        function: str,
        values: Sequence[Value],
        options: Options,
        *,
        version: str,
        input_name: str | None = None,
        output_name: str | None = None,
        deadline_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
        detail: bool = False,
    ) -> PendingCall | None:
        """`predict` cut in two: send, and let `PendingCall.wait` wait for the answers, which hold the faults.

        Returns when all requests have left. They leave at once, whatever `max_in_flight`; None, and nothing
        is sent, where they would be more than twice that, or the endpoint computes in this process.
        """
        if self.endpoint.startswith("local:"):
            return None
        info = self.look_up(
            function,
            version=version,
            input_name=input_name,
            output_name=output_name,
            deadline_s=deadline_s,
            on_wait=on_wait,
        )
        column = InputColumn.of(values, info.input_datatype, info.column_names)
        rows = min(options.batch_rows, info.most_rows or options.batch_rows)
        batches = list(column.sub_batches(rows))
        if len(batches) > 2 * options.max_in_flight:
            return None
        until_s = math.inf if deadline_s is None else deadline_s
        exchange = Exchange(self._transport, info, options, until_s, detail, self._job)
        return PendingCall(
            column, exchange, self._request_pool.begin(batches, exchange.answer, on_wait=on_wait)
        )

    def listed(
        self,
        what: str,
        *,
        timeout_s: float = DESCRIBE_TIMEOUT_S,
        on_wait: Callable[[], None] | None = None,
    ) -> list[dict[str, Any]]:
        """The rows of a view over the server, one of `ml_udf.views`, whose columns they have.

        A server that is not ours lists its models by the protocol's repository index; they are its functions
        as well, and it trains nothing. `on_wait` as in `predict`: what it raises aborts the request.
        """
        ((_, rows),) = self._request_pool.run(
            [what], lambda each, _: self._list(each, timeout_s), max_in_flight=1, on_wait=on_wait
        )
        return rows

    def get(self, path: str, *, timeout_s: float = DESCRIBE_TIMEOUT_S) -> dict[str, Any]:
        """Read a JSON route, such as `/v1/functions`."""
        return json_of(self._send(HttpRequest("GET", path), timeout_s))

    def put(self, path: str, body: dict[str, Any], *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Write to a JSON route."""
        return json_of(self._send(_with_json("PUT", path, body), timeout_s))

    def post(self, path: str, body: dict[str, Any], *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Post to a JSON route."""
        return json_of(self._send(_with_json("POST", path, body), timeout_s))

    def ask(
        self,
        request: HttpRequest,
        *,
        timeout_s: float,
        on_wait: Callable[[], None] | None = None,
        tries_again: bool = False,
    ) -> dict[str, Any]:
        """Any request to a JSON route. `on_wait` as in `predict`: what it raises aborts the request.

        tries_again: within the time, where that is safe; for a request that does no more by arriving twice.
        """
        ends_s = time.monotonic() + timeout_s

        def send(asked: HttpRequest, abort: Abort) -> dict[str, Any]:
            def once() -> dict[str, Any]:
                return json_of(self._transport.send(asked, timeout_s=left_s(ends_s), abort=abort))

            return with_retries(once, deadline_s=ends_s, abort=abort) if tries_again else once()

        ((_, answer),) = self._request_pool.run([request], send, max_in_flight=1, on_wait=on_wait)
        return answer

    def delete(self, path: str, *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Delete what a JSON route names."""
        return json_of(self._send(HttpRequest("DELETE", path), timeout_s))

    def close(self) -> None:
        """Let go of threads, connections and models."""
        self._request_pool.close()
        self._transport.close()

    def _seen(
        self, function: str, version: str | None, input_name: str | None, output_name: str | None
    ) -> FunctionInfo | None:
        """A version that was described before; the current one is none of them: it is asked anew."""
        if version is None:
            return None
        return self._known.functions.get((function, version, input_name, output_name))

    def _list(self, what: str, timeout_s: float) -> list[dict[str, Any]]:
        if self._server_info(timeout_s).ours:
            route = _ROUTES.get(what, what)
            rows: list[dict[str, Any]] = self.get(f"/v1/{route}", timeout_s=timeout_s)[what]
            return rows
        if what not in ("functions", "models"):
            return []
        return repository_rows(self._send(_with_json("POST", REPOSITORY_INDEX, {}), timeout_s))

    def _send(self, request: HttpRequest, timeout_s: float) -> HttpResponse:
        return self._transport.send(request, timeout_s=timeout_s, abort=Abort())

    def _server_info(self, timeout_s: float) -> ServerInfo:
        if self._known.server is None:
            self._known.server = ServerInfo.read(self.get("/v2", timeout_s=timeout_s))
        return self._known.server

    def _triton_config(self, path: str, timeout_s: float) -> dict[str, Any]:
        response = self._send(HttpRequest("GET", path + "/config"), timeout_s)
        return json_of(response) if response.status == 200 else {}  # Triton's own; others have none

    def _answers(
        self, column: InputColumn, exchange: Exchange, on_wait: Callable[[], None] | None
    ) -> tuple[Outcomes, int]:
        """The answers of the distinct values, and in how many requests they came."""
        stop_at_error = exchange.options.on_error == "error"
        # A row that is refused here fails the call before anything is sent.
        found_error = stop_at_error and bool(column.errors)
        answers = Outcomes.empty(len(column.distinct))
        batches = 0

        def tasks() -> Iterator[SubBatch]:
            limit = exchange.info.most_rows or exchange.options.batch_rows
            for batch in column.sub_batches(min(exchange.options.batch_rows, limit)):
                if found_error:  # nothing new is sent; what is under way may hold a lower row's error
                    return
                yield batch

        for batch, reply in self._request_pool.run(
            tasks(), exchange.answer, max_in_flight=exchange.options.max_in_flight, on_wait=on_wait
        ):
            answers.fill(batch, reply)
            found_error = found_error or (stop_at_error and any(reply.errors))
            batches += 1
        return answers, batches


def _transport(endpoint: str, token: str | None, *, allow_plain: bool, **files: Any) -> Transport:  # noqa: ANN401  # of TLS, as `HttpTransport` takes them
    if endpoint.startswith("local:"):
        from ml_udf.local import LocalTransport  # its neighbours are there only where it was asked for

        return LocalTransport(endpoint)
    endpoints = endpoints_of(endpoint)
    if len(endpoints) == 1:
        return HttpTransport(endpoint, token=token, allow_plain=allow_plain, **files)
    transports = [
        HttpTransport(
            each, token=token, allow_plain=allow_plain, connect_timeout_s=_CONNECT_OF_SEVERAL_S, **files
        )
        for each in endpoints
    ]
    return FailoverTransport(endpoints, transports)


def _with_json(method: str, path: str, body: dict[str, Any]) -> HttpRequest:
    return HttpRequest(method, path, json.dumps(body).encode(), {"Content-Type": "application/json"})
