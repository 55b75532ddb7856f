"""Pieces of the server's files, asked for over the connection that orders and rows come by.

They are small, and few are under way at a time, so that a row never waits behind much of a file.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future

from gpu_worker.wire.protocol import FilePiece, Message, WantPiece

__all__ = ["Pieces"]


class Pieces:
    """Those under way. `put` sends a message to the server. Thread-safe."""

    def __init__(self, put: Callable[[Message], object]) -> None:
        self._put = put
        self._ids = itertools.count(-1, -1)  # replies have ids above 0
        self._wanted: dict[int, Future[FilePiece]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, target: int, beside: str, file: str, at: int, nbytes: int) -> Future[FilePiece]:
        """As `WantPiece` has it. The future is cancelled where the server is gone."""
        wanted: Future[FilePiece] = Future()
        with self._lock:
            number = next(self._ids)
            if self._closed:
                wanted.cancel()
                return wanted
            self._wanted[number] = wanted
        self._put(WantPiece(number, target, file, at, nbytes, beside))
        return wanted

    def came(self, piece: FilePiece) -> None:
        """What one of them brought."""
        with self._lock:
            wanted = self._wanted.pop(piece.id, None)
        if wanted is not None:
            wanted.set_result(piece)

    def close(self) -> None:
        """None will come any more."""
        with self._lock:
            self._closed = True
            wanted, self._wanted = list(self._wanted.values()), {}
        for each in wanted:
            each.cancel()
