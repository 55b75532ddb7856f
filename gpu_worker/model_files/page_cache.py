"""What of a file is in the kernel's page cache already. Standard library only."""

from __future__ import annotations

import ctypes
import mmap

__all__ = ["cached_from"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_NOWHERE = ctypes.c_void_p(-1).value


def cached_from(descriptor: int, at: int, nbytes: int) -> int:
    """How many bytes from `at`, a multiple of a page, are there without a gap, at most `nbytes`.

    Looks without reading: a read that must not wait (RWF_NOWAIT) has the kernel read ahead what is not there.
    All count as there where the kernel does not say: of a file that this process might not write.
    Raises `OSError` where the file cannot be mapped.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, at)
    if address == _NOWHERE:
        raise OSError(ctypes.get_errno(), "the file cannot be mapped")
    try:
        pages = -(-nbytes // mmap.PAGESIZE)
        is_there = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, nbytes, is_there):
            raise OSError(ctypes.get_errno(), "the kernel does not say what of the file is in memory")
        found = is_there.raw.find(b"\0", 0, pages)
    finally:
        _libc.munmap(address, nbytes)
    return nbytes if found < 0 else min(nbytes, found * mmap.PAGESIZE)
