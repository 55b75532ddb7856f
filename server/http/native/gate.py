"""A descriptor that an event loop watches in place of another, which can be left unheard for a while."""

from __future__ import annotations

import select

__all__ = ["Gate"]


class Gate:
    """Readable while it is open and the descriptor behind it is. Linux.

    A loop that stops watching an epoll descriptor and begins again has the kernel walk all that it
    watches, each time, to see that no two watch each other: with 400 sockets 32 µs, with 2,000 155 µs.
    What is watched for may change without it (fs/eventpoll.c: only EPOLL_CTL_ADD looks).
    """

    def __init__(self, descriptor: int) -> None:
        self._behind = descriptor
        self._epoll = select.epoll()
        self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """What the loop watches."""
        return self._epoll.fileno()

    def shut(self) -> None:
        """Not readable, whatever comes."""
        self._epoll.modify(self._behind, 0)

    def open(self) -> None:
        """Readable again, at once if something has come meanwhile."""
        self._epoll.modify(self._behind, select.EPOLLIN)

    def close(self) -> None:
        """End; the loop must have stopped watching before."""
        self._epoll.close()
