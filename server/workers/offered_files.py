"""Files that a worker is told to read, for one that does not see the server's: piece by piece.

It may have what lies in a stored version's folder, while a message that names that version is under way
there, and what lies beside it in the same folder of models; and the files that a message of training names:
its snapshot, and the checkpoint that it begins with. Their hashes are told where they are asked for; the
worker checks them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_worker.model_files.regular import open_regular, optimiser_file
from gpu_worker.wire.protocol import (
    Evaluate,
    FilePiece,
    Load,
    MakeVariant,
    Message,
    Read,
    TrainEpoch,
    WantPiece,
)

__all__ = ["OFFERS", "OfferedFiles"]

OFFERS = Load | Read | TrainEpoch | Evaluate | MakeVariant
"""Messages that name files which a worker reads."""

_MOST_BYTES = 1 << 20  # of a piece
_MOST_HASHES = 256
_MOST_UNDER_WAY = 64  # pieces: each load has two
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,199}")
_BESIDE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.@-]{0,199})/([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one message names. directory: of a model; None = of none. files: by their paths."""

    directory: Path | None
    files: frozenset[str] = frozenset()


class OfferedFiles:
    """Those of one worker."""

    def __init__(self) -> None:
        self._offers: dict[int, _Offer] = {}  # by message that is not answered
        self._hashes = _Hashes()
        self._under_way = 0

    def begun(self, message: OFFERS) -> None:
        """It was sent, under its id."""
        self._offers[message.id] = _offer(message)

    def over(self, message_id: int) -> None:
        """It is answered."""
        self._offers.pop(message_id, None)

    def wanted(self, want: WantPiece, tell: Callable[[Message], None]) -> None:
        """Have `tell` send it, soon; or why it cannot be had."""
        try:
            path = self._path(want)
        except ValueError as exc:
            tell(FilePiece(want.id, [b""], 0, str(exc)))
            return
        self._under_way += 1

        def was_read(reading: asyncio.Future[FilePiece]) -> None:
            self._under_way -= 1
            if not reading.cancelled():
                tell(reading.result())

        read = self._hashes.told if want.nbytes == 0 else _piece
        asyncio.get_running_loop().run_in_executor(None, read, want, path).add_done_callback(was_read)

    def _path(self, want: WantPiece) -> Path:
        offer = self._offers.get(want.target)
        if offer is None:
            raise ValueError("no load of it is under way")
        if self._under_way >= _MOST_UNDER_WAY:
            raise ValueError(f"{_MOST_UNDER_WAY} pieces are on their way already")
        is_there = want.file in offer.files or (offer.directory and _NAME.fullmatch(want.file))
        if not is_there or want.at < 0 or not 0 <= want.nbytes <= _MOST_BYTES:
            raise ValueError(f"there is no such piece of {want.file[:100]!r}")
        if offer.directory is None or want.file in offer.files:
            return Path(want.file)
        directory = offer.directory
        if want.beside:
            found = _BESIDE.fullmatch(want.beside)
            if found is None:
                raise ValueError(f"{want.beside[:100]!r} is no model's name and version")
            directory = directory.parent.parent / found[1] / found[2]
        return directory / want.file


def _offer(message: OFFERS) -> _Offer:
    if isinstance(message, Load | Read):
        return _Offer(Path(message.directory))
    if isinstance(message, MakeVariant):
        return _Offer(Path(message.directory), frozenset([message.snapshot] if message.snapshot else []))
    backbone = message.spec.get("backbone")
    files = [message.snapshot]
    if message.start:
        files += [message.start, optimiser_file(message.start)]
    return _Offer(Path(backbone["directory"]) if backbone else None, frozenset(files))


class _Hashes:
    """Of files that were hashed, while they are as they were then."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], str]] = {}

    def told(self, want: WantPiece, path: Path) -> FilePiece:
        """In a thread."""
        try:
            with open_regular(path) as file:
                state = os.fstat(file.fileno())
                stamp = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                known = self._known.get(path)
                if known is None or known[0] != stamp:
                    known = stamp, hashlib.file_digest(file, "sha256").hexdigest()
                    self._keep(path, known)
                return FilePiece(want.id, [b""], state.st_size, sha256=known[1])
        except FileNotFoundError:
            return FilePiece(want.id, [b""], -1)
        except OSError as exc:
            return _unread(want, path, exc)

    def _keep(self, path: Path, known: tuple[tuple[int, ...], str]) -> None:
        self._known[path] = known
        for other in list(self._known)[:-_MOST_HASHES]:
            self._known.pop(other, None)


def _piece(want: WantPiece, path: Path) -> FilePiece:
    """In a thread."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(want.at)
            return FilePiece(want.id, [file.read(want.nbytes)], size)
    except OSError as exc:
        return _unread(want, path, exc)


def _unread(want: WantPiece, path: Path, exc: OSError) -> FilePiece:
    return FilePiece(want.id, [b""], 0, f"the server cannot read {path}: {exc.strerror}")
