"""Photos as a training process has them that does not see them: asked of its worker, some before their turn.

rows that are read next ─ ahead ─→ WantPiece, a few at a time ─→ worker (`node_pictures`)
read ←─ FilePiece, whole ←──────────────────────────────────────────┘
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field

from gpu_worker.errors import BadRequest, Cancelled, RowFault
from gpu_worker.wire.frames import Reader
from gpu_worker.wire.pieces import Pieces
from gpu_worker.wire.protocol import FilePiece, FrameError, Message, encode

__all__ = ["AskedPictures"]

_AHEAD = 8  # on their way while one is decoded
_WHOLE = 1 << 30
_LOOK_S = 0.05


@dataclass(slots=True)
class _Plan:
    """What a request reads next, in this order, and what of it is asked for."""

    rows: deque[bytes] = field(default_factory=deque)
    asked: dict[bytes, Future[FilePiece]] = field(default_factory=dict)


class AskedPictures:
    """By a socket to the worker. Requests may read beside each other, each in one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._saying = threading.Lock()
        self._pieces = Pieces(self._put)
        self._plans: dict[int, _Plan] = {}
        threading.Thread(target=self._receive, name="pictures", daemon=True).start()

    def ahead(self, rows: Sequence[bytes], request: int) -> None:
        """These are read next, in this order; what was to be read before and was not is forgotten."""
        wanted, asked = set(rows), self._plan(request).asked
        kept = {row: coming for row, coming in asked.items() if row in wanted}
        plan = self._plans[request] = _Plan(deque(rows), kept)
        self._ask_ahead(plan, request)

    def read(self, row: bytes, request: int, is_given_up: Callable[[], bool] = lambda: False) -> bytes:
        """The bytes of the file that a row names, as the server has them.

        Raises `RowFault` as `MediaRoots.read`; `BadRequest` where the server does not say, `Cancelled`.
        """
        plan = self._plan(request)
        coming = plan.asked.pop(row, None) or self._ask(row, request)
        self._ask_ahead(plan, request)
        piece = _result(coming, is_given_up)
        if piece.code:
            raise RowFault(piece.code, piece.error)
        if piece.error:
            raise BadRequest(f"{_text(row)[:200]} cannot be fetched: {piece.error}")
        return piece.data[0]

    def over(self, request: int) -> None:
        """It reads nothing more."""
        self._plans.pop(request, None)

    def _plan(self, request: int) -> _Plan:
        return self._plans.setdefault(request, _Plan())

    def _ask_ahead(self, plan: _Plan, request: int) -> None:
        while plan.rows and len(plan.asked) < _AHEAD:
            row = plan.rows.popleft()
            if row not in plan.asked:
                plan.asked[row] = self._ask(row, request)

    def _ask(self, row: bytes, request: int) -> Future[FilePiece]:
        return self._pieces.ask_picture(request, _text(row), 0, _WHOLE)

    def _put(self, message: Message) -> None:
        try:
            with self._saying:
                self._connection.sendall(encode(message))
        except OSError:
            self._pieces.close()

    def _receive(self) -> None:
        reader = Reader(self._connection)
        with contextlib.suppress(FrameError, OSError):
            while isinstance(piece := reader.receive(), FilePiece):
                self._pieces.came(piece)
        self._pieces.close()


def _result(coming: Future[FilePiece], is_given_up: Callable[[], bool]) -> FilePiece:
    while not is_given_up():
        try:
            return coming.result(_LOOK_S)
        except NotYet:
            continue
        except CancelledError:
            break
    raise Cancelled("the request was given up as its photos came")


def _text(row: bytes) -> str:
    return row.decode("utf-8", "surrogateescape")
