"""Two processes that show each other that they have the token."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from server.workers.peers import PeerRefused, admit_server, new_identity, prove_as_server, tls_context

TOKEN = bytes(range(32))


async def meet(server_token: bytes, worker_token: bytes) -> tuple[BaseException | None, BaseException | None]:
    """How it ended for the server, and for the worker."""
    near, far = socket.socketpair()

    async def side(
        connection: socket.socket, act: Callable[[socket.socket, bytes], Awaitable[None]], token: bytes
    ) -> BaseException | None:
        connection.setblocking(False)
        with connection:
            try:
                await act(connection, token)
            except (PeerRefused, OSError) as exc:
                return exc
        return None

    server, worker = await asyncio.gather(
        side(near, prove_as_server, server_token), side(far, admit_server, worker_token)
    )
    return server, worker


def test_both_have_it() -> None:
    assert asyncio.run(meet(TOKEN, TOKEN)) == (None, None)


@pytest.mark.security
def test_neither_goes_on_where_the_tokens_differ() -> None:
    server, worker = asyncio.run(meet(TOKEN, bytes(32)))
    assert isinstance(server, PeerRefused)
    assert isinstance(worker, PeerRefused)


@pytest.mark.security
def test_what_one_side_said_is_no_proof_when_it_is_said_again() -> None:
    """An echo of everything that the worker says, as somebody between two connections might send."""

    async def scenario() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        loop = asyncio.get_running_loop()
        with near, far:
            admitted = asyncio.ensure_future(admit_server(far, TOKEN))
            await loop.sock_sendall(near, bytes(32))
            said = b""
            while len(said) < 64:
                said += await loop.sock_recv(near, 64 - len(said))
            await loop.sock_sendall(near, said[32:])
            with pytest.raises(PeerRefused):
                await admitted

    asyncio.run(scenario())


@pytest.mark.security
def test_a_certificate_of_somebody_else_ends_the_meeting() -> None:
    own, other, stranger = new_identity(), new_identity(), new_identity()

    async def scenario(server_knows: str) -> bytes:
        near, far = socket.socketpair()
        loop = asyncio.get_running_loop()
        worker = tls_context(other, own.certificate, is_server=True)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        accepting = asyncio.ensure_future(loop.connect_accepted_socket(lambda: protocol, far, ssl=worker))
        try:
            transport, _ = await loop.create_connection(
                asyncio.Protocol,
                sock=near,
                ssl=tls_context(own, server_knows, is_server=False),
                server_hostname="",
            )
            transport.write(b"rows")
            heard = await reader.readexactly(4)
            transport.close()
            return heard
        finally:
            await asyncio.gather(accepting, return_exceptions=True)

    assert asyncio.run(scenario(other.certificate)) == b"rows"
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(scenario(stranger.certificate))
