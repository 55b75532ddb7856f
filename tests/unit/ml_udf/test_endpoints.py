"""Several endpoints: which is asked next, what goes on with the next, and what the caller reads."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ml_udf.client import Client, Options
from ml_udf.client.endpoints import MOST_ENDPOINTS, Standing, endpoints_of
from ml_udf.client.failover import FailoverTransport
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.errors import (
    BadOption,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    MlUdfError,
    Overloaded,
    ServerUnreachable,
    TlsFailed,
)
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of

A, B, C = "http://a:8080", "http://b:8080", "http://c:8080"
GET = HttpRequest("GET", "/v2")
ROWS = HttpRequest("POST", "/v2/models/f/infer", may_repeat=True)
ORDER = HttpRequest("POST", "/v1/jobs")
OK = HttpResponse(200, {}, b"{}")
DRAINING = HttpResponse(
    503, {"ml-udf-draining": "1"}, b'{"error": "overloaded: the server is shutting down"}'
)
FULL = HttpResponse(503, {"retry-after": "3"}, b'{"error": "overloaded: 9 rows wait already"}')
PROXY = HttpResponse(502, {}, b"<html>Bad Gateway</html>")


class Scripted:
    """Does what `says` is: answers it, or raises it. `asked`: the paths of the requests that came."""

    def __init__(self, says: HttpResponse | Exception = OK) -> None:
        self.says = says
        self.asked: list[str] = []
        self.timeouts_s: list[float] = []
        self.closed = False

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        self.asked.append(request.path)
        self.timeouts_s.append(timeout_s)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def refused(where: str = A) -> ServerUnreachable:
    return ServerUnreachable(f"nothing answers at {where}: connection refused")


def ask(transport: FailoverTransport, request: HttpRequest = ROWS, timeout_s: float = 60.0) -> HttpResponse:
    return transport.send(request, timeout_s=timeout_s, abort=Abort())


# ── the option ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", [A, "local:/a,b", "local:", ""])
def test_one_endpoint_is_what_it_was(text: str) -> None:
    assert endpoints_of(text) == (text,)


def test_several_stand_between_commas_with_or_without_blanks() -> None:
    assert endpoints_of(f"{A}, {B},{C}") == (A, B, C)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{A},", "empty place"),
        (f",{A}", "empty place"),
        (f"{A},{A}", "twice"),
        (f"{A},local:/home", "stands alone"),
        (",".join(f"http://h{n}" for n in range(MOST_ENDPOINTS + 1)), "at the most"),
    ],
)
def test_a_list_that_is_none_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        Client(text)


def test_each_of_a_list_has_to_be_an_endpoint_and_safe() -> None:
    with pytest.raises(BadOption, match="'b:8080' is not an endpoint"):
        Client("http://127.0.0.1:8080,b:8080")
    with pytest.raises(BadOption, match="in the clear"):
        Client("https://a,http://b")


@pytest.mark.security
@pytest.mark.parametrize("url", ["user:hunter2@h", "http:/user:hunter2@h", "ftp://user:hunter2@h"])
def test_what_may_be_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(BadOption, match="this is not an endpoint"):
        Client(url)


def test_brackets_without_an_address_are_no_endpoint() -> None:
    with pytest.raises(BadOption, match="is not an endpoint"):
        Client("http://[::1")


# ── who is next ───────────────────────────────────────────────────────────────────────────────────────


def test_the_first_is_preferred_and_who_answered_last_is_asked_first() -> None:
    standing = Standing(3)
    assert standing.order(0.0) == [0, 1, 2]
    standing.answered(2)
    assert standing.order(0.0) == [2, 0, 1]


def test_who_failed_is_asked_last_for_a_while_that_doubles_up_to_five_minutes() -> None:
    standing, now_s, pauses = Standing(2), 0.0, []
    for _ in range(7):
        standing.failed(0, now_s)
        standing.answered(1)
        assert standing.order(now_s) == [1, 0]
        since_s = now_s
        while standing.due(now_s) is None:
            now_s += 1.0
        pauses.append(now_s - since_s)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_failures_at_the_same_time_count_once() -> None:
    standing = Standing(2)
    for _ in range(5):
        standing.failed(0, 1.0)
    standing.answered(1)
    assert standing.due(11.0) == 0


def test_nobody_is_left_out_where_all_failed() -> None:
    standing = Standing(3)
    for place in range(3):
        standing.failed(place, 0.0)
    assert sorted(standing.order(0.0)) == [0, 1, 2]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", [refused(), TlsFailed("no trust"), DRAINING, PROXY])
@pytest.mark.parametrize("request_", [GET, ROWS, ORDER])
def test_what_one_did_not_take_goes_to_the_next(
    fault: HttpResponse | Exception, request_: HttpRequest
) -> None:
    first, second = Scripted(fault), Scripted()
    transport = FailoverTransport((A, B), (first, second))
    assert ask(transport, request_) is OK
    assert transport.answering == B
    assert ask(transport, request_) is OK
    assert (len(first.asked), len(second.asked)) == (1, 2)


def test_where_the_connection_broke_only_what_may_arrive_twice_goes_on() -> None:
    first, second = Scripted(ConnectionLost("broke")), Scripted()
    assert ask(FailoverTransport((A, B), (first, second)), ROWS) is OK
    first, second = Scripted(ConnectionLost("broke")), Scripted()
    transport = FailoverTransport((A, B), (first, second))
    with pytest.raises(ConnectionLost):
        ask(transport, ORDER)
    assert second.asked == []
    assert ask(transport, ORDER) is OK  # the next order goes where somebody answers
    assert len(first.asked) == 1


@pytest.mark.parametrize("reply", [FULL, HttpResponse(500, {}, b""), HttpResponse(404, {}, b"")])
def test_an_answer_is_an_answer_whatever_it_says(reply: HttpResponse) -> None:
    first, second = Scripted(reply), Scripted()
    assert ask(FailoverTransport((A, B), (first, second))) is reply
    assert second.asked == []


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ((refused(A), refused(B)), ServerUnreachable),
        ((refused(A), ConnectionLost(f"the connection to {B} broke")), ConnectionLost),
        ((DRAINING, refused(B)), Overloaded),
        ((TlsFailed("no trust"), PROXY), ServerUnreachable),
        ((TlsFailed("no trust"), TlsFailed("too old")), TlsFailed),
    ],
)
def test_the_error_names_all_that_were_tried(
    faults: tuple[HttpResponse | Exception, ...], kind: type[MlUdfError]
) -> None:
    transport = FailoverTransport((A, B), [Scripted(fault) for fault in faults])
    with pytest.raises(MlUdfError) as caught:
        ask(transport)
    assert type(caught.value) is kind
    assert A in caught.value.message
    assert B in caught.value.message


def test_all_of_them_share_the_time_of_the_request() -> None:
    clock = Clock()

    class Slow(Scripted):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            clock.now_s += 2.0
            return super().send(request, timeout_s=timeout_s, abort=abort)

    first, second, third = Slow(refused(A)), Slow(refused(B)), Slow()
    with pytest.raises(ServerUnreachable, match="none of 2 endpoints"):
        ask(FailoverTransport((A, B, C), (first, second, third), clock), timeout_s=4.0)
    assert (second.timeouts_s, third.asked) == ([2.0], [])


def test_one_that_let_the_time_run_out_is_not_the_first_to_be_asked_next() -> None:
    first, second = Scripted(DeadlineExceeded("no answer")), Scripted()
    transport = FailoverTransport((A, B), (first, second))
    with pytest.raises(DeadlineExceeded):
        ask(transport)
    assert ask(transport) is OK
    assert (len(first.asked), len(second.asked)) == (1, 1)


def test_a_cancelled_call_asks_nobody_else() -> None:
    abort = Abort()
    second = Scripted()

    class Cancelling(Scripted):
        def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
            abort.set()
            raise refused()

    transport = FailoverTransport((A, B), (Cancelling(), second))
    with pytest.raises(Cancelled):
        transport.send(ROWS, timeout_s=9.0, abort=abort)
    assert second.asked == []


def test_the_preferred_one_is_asked_again_once_it_is_ready() -> None:
    clock = Clock()
    first, second = Scripted(refused()), Scripted()
    transport = FailoverTransport((A, B), (first, second), clock)
    ask(transport)
    first.says = DRAINING  # it is up, and not ready
    clock.now_s += 10.0
    ask(transport)
    assert (first.asked[-1], transport.answering) == ("/v2/health/ready", B)
    first.says = OK
    clock.now_s += 19.0
    ask(transport)
    assert transport.answering == B  # it rests for 20 s, the second time
    clock.now_s += 1.0
    ask(transport)
    assert (first.asked[-2:], transport.answering) == (["/v2/health/ready", ROWS.path], A)
    assert first.timeouts_s[-2] == 1.0


def test_all_are_closed() -> None:
    both = Scripted(), Scripted()
    FailoverTransport((A, B), both).close()
    assert all(each.closed for each in both)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────


class Dying(FakeTransport):
    """Answers `sound` requests for rows, and is as `then` says from then on."""

    def __init__(self, sound: int, then: Callable[[], HttpResponse]) -> None:
        super().__init__()
        self.sound, self.then = sound, then

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        if len(self.sent) >= self.sound:
            return self.then()
        return super().send(request, timeout_s=timeout_s, abort=abort)


def _refuses() -> HttpResponse:
    raise refused()


def _breaks() -> HttpResponse:
    raise ConnectionLost("the connection broke")


@pytest.mark.parametrize("then", [_refuses, _breaks, lambda: DRAINING, lambda: PROXY])
def test_a_statement_whose_server_goes_is_answered_whole_and_in_order(
    then: Callable[[], HttpResponse],
) -> None:
    first, second = Dying(3, then), FakeTransport()
    client = Client(f"{A},{B}", transport=FailoverTransport((A, B), (first, second)))
    rows = [str(number) for number in range(40)]
    found = client.predict("f", rows, Options(batch_rows=4, max_in_flight=2))
    client.close()
    assert found.values == [label_of(row.encode()) for row in rows]
    assert found.errors == [None] * 40
    assert sum(map(len, first.sent)) + sum(map(len, second.sent)) == 40
    assert second.sent


def test_where_all_are_gone_the_rows_say_so_and_name_them() -> None:
    gone = [Scripted(refused(A)), Scripted(refused(B))]
    client = Client(f"{A},{B}", transport=FailoverTransport((A, B), gone))
    found = client.predict("f", ["a"], Options(on_error="null", timeout_ms=300), deadline_s=None)
    client.close()
    assert isinstance(found.errors[0], ServerUnreachable)
    assert json.dumps(found.errors[0].message).count("connection refused") == 2
