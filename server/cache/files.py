"""Which file a path names now, and whether it is still the same by its stamp."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpu_worker.pipeline.file_stamp import stamp_of
from gpu_worker.pipeline.media import MediaRoots

__all__ = ["FileStamps"]

Roots = Sequence[str] | None

_PATIENCE_S = 0.5
_THREADS = 2
_MOST_WAITING = 64  # pages of rows; beyond, a file server hangs, or more is asked than can be looked at


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
