"""Memory in one piece, whose pages can be given back while its addresses stay."""

from __future__ import annotations

import ctypes
import mmap
import os

__all__ = ["Region"]

_libc = ctypes.CDLL(None, use_errno=True)


class Region:
    """`nbytes` of zeros. Its pages are taken as they are first written, large ones where the kernel has any.

    view: the bytes, writable. Raises `OSError` where the process may have no more memory.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._pages = mmap.mmap(-1, max(1, nbytes), flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # a page of 4 KiB at a time, taking them costs more than copying
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._pages)[:nbytes]
        self.address: int = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))

    def give_back(self) -> None:
        """Its memory is the machine's again; what is read of it from now on is zeros."""
        self._pages.madvise(mmap.MADV_DONTNEED)
        self._protect(mmap.PROT_READ)  # so that it does not count for RLIMIT_DATA either

    def take(self) -> None:
        """It may be written again. Raises `OSError` where the process may have no more memory."""
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)

    def _protect(self, access: int) -> None:
        nbytes = ctypes.c_size_t(len(self._pages))
        if _libc.mprotect(ctypes.c_void_p(self.address), nbytes, ctypes.c_int(access)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def copy_from(self, source: Region, start: int, end: int) -> None:
        """Copies bytes `start` to `end` of `source` to the same place; other threads run meanwhile."""
        ctypes.memmove(self.address + start, source.address + start, end - start)

    def settle(self) -> None:
        """Returns once nothing is on its way into it: `copy_from` leaves nothing behind."""
