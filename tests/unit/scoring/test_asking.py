"""How the answers to a page are got past faults that pass, rows at fault, and servers that are."""

from __future__ import annotations

import threading
import time

import pytest

from ml_udf.client import Client
from ml_udf.client.statement import Binding, Outcome
from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.config import Options
from ml_udf.errors import Cancelled, ConnectionLost, ServerFault, WorkerLost
from ml_udf.scoring import Asking, Page
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of


class Deadly(FakeTransport):
    """Its worker dies of every request that holds one of `poison`."""

    def __init__(self, poison: set[bytes]) -> None:
        super().__init__()
        self.poison = poison
        self.asked = 0

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        if request.path.endswith("/infer"):
            self.asked += 1
            if any(row in request.body for row in self.poison):
                return HttpResponse(
                    500, {}, b'{"error": "worker_lost: the worker died twice under these rows"}'
                )
        return super().send(request, timeout_s=timeout_s, abort=abort)


def page_of(*rows: str) -> Page:
    return Page([(row,) for row in rows], list(rows), list(rows))


def asking(transport: FakeTransport, *, patience_s: float = 5.0) -> Asking:
    client = Client("http://fake", transport=transport)
    return Asking(client, Binding("f"), "1", Options(), patience_s=patience_s)


def answered(asked: Asking, *rows: str) -> list[Outcome]:
    return asked.answers(page_of(*rows), Abort())


def test_rows_are_answered_in_order_and_equal_ones_are_sent_once():
    transport = FakeTransport()
    found = answered(asking(transport), "a", "b", "a")
    assert [answer.value for answer in found] == [label_of(row) for row in (b"a", b"b", b"a")]
    assert sorted(row for rows in transport.sent for row in rows) == [b"a", b"b"]


def test_what_was_answered_on_one_page_is_not_sent_for_the_next():
    transport = FakeTransport()
    asked = asking(transport)
    answered(asked, "a", "b")
    answered(asked, "b", "c")
    assert [sorted(rows) for rows in transport.sent] == [[b"a", b"b"], [b"c"]]


def test_a_row_at_fault_has_its_fault_and_spoils_no_other():
    found = answered(asking(FakeTransport()), "a", "bad")
    assert found[0].value == label_of(b"a")
    assert found[1].error is not None
    assert found[1].error.code == "input_not_found"


def test_a_passing_fault_is_waited_for():
    transport = FakeTransport()
    transport.faults = [ConnectionLost("gone") for _ in range(7)]  # more than the client tries by itself
    (found,) = answered(asking(transport), "a")
    assert found.value == label_of(b"a")


def test_a_fault_that_outlasts_the_patience_is_raised():
    transport = FakeTransport()
    transport.faults = [ConnectionLost("gone") for _ in range(1000)]
    with pytest.raises(ConnectionLost):
        answered(asking(transport, patience_s=0.1), "a")


@pytest.mark.parametrize("poisoned", [{"row17"}, {"row0", "row63"}, {"row0", "row1", "row2", "row3"}])
def test_rows_that_kill_the_worker_are_found_and_the_others_answered(poisoned: set[str]):
    transport = Deadly({f"{row};".encode() for row in poisoned})
    rows = [f"row{n};" for n in range(64)]
    found = answered(asking(transport), *rows)
    for row, answer in zip(rows, found, strict=True):
        if row.rstrip(";") in poisoned:
            assert isinstance(answer.error, WorkerLost)
        else:
            assert answer.value == label_of(row.encode())
    assert transport.asked < 40


def test_a_server_that_fails_for_every_row_ends_the_run_and_no_row_is_blamed():
    transport = Deadly({b"row"})
    with pytest.raises(ServerFault):
        answered(asking(transport), *(f"row{n}" for n in range(256)))
    assert transport.asked < 30


def test_an_abort_ends_it_soon():
    transport = FakeTransport(delay_s=30)
    asked, abort = asking(transport), Abort()
    threading.Timer(0.2, abort.set).start()
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        asked.answers(page_of("a"), abort)
    assert time.monotonic() - began_s < 10
    asked.wait_idle(5)
