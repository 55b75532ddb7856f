"""Photos of a training process that does not see them: asked of the server by the worker, kept on the node.

    training process ─ WantPiece ─→ here ─ kept on this node? its hash ─→ server: is that still the file?
                     ←─ FilePiece, whole ─┘←─ yes; or the file, in pieces; or the row's error ─┘

By a socket of their own, so that a training process that is stopped while batches are answered keeps nothing
else waiting. A few at a time are on their way and in memory, each of at most a row's bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace

from gpu_worker.errors import Cancelled, WorkerError
from gpu_worker.model_files.kept_pictures import KeptPictures
from gpu_worker.wire.frames import receive
from gpu_worker.wire.pieces import Pieces
from gpu_worker.wire.protocol import FilePiece, FrameError, WantPiece, encode

__all__ = ["NodePictures", "PictureDesk"]

_PIECE_BYTES = 1 << 17  # with as many threads, 4 ms of a link of 1 Gbit/s: a row waits no longer for them
_THREADS = 4
_LOOK_S = 0.05
_MOST_CHANGES = 3  # of a file, while it is on its way


class NodePictures:
    """Those of one worker. `pieces` come by the connection to the server. Thread-safe."""

    def __init__(self, kept: KeptPictures, pieces: Pieces) -> None:
        self._kept = kept
        self._pieces = pieces
        self._moved = 0
        self._under_way: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def moved(self) -> int:
        """Pieces that have come, of photos that were and were not sent anew."""
        return self._moved

    def waiting(self) -> set[int]:
        """The messages for whom some are on their way."""
        with self._lock:
            return set(self._under_way)

    def brought(self, want: WantPiece, is_over: Callable[[], bool]) -> FilePiece:
        """The whole file, or what is wrong with the row that names it. Raises `Cancelled`."""
        with self._counted(want.target), self._kept.alone(want.file, is_over) as kept:
            here = kept.read()
            known = hashlib.sha256(here).hexdigest() if here else ""
            for _ in range(_MOST_CHANGES):
                first = self._asked(want, 0, is_over, known)
                if first.error:
                    if first.code == "input_not_found":
                        kept.drop()
                    return replace(first, id=want.id)
                if known and first.sha256 == known:
                    return FilePiece(want.id, [here], len(here), sha256=known)
                data, fault = self._rest(want, first, is_over)
                if fault is not None:
                    return replace(fault, id=want.id)
                if hashlib.sha256(data).hexdigest() == first.sha256:
                    kept.write(data)
                    return FilePiece(want.id, [data], len(data), sha256=first.sha256)
        changed = f"{want.file[:200]} is being written: it changed as it was read"
        return FilePiece(want.id, [b""], 0, changed, code="internal")

    def _rest(
        self, want: WantPiece, first: FilePiece, is_over: Callable[[], bool]
    ) -> tuple[bytes, FilePiece | None]:
        """The file as far as it comes; or what has gone wrong."""
        parts, at = [first.data[0]], len(first.data[0])
        while at < first.size:
            piece = self._asked(want, at, is_over)
            if piece.error:
                return b"", piece
            if not piece.data[0]:
                break  # it is shorter by now, as its hash says
            parts.append(piece.data[0])
            at += len(piece.data[0])
        return b"".join(parts), None

    def _asked(self, want: WantPiece, at: int, is_over: Callable[[], bool], known: str = "") -> FilePiece:
        coming = self._pieces.ask_picture(want.target, want.file, at, _PIECE_BYTES, known)
        piece = _result(coming, is_over)
        with self._lock:
            self._moved += 1
        return piece

    @contextlib.contextmanager
    def _counted(self, target: int) -> Iterator[None]:
        with self._lock:
            self._under_way[target] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[target] -= 1
                self._under_way += Counter()  # drops those at 0


class PictureDesk:
    """Answers one training process, whose end of the socket is at `connection`'s other side."""

    def __init__(self, connection: socket.socket, pictures: NodePictures) -> None:
        self._connection = connection
        self._pictures = pictures
        self._over = threading.Event()
        self._reading = threading.Lock()
        self._saying = threading.Lock()
        self._working = _THREADS
        for number in range(_THREADS):
            threading.Thread(target=self._work, name=f"pictures-{number}", daemon=True).start()

    def close(self) -> None:
        """The process has ended."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _work(self) -> None:
        with contextlib.suppress(FrameError, OSError):
            while (want := self._next()) is not None:
                answer = encode(self._answer(want))
                with self._saying:
                    self._connection.sendall(answer)
        with self._saying:
            self._working -= 1
            if not self._working:
                self._connection.close()

    def _next(self) -> WantPiece | None:
        with self._reading:
            message = receive(self._connection)
        return message if isinstance(message, WantPiece) else None

    def _answer(self, want: WantPiece) -> FilePiece:
        try:
            return self._pictures.brought(want, self._over.is_set)
        except WorkerError as exc:
            return FilePiece(want.id, [b""], 0, str(exc))
        except Exception as exc:
            return FilePiece(want.id, [b""], 0, f"{type(exc).__name__}: {exc}")


def _result(coming: Future[FilePiece], is_over: Callable[[], bool]) -> FilePiece:
    while True:
        try:
            return coming.result(_LOOK_S)
        except NotYet:
            if is_over():
                raise Cancelled("the training process ended as its photos came") from None
        except CancelledError:
            raise Cancelled("the server went as the photos came") from None
