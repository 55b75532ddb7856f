"""Pieces of files, asked of the server or given to it over the connection that orders and rows come by.

They are small, and few are under way at a time, so that a row never waits behind much of a file.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from gpu_worker.wire.protocol import FilePiece, GivePiece, Message, PieceTaken, WantPiece

__all__ = ["Pieces"]

_Answer = TypeVar("_Answer", FilePiece, PieceTaken)


class Pieces:
    """Those under way. `put` sends a message to the server. Thread-safe."""

    def __init__(self, put: Callable[[Message], object]) -> None:
        self._put = put
        self._ids = itertools.count(-1, -1)  # replies have ids above 0
        self._wanted: dict[int, Future[FilePiece]] = {}
        self._given: dict[int, Future[PieceTaken]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, target: int, beside: str, file: str, at: int, nbytes: int) -> Future[FilePiece]:
        """As `WantPiece` has it. The future is cancelled where the server is gone."""
        return self._ask(WantPiece(0, target, file, at, nbytes, beside))

    def ask_picture(self, target: int, path: str, at: int, nbytes: int, known: str = "") -> Future[FilePiece]:
        """The same of a file that a row names."""
        return self._ask(WantPiece(0, target, path, at, nbytes, is_picture=True, known=known))

    def give(
        self, target: int, file: str, at: int, data: bytes, size: int, sha256: str
    ) -> Future[PieceTaken]:
        """As `GivePiece` has it. The future is cancelled where the server is gone."""
        given: Future[PieceTaken] = Future()
        number = self._begun(self._given, given)
        if number:
            self._put(GivePiece(number, [data], target, file, at, size, sha256))
        return given

    def came(self, piece: FilePiece) -> None:
        """What one of them brought."""
        with self._lock:
            wanted = self._wanted.pop(piece.id, None)
        if wanted is not None:
            wanted.set_result(piece)

    def taken(self, answer: PieceTaken) -> None:
        """What became of one that was given."""
        with self._lock:
            given = self._given.pop(answer.id, None)
        if given is not None:
            given.set_result(answer)

    def close(self) -> None:
        """None will come any more, nor be taken."""
        with self._lock:
            self._closed = True
            wanted, self._wanted = list(self._wanted.values()), {}
            given, self._given = list(self._given.values()), {}
        for ask in wanted:
            ask.cancel()
        for gift in given:
            gift.cancel()

    def _ask(self, want: WantPiece) -> Future[FilePiece]:
        wanted: Future[FilePiece] = Future()
        want.id = self._begun(self._wanted, wanted)
        if want.id:
            self._put(want)
        return wanted

    def _begun(self, under_way: dict[int, Future[_Answer]], coming: Future[_Answer]) -> int:
        """The id under which it is asked; 0 where nobody answers any more, and it is cancelled."""
        with self._lock:
            if not self._closed:
                number = next(self._ids)
                under_way[number] = coming
                return number
        coming.cancel()
        return 0
