"""Files of the models that a worker is told to load, for one that does not see the server's: piece by piece.

It may have what lies in a stored version's folder, while a Load or a Read of that version is under way there,
and what lies beside it in the same folder of models. Knows no hashes: the worker checks them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from gpu_worker.model_files.regular import open_regular
from gpu_worker.wire.protocol import FilePiece, Message, WantPiece

__all__ = ["OfferedFiles"]

_MOST_BYTES = 1 << 20  # of a piece
_MOST_UNDER_WAY = 64  # pieces: each load has two
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,199}")
_BESIDE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.@-]{0,199})/([0-9]{1,10})")


class OfferedFiles:
    """Those of one worker."""

    def __init__(self) -> None:
        self._directories: dict[int, Path] = {}  # by message that is not answered
        self._under_way = 0

    def begun(self, message_id: int, directory: str) -> None:
        """A Load or a Read of what is stored there was sent."""
        self._directories[message_id] = Path(directory)

    def over(self, message_id: int) -> None:
        """It is answered."""
        self._directories.pop(message_id, None)

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

        asyncio.get_running_loop().run_in_executor(None, _piece, want, path).add_done_callback(was_read)

    def _path(self, want: WantPiece) -> Path:
        directory = self._directories.get(want.target)
        if directory is None:
            raise ValueError("no load of it is under way")
        if self._under_way >= _MOST_UNDER_WAY:
            raise ValueError(f"{_MOST_UNDER_WAY} pieces are on their way already")
        if not _NAME.fullmatch(want.file) or want.at < 0 or not 0 < want.nbytes <= _MOST_BYTES:
            raise ValueError(f"there is no such piece of {want.file[:100]!r}")
        if want.beside:
            found = _BESIDE.fullmatch(want.beside)
            if found is None:
                raise ValueError(f"{want.beside[:100]!r} is no model's name and version")
            directory = directory.parent.parent / found[1] / found[2]
        return directory / want.file


def _piece(want: WantPiece, path: Path) -> FilePiece:
    """In a thread."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(want.at)
            return FilePiece(want.id, [file.read(want.nbytes)], size)
    except OSError as exc:
        return FilePiece(want.id, [b""], 0, f"the server cannot read {path}: {exc.strerror}")
