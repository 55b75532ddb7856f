"""Which file a path names now, and whether it is still the same: by its stamp, without reading it.

    stamp = device, inode, size, time of the last write, time of the last change of any kind

The second time is the kernel's, which nobody can set: a write after which the first time was set back shows
in it. A stamp tells versions of a file apart only once the clock has ticked since the last of them: a file
that was changed a moment ago has none yet (as git treats an index that is as young as its files).
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpu_worker.pipeline.media import MediaRoots

__all__ = ["FileStamps", "stamp_of"]

Roots = Sequence[str] | None

_STAMP = struct.Struct("<QQQqq")
_SECOND_NS = 1_000_000_000
# A filesystem whose times are whole seconds may count in steps of two of them (FAT); others tick with the
# kernel's clock, each 10 ms at the latest.
_COARSE_NS, _FINE_NS = 2 * _SECOND_NS + _SECOND_NS // 10, _SECOND_NS // 10
_PATIENCE_S = 0.5
_THREADS = 2
_MOST_WAITING = 64  # pages of rows; beyond, a file server hangs, or more is asked than can be looked at


def stamp_of(found: os.stat_result, now_ns: int) -> bytes:
    """The stamp of a file, of which was asked at `now_ns` (Unix time); b"" if it may have changed since and
    look the same.
    """
    tick_ns = _FINE_NS if found.st_ctime_ns % _SECOND_NS else _COARSE_NS
    if found.st_ctime_ns + tick_ns > now_ns:
        return b""
    return _STAMP.pack(
        found.st_dev & 0xFFFFFFFFFFFFFFFF, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


class FileStamps:
    """Below the folders that workers read, and below no other. In threads of its own: a file server that
    hangs keeps nothing waiting but them, and who asks waits for half a second at the most.
    """

    def __init__(self, media_roots: Sequence[str], *, patience_s: float = _PATIENCE_S) -> None:
        self._media = MediaRoots(media_roots)
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(_THREADS, "stamps")
        self._waiting = 0

    def close(self) -> None:
        """Stop. A thread that hangs is left to itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def of(self, paths: Sequence[bytes], function_roots: Roots, caller_roots: Roots) -> list[bytes]:
        """The stamp of the file at each path, as a worker would find it that may read below these roots.

        b"" where there is none, where it may not be read, and of all where it takes too long to say.
        """
        if self._waiting >= _MOST_WAITING:
            return [b""] * len(paths)
        roots = (function_roots, caller_roots)
        self._waiting += 1
        looking = asyncio.wrap_future(self._threads.submit(self._stamps, paths, roots))
        looking.add_done_callback(self._looked)
        try:
            # Not given up with whoever waits: what a thread is at goes on, and counts until it is over.
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(looking)
        except TimeoutError:
            return [b""] * len(paths)

    def _looked(self, _: asyncio.Future[list[bytes]]) -> None:
        self._waiting -= 1

    def _stamps(self, paths: Sequence[bytes], roots: Sequence[Roots]) -> list[bytes]:
        media = self._media
        for each in roots:
            media = media if each is None else media.only(each)
        now_ns = time.time_ns()  # before any is looked at: what changes later has another stamp
        return [b"" if each is None else stamp_of(each, now_ns) for each in media.files(paths)]
