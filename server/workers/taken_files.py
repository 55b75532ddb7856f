"""Files that a worker stores which does not see the server's: taken piece by piece, whole or not at all.

    StoreCheckpoint, MakeVariant ─→ worker ─ pieces ─→ FOLDER/.taken-… ─ hashed, flushed ─→ FOLDER/NAME

It may write into the folder that such a message names, while that is under way. What a link that was cut or a
server that was killed has left is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_worker.model_files.regular import flush, optimiser_file
from gpu_worker.wire.protocol import GivePiece, MakeVariant, Message, PieceTaken, StoreCheckpoint

__all__ = ["TakenFiles"]

_MOST_BYTES = 1 << 20  # of a piece
_MOST_FILES = 64  # of a message
_COMING = ".taken-"
_ABANDONED_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,199}")
_CHECKPOINT = re.compile(r"([0-9a-f]{64})\.(safetensors|onnx)")
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Coming:
    """A file of which pieces are here."""

    name: str
    size: int
    sha256: str
    descriptor: int
    path: Path
    at: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)


@dataclass(slots=True)
class _Taking:
    """What one message stores. is_busy: a piece is being written, in a thread."""

    folder: Path
    are_checkpoints: bool
    coming: _Coming | None = None
    whole: list[str] = field(default_factory=list)
    is_busy: bool = False
    is_over: bool = False


class TakenFiles:
    """Those of one worker. Its methods are called on the event loop."""

    def __init__(self) -> None:
        self._taking: dict[int, _Taking] = {}  # by message that is not answered

    def begun(self, message: StoreCheckpoint | MakeVariant) -> None:
        """It was sent, under its id."""
        is_checkpoint = isinstance(message, StoreCheckpoint)
        folder = message.directory if isinstance(message, StoreCheckpoint) else message.target
        self._taking[message.id] = _Taking(Path(folder), is_checkpoint)

    def over(self, message_id: int) -> list[str]:
        """It is answered; the names of the files that came whole. Half of one is thrown away."""
        taking = self._taking.pop(message_id, None)
        if taking is None:
            return []
        taking.is_over = True
        if not taking.is_busy:
            _drop(taking)
        return taking.whole

    def given(self, piece: GivePiece, tell: Callable[[Message], None]) -> None:
        """Write it, and have `tell` say so, soon; or why it is not taken."""
        taking = self._taking.get(piece.target)
        try:
            taking = _checked(piece, taking)
        except ValueError as exc:
            tell(PieceTaken(piece.id, str(exc), "bad_option"))
            return
        taking.is_busy = True

        def was_written(writing: asyncio.Future[PieceTaken]) -> None:
            taking.is_busy = False
            if taking.is_over:
                _drop(taking)
            elif not writing.cancelled():
                tell(writing.result())

        asyncio.get_running_loop().run_in_executor(None, _taken, taking, piece).add_done_callback(was_written)


def _checked(piece: GivePiece, taking: _Taking | None) -> _Taking:
    """Raises `ValueError` for a piece that is not the next of a file that may be stored."""
    if taking is None:
        raise ValueError("nothing is being stored")
    if taking.is_busy:
        raise ValueError("the piece before it is still being written")
    data = piece.data[0] if len(piece.data) == 1 else b""
    if not _NAME.fullmatch(piece.file) or len(data) > _MOST_BYTES or not 0 <= piece.at <= piece.size:
        raise ValueError(f"there is no such piece of {piece.file[:100]!r}")
    if taking.are_checkpoints:
        found = _CHECKPOINT.match(piece.file)
        names = () if found is None else (found[0], optimiser_file(found[0]))
        if found is None or piece.file not in names or (piece.file == found[0]) != (piece.sha256 == found[1]):
            raise ValueError(f"{piece.file[:100]!r} is no checkpoint's name by its hash")
    coming, is_next = taking.coming, False
    if piece.at == 0:
        is_next = coming is None and len(taking.whole) < _MOST_FILES
    elif coming is not None:
        told = (coming.name, coming.at, coming.size, coming.sha256)
        is_next = told == (piece.file, piece.at, piece.size, piece.sha256)
    if not is_next or piece.at + len(data) > piece.size or (not data and piece.size):
        raise ValueError(f"the piece of {piece.file} from byte {piece.at} on is not the next")
    return taking


def _taken(taking: _Taking, piece: GivePiece) -> PieceTaken:
    """In a thread. What fails leaves nothing."""
    try:
        if taking.coming is None:
            taking.coming = _begun(taking.folder, piece)
        if _written(taking.coming, piece.data[0]):
            taking.coming = None
            taking.whole.append(piece.file)
        return PieceTaken(piece.id)
    except OSError as exc:
        _drop(taking)
        reason = f"{taking.folder} cannot be written: {exc.strerror}"
        return PieceTaken(piece.id, reason, "no_space" if exc.errno in _FULL else "internal")
    except ValueError as exc:
        _drop(taking)
        return PieceTaken(piece.id, str(exc), "internal")


def _begun(folder: Path, piece: GivePiece) -> _Coming:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.glob(f"{_COMING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
    descriptor, place = tempfile.mkstemp(prefix=_COMING, dir=folder)
    return _Coming(piece.file, piece.size, piece.sha256, descriptor, Path(place))


def _written(coming: _Coming, data: bytes) -> bool:
    """Whether the file is whole by now, and under its name. Raises `OSError`, `ValueError`."""
    rest = memoryview(data)
    while len(rest):
        done = os.write(coming.descriptor, rest)
        rest = rest[done:]
    coming.digest.update(data)
    coming.at += len(data)
    if coming.at < coming.size:
        return False
    found = coming.digest.hexdigest()
    if found != coming.sha256:
        raise ValueError(f"{coming.name} came with SHA-256 {found}, and should have {coming.sha256}")
    os.fsync(coming.descriptor)
    os.replace(coming.path, coming.path.parent / coming.name)
    os.close(coming.descriptor)
    coming.descriptor = -1
    flush(coming.path.parent)
    return True


def _drop(taking: _Taking) -> None:
    """What is not whole."""
    coming, taking.coming = taking.coming, None
    if coming is not None:
        with contextlib.suppress(OSError):
            if coming.descriptor >= 0:
                os.close(coming.descriptor)
        with contextlib.suppress(OSError):
            coming.path.unlink()
