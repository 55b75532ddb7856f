"""Photos that training reads, on the disk of a node that does not see them: each by its path, one file.

    FOLDER / pictures / HH / H / HASH         HH: of the photo's folder, H and HASH: of its path

They may leave at any time, as all that a node has fetched, those of a folder that was not used for longest
first. Nothing here is trusted: whoever reads one compares its hash with the server's, so that half a file, of
a machine that lost its power, is one that is not here. Who brings a photo holds its lock; other workers of
the node wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_worker.errors import Cancelled
from gpu_worker.model_files.fetched import FetchedModels

__all__ = ["KeptPicture", "KeptPictures"]

_log = logging.getLogger(__name__)

_LOOK_S = 0.02
_TRIES = 3  # its folder may leave before it is opened
_COMING = ".coming-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class KeptPictures:
    """Those in the folder of `files`, within its bounds."""

    def __init__(self, files: FetchedModels) -> None:
        self._files = files

    @contextlib.contextmanager
    def alone(self, path: str, is_over: Callable[[], bool]) -> Iterator[KeptPicture]:
        """The photo at that path of the server's, in nobody else's hands. Raises `Cancelled`.

        Where this disk is out of order it is neither here nor kept.
        """
        told = path.encode("utf-8", "surrogateescape")
        folder = hashlib.sha256(os.path.dirname(told)).hexdigest()[:2]
        name = hashlib.sha256(told).hexdigest()
        place = self._files.folder / "pictures" / folder / name[0] / name
        coming = place.parent / (_COMING + name)
        descriptor = -1
        try:
            descriptor = _locked(coming, is_over)
        except OSError as exc:
            _log.warning("photos are not kept in %s: %s", place.parent, exc)
        picture = KeptPicture(self._files, place, coming, descriptor)
        try:
            yield picture
        finally:
            picture.close()


class KeptPicture:
    """One of them, locked. descriptor: of the file that comes; below 0 where there can be none."""

    def __init__(self, files: FetchedModels, place: Path, coming: Path, descriptor: int) -> None:
        self._files = files
        self._place = place
        self._coming = coming
        self._descriptor = descriptor
        self._is_there = False  # under its own name

    def read(self) -> bytes:
        """What is here of it, or was once; b"" for nothing."""
        if self._descriptor < 0:
            return b""
        try:
            data = self._place.read_bytes()
            os.utime(self._place.parent)
        except OSError:
            return b""
        return data

    def write(self, data: bytes) -> None:
        """Keep it, if there is room."""
        if self._descriptor < 0 or not self._files.takes(len(data)):
            return
        while True:
            try:
                self._write(data)
            except FileNotFoundError:
                return  # its folder has just left
            except OSError as exc:
                if exc.errno in _FULL and self._files.free_some():
                    continue
                _log.warning("a photo is not kept in %s: %s", self._place.parent, exc)
                return
            self._is_there = True
            return

    def drop(self) -> None:
        """The server has none any more."""
        with contextlib.suppress(OSError):
            self._place.unlink()

    def close(self) -> None:
        """Let others have it."""
        if self._descriptor < 0:
            return
        if not self._is_there:
            with contextlib.suppress(OSError):
                self._coming.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, data: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        rest, at = memoryview(data), 0
        while len(rest):
            done = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[done:], at + done
        os.replace(self._coming, self._place)


def _locked(coming: Path, is_over: Callable[[], bool]) -> int:
    """A descriptor of that file, which nobody else holds. Raises `Cancelled`, `OSError`."""
    for _ in range(_TRIES):
        coming.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            try:
                descriptor = os.open(coming, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                break
            try:
                _lock(descriptor, is_over)
                if _is_at(descriptor, coming):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # whoever had it has brought it, or given it up
    raise FileNotFoundError(errno.ENOENT, "its folder left again and again", str(coming))


def _lock(descriptor: int, is_over: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_over():
                raise Cancelled("it was given up while another worker fetched a photo") from None
            time.sleep(_LOOK_S)
        else:
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        found, own = os.stat(path), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
