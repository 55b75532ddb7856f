"""Memory in which a server lays the rows of a batch for a worker of its machine: a photo is copied once.

    server: place = put(rows) → Infer(rows_at = place) → … → the reply → free(place)
    worker: sees them where they lie, from the Infer until its reply

Through a socket a photo is copied twice, by way of pages that the kernel finds for it: 9 µs on each side for
15 KB, where this takes 2 and 1. The server alone writes; a worker that could would spoil its own rows and no
others, as each life of a worker has memory of its own. Standard library only: both sides import this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence

__all__ = ["SharedRows", "seen"]

_BYTES = 32 << 20  # for the batches that a worker has at a time; what finds no room goes through the socket
_LEAST_BYTES = 8 << 10  # of rows, and of one of them in the mean: fewer are dearer to lay than to send
_LEAST_ROW_BYTES = 2 << 10
_MOST_BYTES = 4 << 20  # of rows: to lay more keeps the event loop for milliseconds; a socket takes parts
_ALIGNED = 64
_SEAL_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE of linux/fcntl.h, which `fcntl` does not name yet


class SharedRows:
    """The server's side: who lies where. `fd` is what its worker is started with (`seen`)."""

    def __init__(self, nbytes: int = _BYTES) -> None:
        """Raises `OSError` where there is no such memory."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory without a file")
        self.fd = os.memfd_create("ml_udf rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(self.fd, nbytes)
            self._memory = mmap.mmap(self.fd, nbytes)
            with contextlib.suppress(OSError):  # an older kernel: a worker that writes spoils its own rows
                seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | _SEAL_FUTURE_WRITE
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(self.fd)
            raise
        self._nbytes = nbytes
        self._taken: list[tuple[int, int]] = []  # from where to where, in order
        self._is_open = True

    def put(self, rows: Sequence[bytes | memoryview]) -> int | None:
        """Where they lie from now on, one after the other; None where they had better be sent."""
        nbytes = sum(map(len, rows))
        if not max(_LEAST_BYTES, _LEAST_ROW_BYTES * len(rows)) <= nbytes <= _MOST_BYTES:
            return None
        place = self._take(nbytes)
        if place is not None:
            at, memory = place, self._memory
            for row in rows:
                end = at + len(row)
                memory[at:end] = row
                at = end
        return place

    def free(self, place: int) -> None:
        """Nobody sees the rows any more that were put there."""
        for index, (start, _) in enumerate(self._taken):
            if start == place:
                del self._taken[index]
                return

    @property
    def taken_bytes(self) -> int:
        """Of rows that lie there."""
        return sum(end - start for start, end in self._taken)

    def close(self) -> None:
        """Its worker is gone; nothing is put any more. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._memory.close()
            os.close(self.fd)

    def _take(self, nbytes: int) -> int | None:
        """The lowest place that is free, so that what is touched at all is as little as ever lay there."""
        if not self._is_open:
            return None
        free_from = 0
        for index, (start, end) in enumerate(self._taken):
            if start - free_from >= nbytes:
                self._taken.insert(index, (free_from, free_from + nbytes))
                return free_from
            free_from = -(-end // _ALIGNED) * _ALIGNED
        if self._nbytes - free_from < nbytes:
            return None
        self._taken.append((free_from, free_from + nbytes))
        return free_from


def seen(fd: int) -> memoryview:
    """The worker's side, by the descriptor that it was started with, which is closed. Raises `OSError`."""
    try:
        return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    finally:
        os.close(fd)
