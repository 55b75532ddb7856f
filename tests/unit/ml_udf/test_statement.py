"""How a statement asks: in which requests, by what it was answered last."""

from __future__ import annotations

import pytest

from ml_udf.client import Client, Options
from ml_udf.client.statement import Binding, Statement
from ml_udf.client.transport import HttpResponse
from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    decode_response,
    encode_response,
)
from tests.unit.ml_udf.fake_transport import FakeTransport, label_of


class KeepingTransport(FakeTransport):
    """Says of the rows that it was asked before that they were kept."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[bytes] = set()

    def _answer(self, asked: InferRequest, rows: list[bytes]) -> HttpResponse:
        reply = super()._answer(asked, rows)
        response = decode_response(reply.body, reply.headers[HEADER_LENGTH.lower()])
        response.parameters["ml_udf_cached_rows"] = len(self.known.intersection(rows))
        self.known.update(rows)
        body, headers = encode_response(response, asked)
        return HttpResponse(200, {name.lower(): value for name, value in headers.items()}, body)


def asked_again(options: Options, *calls: range) -> list[list[int]]:
    """How many rows each request has, call by call, of a statement whose rows from 0 on are all known."""
    transport = KeepingTransport()
    transport.known = {str(number).encode() for number in range(10_000)}
    statement = Statement(Client("http://fake", transport=transport), Binding("f"), options)
    found = []
    for numbers in calls:
        transport.sent.clear()
        texts = [str(number) for number in numbers]
        assert statement.values(texts) == [label_of(text.encode()) for text in texts]
        found.append(sorted(map(len, transport.sent)))
    assert transport.most_in_flight <= options.max_in_flight
    return found


def test_rows_that_are_known_are_asked_for_in_a_quarter_of_the_requests_once_that_is_seen() -> None:
    found = asked_again(Options(), range(2_048), range(2_048, 4_096), range(4_096, 6_144))
    assert found == [8 * [256], 2 * [1024], 2 * [1024]]


def test_one_row_that_is_new_and_the_next_call_is_asked_as_at_first() -> None:
    found = asked_again(Options(), range(1_024), range(9_000, 10_001), range(2_048, 3_072))
    assert found == [4 * [256], [1001], 4 * [256]]


@pytest.mark.parametrize("options", [Options(batch_rows=100), Options(max_in_flight=1)])
def test_numbers_that_somebody_chose_stay(options: Options) -> None:
    first, second = asked_again(options, range(1_024), range(1_024, 2_048))
    assert first == second


def test_a_column_that_sends_nothing_says_nothing_of_what_is_known() -> None:
    transport = KeepingTransport()
    statement = Statement(Client("http://fake", transport=transport), Binding("f"), Options())
    assert statement.values([None, None]) == [None, None]
    assert statement.values([str(number) for number in range(512)]) is not None
    assert sorted(map(len, transport.sent)) == [256, 256]
