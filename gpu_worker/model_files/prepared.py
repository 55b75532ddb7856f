"""Weights as they lie in memory, in a file of a cache folder: made once, read as they are.

    magic · u32 length · header (JSON) · SHA-256 of these · zeros up to 4096 · data

A file's name is its content: the SHA-256 of the weights that it was made of, what was made of them, and the
version of this layout. It appears whole or not at all, is flushed, and its data is read back and hashed
before it gets its name. Later its header is checked by its hash, and its size, inode and time of change
against those written in it: where they differ (a copy, a restored backup, a touched file) all data is hashed
as it is read. What fails is removed, and made anew from the weights. So a fault of the disk that leaves size
and times as they were is not seen. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from gpu_worker.model_files.page_cache import cached_from
from gpu_worker.model_files.regular import flush, open_regular

__all__ = ["LAYOUT_VERSION", "Prepared", "PreparedFiles", "Stamp", "content_of", "read_at", "stamp_of"]

_log = logging.getLogger(__name__)

LAYOUT_VERSION = 2
_MAGIC = b"ml_udf weights 1\n"
_LENGTH = struct.Struct("<I")
_MOST_HEADER_BYTES = 64 << 20
_PAGE = 4096
_PIECE_BYTES = 4 << 20
_COMING = ".coming-"
_SUFFIX = ".weights"

Stamp = tuple[int, ...]


def stamp_of(path: str) -> Stamp:
    """What changes when a file does: device, inode, size, times of change. Raises `OSError`."""
    found = os.stat(path, follow_symlinks=False)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def content_of(sha256: str, made_of_them: dict[str, Any]) -> str:
    """The name of what is made of weights, and of all that the result depends on beside them (for JSON)."""
    text = json.dumps([LAYOUT_VERSION, sha256, made_of_them], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_at(file: BufferedReader, view: memoryview, at: int) -> None:
    """Fills `view` from byte `at` of the file on. Raises `OSError`, at the end of the file too."""
    done = 0
    while done < len(view):
        got = os.preadv(file.fileno(), [view[done:]], at + done)
        if not got:
            raise OSError(None, f"{file.name} ends before its data does")
        done += got


@dataclass(slots=True)
class Prepared:
    """A file that is open. weights, stamp: of the weights that it was made of, their path and what they were.

    trusted: whether it is as it was written, by its size, inode and time; else its data must be hashed.
    """

    file: BufferedReader
    weights: str
    stamp: Stamp
    layout: Any
    nbytes: int
    begins: int
    sha256: str
    trusted: bool
    direct: int = -1  # a descriptor past the page cache, where there is one

    def read(self, view: memoryview, start: int) -> None:
        """Fills `view` from byte `start` of the data on. Raises `OSError`, at the end of the file too."""
        done = self._read_past_the_cache(view, self.begins + start)
        read_at(self.file, view[done:], self.begins + start + done)

    def close(self) -> None:
        """No more of it is wanted."""
        self.file.close()
        if self.direct >= 0:
            os.close(self.direct)

    def _read_past_the_cache(self, view: memoryview, at: int) -> int:
        """Bytes read: what is in the page cache from there, the rest straight from the disk.

        So the processor copies nothing twice. Fewer where that cannot be had: the filesystem has no such way,
        or memory or length are no multiples of its blocks.
        """
        if self.direct < 0:
            return 0
        done = 0
        with contextlib.suppress(OSError):
            cached = cached_from(self.file.fileno(), at, len(view))
            if cached:
                done = os.preadv(self.file.fileno(), [view[:cached]], at)
            if done < len(view):
                done += os.preadv(self.direct, [view[done:]], at + done)
        return done


class PreparedFiles:
    """Those of one folder, which several processes may share."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._swept = False

    def path(self, content: str) -> str:
        """Where the file of that content is, or would be."""
        return os.path.join(self._folder, content + _SUFFIX)

    def open(self, content: str) -> Prepared | None:
        """The file of that content; None where there is none. One that cannot be used is removed."""
        path = self.path(content)
        try:
            file = open_regular(path)
        except OSError:
            return None
        try:
            found = _opened(file, content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            file.close()
            self.refuse(content, str(exc))
            return None
        if hasattr(os, "O_DIRECT"):
            with contextlib.suppress(OSError):  # the very file that was looked over
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT
                found.direct = os.open(f"/proc/self/fd/{file.fileno()}", flags)
        return found

    def refuse(self, content: str, reason: str) -> None:
        """Removes a file that is not what it should be; it will be made anew."""
        _log.warning("%s is damaged and is made anew: %s", self.path(content), reason)
        try:
            os.unlink(self.path(content))
        except OSError as exc:
            _log.warning("%s cannot be removed: %s", self.path(content), exc.strerror)

    def write(self, content: str, weights: str, stamp: Stamp, layout: object, data: memoryview) -> None:
        """Makes the file. Raises `OSError`, such as for a full disk: nothing is left of it then."""
        import tempfile  # here, since a worker that writes none need not start with it

        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not self._swept:
            self._swept = True
            self.sweep()
        descriptor, coming = tempfile.mkstemp(prefix=_COMING, dir=self._folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # it is being written: `sweep` leaves it alone
            changed_ns = time.time_ns() // 1000 * 1000
            sha256 = hashlib.sha256(data).hexdigest()
            head = {
                "version": LAYOUT_VERSION,
                "content": content,
                "weights": weights,
                "stamp": stamp,
                "layout": layout,
                "nbytes": len(data),
                "sha256": sha256,
                "inode": os.fstat(descriptor).st_ino,
                "changed_ns": changed_ns,
            }
            begins = _write_head(descriptor, json.dumps(head, separators=(",", ":")).encode())
            for start in range(0, len(data), _PIECE_BYTES):
                _write_all(descriptor, data[start : start + _PIECE_BYTES], begins + start)
            os.fsync(descriptor)
            if _sha256_of(descriptor, begins, len(data)) != sha256:
                raise OSError(None, f"what was written to {coming} is not what was read from it")
            os.utime(descriptor, ns=(changed_ns, changed_ns))
            os.replace(coming, self.path(content))
        except BaseException:
            os.unlink(coming)
            raise
        finally:
            os.close(descriptor)
        flush(self._folder)

    def sweep(self) -> None:
        """Removes what processes left that died while they wrote, and files that nobody will ask for: their
        weights are gone, or their layout is a former one.
        """
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            try:
                if name.startswith(_COMING):
                    _remove_if_left(path)
                elif name.endswith(_SUFFIX):
                    with open_regular(path) as file:
                        head = _head_of(file)[0]
                    is_of_now = head.get("version") == LAYOUT_VERSION
                    if not (is_of_now and os.path.exists(str(head["weights"]))):
                        os.unlink(path)
            except (OSError, ValueError, KeyError) as exc:
                _log.info("%s is left as it is: %s", path, exc)


def _opened(file: BufferedReader, content: str) -> Prepared:
    found = os.fstat(file.fileno())
    if hasattr(os, "posix_fadvise"):  # read ahead by more at a time
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    head, begins = _head_of(file)
    nbytes = int(head["nbytes"])
    if head["content"] != content:
        raise ValueError("it is another's")
    if nbytes < 0 or found.st_size != begins + nbytes:
        raise ValueError(f"it has {found.st_size} bytes, and says that it has {begins + nbytes}")
    return Prepared(
        file=file,
        weights=str(head["weights"]),
        stamp=tuple(map(int, head["stamp"])),
        layout=head["layout"],
        nbytes=nbytes,
        begins=begins,
        sha256=str(head["sha256"]),
        trusted=(found.st_ino, found.st_mtime_ns) == (head["inode"], head["changed_ns"]),
    )


def _head_of(file: BufferedReader) -> tuple[dict[str, Any], int]:
    """The header, and where the data begins. Raises `ValueError`, `OSError`."""
    first = file.read(len(_MAGIC) + _LENGTH.size)
    if not first.startswith(_MAGIC) or len(first) < len(_MAGIC) + _LENGTH.size:
        raise ValueError("it does not begin as such a file does")
    (length,) = _LENGTH.unpack(first[len(_MAGIC) :])
    if length > _MOST_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes")
    text, digest = file.read(length), file.read(hashlib.sha256().digest_size)
    if hashlib.sha256(first + text).digest() != digest:
        raise ValueError("its header is not the one that was written")
    head = json.loads(text)
    if not isinstance(head, dict):
        raise ValueError("its header is no object")
    return head, _aligned(len(first) + len(text) + len(digest))


def _write_head(descriptor: int, text: bytes) -> int:
    """Where the data begins."""
    first = _MAGIC + _LENGTH.pack(len(text)) + text
    first += hashlib.sha256(first).digest()
    begins = _aligned(len(first))
    _write_all(descriptor, memoryview(first.ljust(begins, b"\0")), 0)
    return begins


def _aligned(end: int) -> int:
    return -(-end // _PAGE) * _PAGE


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while len(data):
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


def _sha256_of(descriptor: int, begins: int, nbytes: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, nbytes, _PIECE_BYTES):
        digest.update(os.pread(descriptor, min(_PIECE_BYTES, nbytes - start), begins + start))
    return digest.hexdigest()


def _remove_if_left(path: str) -> None:
    with open_regular(path) as file, _locked(file.fileno()) as is_mine:
        if is_mine:
            os.unlink(path)


@contextmanager
def _locked(descriptor: int) -> Iterator[bool]:
    """Whether nobody else holds the file; whoever does holds it until its process ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
