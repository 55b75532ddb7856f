"""A gate hears of what is behind it while it is open, and of nothing while it is shut."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from server.http.native.gate import Gate


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def is_readable(gate: Gate) -> bool:
    return bool(select.select([gate.fileno()], [], [], 0)[0])


def test_it_is_readable_where_what_is_behind_it_is(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    with closing(Gate(near.fileno())) as gate:
        assert not is_readable(gate)
        far.send(b"1")
        assert is_readable(gate)
        near.recv(1)
        assert not is_readable(gate)


def test_shut_it_is_not_and_open_again_it_tells_what_came_meanwhile(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    with closing(Gate(near.fileno())) as gate:
        gate.shut()
        far.send(b"1")
        assert not is_readable(gate)
        gate.open()
        assert is_readable(gate)


def test_shut_it_does_not_even_say_that_the_other_end_is_gone() -> None:
    """An epoll descriptor, which is what it is for, has no such end; nothing turns in a circle meanwhile."""
    behind = select.epoll()
    near, far = socket.socketpair()
    with near, closing(behind), closing(Gate(behind.fileno())) as gate:
        behind.register(near, select.EPOLLIN)
        gate.shut()
        far.close()
        assert not is_readable(gate)
        gate.open()
        assert is_readable(gate)
