"""`make bench-residency-live`: clients take turns with one sequence, and every row is accounted for."""

from __future__ import annotations

import asyncio
import math

from tests.benchmarks.load_generator import Outcome, Replay, in_turn, request_bytes
from tests.benchmarks.residency_live_many import what_became


class _Echo(asyncio.Protocol):
    """Answers each request with its body; counts how many requests are under way at once."""

    under_way = most = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        _Echo.under_way += 1
        _Echo.most = max(_Echo.most, _Echo.under_way)
        body = data.partition(b"\r\n\r\n")[2]
        asyncio.get_running_loop().call_later(0.002, self._answer, body)

    def _answer(self, body: bytes) -> None:
        _Echo.under_way -= 1
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_clients_of_a_closed_loop_share_one_sequence_and_each_has_one_row_under_way() -> None:
    async def run() -> Replay:
        server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            return await in_turn(url, 3, 0.05, lambda number: request_bytes(url, "/", str(number).encode()))

    _Echo.under_way = _Echo.most = 0
    outcomes = asyncio.run(run()).outcomes
    assert len(outcomes) > 3
    assert [int(one.body) for one in outcomes] == list(range(len(outcomes)))
    assert _Echo.most <= 3
    assert all(one.status == 200 and one.at_s <= 0.05 for one in outcomes)


def test_every_row_of_the_thousand_models_is_answered_refused_with_its_reason_or_said_to_be_lost() -> None:
    live = Replay(
        [
            Outcome(0.0, 0.2, 200),
            Outcome(0.1, 1.3, 200),
            Outcome(0.2, 0.9, 504, b'{"error":"deadline_exceeded: too late"}'),
            Outcome(0.3, 0.0, 503, b"busy"),
            Outcome(0.4, math.inf, 0),
        ]
    )
    found = what_became(live, [0, 0, 1, 1, 2])
    assert (found["answered_in_goal"], found["answered_late"], found["refused"], found["lost"]) == (
        1,
        1,
        2,
        1,
    )
    assert found["reasons"] == {"504 deadline_exceeded": 1, "503 without a reason": 1, "no answer": 1}
    assert (found["models_asked"], found["models_without_an_answer"], found["most_rows_of_those"]) == (
        3,
        2,
        2,
    )
    assert found["longest_wait_s"] == 1.3
